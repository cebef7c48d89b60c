"""A wait is never silent."""

import re
import threading

import pytest

from sharder.parallel.late import said_when_late

EVENTUALLY_S = 60.0  # a limit for a broken test, never waited out


def late_watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "late"]


def test_what_takes_long_is_said_again_and_again_until_it_is_over() -> None:
    said: list[str] = []
    thrice = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            thrice.set()

    with said_when_late("reading the weights", 0.01, say):
        assert thrice.wait(EVENTUALLY_S)
    count = len(said)
    assert all(re.fullmatch(r"reading the weights \(for \d+ s\)", text) for text in said)
    assert late_watchers() == []
    assert len(said) == count


def test_what_is_soon_over_is_not_mentioned() -> None:
    said: list[str] = []
    with said_when_late("a short thing", EVENTUALLY_S, said.append):
        assert len(late_watchers()) == 1
    assert said == [] and late_watchers() == []


def test_an_error_ends_the_watch_and_passes() -> None:
    said: list[str] = []
    with pytest.raises(ZeroDivisionError), said_when_late("dividing", EVENTUALLY_S, said.append):
        raise ZeroDivisionError
    assert said == [] and late_watchers() == []
