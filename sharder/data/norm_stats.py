"""Normalization on disk, in the layout of openpi's norm_stats.json:

{"norm_stats": {"state": {"mean": [..], "std": [..], "q01": [..], "q99": [..]}, "actions": {..}}}

Read from a file the user names, or computed once a data set and kept in the cache under its fingerprint.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from sharder.data.cache import cache_dir
from sharder.data.normalize import FieldStats, Normalization, compute
from sharder.errors import UserError

log = logging.getLogger(__name__)


def normalization_of(recording: Any, file: str | os.PathLike[str] | None, mode: str) -> Normalization:
    """From data.normalization_file when given, else the recording's own (computed once, then cached)."""
    if file is not None:
        return read(file, recording.state_dim, recording.action_dim, mode)
    return cached(recording)


def cached(recording: Any) -> Normalization:
    path = cache_dir() / "normalization" / f"{recording.fingerprint}.json"
    if path.exists():
        try:
            return read(path, recording.state_dim, recording.action_dim, "quantiles")
        except UserError as error:
            log.warning(f"computing the normalization again: {error}")
    stats = compute(recording.states, recording.actions)
    try:
        write(path, stats)
    except OSError as error:
        log.warning(f"the normalization is not cached, and computed again next time: {error}")
    return stats


def write(path: str | os.PathLike[str], stats: Normalization) -> None:
    """Atomic: another process, or the next run after a crash, sees the whole file or none."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {"state": _to_lists(stats.state), "actions": _to_lists(stats.actions)}
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump({"norm_stats": fields}, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str], state_dim: int, action_dim: int, mode: str) -> Normalization:
    """Vectors longer than the recording's are cut (openpi pads them to 32); shorter ones are refused."""
    try:
        content = json.loads(Path(path).read_text())
    except FileNotFoundError:
        raise UserError(f"data.normalization_file={path} does not exist") from None
    except (OSError, ValueError) as error:
        raise UserError(f"data.normalization_file={path} cannot be read as JSON: {error}") from error
    fields = content.get("norm_stats") if isinstance(content, dict) else None
    if not isinstance(fields, dict) or not {"state", "actions"} <= fields.keys():
        raise UserError(
            f'data.normalization_file={path} is not a norm_stats.json: it needs {{"norm_stats": {{"state": .., '
            '"actions": ..}}'
        )
    return Normalization(
        state=_from_lists(path, "state", fields["state"], state_dim, mode),
        actions=_from_lists(path, "actions", fields["actions"], action_dim, mode),
    )


def _to_lists(stats: FieldStats) -> dict[str, list[float]]:
    vectors = {"mean": stats.mean, "std": stats.std, "q01": stats.q01, "q99": stats.q99}
    return {name: vector.tolist() for name, vector in vectors.items() if vector is not None}


def _from_lists(path: Any, field: str, vectors: Any, dims: int, mode: str) -> FieldStats:
    where = f"data.normalization_file={path}: {field}"
    if not isinstance(vectors, dict):
        raise UserError(f"{where} should hold mean, std, q01 and q99")
    if mode == "quantiles" and any(vectors.get(name) is None for name in ("q01", "q99")):
        raise UserError(
            f"{where} has no q01 and q99, which data.normalization=quantiles (pi0.5's default) needs: "
            "set data.normalization_file=null to compute them from the recording, or data.normalization=mean_std"
        )
    mean, std = (_vector(where, name, vectors.get(name), dims) for name in ("mean", "std"))
    q01, q99 = (
        None if vectors.get(name) is None else _vector(where, name, vectors[name], dims) for name in ("q01", "q99")
    )
    stats = FieldStats(mean, std, q01, q99)
    if (stats.std < 0).any():
        raise UserError(f"{where}.std is negative in dimension {np.argmax(stats.std < 0)}")
    if stats.q01 is not None and stats.q99 is not None and (stats.q99 < stats.q01).any():
        raise UserError(f"{where}.q99 is below q01 in dimension {np.argmax(stats.q99 < stats.q01)}")
    return stats


def _vector(where: str, name: str, values: Any, dims: int) -> np.ndarray:
    try:
        vector = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        vector = np.empty(())
    if vector.ndim != 1:
        raise UserError(f"{where}.{name} should be a list of {dims} numbers, found {str(values)[:60]}")
    if len(vector) < dims:
        raise UserError(
            f"{where}.{name} has {len(vector)} dimensions, the recording {dims}: "
            "it belongs to another robot; set data.normalization_file=null to compute it from the recording"
        )
    vector = vector[:dims]
    if not np.isfinite(vector).all():
        raise UserError(f"{where}.{name} is {vector[~np.isfinite(vector)][0]} in one of its first {dims} dimensions")
    return vector
