"""The parts of a start: in order, repeatable, and adding up to the whole."""

import pytest

from sharder.measure.start_up import VARIABLE, StartUp, told_by


def test_parts_take_all_the_time_since_the_one_before() -> None:
    times = iter([103.0, 104.0, 106.5, 106.5])
    start_up = StartUp(began=100.0, now=lambda: next(times))
    for name in ("imports", "data", "imports", "compile"):
        start_up.part(name)
    assert start_up.parts == {"imports": 5.5, "data": 1.0, "compile": 0.0}
    assert start_up.seconds == sum(start_up.parts.values()) == 6.5
    assert str(start_up) == "first step 6.50 s after the start: imports 5.50, data 1.00, compile 0.00"


def test_a_worker_is_told_when_it_was_started_and_one_started_by_hand_is_not() -> None:
    assert told_by({VARIABLE: "12.5"}) == 12.5
    assert told_by({}) is None
    assert StartUp(now=lambda: 7.0).seconds == pytest.approx(0.0)
