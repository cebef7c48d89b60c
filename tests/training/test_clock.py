"""Every instant is counted once: the device's while it is busy, otherwise by what the host does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharder.training.clock import DATA, DEVICE, HOST, PAUSE, PEERS, Clock


class Now:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds

    def passes(self, seconds):
        self.seconds += seconds


def started():
    """A clock whose first step is done: what came before is nobody's."""
    now = Now()
    clock = Clock(now)
    with clock.host(DATA):
        now.passes(100)  # the loader starting up
    with clock.dispatching():
        now.passes(5)
    clock.done()
    assert clock.lap().steps == 0
    return clock, now


def test_a_device_that_is_busy_hides_what_the_host_does():
    clock, now = started()
    with clock.dispatching():
        now.passes(0.01)
    with clock.host(DATA):
        now.passes(0.2)
    now.passes(0.3)
    clock.done()
    lap = clock.lap()
    assert lap.steps == 1
    assert lap.seconds == pytest.approx({HOST: 0.01, DEVICE: 0.5})
    assert lap.dispatch_s == pytest.approx(0.01)


def test_an_idle_device_is_waiting_for_what_the_host_does():
    clock, now = started()
    for _ in range(4):
        with clock.host(DATA):
            now.passes(0.1)
        with clock.host(PEERS):
            now.passes(0.05)
        now.passes(0.02)
        with clock.dispatching():
            now.passes(0.03)
        now.passes(0.3)
        clock.done()
    with clock.host(PAUSE):
        now.passes(30)
    lap = clock.lap()
    assert lap.per_step_ms() == pytest.approx(
        {
            "step_ms": 500.0,
            "device_ms": 300.0,
            "data_wait_ms": 100.0,
            "peer_wait_ms": 50.0,
            "host_ms": 50.0,
            "dispatch_ms": 30.0,
        }
    )
    assert lap.of(PAUSE) == pytest.approx(30)
    assert clock.total.steps == 4
    assert clock.lap().per_step_ms() == {}


def test_a_call_that_does_the_step_before_it_returns_is_the_device_s():
    """Small programs on CPU run in the call."""
    clock, now = started()
    with clock.dispatching() as call:
        now.passes(0.4)
        call.done = True
    clock.done()
    assert clock.lap().seconds == pytest.approx({DEVICE: 0.4})


def test_a_second_step_is_dispatched_behind_the_first():
    clock, now = started()
    with clock.dispatching():
        now.passes(0.01)
    now.passes(0.1)
    with clock.dispatching():
        now.passes(0.02)  # beside the first step
    now.passes(0.1)
    clock.done()
    now.passes(0.2)
    clock.done()
    lap = clock.lap()
    assert lap.steps == 2
    assert lap.seconds == pytest.approx({HOST: 0.01, DEVICE: 0.42})


@given(
    st.lists(
        st.tuples(st.sampled_from([DATA, PEERS, PAUSE, "dispatch", "done", "work"]), st.floats(0, 10)), max_size=40
    )
)
def test_the_parts_are_the_wall_time(events):
    clock, now = started()
    start, under_way = now.seconds, 0
    for what, seconds in events:
        if what == "dispatch":
            with clock.dispatching():
                now.passes(seconds)
            under_way += 1
        elif what == "done":
            if under_way:
                clock.done()
                under_way -= 1
        elif what == "work":
            now.passes(seconds)
        else:
            with clock.host(what):
                now.passes(seconds)
    lap = clock.lap()
    assert sum(lap.seconds.values()) == pytest.approx(now.seconds - start)
    assert lap.stepping_s + lap.of(PAUSE) == pytest.approx(now.seconds - start)
