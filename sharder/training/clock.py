"""One clock for the loop: where the wall time of the steps went, without waiting for a device to find out.

    host    waits for data | for peers | works (dispatches, logs) | is paused (saves, evaluates)
    device  busy | idle

Every instant counts once: while the device is busy it is the device's, whatever the host does meanwhile; otherwise it
is whatever the host does. So the parts add up to the wall time, and waiting for data that costs nothing is not told of.

The device is busy from the return of the call that dispatches a step until the step is seen to be done. The loop looks
at several points of its way, without waiting: in between a step that is done counts as busy for a little longer, never
for shorter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

DATA, PEERS, HOST, PAUSE, DEVICE = "data", "peers", "host", "pause", "device"


@dataclass(frozen=True)
class Spent:
    """Seconds of wall time by what they were spent on, and how many steps were done in them."""

    steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    dispatch_s: float = 0.0  # inside the calls that dispatch, whatever the device did meanwhile

    @property
    def stepping_s(self) -> float:
        """Without pauses, which are in nobody's step."""
        return sum(seconds for what, seconds in self.seconds.items() if what != PAUSE)

    def of(self, what: str) -> float:
        return self.seconds.get(what, 0.0)

    def per_step_ms(self) -> dict[str, float]:
        """step_ms is the sum of device_ms, data_wait_ms, peer_wait_ms and host_ms. Empty when no step was done."""
        if not self.steps:
            return {}
        ms = {what: self.of(what) / self.steps * 1e3 for what in (DEVICE, DATA, PEERS, HOST)}
        return {
            "step_ms": self.stepping_s / self.steps * 1e3,
            "device_ms": ms[DEVICE],
            "data_wait_ms": ms[DATA],
            "peer_wait_ms": ms[PEERS],
            "host_ms": ms[HOST],
            "dispatch_ms": self.dispatch_s / self.steps * 1e3,
        }

    def __add__(self, other: Spent) -> Spent:
        seconds = {what: self.of(what) + other.of(what) for what in {*self.seconds, *other.seconds}}
        return Spent(self.steps + other.steps, seconds, self.dispatch_s + other.dispatch_s)

    def __sub__(self, earlier: Spent) -> Spent:
        seconds = {what: time - earlier.of(what) for what, time in self.seconds.items()}
        return Spent(self.steps - earlier.steps, seconds, self.dispatch_s - earlier.dispatch_s)


@dataclass
class Call:
    done: bool = False  # the step was done when it returned


class Clock:
    """It starts when the first step is done: that one also waits for the loader to start and for the devices to warm
    up, which says nothing about the steps to come."""

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        self._now = now
        self._since: float | None = None  # everything until then is counted
        self._host = HOST
        self._on_device = 0  # steps dispatched and not seen to be done
        self._lap, self._before = Spent(), Spent()

    @contextmanager
    def host(self, does: str) -> Iterator[None]:
        """What the host does inside: DATA, PEERS or PAUSE."""
        self._count()
        before, self._host = self._host, does
        try:
            yield
        finally:
            self._count()
            self._host = before

    @contextmanager
    def dispatching(self) -> Iterator[Call]:
        """A call that dispatches a step. Some backends do the step before they return: then the call was the step."""
        self._count()
        began, call = self._now(), Call()
        self._on_device += 1
        was_idle = self._on_device == 1
        yield call
        seconds = self._now() - began
        if was_idle and not call.done:
            self._on_device = 0
            self._count()
            self._on_device = 1
        if self._since is not None:
            self._lap = self._lap + Spent(dispatch_s=seconds)

    def done(self) -> None:
        """A dispatched step was seen to be done."""
        self._count()
        self._on_device -= 1
        assert self._on_device >= 0
        if self._since is None:
            self._since = self._now()
        else:
            self._lap = self._lap + Spent(steps=1)

    def lap(self) -> Spent:
        """Since the last lap."""
        self._count()
        lap, self._lap = self._lap, Spent()
        self._before = self._before + lap
        return lap

    @property
    def total(self) -> Spent:
        return self._before + self._lap

    def _count(self) -> None:
        if self._since is None:
            return
        now = self._now()
        what = DEVICE if self._on_device else self._host
        if now > self._since:
            self._lap = self._lap + Spent(seconds={what: now - self._since})
            self._since = now
