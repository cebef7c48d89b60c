"""What each dimension of state and action is scaled by, computed from the numeric columns alone.

    N rows, D dimensions

mean_std    (x - mean) / (std + 1e-6)                  pi0
quantiles   2 (x - q01) / (q99 - q01 + 1e-6) - 1       pi0.5: 98% of the values lie in [-1, 1]
none        x

A dimension that hardly moves would be blown up by its own tiny range (a range of 0.001 sends a value one unit away
to 2000). `min_range` is put in place of any smaller quantile range, about the same centre, and the std of a normal
distribution with that range in place of any smaller std.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharder.errors import UserError

log = logging.getLogger(__name__)

MODES = ("mean_std", "quantiles", "none")
EPSILON = 1e-6
CHUNK_ROWS = 65_536  # rows held in float64 at a time
RANGE_OF_STD = 4.65  # a normal distribution's q99 - q01, in its std
LARGE = 10.0  # a normalised value beyond this is worth a warning


@dataclass(frozen=True, eq=False)
class FieldStats:
    """One number a dimension, float64 [D]. A file may lack the quantiles; what is computed here never does."""

    mean: np.ndarray
    std: np.ndarray
    q01: np.ndarray | None
    q99: np.ndarray | None

    @property
    def dims(self) -> int:
        return len(self.mean)


@dataclass(frozen=True, eq=False)
class Normalization:
    state: FieldStats
    actions: FieldStats


@dataclass(frozen=True, eq=False)
class Scaling:
    """normalised = (x - offset) / scale - shift, for one field and one mode. float64 inside, float32 outside."""

    offset: np.ndarray
    scale: np.ndarray
    shift: float
    floored: np.ndarray  # bool [D]: min_range stands in for the dimension's own range

    def normalise(self, values: np.ndarray) -> np.ndarray:
        return ((values - self.offset) / self.scale - self.shift).astype(np.float32)

    def unnormalise(self, values: np.ndarray) -> np.ndarray:
        """Back to the recording's unit; padded dimensions, past D, are dropped."""
        values = np.asarray(values, np.float64)[..., : len(self.offset)]
        return ((values + self.shift) * self.scale + self.offset).astype(np.float32)


def resolve_mode(mode: str, variant: str) -> str:
    """data.normalization=auto is what each model was trained with: pi0 mean_std, pi05 quantiles."""
    if mode == "auto":
        return "quantiles" if variant == "pi05" else "mean_std"
    if mode not in MODES:
        raise UserError(f"data.normalization={mode} is not one of auto, {', '.join(MODES)}")
    return mode


def scaling(stats: FieldStats, mode: str, min_range: float = 0.0) -> Scaling:
    if mode == "none":
        return Scaling(np.zeros(stats.dims), np.ones(stats.dims), 0.0, np.zeros(stats.dims, bool))
    if mode == "mean_std":
        floor = min_range / RANGE_OF_STD
        floored = stats.std < floor
        return Scaling(stats.mean, np.where(floored, floor, stats.std) + EPSILON, 0.0, floored)
    if mode != "quantiles":
        raise ValueError(f"unknown mode {mode}")
    if stats.q01 is None or stats.q99 is None:
        raise UserError(
            "data.normalization=quantiles needs q01 and q99, which data.normalization_file does not have: "
            "set data.normalization_file=null to compute them from the recording, or data.normalization=mean_std"
        )
    width = stats.q99 - stats.q01
    floored = width < min_range
    low = np.where(floored, (stats.q01 + stats.q99) / 2 - min_range / 2, stats.q01)
    return Scaling(low, (np.where(floored, min_range, width) + EPSILON) / 2, 1.0, floored)


def normalise(stats: FieldStats, values: np.ndarray, mode: str, min_range: float = 0.0) -> np.ndarray:
    return scaling(stats, mode, min_range).normalise(values)


def unnormalise(stats: FieldStats, values: np.ndarray, mode: str, min_range: float = 0.0) -> np.ndarray:
    return scaling(stats, mode, min_range).unnormalise(values)


def compute(states: np.ndarray, actions: np.ndarray) -> Normalization:
    """Statistics over all rows; the order of rows does not matter, nor how they are stored."""
    return Normalization(state=_field_stats(states, "state"), actions=_field_stats(actions, "action"))


def _field_stats(values_ND: np.ndarray, name: str) -> FieldStats:
    rows = len(values_ND)
    if rows == 0:
        raise UserError(f"the {name} column has no rows: nothing to normalise by")
    total = np.zeros(values_ND.shape[1])
    for start, chunk in _chunks(values_ND):
        if not np.isfinite(chunk).all():
            row, dim = np.argwhere(~np.isfinite(chunk))[0]
            raise UserError(
                f"{name} dimension {dim} is {chunk[row, dim]} in row {start + row} of the recording: "
                "only finite numbers can be trained on; repair or leave out that episode (data.episodes)"
            )
        total += chunk.sum(axis=0)
    mean = total / rows
    # A second pass about the mean: the one-pass formula loses every digit where |mean| >> std.
    squares = np.zeros_like(mean)
    for _, chunk in _chunks(values_ND):
        squares += np.square(chunk - mean).sum(axis=0)
    # One column at a time, so that a million rows need 8 MB, not a float64 copy of everything.
    columns = (np.asarray(values_ND[:, dim], np.float64) for dim in range(values_ND.shape[1]))
    quantiles = np.array([np.quantile(column, [0.01, 0.99]) for column in columns]).reshape(-1, 2)
    return FieldStats(mean, np.sqrt(squares / rows), quantiles[:, 0].copy(), quantiles[:, 1].copy())


def _chunks(values_ND: np.ndarray) -> Any:
    for start in range(0, len(values_ND), CHUNK_ROWS):
        yield start, np.asarray(values_ND[start : start + CHUNK_ROWS], np.float64)


@dataclass(frozen=True)
class Report:
    """What normalising does to the whole set. Names are those of the recording, led by their field."""

    floored: list[str]
    largest: float  # |normalised|
    largest_name: str


def report(stats: Normalization, recording: Any, mode: str, min_range: float) -> Report:
    """Looks at every value once and logs a line each for the floored dimensions and for the largest value."""
    floored: list[str] = []
    extremes: list[tuple[float, str]] = []
    for field, field_stats, values, names in (
        ("state", stats.state, recording.states, recording.state_names),
        ("action", stats.actions, recording.actions, recording.action_names),
    ):
        scale = scaling(field_stats, mode, min_range)
        floored += [f"{field} {names[dim]}" for dim in np.flatnonzero(scale.floored)]
        # Normalising keeps order within a dimension, so its smallest and largest value decide.
        low = np.min([chunk.min(axis=0) for _, chunk in _chunks(values)], axis=0)
        high = np.max([chunk.max(axis=0) for _, chunk in _chunks(values)], axis=0)
        magnitude = np.maximum(np.abs(scale.normalise(low)), np.abs(scale.normalise(high)))
        extremes += [(float(size), f"{field} {name}") for size, name in zip(magnitude, names, strict=True)]
    largest, largest_name = max(extremes)
    if floored:
        what = f"{RANGE_OF_STD:g} std" if mode == "mean_std" else "range between the 1% and 99% quantiles"
        log.warning(
            f"{len(floored)} nearly constant dimension(s), whose {what} is below data.min_range={min_range:g}, "
            f"are scaled as if it were {min_range:g}: {', '.join(floored)}"
        )
    level = logging.WARNING if largest > LARGE else logging.INFO
    log.log(level, f"largest normalised value of the set ({mode}): {largest:.3g}, in {largest_name}")
    return Report(floored, largest, largest_name)
