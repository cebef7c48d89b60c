"""Who holds the others up is named, by when it arrives: the time of a step is the same on all (field report F4.11)."""

from pathlib import Path

import pytest
from processes import MICRO, losses, run

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

FOUR = (*MICRO, "mesh=fsdp4", "launch=local", "launch.processes=4", "run.id=x", "train.steps=40")
DELAYED = """
from sharder.training.meeting import Meeting
all_go_on = Meeting.all_go_on
def late(self, stop):
    if RANK == 2:
        time.sleep(0.1)
    return all_go_on(self, stop)
Meeting.all_go_on = late
worker()
"""
WORDS = "comes last to"


def test_a_process_that_is_100_ms_late_is_named_within_20_steps(tmp_path: Path) -> None:
    done = run(tmp_path, *FOUR, "train.steps=20", program=DELAYED)
    assert done.returncode == 0, done.stdout + done.stderr
    named = [line for line in done.stdout.splitlines() if WORDS in line]
    assert len(named) == 1
    assert named[0].startswith("process 2 comes last to ")
    assert len(losses(tmp_path / "outputs/train/x")) == 20


def test_nobody_is_named_in_a_clean_run(tmp_path: Path) -> None:
    done = run(tmp_path, *FOUR)
    assert done.returncode == 0, done.stdout + done.stderr
    assert WORDS not in done.stdout
