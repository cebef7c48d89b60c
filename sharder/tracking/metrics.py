"""metrics.jsonl: one object a logged step, appended by every attempt, read back with each step once.

An attempt is a start of the training in the run folder that got as far as logging. Its number is one more than any in
the file: that holds however it was started, and nothing else has to be kept. One that resumes at step 30 says so in its
first row, and supersedes what earlier attempts logged past 30.

    {"step": 30, "attempt": 0, "loss": 0.9}
    {"step": 40, "attempt": 0, "loss": 0.8}    superseded
    {"step": 50, "attempt": 0, "loss": 0.7}    superseded, although attempt 1 has not got there yet
    {"step": 40, "attempt": 1, "resumed_at": 30, "loss": 0.8}

`raw_rows` are these, in the order in which they were written; `read_metrics` is the final view, with each step once.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sharder.errors import UserError

METRICS = "metrics.jsonl"  # in the run folder

Row = dict[str, Any]
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # JSON has no numbers for them


class MetricsFile:
    """Appends rows. A row is one write to a file opened for appending: a crash leaves at most the last one torn."""

    def __init__(self, path: Path, first_step: int) -> None:
        """`first_step`: where this attempt starts, 0 or the restored step."""
        self._path = path
        self.rows_before, self.attempt = 0, 0
        for row in raw_rows(path):
            self.rows_before += 1
            self.attempt = max(self.attempt, row["attempt"] + 1)
        self._only_in_first = {"resumed_at": first_step} if first_step else {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise self._unwritable(error) from error
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")  # ends the row that the last crash tore

    def log(self, row: Mapping[str, Any]) -> None:
        about = {"step": row["step"], "attempt": self.attempt, **self._only_in_first}
        line = to_json({**about, **row}).encode()
        try:
            while line:  # a disk that gets full takes a part, and refuses the rest
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise self._unwritable(error) from error
        self._only_in_first = {}

    def message(self, text: str) -> None:
        """Text is for people; this file is numbers."""

    def close(self, hurry: bool = False) -> None:
        os.close(self._file)

    def _unwritable(self, error: OSError) -> UserError:
        return UserError(
            f"{self._path}: cannot be written ({error.strerror}); allowed: a writable run folder with room; "
            "free some and run the same run.id again"
        )


def read_metrics(path: Path) -> list[Row]:
    """Each step once, in order: what the newest attempt that did the step logged for it.

    An attempt may log something of the very step it resumed at, an evaluation: that joins what is there of the step.
    """
    rows = list(raw_rows(path))
    resumed_at: dict[int, int] = {}
    for row in rows:
        resumed_at.setdefault(row["attempt"], row.get("resumed_at", 0))
    stands_until: dict[int, float] = {}  # the last step of an attempt that no newer one did again
    earliest = math.inf
    for attempt in sorted(resumed_at, reverse=True):
        stands_until[attempt] = earliest
        earliest = min(earliest, resumed_at[attempt])
    steps: dict[int, Row] = {}
    for row in rows:
        if row["step"] <= stands_until[row["attempt"]]:
            steps[row["step"]] = {**steps.get(row["step"], {}), **row}
    return [steps[step] for step in sorted(steps)]


def raw_rows(path: Path) -> Iterator[Row]:
    """Every row of every attempt as it was written, those of steps that were done again too."""
    return follow(path, ended=lambda: True) if path.exists() else iter(())


def follow(path: Path, ended: Callable[[], bool]) -> Iterator[Row]:
    """Rows as they are appended, until `ended`; it waits a while before it says no."""
    with open(path, encoding="utf-8", errors="replace") as file:
        line = ""
        over = False
        while not over:
            over = ended()  # asked first: then what follows reads all there will ever be
            while part := file.readline():
                line += part
                if line.endswith("\n"):
                    yield from _whole(line)
                    line = ""


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


def _whole(line: str) -> Iterator[Row]:
    """The row in a line; none in one that a crash tore."""
    try:
        row = from_json(line)
    except ValueError:
        return
    if "step" in row and "attempt" in row:
        yield row
