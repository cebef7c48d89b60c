"""Who holds the others up, and since when that is too long."""

import pytest

from sharder.config import LimitsConfig
from sharder.supervise.heartbeat import PHASES, Beat
from sharder.supervise.progress import Progress, Standing, limit_name

LIMITS = LimitsConfig(start_s=100, compile_s=50, step_s=10, data_wait_s=20, save_s=30)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def beat(rank: int, phase: str, step: int | None, since: float = 1000.0, attempt: str = "a") -> Beat:
    return Beat(1, rank, attempt, phase, step, since, since + 5, 100.0, 1000.0)


def of(*beats: Beat, count: int = 2) -> tuple[Progress, Clock]:
    clock = Clock()
    progress = Progress("a", count, LIMITS, clock)
    progress.look({beat.rank: beat for beat in beats})
    return progress, clock


def blamed(*beats: Beat) -> Standing | None:
    progress, clock = of(*beats)
    clock.now = 1e6
    return progress.stuck(range(len(beats)))


def test_every_phase_has_a_limit() -> None:
    assert {limit_name(phase) for phase in PHASES} == set(vars(LIMITS))


def test_who_says_nothing_is_starting() -> None:
    progress, clock = of()
    clock.now = 100.0
    assert progress.stuck([0, 1]) is None
    clock.now = 100.5
    assert progress.stuck([0, 1]) == Standing(0, "start", None, 0.0, 100.5)


def test_the_first_beat_of_the_start_is_no_progress() -> None:
    progress, clock = of(count=1)
    clock.now = 90.0
    progress.look({0: beat(0, "start", None)})
    clock.now = 101.0
    stuck = progress.stuck([0])
    assert stuck is not None and stuck.for_s == 101.0


def test_beats_of_others_are_not_heard() -> None:
    progress, _ = of(beat(0, "step", 5, attempt="before"), beat(7, "step", 5))
    assert progress.beat(0) is None and progress.beat(7) is None


def test_a_step_that_goes_on_is_not_stuck_and_a_beat_alone_is_no_progress() -> None:
    progress, clock = of(beat(0, "step", 1), count=1)
    for step in range(2, 10):
        clock.now += 9.0
        progress.look({0: beat(0, "step", step)})
        assert progress.stuck([0]) is None
    clock.now += 9.0
    progress.look({0: Beat(1, 0, "a", "step", 9, 1000.0, 9999.0, 100.0, 1000.0)})  # written anew, nothing else
    clock.now += 2.0
    stuck = progress.stuck([0])
    assert stuck is not None and (stuck.step, stuck.for_s) == (9, 11.0)


def test_a_phase_that_came_and_went_between_two_looks_is_progress() -> None:
    progress, clock = of(beat(0, "step", 1, since=1000.0), count=1)
    clock.now = 9.0
    progress.look({0: beat(0, "step", 1, since=1005.0)})
    clock.now = 18.0
    assert progress.stuck([0]) is None


@pytest.mark.parametrize(
    ("beats", "rank"),
    [
        ([beat(0, "data wait", 6, 1001), beat(1, "step", 5, 1002)], 1),  # the smaller step
        ([beat(0, "first step", 0), beat(1, "compile", None)], 1),  # no step yet
        ([beat(0, "step", 6, 1000), beat(1, "save", 6, 1001)], 1),  # not one of those that wait
        ([beat(0, "step", 6, 1002), beat(1, "data wait", 6, 1001)], 1),  # both may wait: the one for longer
        ([beat(0, "step", 6, 1001), beat(1, "step", 6, 1001)], 0),
    ],
)
def test_the_one_behind_is_blamed(beats: list[Beat], rank: int) -> None:
    stuck = blamed(*beats)
    assert stuck is not None and stuck.rank == rank


def test_who_waits_for_one_that_may_take_longer_is_not_stuck() -> None:
    progress, clock = of(beat(0, "step", 6), beat(1, "save", 6))
    clock.now = 29.0
    assert progress.stuck([0, 1]) is None
    clock.now = 31.0
    stuck = progress.stuck([0, 1])
    assert stuck is not None and (stuck.rank, stuck.phase) == (1, "save")


def test_who_has_ended_is_not_asked() -> None:
    progress, clock = of(beat(0, "step", 6), beat(1, "end", 5))
    clock.now = 11.0
    stuck = progress.stuck([0])
    assert stuck is not None and str(stuck) == "worker 0: step 6, phase step, for 11.0 s"
    assert progress.stuck([]) is None
