"""A breakdown as metrics of W&B: ms of a step by category, so that runs can be compared by it.

The table has them too, by part and pass; charts of several runs need one number a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sharder.measure.categories import CATEGORIES

NO_OP = ("data wait", "peer wait", "saving", "idle", "not in the trace")  # rows of a breakdown that are no op


def metric(category: str) -> str:
    return f"breakdown_ms/{category.replace(' ', '_')}"


METRICS = tuple(metric(category) for category in (*CATEGORIES, *NO_OP))


def metrics(told: Mapping[str, Any]) -> dict[str, float]:
    """`told`: breakdown.json, to whose step_ms they add up. None of an incomplete trace: nothing is concluded of it."""
    if not told["complete"]:
        return {}
    found: dict[str, float] = {}
    for row in told["rows"]:
        name = metric(row["category"])
        found[name] = found.get(name, 0.0) + row["ms"]
    return found
