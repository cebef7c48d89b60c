"""One clock for the loop: it knows steps, waiting for data, and pauses that are neither."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Clock:
    """Mean times of the steps since the last lap, in milliseconds. The first step of a run starts the clock: it also
    waits for the loader's first batch, which says nothing about the steps to come."""

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        self._now = now
        self._started: float | None = None
        self._steps, self._waited, self._paused = 0, 0.0, 0.0

    def waiting_for_data(self, wait: Callable[[], T]) -> T:
        before = self._now()
        value = wait()
        if self._started is not None:
            self._waited += self._now() - before
        return value

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Saving and evaluating: in nobody's step."""
        before = self._now()
        yield
        if self._started is not None:
            self._paused += self._now() - before

    def step_done(self) -> None:
        if self._started is None:
            self._started = self._now()
        else:
            self._steps += 1

    def lap(self) -> dict[str, float | None]:
        """{step_ms, data_wait_ms} a step since the last lap; None before there was a whole step."""
        now, steps = self._now(), self._steps
        times: dict[str, float | None] = {"step_ms": None, "data_wait_ms": None}
        if self._started is not None and steps:
            times["step_ms"] = (now - self._started - self._paused) / steps * 1e3
            times["data_wait_ms"] = self._waited / steps * 1e3
        self._started, self._steps, self._waited, self._paused = now, 0, 0.0, 0.0
        return times
