"""The two constants of the model that were fitted, on what, and how far the model is off elsewhere.

Fitted on two published steps, and on nothing else: the efficiency of a product that fills its tiles, on one H100 with
attn naive and batch 4; what a collective takes beside its bytes, on two H100s with batch 8. All else comes from data
sheets or is assumed and named where it stands (roofline.py, ring.py, schedule.py). `experiments/prediction/fit.py`
makes the fit again, prints it with its residuals, and compares every published point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MODEL = "sharder roofline 1"
CLOSE = 1e-5  # share of what was measured


@dataclass(frozen=True)
class Accuracy:
    """On the published points that the fit left out."""

    hardware: str
    points: int
    mean: float  # of the absolute errors, as a share of what was measured
    worst: float

    @property
    def said(self) -> str:
        return (
            f"mean error {self.mean:.1%}, worst {self.worst:.1%}, on {self.points} published steps that it was not "
            "fitted on"
        )


MATMUL_EFFICIENCY = 0.653  # of the dense peak
LINK_LATENCY_S = 49.7e-6  # of a collective among H100s of one host
ACCURACY = Accuracy("h100", 11, 0.036, 0.074)


def solve(predicted: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """The constant between `low` and `high` for which the prediction, which it moves in one direction, is `wanted`.

    By false position, halving what is held against the side that stays (the Illinois rule): a few predictions will do.
    """
    off_low, off_high = predicted(low) - wanted, predicted(high) - wanted
    if off_low * off_high > 0:
        raise ValueError(
            f"calibration: {wanted:.4g} is wanted, and between {low:.4g} and {high:.4g} the model says "
            f"{off_low + wanted:.4g} to {off_high + wanted:.4g}"
        )
    while True:
        guess = low - off_low * (high - low) / (off_high - off_low)
        off = predicted(guess) - wanted
        if abs(off) <= CLOSE * abs(wanted):
            return guess
        if off * off_high < 0:
            low, off_low = high, off_high
        else:
            off_low /= 2
        high, off_high = guess, off
