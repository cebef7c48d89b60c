"""How far decoding is, for people: a bar on a terminal, a plain line every so often elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_SECONDS = 10.0  # between two plain lines

log = logging.getLogger(__name__)


class DecodingProgress:
    def __init__(
        self,
        frames: int,
        done: int,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`done` of the `frames` are there from an earlier run."""
        self._frames, self._done, self._before = frames, done, done
        self._clock = clock
        self._began = self._said = clock()
        self._bar: Progress | None = None
        console = console or Console()
        if console.is_terminal:
            columns = (TextColumn("decoding frames"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=console)
            self._task = self._bar.add_task("", total=frames, completed=done)

    def advance(self, frames: int) -> None:
        self._done, now = self._done + frames, self._clock()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        elif now - self._said >= PLAIN_SECONDS:
            self._said = now
            rate = (self._done - self._before) / (now - self._began)
            left_s = (self._frames - self._done) / rate
            log.info(f"decoding frames: {self._done:,} of {self._frames:,}, {rate:,.0f} a second, {left_s:,.0f} s left")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
