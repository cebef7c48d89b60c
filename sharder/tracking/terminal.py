"""Progress for people: a bar on a terminal, a plain line every so often elsewhere (a log file, CI)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

PLAIN_SECONDS = 10.0  # between two plain lines
SHOWN = {  # metric -> how it is shown
    "loss": lambda value: f"loss {value:.4f}",
    "step_ms": lambda value: f"{value:.0f} ms a step",
    "data_wait_ms": lambda value: f"data wait {value:.0f} ms",
}


class Terminal:
    def __init__(
        self,
        first_step: int,
        last_step: int,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._last_step = last_step
        self._console = console or Console()
        self._clock = clock
        self._printed_at: float | None = None
        self._unprinted: str | None = None
        self._progress: Progress | None = None
        self._task = TaskID(0)
        if self._console.is_terminal:
            columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
            self._progress = Progress(*columns, TimeRemainingColumn(), console=self._console)
            self._task = self._progress.add_task("compiling", total=last_step, completed=first_step)
            self._progress.start()

    def log(self, row: Mapping[str, Any]) -> None:
        shown = "  ".join(show(row[name]) for name, show in SHOWN.items() if row.get(name) is not None)
        if not shown:
            return
        if self._progress is not None:
            self._progress.update(self._task, completed=row["step"], description=shown)
            return
        self._unprinted = f"step {row['step']}/{self._last_step}  {shown}"
        if self._printed_at is None or self._clock() - self._printed_at >= PLAIN_SECONDS:
            self._print_plain()

    def message(self, text: str) -> None:
        if self._unprinted is not None:
            self._print_plain()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self, hurry: bool = False) -> None:
        if self._progress is not None:
            self._progress.stop()
        elif self._unprinted is not None:
            self._print_plain()

    def _print_plain(self) -> None:
        assert self._unprinted is not None
        line, self._unprinted = self._unprinted, None
        self._printed_at = self._clock()
        self.message(line)
