"""The largest batch that fits, found by compiling: by doubling until one does not fit, then between the two.

Memory grows almost in proportion to the batch, so the next try is where a line through the two ends meets the limit,
and every other time the middle, for where it is no line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Tried:
    batch_size: int  # global
    bytes: int  # of one device
    fits: bool


def largest_that_fits(
    tried: Callable[[int], Tried], start: int, unit: int, most: int, limit_bytes: int
) -> tuple[Tried | None, list[Tried]]:
    """(what fits though the next multiple of `unit` does not, or is above `most`; all that was tried, in order).

    None: not even one `unit` fits. `tried(batch size)` compiles.
    """
    seen: list[Tried] = []
    fits: Tried | None = None  # the largest so far
    too_large: Tried | None = None  # the smallest so far
    units = start // unit
    while True:
        found = tried(units * unit)
        seen.append(found)
        fits, too_large = (found, too_large) if found.fits else (fits, found)
        if fits is None:
            if units == 1:
                return None, seen
            units //= 2
        elif too_large is None:
            if (units + 1) * unit > most:
                return fits, seen
            units = min(2 * units, most // unit)
        elif too_large.batch_size - fits.batch_size == unit:
            return fits, seen
        else:
            units = _between(fits, too_large, unit, limit_bytes, by_line=len(seen) % 2 == 0)


def _between(fits: Tried, too_large: Tried, unit: int, limit_bytes: int, by_line: bool) -> int:
    """So many units: more than fit, fewer than do not."""
    least, most = fits.batch_size // unit + 1, too_large.batch_size // unit - 1
    if not by_line:
        return (least + most) // 2
    share = (limit_bytes - fits.bytes) / max(1, too_large.bytes - fits.bytes)
    guess = (fits.batch_size + share * (too_large.batch_size - fits.batch_size)) // unit
    return max(least, min(most, int(guess)))
