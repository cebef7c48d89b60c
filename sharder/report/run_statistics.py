"""What the logged rows of one run come to: medians, the last loss, the success rate, the goodput."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharder.data.closed_loop import wilson_interval
from sharder.supervise.supervisor import read_events

DIGITS = 6  # that a number of a table keeps


def of_steps(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Times are the median of what was logged, without the first timed row of each attempt: it has what a start costs.

    `steps`: as `read_metrics` returns them, at least one.
    """
    timed = [row for row in steps if row.get("step_ms") is not None]
    first = {row["attempt"]: row["step"] for row in reversed(timed)}
    timed = [row for row in timed if first[row["attempt"]] != row["step"]] or timed
    found: dict[str, Any] = {"steps": steps[-1]["step"]}
    for name in ("step_ms", "examples_per_s", "mfu", "mfu_6nd", "hfu"):
        values = [row[name] for row in timed if row.get(name) is not None]
        if values:
            found[name] = short(statistics.median(values))
        if values and name == "step_ms":
            found |= {"step_ms_low": short(min(values)), "step_ms_high": short(max(values))}
    peaks = [row["device_peak_mb"] for row in steps if row.get("device_peak_mb")]
    if peaks:
        found["memory_gb"] = short(max(peaks) / 1e3)
    losses = [row["loss"] for row in steps if row.get("loss") is not None]
    if losses:
        found["loss"] = short(losses[-1])
    evaluated = [row for row in steps if row.get("success_rate") is not None]
    return found | (of_success(evaluated[-1]) if evaluated else {})


def of_success(row: dict[str, Any]) -> dict[str, Any]:
    """The rate, and its 95% interval where it is known of how many rollouts it is."""
    rate, episodes = row["success_rate"], row.get("success_episodes")
    found = {"success_rate": short(rate)}
    if episodes:
        low, high = wilson_interval(round(rate * episodes), episodes)
        found |= {"success_rate_low": short(low), "success_rate_high": short(high)}
    return found


def interval(row: dict[str, Any]) -> str:
    """Of what `of_success` found, in words; empty where it is not known."""
    if "success_rate_low" not in row:
        return ""
    return f"{row['success_rate_low']:.0%} to {row['success_rate_high']:.0%}"


def of_attempts(folder: Path, steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of a watched run: its restarts and, once complete, the share of its time that went into steps that stand.

    The time is that from the first start to the completion, with every start, save, evaluation and wait in it. Steps
    that were lost and done again count once.
    """
    told = read_events(folder)
    starts = [event["time"] for event in told if event.get("event") == "start"]
    ends = [event["time"] for event in told if event.get("event") == "complete"]
    if not starts:
        return {}
    found: dict[str, Any] = {"restarts": len(starts) - 1}
    if ends and ends[-1] > starts[0]:
        useful_s = sum(
            row["step_ms"] / 1e3 * (row["step"] - before["step"])
            for before, row in zip([{"step": 0}, *steps], steps, strict=False)
            if row.get("step_ms") is not None
        )
        found["goodput"] = short(useful_s / (ends[-1] - starts[0]))
    return found


def short(value: float) -> float | int:
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")
