"""The order of examples: a pure function of (seed, epoch), with nothing stored and nothing to skip over.

An epoch visits every example once, in the order of a keyed permutation of [0, n). The permutation is computed, not
shuffled: a Feistel network scrambles numbers of 2h bits (a permutation whatever its round function is), and a result
that falls outside [0, n) is scrambled again until it falls inside (cycle walking: fewer than four rounds on average,
since 4^h is the smallest power of four that holds n). So any position of any epoch costs the same: resuming at step
10^6 is arithmetic, and no process holds a list of the data set.
"""

from __future__ import annotations

import numpy as np

from sharder.errors import UserError

ROUNDS = 8
MAX_EXAMPLES = 2**40

_MASK_64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: steps through all 64-bit numbers
_MIX_1 = 0xBF58476D1CE4E5B9  # multipliers of the splitmix64 finalizer
_MIX_2 = 0x94D049BB133111EB


def examples_at(seed: int, epoch: int, positions: np.ndarray, n: int) -> np.ndarray:
    """The examples (int64, in [0, n)) at these positions of this epoch's order."""
    if not 1 <= n <= MAX_EXAMPLES:
        raise ValueError(f"n={n} is outside [1, 2^40]")
    found = np.atleast_1d(np.asarray(positions)).astype(np.int64)
    if found.size and not (found.min() >= 0 and found.max() < n):
        raise ValueError(f"positions [{found.min()}, {found.max()}] are not all inside [0, {n})")
    half_bits = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = _round_keys(seed, epoch)
    values = _scramble(found.astype(np.uint64), keys, half_bits)
    while (outside := values >= n).any():
        values[outside] = _scramble(values[outside], keys, half_bits)
    return values.astype(np.int64).reshape(np.shape(positions))


def batches_per_epoch(n: int, batch_size: int) -> int:
    """Whole batches of one pass over n examples; the incomplete last one is dropped (another remainder each epoch)."""
    if n < batch_size:
        raise UserError(
            f"train.batch_size={batch_size} is more than the {n} examples of the data set: "
            f"set train.batch_size to at most {n}, or select more episodes (data.episodes)"
        )
    return n // batch_size


def step_position(step: int, batches_per_epoch: int) -> tuple[int, int]:
    """(epoch, batch within the epoch) of a step: all the iterator state there is."""
    epoch, batch = divmod(step, batches_per_epoch)
    return epoch, batch


def _scramble(values: np.ndarray, keys: list[int], half_bits: int) -> np.ndarray:
    """One pass through the Feistel network on 2 * half_bits bits: left, right = right, left ^ hash(right)."""
    shift, mask = np.uint64(half_bits), np.uint64(2**half_bits - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + np.uint64(key)) & mask)
    return (left << shift) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """The splitmix64 finalizer, wrapping at 64 bits; its high bits, the best mixed, are folded onto the low ones."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_MIX_1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_MIX_2)
    return values ^ (values >> np.uint64(31)) ^ (values >> np.uint64(44))


def _round_keys(seed: int, epoch: int) -> list[int]:
    """Eight 64-bit keys. Seed and epoch are mixed one after the other, so that (1, 0) and (0, 1) share nothing."""
    state = _mix_int(_mix_int(seed + _GOLDEN) ^ _mix_int(epoch * _GOLDEN + 1))
    return [_mix_int(state + (index + 1) * _GOLDEN) for index in range(ROUNDS)]


def _mix_int(value: int) -> int:
    """`_mix` of one Python int: numpy scalars would warn on the wrap-around."""
    value &= _MASK_64
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK_64
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK_64
    return value ^ (value >> 31) ^ (value >> 44)
