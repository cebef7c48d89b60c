"""Collectives of the gather layout, for use inside `jax.shard_map`: each named for what it is for.

    n devices along an axis   x [..., n k, ...] an array whose dim is split in n slices of k

A sum over devices is written in one of two ways:

    fixed_order   all-to-all, then a sum in the order of the devices: the same bits whether the devices belong to one
                  process or to many, in float32 whatever travels; as many bytes as a reduce-scatter
    transport     psum_scatter or psum: whatever order and precision the transport has
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from sharder.parallel.mesh import BATCH, FSDP


@dataclass(frozen=True)
class Collectives:
    """Of one mesh: `batch` and `fsdp` are the sizes of its axes."""

    batch: int
    fsdp: int
    fixed_order: bool

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """(name, size) of the axes that there is something to do along."""
        return tuple((name, size) for name, size in ((FSDP, self.fsdp), (BATCH, self.batch)) if size > 1)

    def gather(self, x: jax.Array, dim: int | None) -> jax.Array:
        """The slices [..., k, ...] of all devices along fsdp -> [..., n k, ...]."""
        if dim is None or self.fsdp == 1:
            return x
        with jax.named_scope("gather_weights"):
            return jax.lax.all_gather(x, FSDP, axis=dim, tiled=True)

    def sum_slices(self, x: jax.Array, dim: int | None) -> jax.Array:
        """Each device's [..., n k, ...] -> the sum over all devices, of which each keeps its slice [..., k, ...].

        `dim` None: the sum, whole. float32.
        """
        with jax.named_scope("reduce_gradients"):
            if dim is not None and self.fsdp > 1:
                x = self.sum_over_groups(self._scatter(x, FSDP, self.fsdp, dim))
            else:
                x = self._sum_everywhere(x)
            return x.astype(jnp.float32)

    def sum_packed(self, arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Many small arrays, summed over all devices in one collective an axis. float32."""
        if not arrays:
            return {}
        with jax.named_scope("reduce_gradients"):
            packed = jnp.concatenate([x.astype(jnp.float32).reshape(-1) for x in arrays.values()])
            packed = self._sum_everywhere(packed)
            ends = list(itertools.accumulate(x.size for x in arrays.values()))
            parts = jnp.split(packed, ends[:-1])
            return {path: part.reshape(x.shape) for (path, x), part in zip(arrays.items(), parts, strict=True)}

    def sum_over_groups(self, x: jax.Array) -> jax.Array:
        """Slices that are complete within each group of fsdp devices, summed over the groups."""
        return self._sum(x, BATCH, self.batch) if self.batch > 1 else x

    def sum_scalars(self, x: jax.Array, axes: tuple[str, ...] = (FSDP, BATCH)) -> jax.Array:
        """A few numbers of every device, summed in the order of the devices: [...] float32."""
        for axis, _ in (pair for pair in self.axes if pair[0] in axes):
            x = jax.lax.all_gather(x, axis).sum(0)
        return x

    def swap_rows_for_columns(self, x: jax.Array) -> jax.Array:
        """[n, b, ..., D/n]: every device's examples, my columns -> [b, ..., D]: my examples, all columns."""
        if self.fsdp == 1:
            return x[0]
        mine = jax.lax.all_to_all(x, FSDP, split_axis=0, concat_axis=0)  # [n, b, ..., D/n]: my examples, by column
        return jnp.moveaxis(mine, 0, -2).reshape(*x.shape[1:-1], -1)

    def swap_columns_for_rows(self, x: jax.Array) -> jax.Array:
        """The inverse: [b, ..., D] -> [n, b, ..., D/n]."""
        if self.fsdp == 1:
            return x[None]
        by_column = jnp.moveaxis(x.reshape(*x.shape[:-1], self.fsdp, -1), -2, 0)
        return jax.lax.all_to_all(by_column, FSDP, split_axis=0, concat_axis=0)

    def gather_examples(self, x: jax.Array) -> jax.Array:
        """[b, ...] -> [n, b, ...]: those of every device along fsdp."""
        return x[None] if self.fsdp == 1 else jax.lax.all_gather(x, FSDP)

    def _scatter(self, x: jax.Array, axis: str, size: int, dim: int) -> jax.Array:
        if not self.fixed_order:
            return jax.lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=True)
        by_owner = jnp.moveaxis(x.reshape(*x.shape[:dim], size, -1, *x.shape[dim + 1 :]), dim, 0)
        by_sender = jax.lax.all_to_all(by_owner, axis, split_axis=0, concat_axis=0)
        return by_sender.astype(jnp.float32).sum(0)

    def _sum_everywhere(self, x: jax.Array) -> jax.Array:
        for axis, size in self.axes:
            x = self._sum(x, axis, size)
        return x

    def _sum(self, x: jax.Array, axis: str, size: int) -> jax.Array:
        if not self.fixed_order:
            return jax.lax.psum(x, axis)
        padded = jnp.pad(x.reshape(-1), (0, -x.size % size))
        mine = self._scatter(padded, axis, size, 0)
        return jax.lax.all_gather(mine, axis, tiled=True)[: x.size].reshape(x.shape)


def gather_and_scatter(held: jax.Array, dim: int | None, dtype: DTypeLike, collectives: Collectives) -> jax.Array:
    """Forward: slices, cast to `dtype`, become the whole weight. Backward: the gradients of all devices are summed and
    each keeps its slice. Nothing is kept between the two.
    """

    @jax.custom_vjp
    def use(held: jax.Array) -> jax.Array:
        return collectives.gather(held.astype(dtype), dim)

    def forward(held: jax.Array) -> tuple[jax.Array, None]:
        return use(held), None

    def backward(_: None, gradient: jax.Array) -> tuple[jax.Array]:
        return (collectives.sum_slices(gradient, dim).astype(held.dtype),)

    use.defvjp(forward, backward)
    return use(held)


def gather_beside(
    held: jax.Array, tap: jax.Array, dim: int | None, dtype: DTypeLike, collectives: Collectives
) -> jax.Array:
    """Forward: as above. Backward: this device's own gradient, to `tap`, and no collective.

    `tap` has the shape of the whole weight; its values are not read. What arrives there is added up over microbatches.
    """

    @jax.custom_vjp
    def use(tap: jax.Array, held: jax.Array) -> jax.Array:
        return collectives.gather(held.astype(dtype), dim)

    def forward(tap: jax.Array, held: jax.Array) -> tuple[jax.Array, None]:
        return use(tap, held), None

    def backward(_: None, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
        return gradient.astype(tap.dtype), jnp.zeros_like(held)

    use.defvjp(forward, backward)
    return use(tap, jax.lax.stop_gradient(held))
