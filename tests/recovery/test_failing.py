"""What fails again and again at one step ends the run; what fails now and then does not. Real runs."""

from pathlib import Path

import pytest
from processes import MICRO, ledger, losses, run, supervised

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

SUPERVISED = (*MICRO, "mesh=fsdp2", "launch=supervised", "launch.processes=2", "launch.backoff_s=0.1", "run.id=x")

AT_STEP = """
from sharder.data.pipeline import BatchSource
batch = BatchSource.batch
def fails(self, step):
    if RANK == 1 and step in {steps}:
        died = Path(f"died-{{step}}")
        if not died.exists() or {always}:
            died.touch()
            {how}
    return batch(self, step)
BatchSource.batch = fails
worker()
"""


def test_a_bug_at_step_7_ends_the_run_with_one_message(tmp_path: Path) -> None:
    """It comes back at the same step: twice is enough, whatever launch.retries would allow."""
    bug = AT_STEP.format(steps=[7], always=True, how="raise ZeroDivisionError('a bug at step 7')")
    done = run(
        tmp_path, *SUPERVISED, "train.steps=20", "checkpoint.every_steps=5", "launch.retries=9", program=bug
    )  # fmt: skip
    assert done.returncode == 1
    given_up = [line for line in done.stderr.splitlines() if line.startswith("given up: ")]
    assert len(given_up) == 1
    assert "worker 1, step 7, phase data wait: exit 1" in given_up[0]
    assert "a bug at step 7" in given_up[0]
    assert "(2 times, and no progress past step 5; launch.same_failure=2)" in given_up[0]
    assert len(supervised(tmp_path / "outputs/train/x", "start")) == 2


def test_a_worker_that_dies_every_50_steps_keeps_going(tmp_path: Path) -> None:
    """More often than launch.retries, which counts from the newest saved step."""
    deaths = AT_STEP.format(steps=[45, 95, 145, 195], always=False, how="os.kill(os.getpid(), 9)")
    done = run(
        tmp_path, *SUPERVISED, "train.steps=200", "checkpoint.every_steps=20", "launch.retries=1",
        "tracking.ledger=true", program=deaths,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    starts = [event["saved"] for event in supervised(tmp_path / "outputs/train/x", "start")]
    assert len(starts) == 5
    assert starts[0] is None and starts[1:] == sorted(set(starts[1:]))  # each time from a newer step
    folder = tmp_path / "outputs/train/x"
    assert sorted(ledger(folder)) == list(range(200))
    assert len(losses(folder)) == 200
