"""Where the time between the start of a worker and the end of its first step went."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

VARIABLE = "SHARDER_STARTED_S"  # when the worker was started, by the machine's monotonic clock; whoever starts it says


class StartUp:
    """A stopwatch with parts: each takes all the time since the one before it, so that they add up to the whole."""

    def __init__(self, began: float | None = None, now: Callable[[], float] = time.monotonic) -> None:
        """`began`: by the same clock; now, if it is not said."""
        self._now = now
        self._began = self._last = now() if began is None else began
        self.parts: dict[str, float] = {}  # seconds, in the order in which they were first measured

    def part(self, name: str) -> None:
        """All since the last part ended was `name`; it may have had a share before."""
        now = self._now()
        self.parts[name] = self.parts.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def seconds(self) -> float:
        return self._last - self._began

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.parts.items())
        return f"first step {self.seconds:.2f} s after the start: {parts}"


def told_by(environ: Mapping[str, str]) -> float | None:
    """When this worker was started; None for one that was started by hand."""
    return float(environ[VARIABLE]) if VARIABLE in environ else None
