"""How the same function is executed: the choices that must never change a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from sharder.config import Config
from sharder.model.attention import IMPLEMENTATIONS, Attention, ablated
from sharder.model.flash import ATTENDED
from sharder.model.weight import LayerHook, RowHook

ABLATED = "ablated"  # no option of attn: it changes the result, and serves to measure what attention costs
GATHERED = "gathered weights"  # the name of what a layer hook brought together: never kept for the backward pass


def all_but_gathered(primitive: Any, *_: Any, **parameters: Any) -> bool:
    """Keep everything, as without remat, but no weight that a hook brought together, under whatever name."""
    return primitive.name not in ("custom_vjp_call", "all_gather") and parameters.get("name") != GATHERED


def and_attended(policy: Any) -> Any:
    """And what flash attention left for its backward pass: as small as its queries, and dear to compute again."""
    return jax.checkpoint_policies.save_from_both_policies(
        policy, jax.checkpoint_policies.save_only_these_names(ATTENDED)
    )


POLICIES: dict[str, Any] = {  # what a layer's forward pass keeps for its backward pass
    "dots": and_attended(jax.checkpoint_policies.dots_saveable),
    "dots_no_batch": and_attended(jax.checkpoint_policies.dots_with_no_batch_dims_saveable),
    "full": jax.checkpoint_policies.nothing_saveable,
    "none": all_but_gathered,
}


def as_held(stack: str, number: jax.Array, weights: nnx.State) -> nnx.State:
    """The layer hook of weights that are held whole, or placed by XLA."""
    return weights


def rows_as_held(table_VD: jax.Array, rows: jax.Array) -> jax.Array:
    """The row hook of the same."""
    return jnp.take(table_VD, rows, axis=0)


def as_placed(carry: Any) -> Any:
    """The carry hook of what layers pass on, where XLA or a device's own program says where it lies."""
    return carry


@dataclass(frozen=True)
class Execution:
    attention: str = "naive"
    remat: str = "none"
    cameras_together: bool = True  # in one pass of the vision encoder
    layer_hook: LayerHook = as_held
    take_rows: RowHook = rows_as_held
    carry_hook: Callable[[Any], Any] = as_placed  # of a tree of arrays [B, ...]

    @property
    def attend(self) -> Attention:
        return ablated if self.attention == ABLATED else IMPLEMENTATIONS[self.attention]

    def scan_layers(
        self, stack: str, layers: nnx.Module, step: Callable, carry: Any, per_layer: Any = None
    ) -> tuple[Any, Any]:
        """Runs `step(layer, carry, layer's part of per_layer) -> (carry, output)` over layers stacked on dim 0.

        `stack` is the layers' path in the model.
        """
        graph, weights = nnx.split(layers)
        depth = jax.tree.leaves(weights)[0].shape[0]

        def body(carry: Any, scanned: Any) -> tuple[Any, Any]:
            number, layer_weights, part = scanned
            layer = nnx.merge(graph, self.layer_hook(stack, number, layer_weights))
            carry, output = step(layer, self.carry_hook(carry), part)
            return self.carry_hook(carry), output

        if self.remat != "none" or self.layer_hook is not as_held:
            body = jax.checkpoint(body, policy=POLICIES[self.remat], prevent_cse=False)
        with jax.named_scope("layers"):
            return jax.lax.scan(body, carry, (jnp.arange(depth), weights, per_layer))


def make_execution(config: Config) -> Execution:
    return Execution(config.attn.name, config.remat.name, config.work.cameras_together)
