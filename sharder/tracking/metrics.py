"""metrics.jsonl: one object a logged step, appended by every attempt, read back with each step once.

An attempt is one start of a worker in the run folder. One that resumes at step 30 supersedes what earlier attempts
logged past 30: readers drop an older attempt's rows from the newer attempt's first row on.

    {"step": 10, "attempt": 0, "loss": 1.9}
    {"step": 40, "attempt": 0, "loss": 0.8}    superseded: attempt 1 starts at 40
    {"step": 50, "attempt": 0, "loss": 0.7}    superseded, although attempt 1 has not got there yet
    {"step": 40, "attempt": 1, "loss": 0.8}
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sharder.errors import UserError

Row = dict[str, Any]
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # JSON has no numbers for them


class MetricsFile:
    """Appends rows. A row is one write to a file opened for appending: a crash leaves at most the last one torn."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.attempt = 1 + max((row["attempt"] for row in _rows(path)), default=-1)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise self._unwritable(error) from error
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")  # ends the row that the last crash tore

    def log(self, row: Mapping[str, Any]) -> None:
        try:
            os.write(self._file, to_json({"step": row["step"], "attempt": self.attempt, **row}).encode())
        except OSError as error:
            raise self._unwritable(error) from error

    def message(self, text: str) -> None:
        """Text is for people; this file is numbers."""

    def close(self) -> None:
        os.close(self._file)

    def _unwritable(self, error: OSError) -> UserError:
        return UserError(
            f"{self._path}: cannot be written ({error.strerror}); allowed: a writable run folder with room; "
            "free some and run the same run.id again"
        )


def read_metrics(path: Path) -> list[Row]:
    """Each step once, in order: the newest attempt's row, with all that attempt logged for the step in it."""
    rows = list(_rows(path))
    first_step: dict[int, int] = {}
    for row in rows:
        first_step[row["attempt"]] = min(row["step"], first_step.get(row["attempt"], row["step"]))
    steps: dict[int, Row] = {}
    for row in rows:
        newer = (step for attempt, step in first_step.items() if attempt > row["attempt"])
        if row["step"] < min(newer, default=math.inf):
            steps[row["step"]] = {**steps.get(row["step"], {}), **row}
    return [steps[step] for step in sorted(steps)]


def to_json(row: Mapping[str, Any]) -> str:
    """One line. Scalars of numpy and jax become numbers."""
    return json.dumps({key: _plain(value) for key, value in row.items()}, allow_nan=False) + "\n"


def from_json(line: str) -> Row:
    row = json.loads(line)
    return {key: NOT_FINITE.get(value, value) if isinstance(value, str) else value for key, value in row.items()}


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _rows(path: Path) -> Iterator[Row]:
    lines: Iterable[str] = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ()
    for line in lines:
        try:
            row = from_json(line)
        except ValueError:  # torn by a crash
            continue
        if "step" in row and "attempt" in row:
            yield row
