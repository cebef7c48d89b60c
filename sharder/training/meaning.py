"""What makes two steps the same step: what a resumed run may not change, and what a checkpoint says of itself."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import numpy as np

from sharder.data.dataset import Dataset
from sharder.data.normalize import FieldStats, Normalization
from sharder.errors import UserError

FREE_OF_MEANING = ("model.name", "model.weights", "model.flow_steps")
OF_DATA = ("prompt", "normalization", "min_range", "tokenizer", "augment")


def flat_config(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts -> dotted keys."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flat_config(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def meaning(data: Dataset) -> dict[str, Any]:
    """Everything that a step's result depends on, but for the optimizer's rates and what must not matter at all."""
    tree = dataclasses.asdict(data.config)
    keys = {
        "train": {name: tree["train"][name] for name in ("seed", "batch_size")},
        "model": tree["model"],
        "data": {name: tree["data"][name] for name in OF_DATA},
    }
    flat = {key: value for key, value in flat_config(keys).items() if key not in FREE_OF_MEANING}
    return flat | {
        "data fingerprint": data.recording.fingerprint,
        "normalization digest": hashlib.sha256(json.dumps(_lists(data.normalization)).encode()).hexdigest()[:16],
        "optimizer.ema_decay is null": data.config.optimizer.ema_decay is None,
    }


def check_meaning(saved: dict[str, Any], now: dict[str, Any], where: str) -> None:
    """Refuses to resume a run as another one."""
    changed = [
        f"{key} was {saved.get(key)!r}, is {now.get(key)!r}"
        for key in sorted(saved.keys() | now.keys())
        if saved.get(key) != now.get(key)
    ]
    if changed:
        raise UserError(
            f"resume: {where} belongs to a run whose steps mean something else: {'; '.join(changed)}; "
            "set them back, or start a new run with another run.id (model.weights starts it from these weights)"
        )


def about(data: Dataset, step: int) -> dict[str, Any]:
    """What is saved beside the arrays: enough to act, to resume and to know where the weights come from. JSON."""
    return {
        "step": step,
        "meaning": meaning(data),
        "config": dataclasses.asdict(data.config),
        "cameras": list(data.recording.cameras),
        "normalization": _lists(data.normalization),
    }


def _lists(normalization: Normalization) -> dict[str, Any]:
    return {
        name: {key: None if values is None else list(map(float, values)) for key, values in vars(stats).items()}
        for name, stats in vars(normalization).items()
    }


def saved_normalization(saved: dict[str, Any]) -> Normalization:
    def stats(vectors: dict[str, Any]) -> FieldStats:
        arrays: dict[str, Any] = {name: v if v is None else np.asarray(v, np.float64) for name, v in vectors.items()}
        return FieldStats(**arrays)

    return Normalization(**{name: stats(vectors) for name, vectors in saved["normalization"].items()})
