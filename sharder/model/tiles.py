"""Which scores attn=flash computes: known while tracing, from the blocks that queries and keys lie in.

Queries are cut into runs where that spares enough scores, and a run has no keys behind the last that it may see:

                     keys   prefix          state and actions
    prefix queries          # # # # # #     .                     # computed: invisible ones among them are masked
    suffix queries          # # # # # #     #                     . not in the program

A run's queries and its keys are then cut evenly into tiles. T queries   S keys
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

LONGEST = 1024  # tokens of a tile: all of pi0 (867) or pi0.5 (1018 with a prompt of 200) fits one, and needs no loop
ROUND = 16  # tokens: tiles of a loop are multiples of it, as matrix units like them
SPARED = 128 * 128  # scores a head that a cut has to spare: for fewer, products of their own are not worth it
SPARED_BY_KERNEL = 128  # the same where a kernel may take one of the parts, which spares more than the cut does


@dataclass(frozen=True)
class Tiles:
    """Along one dim."""

    count: int
    size: int  # tokens

    @property
    def length(self) -> int:
        """With what the last tile is filled up."""
        return self.count * self.size


@dataclass(frozen=True)
class Run:
    """Queries `first` to `first + queries`, and keys 0 to `keys`."""

    first: int
    queries: int
    keys: int
    all_seen: bool  # every query may see every one of these keys, if it is valid
    query_tiles: Tiles
    key_tiles: Tiles


def runs(
    query_block: np.ndarray, key_block: np.ndarray, longest: int = LONGEST, spared: int = SPARED
) -> tuple[Run, ...]:
    """`query_block` [T] and `key_block` [S] as in BlockMask."""
    starts = np.flatnonzero(np.diff(query_block, prepend=query_block[0] - 1))
    stops = [*starts[1:], len(query_block)]
    of_one_block = [
        _Queries(int(first), int(stop), 1 + int(np.flatnonzero(key_block <= query_block[first]).max(initial=0)))
        for first, stop in zip(starts, stops, strict=True)
    ]
    return tuple(
        Run(
            first,
            stop - first,
            keys,
            bool(key_block[:keys].max() <= query_block[first:stop].min()),
            tiles(stop - first, longest),
            tiles(keys, longest),
        )
        for first, stop, keys in _cut(of_one_block, spared)
    )


class _Queries(NamedTuple):
    """`first` to `stop`, which see none of the keys from `keys` on."""

    first: int
    stop: int
    keys: int

    @property
    def scores(self) -> int:
        return (self.stop - self.first) * self.keys


def _cut(parts: list[_Queries], spared: int) -> list[_Queries]:
    """In two where that spares most, and so on, as long as it spares enough."""

    def joined(parts: list[_Queries]) -> _Queries:
        return _Queries(parts[0].first, parts[-1].stop, max(part.keys for part in parts))

    whole = joined(parts)
    left = {at: joined(parts[:at]).scores + joined(parts[at:]).scores for at in range(1, len(parts))}
    best = min(left, key=lambda at: left[at], default=None)
    if best is None or whole.scores - left[best] < spared:
        return [whole]
    return _cut(parts[:best], spared) + _cut(parts[best:], spared)


def tiles(length: int, longest: int) -> Tiles:
    count = -(-length // longest)
    return Tiles(1, length) if count == 1 else Tiles(count, -(-length // (count * ROUND)) * ROUND)


def scored(query_block: np.ndarray, key_block: np.ndarray, spared: int = SPARED) -> np.ndarray:
    """[T] int: how many keys each query is multiplied with; the rows that fill a tile count with the run's last query.

    Multiplied, not seen: with keys that are masked afterwards, and with those that fill a tile.
    """
    found = np.zeros(len(query_block), int)
    for run in runs(query_block, key_block, spared=spared):
        found[run.first : run.first + run.queries] = run.key_tiles.length
        found[run.first + run.queries - 1] += (run.query_tiles.length - run.queries) * run.key_tiles.length
    return found


def filled(x: jax.Array, length: int) -> jax.Array:
    """With zeros behind dim 1."""
    more = length - x.shape[1]
    return jnp.pad(x, ((0, 0), (0, more), *((0, 0),) * (x.ndim - 2))) if more else x
