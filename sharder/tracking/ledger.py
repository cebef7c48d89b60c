"""Which examples every step consumed: one line a step in `<run folder>/ledger-<process>.jsonl`, when asked for.

The order of examples is a pure function of the seed, so the ledger is a proof, not a state: nothing reads it back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from sharder.config import Config


class Ledger:
    """Appends; the lines of steps that a crash took back come again, as in metrics.jsonl."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file

    def write(self, step: int, examples: Any) -> None:
        """`examples`: rows of the recording, int [b], in the order of this process's part of the batch."""
        if self._file is not None:
            self._file.write(json.dumps({"step": step, "examples": [int(row) for row in examples]}) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()


def open_ledger(config: Config, folder: Path, process: int) -> Ledger:
    return Ledger(open(folder / f"ledger-{process}.jsonl", "a", buffering=1) if config.tracking.ledger else None)


def read_ledger(files: Sequence[Path]) -> dict[int, list[int]]:
    """Step -> the examples of its global batch, from the ledgers of all processes in their order."""
    ledger: dict[int, list[int]] = {}
    for file in files:
        own = {row["step"]: row["examples"] for row in map(json.loads, file.read_text().splitlines())}
        for step, examples in own.items():
            ledger[step] = ledger.get(step, []) + examples
    return ledger
