"""How the same function is executed: the choices that must never change a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from sharder.config import Config
from sharder.model.attention import ATTENDING, IMPLEMENTATIONS, Attention, ablated
from sharder.model.flash import ATTENDED, flash
from sharder.model.fused import KEPT, Fused
from sharder.model.layer_norm import STATISTICS
from sharder.model.weight import LayerHook, RowHook

ABLATED = "ablated"  # no option of attn: it changes the result, and serves to measure what attention costs
GATHERED = "gathered weights"  # the name of what a layer hook brought together: never kept for the backward pass


def all_but_gathered(primitive: Any, *_: Any, **parameters: Any) -> bool:
    """Keep everything, as without remat, but no weight that a hook brought together, under whatever name."""
    return primitive.name not in ("custom_vjp_call", "all_gather") and parameters.get("name") != GATHERED


def by_kernel(primitive: Any, *_: Any, **__: Any) -> bool:
    """Keep what the fused kernel gave."""
    return bool(primitive.name == KEPT)


def and_left_over(policy: Any) -> Any:
    """And what attention takes, and what flash attention and norms leave for their backward passes."""
    either, named = jax.checkpoint_policies.save_from_both_policies, jax.checkpoint_policies.save_only_these_names
    return either(policy, either(named(ATTENDING, ATTENDED, STATISTICS), by_kernel))


POLICIES: dict[str, Any] = {  # what a layer's forward pass keeps for its backward pass
    "dots": and_left_over(jax.checkpoint_policies.dots_saveable),
    "dots_no_batch": and_left_over(jax.checkpoint_policies.dots_with_no_batch_dims_saveable),
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
    absent_cameras: bool = False  # run all the same, masked
    unroll: bool = False  # layers written out instead of a loop
    fused: Fused | None = None  # a kernel for part of attn=flash
    layer_hook: LayerHook = as_held
    take_rows: RowHook = rows_as_held
    carry_hook: Callable[[Any], Any] = as_placed  # of a tree of arrays [B, ...]

    @property
    def attend(self) -> Attention:
        if self.fused is not None and self.attention == "flash":
            return partial(flash, fused=self.fused)
        return ablated if self.attention == ABLATED else IMPLEMENTATIONS[self.attention]

    def scan_layers(
        self,
        stack: str,
        layers: nnx.Module,
        step: Callable,
        carry: Any,
        per_layer: Any = None,
        last_step: Callable | None = None,
    ) -> tuple[Any, Any]:
        """Runs `step(layer, carry, layer's part of per_layer) -> (carry, output)` over layers stacked on dim 0.

        `stack` is the layers' path in the model. `last_step`: that of the last layer, if it can do with less; a loop
        runs all layers alike.
        """
        graph, weights = nnx.split(layers)
        depth = jax.tree.leaves(weights)[0].shape[0]

        def turn(step: Callable) -> Callable:
            def body(carry: Any, scanned: Any) -> tuple[Any, Any]:
                number, layer_weights, part = scanned
                layer = nnx.merge(graph, self.layer_hook(stack, number, layer_weights))
                carry, output = step(layer, self.carry_hook(carry), part)
                return self.carry_hook(carry), output

            if self.remat == "none" and self.layer_hook is as_held:
                return body
            # A loop's turns are apart from each other. Written out, XLA would see that what is computed again was
            # computed before, and keep that.
            return jax.checkpoint(body, policy=POLICIES[self.remat], prevent_cse=self.unroll)

        with jax.named_scope("layers"):
            if not self.unroll:
                return jax.lax.scan(turn(step), carry, (jnp.arange(depth), weights, per_layer))
            outputs = []
            for number, scanned in enumerate(_unstacked((weights, per_layer), depth)):
                chosen = last_step if last_step and number == depth - 1 else step
                carry, output = turn(chosen)(carry, (jnp.int32(number), *scanned))
                outputs.append(output)
            return carry, jax.tree.map(lambda *parts: jnp.stack(parts), *outputs)


def _unstacked(tree: Any, depth: int) -> list[Any]:
    """Along dim 0, so that gradients come back by joining them once."""
    leaves, structure = jax.tree.flatten(tree)
    parts = [[part.squeeze(0) for part in jax.lax.split(leaf, [1] * depth)] for leaf in leaves]
    return [jax.tree.unflatten(structure, [part[number] for part in parts]) for number in range(depth)]


def make_execution(config: Config) -> Execution:
    work = config.work
    return Execution(config.attn.name, config.remat.name, work.cameras_together, work.absent_cameras, work.unroll)
