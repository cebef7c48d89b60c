"""The arrays of a checkpoint's item, by TensorStore, which Orbax writes with: no jax, whatever devices wrote them.

Orbax's own JSON does not do: it says how large the slice of one device was (`write_shape`), and no dtype.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import tensorstore

from sharder.errors import UserError

TREE = "_METADATA"  # Orbax's JSON: the path of every array
CACHE_BYTES = 2**26  # for the index of an item, which is read once for all of its arrays
LONGEST_REASON = 160  # characters


@dataclass(frozen=True)
class Array:
    path: str  # slash-joined
    shape: tuple[int, ...]  # of the whole array, over all devices
    dtype: str
    bytes: int  # in memory; on disk it is compressed


def read_arrays(item: Path) -> list[Array]:
    """Paths, shapes and dtypes, in order of the paths; no value is read."""
    try:
        tree = json.loads((item / TREE).read_text())
        driver = "zarr3" if tree["use_zarr3"] else "zarr"
        paths = [tuple(key["key"] for key in leaf["key_metadata"]) for leaf in tree["tree_metadata"].values()]
        base = {"driver": "file", "path": f"{item}/"}
        context = tensorstore.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})
        opening = {
            "/".join(path): tensorstore.open(
                {"driver": driver, "kvstore": {"driver": "ocdbt", "base": base, "path": f"{'.'.join(path)}/"}},
                open=True,
                read=True,
                context=context,
            )
            for path in paths
        }
        opened = {path: future.result() for path, future in sorted(opening.items())}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        raise UserError(f"{item}: its arrays cannot be listed ({reason}); choose another step") from error
    return [_array(path, store.shape, store.dtype) for path, store in opened.items()]


def _array(path: str, shape: tuple[int, ...], dtype: tensorstore.dtype) -> Array:
    return Array(path, tuple(shape), dtype.name, math.prod(shape) * dtype.numpy_dtype.itemsize)
