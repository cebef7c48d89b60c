"""Which worker holds the others up, by what their heartbeats say, and whether it has for too long.

A worker that hangs makes all of them stand still: the others wait for it in a collective or at a named point. So it is
the one behind that is held against the limit of what it is doing, and that is named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sharder.config import LimitsConfig
from sharder.supervise.heartbeat import Beat

WAITING = ("data wait", "step")  # where the others are while one is elsewhere


@dataclass(frozen=True)
class Standing:
    """Where a worker is, and for how long."""

    rank: int
    phase: str
    step: int | None
    since: float  # wall time by its own clock; 0 when it has not said anything yet
    for_s: float  # by ours: a clock that is set meanwhile must not end a run

    @property
    def behind(self) -> tuple[object, ...]:
        """Smallest for the one that the others wait for."""
        return -1 if self.step is None else self.step, self.phase in WAITING, self.since, self.rank

    def __str__(self) -> str:
        step = "no step yet" if self.step is None else f"step {self.step}"
        return f"worker {self.rank}: {step}, phase {self.phase}, for {self.for_s:.1f} s"


class Progress:
    """Of the workers of one attempt. Beats of other attempts are not heard."""

    def __init__(
        self, attempt: str, count: int, limits: LimitsConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._attempt, self._limits, self._clock = attempt, limits, clock
        self._beats: dict[int, Beat] = {}
        self._changed = dict.fromkeys(range(count), clock())

    def look(self, beats: Mapping[int, Beat]) -> None:
        for rank, beat in beats.items():
            if beat.attempt != self._attempt or rank not in self._changed:
                continue
            before = self._beats.get(rank)
            if before is None:
                moved = beat.phase != "start"  # that began when we started it
            else:
                moved = (before.phase, before.step, before.since) != (beat.phase, beat.step, beat.since)
            if moved:
                self._changed[rank] = self._clock()
            self._beats[rank] = beat

    def beat(self, rank: int) -> Beat | None:
        return self._beats.get(rank)

    def standing(self, rank: int) -> Standing:
        beat, for_s = self._beats.get(rank), self._clock() - self._changed[rank]
        if beat is None:
            return Standing(rank, "start", None, 0.0, for_s)
        return Standing(rank, beat.phase, beat.step, beat.since, for_s)

    def limit_s(self, phase: str) -> float:
        return float(getattr(self._limits, limit_name(phase)))

    def stuck(self, ranks: Iterable[int]) -> Standing | None:
        """Of these, the one behind, if it has gone too long without progress."""
        last = min((self.standing(rank) for rank in ranks), key=lambda standing: standing.behind, default=None)
        return last if last is not None and last.for_s > self.limit_s(last.phase) else None


def limit_name(phase: str) -> str:
    """Under launch.limits."""
    return f"{phase.replace(' ', '_')}_s"
