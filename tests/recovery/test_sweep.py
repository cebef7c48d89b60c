"""A sweep that was killed goes on with the points that are not complete (field report F4.3)."""

import signal
import time
from pathlib import Path

import pytest
from processes import MICRO, TIMEOUT_S, losses, rows, run, start

from sharder.run_folder import checkpoint_steps, completed_step, load_config

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

STEPS = 400
SWEEP = ("-m", "train.seed=0,1", f"train.steps={STEPS}", "checkpoint.every_steps=20", *MICRO)


def test_a_killed_sweep_goes_on(tmp_path: Path) -> None:
    killed = start(tmp_path, *SWEEP)
    runs = tmp_path / "outputs/train"

    def of(seed: int) -> Path | None:
        return next((folder for folder in runs.glob("[!.]*") if load_config(folder).train.seed == seed), None)

    until = time.monotonic() + TIMEOUT_S
    while (second := of(1)) is None or len(checkpoint_steps(second)) < 2:
        assert killed.poll() is None, killed.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    first = of(0)
    assert first is not None
    assert completed_step(first) == STEPS
    assert completed_step(second) is None
    before = (first / "metrics.jsonl").read_text()

    done = run(tmp_path, *SWEEP)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (first / "metrics.jsonl").read_text() == before
    assert completed_step(second) == STEPS
    assert len(losses(second)) == STEPS
    resumed = [row["resumed_at"] for row in rows(second) if "resumed_at" in row]
    assert len(resumed) == 1 and resumed[0] > 0
    assert len(list(runs.glob("[!.]*"))) == 2
