"""Loss and gradients as a program of one device: layout gather, with every collective written down.

    n devices along fsdp   b examples of this device   A microbatches   T tokens   V rows and D columns of the table

    before the layers   weights outside them are gathered; the prompt's rows are looked up where their columns lie
    in each layer       forward: weights cast to the compute dtype, gathered, used, dropped
                        backward: gathered again, used, dropped; gradients summed, each device keeping its slice
    after the layers    the gradients of everything else are summed, the small ones packed together

With several microbatches the gradients add up on each device, and are summed over devices once, after the last: then
each device has room for all gradients, whole, in float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from sharder.model.execution import GATHERED, Execution
from sharder.model.weight import LayerHook, Weights, travels_as
from sharder.parallel.collectives import Collectives, gather_and_scatter, gather_beside
from sharder.parallel.layout import TABLE, Layout
from sharder.parallel.mesh import FSDP
from sharder.training.accumulation import Examples, add_up, microbatches

Losses = Callable[[Weights, Any, jax.Array, Execution], jax.Array]  # weights, batch, keys -> [B] float32


@dataclass(frozen=True)
class OneDevice:
    losses: Losses
    execution: Execution
    layout: Layout
    collectives: Collectives
    compute_dtype: DTypeLike
    batch_size: int  # global
    accumulation: int

    def __call__(self, trainable: Weights, frozen: Weights, examples: Examples) -> tuple[jax.Array, Weights, jax.Array]:
        """Slices of the weights and this device's examples -> mean loss, its gradients like `trainable`, their norm."""
        held, tokens = trainable | frozen, examples[0]["tokens"]
        hook = self.tapped_hook(held, trainable) if self.accumulation > 1 else self.hook
        run = dataclasses.replace(self.execution, layer_hook=hook, take_rows=lambda rows, tokens: rows)
        used = self.used(held, trainable) | {TABLE: microbatches(self.look_up(held[TABLE], tokens), self.accumulation)}

        def loss_of(differentiated: Weights, part: Any) -> jax.Array:
            (batch, keys), number = part
            weights = used | differentiated
            weights[TABLE] = weights[TABLE][number]
            return self.losses(weights, batch, keys, run).sum() / self.batch_size

        parts = microbatches(examples, self.accumulation), jnp.arange(self.accumulation)
        loss, own = add_up(loss_of, {path: used[path] for path in trainable}, parts)
        gradients = self.sum_over_devices(own, tokens, trainable)
        return self.collectives.sum_scalars(loss), gradients, self.norm(gradients)

    def used(self, held: Weights, trainable: Weights) -> Weights:
        """What the loss is a function of: outside the layers whole weights; in them slices, or taps in their place."""
        used = {}
        for path, weight in held.items():
            slicing = self.layout[path]
            if not slicing.stacked and path != TABLE:
                used[path] = self.collectives.gather(weight, slicing.dim)
            elif self.accumulation > 1 and path in trainable and slicing.stacked and not slicing.together:
                used[path] = jnp.zeros(self._whole_shape(path, weight), jnp.float32)
            else:
                used[path] = weight
        return used

    def _whole_shape(self, path: str, weight: jax.Array) -> tuple[int, ...]:
        dim = self.layout[path].dim
        return tuple(size * (self.collectives.fsdp if i == dim else 1) for i, size in enumerate(weight.shape))

    def hook(self, stack: str, number: jax.Array, layer: nnx.State) -> nnx.State:
        """A layer's weights whole; small ones are held whole already, and their gradients summed after the layers."""

        def ready(path: str, weight: jax.Array) -> jax.Array:
            slicing, dtype = self.layout[path], travels_as(path, weight.dtype, self.compute_dtype)
            if slicing.together:
                return weight
            return gather_and_scatter(weight, slicing.layer_dim, dtype, self.collectives)

        return _by_path(ready, stack, layer)

    def tapped_hook(self, held: Weights, trainable: Weights) -> LayerHook:
        """The same, with each device's own gradient left where the tap is."""

        def hook(stack: str, number: jax.Array, layer: nnx.State) -> nnx.State:
            def ready(path: str, tap: jax.Array) -> jax.Array:
                slicing = self.layout[path]
                if slicing.together:
                    return tap
                weight = jax.lax.dynamic_index_in_dim(held[path], number, keepdims=False)
                dtype = travels_as(path, weight.dtype, self.compute_dtype)
                if path not in trainable:
                    return self.collectives.gather(weight.astype(dtype), slicing.layer_dim)
                return gather_beside(weight, tap, slicing.layer_dim, dtype, self.collectives)

            return _by_path(ready, stack, layer)

        return hook

    def _by_columns(self) -> bool:
        return self.layout[TABLE].dim is not None

    def look_up(self, table: jax.Array, tokens: jax.Array) -> jax.Array:
        """[V, D/n] and [b, T] -> [b, T, D]: everyone's tokens travel, and the rows found, but no table."""
        if not self._by_columns():
            return jnp.take(table, tokens, axis=0)
        with jax.named_scope("embedding"):
            rows = jnp.take(table, self.collectives.gather_examples(tokens), axis=0)  # [n, b, T, D/n]
            return self.collectives.swap_rows_for_columns(rows)

    def table_gradient(self, rows: jax.Array, tokens: jax.Array, table: jax.Array) -> jax.Array:
        """The gradient of `look_up`'s rows, [A, b/A, T, D] -> [V, D/n] float32, summed over all devices."""
        rows = rows.astype(jnp.float32).swapaxes(0, 1).reshape(-1, *rows.shape[2:])  # [b, T, D]
        zero = jnp.zeros(table.shape, jnp.float32)
        with jax.named_scope("embedding"), jax.named_scope("table_gradient"):
            if not self._by_columns():
                return self.collectives.sum_slices(zero.at[tokens].add(rows), None)
            everyones = self.collectives.swap_columns_for_rows(rows)  # [n, b, T, D/n]
            return self.collectives.sum_over_groups(zero.at[self.collectives.gather_examples(tokens)].add(everyones))

    def sum_over_devices(self, own: Weights, tokens: jax.Array, trainable: Weights) -> Weights:
        """This device's gradients of `used` -> everyone's, of the slices it holds."""
        small = {path: x for path, x in own.items() if self.layout[path].together and path != TABLE}
        packed = self.collectives.sum_packed(small)
        gradients = {}
        for path, weight in trainable.items():
            slicing = self.layout[path]
            if path == TABLE:
                gradient = self.table_gradient(own[path], tokens, weight)
            elif slicing.together:
                gradient = packed[path]
            elif slicing.stacked and self.accumulation == 1:
                gradient = own[path]  # summed in the layer
            else:
                gradient = self.collectives.sum_slices(own[path], slicing.dim)
            gradients[path] = gradient.astype(weight.dtype)
        return gradients

    def norm(self, gradients: Weights) -> jax.Array:
        """Of the whole gradients: the squares of slices are summed over devices, those of whole weights count once."""
        sliced = whole = jnp.float32(0)
        with jax.named_scope("gradient_norm"):
            for path, gradient in gradients.items():
                squares = jnp.square(gradient.astype(jnp.float32)).sum()
                if self.layout[path].dim is None:
                    whole += squares
                else:
                    sliced += squares
            return jnp.sqrt(self.collectives.sum_scalars(sliced, (FSDP,)) + whole)


def _by_path(ready: Callable[[str, jax.Array], jax.Array], stack: str, layer: nnx.State) -> nnx.State:
    """`ready(path, weight)` for every weight of a layer. No remat policy keeps what it returns."""
    made = []
    for names, variable in nnx.to_flat_state(layer):
        weight = ready(f"{stack}/{'/'.join(map(str, names))}", variable[...])
        made.append((names, variable.replace(checkpoint_name(weight, GATHERED))))
    return nnx.from_flat_state(made)
