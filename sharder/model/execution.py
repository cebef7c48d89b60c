"""How the same function is executed: the choices that must never change a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from sharder.model.attention import IMPLEMENTATIONS, Attention
from sharder.model.weight import LayerHook

POLICIES: dict[str, Any] = {  # what a layer's forward pass keeps for its backward pass
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def keep(weights: nnx.State) -> nnx.State:
    """The layer hook of an unsharded model."""
    return weights


@dataclass(frozen=True)
class Execution:
    attention: str = "naive"
    remat: str = "none"
    layer_hook: LayerHook = keep

    @property
    def attend(self) -> Attention:
        return IMPLEMENTATIONS[self.attention]

    def scan_layers(self, layers: nnx.Module, step: Callable, carry: Any, per_layer: Any = None) -> tuple[Any, Any]:
        """Runs `step(layer, carry, layer's part of per_layer) -> (carry, output)` over layers stacked on dim 0."""
        graph, weights = nnx.split(layers)

        def body(carry: Any, scanned: Any) -> tuple[Any, Any]:
            layer_weights, part = scanned
            return step(nnx.merge(graph, self.layer_hook(layer_weights)), carry, part)

        if self.remat != "none":
            body = jax.checkpoint(body, policy=POLICIES[self.remat], prevent_cse=False)
        return jax.lax.scan(body, carry, (weights, per_layer))
