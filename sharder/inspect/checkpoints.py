"""The checkpoints of a run folder as they lie there, read from the files alone: no jax, no device, no mesh.

Nothing is written, locked or moved. The run may go on meanwhile: what is gone by the time it is read is left out.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from sharder.run_folder import checkpoint_steps
from sharder.training.manifest import MANIFEST, damage

WHOLE = "whole"
COMMITTED = "_CHECKPOINT_METADATA"  # Orbax's JSON about a step, with the time of its commit
SAVING = ".orbax-checkpoint-tmp"  # in the name of a step that Orbax has not committed
SET_ASIDE = re.compile(r"\d+\.damaged-\d+")  # by training/manifest.py


@dataclass(frozen=True)
class Checkpoint:
    step: int
    state: str  # whole | damaged: <what> | unfinished: <why>
    bytes: int
    files: int
    written_s: float | None  # Unix time of the commit; None: the step does not say
    items: tuple[str, ...]


@dataclass(frozen=True)
class Leftover:
    """A folder beside the checkpoints that no run will read."""

    name: str
    what: str
    bytes: int
    files: int


def read_checkpoints(folder: Path, step: int | None = None) -> list[Checkpoint]:
    """Of all steps of a run folder, or of one; every file is read, to hold it against its manifest."""
    steps = checkpoint_steps(folder) if step is None else [step]
    read = (_read_checkpoint(folder / "checkpoints" / str(step)) for step in steps)
    return [checkpoint for checkpoint in read if checkpoint is not None]


def read_leftovers(folder: Path) -> list[Leftover]:
    steps = {str(step) for step in checkpoint_steps(folder)}
    checkpoints = folder / "checkpoints"
    entries = sorted(path for path in checkpoints.iterdir() if path.is_dir()) if checkpoints.is_dir() else []
    return [Leftover(path.name, _what(path.name), *_size(path)) for path in entries if path.name not in steps]


def bytes_on_disk(folder: Path, step: int | None = None) -> int:
    """Of what `read_checkpoints` would read."""
    return _size(folder / "checkpoints" / ("" if step is None else str(step)))[0]


def _read_checkpoint(path: Path) -> Checkpoint | None:
    size, files = _size(path)
    state, written_s = _state(path), _written_s(path)
    try:
        items = tuple(sorted(entry.name for entry in path.iterdir() if entry.is_dir()))
    except FileNotFoundError:  # deleted by the run, which keeps so many
        return None
    return Checkpoint(int(path.name), state, size, files, written_s, items)


def _state(path: Path) -> str:
    if not (path / MANIFEST).exists():
        return f"unfinished: no {MANIFEST}"
    wrong = damage(path)
    return WHOLE if wrong is None else f"damaged: {wrong}"


def _written_s(path: Path) -> float | None:
    """Not the files' own times: those change when a checkpoint is copied."""
    try:
        return float(json.loads((path / COMMITTED).read_text())["commit_timestamp_nsecs"]) / 1e9
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _what(name: str) -> str:
    if SET_ASIDE.fullmatch(name):
        return "set aside: a run found it damaged or unfinished"
    return "unfinished: being saved, or its run was stopped" if SAVING in name else "not written by Sharder"


def _size(folder: Path) -> tuple[int, int]:
    """(bytes, files)"""
    sizes = []
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.lstat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:
                continue
    return sum(sizes), len(sizes)
