"""When a run that failed is started again, and when it is not."""

import pytest

from sharder.config import LaunchConfig
from sharder.supervise.budget import (
    CANNOT_START,
    STOPPED,
    STUCK,
    Attempt,
    Complete,
    Decision,
    Failure,
    GiveUp,
    Relaunch,
    Stop,
    decide,
    fewer_processes,
)

LAUNCH = LaunchConfig(retries=3, same_failure=2, backoff_s=1.0)


def failure(step: int | None = 7, **other: object) -> Failure:
    told = {"rank": 1, "phase": "step", "how": "exit 1", "words": "ValueError: bad", "code": 1, **other}
    return Failure(step=step, **told)  # type: ignore[arg-type]


def attempt(failed: Failure | None, before: int | None, after: int | None, **other: object) -> Attempt:
    told = {"processes": 4, "complete": failed is None, "failure": failed, **other}
    return Attempt(saved_before=before, saved_after=after, **told)  # type: ignore[arg-type]


def after(*attempts: Attempt, launch: LaunchConfig = LAUNCH, devices: int = 4) -> Decision:
    return decide(attempts, launch, devices)


def different(count: int, saved: int | None = None) -> list[Attempt]:
    """Failures that are not the same, without progress."""
    return [attempt(failure(step), saved, saved) for step in range(10, 10 + count)]


def test_a_complete_run_is_complete() -> None:
    assert after(attempt(failure(), None, None), attempt(None, None, 9)) == Complete()


def test_a_marker_counts_more_than_how_the_workers_ended() -> None:
    assert after(attempt(failure(how="SIGABRT", code=134), None, 9, complete=True)) == Complete()


def test_relaunches_come_later_and_later_without_progress() -> None:
    launch = LaunchConfig(retries=10, backoff_s=1.5)
    delays = []
    for count in range(1, 9):
        decision = after(*different(count), launch=launch)
        assert isinstance(decision, Relaunch)
        assert decision.number == count
        delays.append(decision.delay_s)
    assert delays == [1.5, 3.0, 6.0, 12.0, 24.0, 48.0, 60.0, 60.0]


def test_the_retries_end() -> None:
    assert after(*different(3, saved=5)) == Relaunch(4.0, 4, 3)
    assert after(*different(4, saved=5)) == GiveUp(
        "worker 1, step 13, phase step: exit 1: ValueError: bad (4 times, and no progress past step 5; "
        "launch.retries=3)",
        1,
    )


def test_a_new_checkpoint_starts_the_count_anew() -> None:
    saving = [attempt(failure(50 * n + 7), 50 * (n - 1) or None, 50 * n) for n in range(1, 30)]
    assert after(*saving) == Relaunch(1.0, 4, 1)
    assert after(*saving, *different(2, saved=1450)) == Relaunch(4.0, 4, 3)
    assert isinstance(after(*saving, *different(3, saved=1450)), GiveUp)


def test_a_step_saved_once_more_is_no_progress() -> None:
    """The newest was damaged, and the run fell back."""
    attempts = [attempt(failure(12), 5, 10), attempt(failure(11), 10, 5), attempt(failure(13), 5, 10)]
    assert after(*attempts) == Relaunch(4.0, 4, 3)


def test_what_was_saved_before_this_supervisor_is_no_progress_of_its_own() -> None:
    assert after(*different(3, saved=100)) == Relaunch(4.0, 4, 3)


def test_the_same_failure_at_the_same_step_ends_the_run() -> None:
    first, second = attempt(failure(), None, 5), attempt(failure(rank=0), 5, 5)  # whichever worker is first
    assert after(first) == Relaunch(1.0, 4, 1)
    assert after(first, second) == GiveUp(
        "worker 0, step 7, phase step: exit 1: ValueError: bad (2 times, and no progress past step 5; "
        "launch.same_failure=2)",
        1,
    )


def test_the_same_failure_may_be_allowed_more_often() -> None:
    launch = LaunchConfig(same_failure=3)
    same = [attempt(failure(), None, None)] * 3
    assert after(*same[:2], launch=launch) == Relaunch(2.0, 4, 2)
    decision = after(*same, launch=launch)
    assert isinstance(decision, GiveUp) and "3 times, and no step was ever saved" in decision.message


@pytest.mark.parametrize("other", [{"step": 8}, {"phase": "save"}, {"how": STUCK}, {"words": "KeyError: 'x'"}])
def test_another_failure_is_not_the_same(other: dict[str, object]) -> None:
    assert after(attempt(failure(), None, None), attempt(failure(**other), None, None)) == Relaunch(2.0, 4, 2)  # type: ignore[arg-type]


def test_words_that_differ_in_numbers_are_the_same() -> None:
    one = failure(words="process 4711 failed after 1.5 s at 0x7f00aa")
    two = failure(words="process 42 failed after 11.25 s at 0x7e11bb")
    assert isinstance(after(attempt(one, None, None), attempt(two, None, None)), GiveUp)


def test_a_usage_error_is_not_retried() -> None:
    refused = failure(None, phase="start", how="exit 2", words="error: data.root: found x", code=2)
    assert after(attempt(refused, None, None)) == GiveUp(
        "not started again, since the same would come of it: worker 1, phase start: exit 2: error: data.root: found x",
        2,
    )


def test_who_was_told_to_stop_stops() -> None:
    stopped = attempt(failure(how=STOPPED, words="", code=75), None, 7, told_to_stop="SIGTERM")
    assert after(stopped) == Stop("stopped by SIGTERM: worker 1, step 7, phase step: stopped on request", 75)


@pytest.mark.parametrize(("code", "told"), [(1, 75), (137, 75), (130, 130), (2, 2)])
def test_what_befalls_a_run_while_it_stops_does_not_make_it_a_failure(code: int, told: int) -> None:
    """It goes on when it is started again, unless someone has to mend something first."""
    stopped = attempt(failure(how="SIGKILL", words="", code=code), None, 7, told_to_stop="SIGTERM")
    decision = decide([stopped], LaunchConfig(), devices=2)
    assert isinstance(decision, Stop)
    assert decision.code == told


def test_a_worker_that_alone_was_told_to_stop_is_started_again() -> None:
    preempted = attempt(failure(how=STOPPED, words="", code=75), 7, 7)
    assert after(preempted, preempted) == Relaunch(2.0, 4, 2)  # never the same failure
    decision = after(*[preempted] * 4)
    assert isinstance(decision, GiveUp) and decision.code == 75


def in_start(rank: int = 1, how: str = "SIGKILL", processes: int = 4, words: str = "") -> Attempt:
    code = 75 if how == STOPPED else 1
    return attempt(
        Failure(rank, "start", None, how, words, code), None, None, processes=processes
    )  # fmt: skip


def test_without_room_for_a_worker_there_will_be_fewer() -> None:
    assert after(in_start(how=CANNOT_START)) == Relaunch(1.0, 2, 1)
    assert after(in_start(how=CANNOT_START), in_start(how=CANNOT_START, processes=2)) == Relaunch(2.0, 1, 2)
    alone = [in_start(how=CANNOT_START, processes=1)]
    assert after(*alone) == Relaunch(1.0, 1, 1)
    assert isinstance(after(*alone * 2), GiveUp)


def test_the_same_worker_dies_twice_while_it_starts() -> None:
    assert after(in_start()) == Relaunch(1.0, 4, 1)
    assert after(in_start(), in_start(words="other")) == Relaunch(2.0, 2, 2)
    assert after(in_start(), in_start(rank=2, words="other")) == Relaunch(2.0, 4, 2)
    assert after(in_start(), in_start(), in_start(processes=2)) == Relaunch(4.0, 2, 3)  # counted anew
    assert isinstance(after(in_start(how=STUCK), in_start(how=STUCK)), GiveUp)  # it waits, there is room


def test_never_fewer_than_allowed() -> None:
    launch = LaunchConfig(min_processes=3)
    assert after(in_start(how=CANNOT_START), launch=launch) == Relaunch(1.0, 4, 1)
    assert isinstance(after(in_start(), in_start(), launch=launch), GiveUp)


@pytest.mark.parametrize(("now", "least", "next_"), [(8, 1, 4), (6, 1, 4), (4, 3, None), (2, 1, 1), (1, 1, None)])
def test_the_devices_are_shared_out_evenly(now: int, least: int, next_: int | None) -> None:
    assert fewer_processes(now, devices=8, at_least=least) == next_
