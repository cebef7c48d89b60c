"""Who holds which slice of every weight: a table, derived from shapes alone.

A weight is split along the fsdp axis on one of its dims, or held whole by every device. The dim of a stack of layers
(dim 0 of `.../layers/...`) is never split: the scan runs along it.

    gather             the first dim that divides, so that slices are whole rows and gathering them copies nothing;
                       the token table by its last dim, so that rows are looked up without gathering the table
    auto, published    the largest dim that divides
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sharder.config import LayoutConfig
from sharder.errors import UserError
from sharder.parallel.mesh import FSDP

LAYERS = "layers"  # a path with this part in it is a stack of layers
TABLE = "gemma/table"  # of the prompt's tokens
WORTH_NAMING = 2**20  # bytes: a weight of this size that every device holds whole is named in the log


@dataclass(frozen=True)
class Slicing:
    """How one weight is held."""

    dim: int | None  # of the whole array, stack included; None: held whole by every device
    together: bool  # too small for a collective of its own: its gradient is summed packed with others
    stacked: bool

    @property
    def layer_dim(self) -> int | None:
        """The dim, of one layer's weight."""
        return self.dim if self.dim is None or not self.stacked else self.dim - 1

    @property
    def spec(self) -> PartitionSpec:
        return PartitionSpec() if self.dim is None else PartitionSpec(*[None] * self.dim, FSDP)


Layout = Mapping[str, Slicing]  # by path of the weight


def make_layout(weights: Mapping[str, Any], config: LayoutConfig, mesh: Mesh) -> Layout:
    """`weights`: arrays or their shapes, by path. UserError when the fsdp axis divides nothing."""
    shards = mesh.shape[FSDP]
    layout = {path: _slicing(path, weight, config, shards) for path, weight in weights.items()}
    if shards > 1 and all(slicing.dim is None for slicing in layout.values()):
        raise UserError(
            f"mesh.fsdp: found {shards}, which divides no dim of any weight of layout.min_shard_bytes="
            f"{config.min_shard_bytes} bytes or more; allowed: a divisor of the model's widths; choose another mesh"
        )
    return layout


def _slicing(path: str, weight: Any, config: LayoutConfig, shards: int) -> Slicing:
    stacked = LAYERS in path.split("/")
    first = 1 if stacked else 0
    shape = weight.shape[first:]
    small = len(shape) < 2 or math.prod(shape) * weight.dtype.itemsize < config.min_shard_bytes
    if small or shards == 1:
        return Slicing(None, small, stacked)
    dims = [dim for dim, size in enumerate(shape) if size % shards == 0]
    if config.name == "gather" and path == TABLE:
        dims = [dim for dim in dims if dim == len(shape) - 1]
    if not dims:
        return Slicing(None, False, stacked)
    dim = dims[0] if config.name == "gather" else max(dims, key=lambda dim: shape[dim])
    return Slicing(first + dim, False, stacked)


def placements(state: Any, layout: Layout, mesh: Mesh) -> Any:
    """A NamedSharding for every leaf of a state: moments and averages lie like the weights of their path."""

    def placement(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        slicing = layout.get(names[-1]) if names else None
        return NamedSharding(mesh, PartitionSpec() if slicing is None else slicing.spec)

    return jax.tree_util.tree_map_with_path(placement, state)


def specs(paths: Mapping[str, Any], layout: Layout) -> dict[str, PartitionSpec]:
    return {path: layout[path].spec for path in paths}


def placed(tree: Any, shardings: Any) -> Any:
    """Abstract arrays that know where they belong; `shardings` is a tree like `tree`, or one for all its leaves."""
    if isinstance(shardings, jax.sharding.Sharding):
        shardings = jax.tree.map(lambda _: shardings, tree)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)


def device_bytes(tree: Any) -> int:
    """What one device holds of a tree of placed arrays, abstract or not."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def held_whole(weights: Mapping[str, Any], layout: Layout) -> list[str]:
    """The large weights that every device holds whole, with their MB, largest first."""
    sizes = {path: weights[path].size * weights[path].dtype.itemsize for path, s in layout.items() if s.dim is None}
    large = sorted((path for path, size in sizes.items() if size > WORTH_NAMING), key=lambda path: -sizes[path])
    return [f"{path} ({sizes[path] / 1e6:.1f} MB)" for path in large]


def table_text(weights: Mapping[str, Any], layout: Layout) -> str:
    """The table, a line a weight: `path dtype[shape] dim` where dim is the split one or `whole` or `packed`."""
    lines = []
    for path, slicing in sorted(layout.items()):
        weight = weights[path]
        where = f"dim {slicing.dim}" if slicing.dim is not None else "packed" if slicing.together else "whole"
        lines.append(f"{path} {weight.dtype}{list(weight.shape)} {where}")
    return "\n".join(lines) + "\n"
