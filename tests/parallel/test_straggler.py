"""Who comes last waits least; it is named when it is the same one for long and by enough."""

import random

from sharder.parallel.straggler import WINDOW, Straggler

STEP_S = 0.2


def test_a_process_that_is_100_ms_late_is_named_once_within_20_steps():
    straggler = Straggler()
    lines = [straggler.look([0.102, 0.101, 0.001, 0.103], STEP_S) for _ in range(60)]
    told = [(step, line) for step, line in enumerate(lines) if line]
    assert len(told) == 1
    assert told[0][0] < 20
    assert told[0][1].startswith(
        f"process 2 comes last to {WINDOW} of the last {WINDOW} steps, 101 ms after the others"
    )


def test_it_is_taken_back_when_it_is_over():
    straggler = Straggler()
    for _ in range(WINDOW):
        straggler.look([0.1, 0.0], STEP_S)
    lines = [straggler.look([0.001, 0.0012], STEP_S) for _ in range(WINDOW)]
    assert [line for line in lines if line] == ["process 1 no longer holds the others up"]


def test_nobody_is_named_when_all_come_at_about_the_same_time_or_take_turns():
    draw = random.Random(0)
    even, turns, slight = Straggler(), Straggler(), Straggler()
    for step in range(500):
        assert even.look([draw.uniform(0, 0.03) for _ in range(4)], STEP_S) is None
        assert turns.look([0.0 if process == step % 4 else 0.1 for process in range(4)], STEP_S) is None
        assert slight.look([0.004, 0.004, 0.0, 0.004], STEP_S) is None
