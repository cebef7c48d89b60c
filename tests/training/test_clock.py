"""Step time is wall time less pauses, over steps; what the first step waits for is not in it."""

import pytest

from sharder.training.clock import Clock


class Now:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds

    def passes(self, seconds):
        self.seconds += seconds


def test_laps():
    now = Now()
    clock = Clock(now)
    clock.waiting_for_data(lambda: now.passes(100))  # the loader starting up
    now.passes(5)
    clock.step_done()
    assert clock.lap() == {"step_ms": None, "data_wait_ms": None}
    for _ in range(4):
        clock.waiting_for_data(lambda: now.passes(0.1))
        now.passes(0.4)
        clock.step_done()
    with clock.paused():
        now.passes(30)
    assert clock.lap() == pytest.approx({"step_ms": 500.0, "data_wait_ms": 100.0})
    now.passes(0.25)
    clock.step_done()
    assert clock.lap() == pytest.approx({"step_ms": 250.0, "data_wait_ms": 0.0})
