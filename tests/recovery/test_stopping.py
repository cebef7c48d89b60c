"""Asked to stop in any phase, a run stops within its grace and goes on exactly: `pytest -m multiprocess` (minutes)."""

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from processes import MICRO, TIMEOUT_S, command, environment, ledger, losses, run, saved, supervised

from sharder.supervise.heartbeat import read_heartbeats

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

STEPS, STEP = 8, 5  # of the run; where it is held in the phases that have steps
COMMON = (
    *(*MICRO, "mesh=fsdp2", "launch=supervised", "launch.processes=2", "launch.backoff_s=0.1", "launch.grace_s=60"),
    *(f"train.steps={STEPS}", "checkpoint.every_steps=3", "tracking.ledger=true"),
    *("evaluation.at_end=true", "evaluation.episodes=2", "evaluation.max_steps=2"),
)
PHASES = ("start", "restore", "compile", "first step", "data wait", "step", "save", "evaluate", "end")

# Every worker stays in the phase for some heartbeats, once.
STAYS = """
from sharder.supervise.presence import Presence
said = Presence.phase
def stays(self, name, step=None):
    said(self, name, step)
    here = Path({folder!r}, f"stayed-{{RANK}}")
    if name == {phase!r} and (step is None or name == "first step" or step >= {step}) and not here.exists():
        here.touch()
        time.sleep(4)
if {phase!r} == "start":
    from sharder.data import dataset
    opened = dataset.open_dataset
    def open_dataset(config):
        time.sleep(4)
        return opened(config)
    dataset.open_dataset = open_dataset
Presence.phase = stays
worker()
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("undisturbed")
    done = run(where, "run.id=x", *COMMON)
    assert done.returncode == 0, done.stdout + done.stderr
    return where / "outputs/train/x"


def held_in(where: Path, phase: str) -> subprocess.Popen[str]:
    """A run whose workers are in this phase now."""
    folder, stays = where / "outputs/train/x", STAYS.format(folder=str(where), phase=phase, step=STEP)
    started = subprocess.Popen(
        command("run.id=x", *COMMON, program=stays),
        cwd=where, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    until = time.monotonic() + TIMEOUT_S
    while {beat.phase for beat in read_heartbeats(folder).values()} != {phase} or len(read_heartbeats(folder)) < 2:
        assert started.poll() is None, started.communicate()[0]
        assert time.monotonic() < until, read_heartbeats(folder)
        time.sleep(0.05)
    return started


def same(found: Path, wanted: Path) -> None:
    assert losses(found) == losses(wanted)
    assert ledger(found) == ledger(wanted)
    arrays, others = saved(found, STEPS), saved(wanted, STEPS)
    assert arrays.keys() == others.keys()
    for name, array in others.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("number", [signal.SIGTERM], ids=lambda number: number.name)
def test_a_request_in_any_phase(tmp_path: Path, undisturbed: Path, phase: str, number: signal.Signals) -> None:
    """Nobody is killed for being late: every worker says itself that it stops, or is done already."""
    started = held_in(tmp_path, phase)
    started.send_signal(number)
    said, _ = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == 75, said
    assert "the same command goes on" in said
    folder = tmp_path / "outputs/train/x"
    ends = supervised(folder, "exit")
    assert [end["how"] for end in ends] == ["exit 75", "exit 75"]
    done = run(tmp_path, "run.id=x", *COMMON)
    assert done.returncode == 0, done.stdout + done.stderr
    same(folder, undisturbed)


@pytest.mark.parametrize(
    ("phase", "number"),
    [("compile", signal.SIGTERM), ("step", signal.SIGUSR1), ("data wait", signal.SIGUSR2), ("save", signal.SIGINT)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_request_to_one_rank_alone_stops_all_at_one_step_and_the_run_goes_on_by_itself(
    tmp_path: Path, undisturbed: Path, phase: str, number: signal.Signals
) -> None:
    started = held_in(tmp_path, phase)
    folder = tmp_path / "outputs/train/x"
    os.kill(read_heartbeats(folder)[1].pid, number)
    said, _ = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == 0, said
    ends = supervised(folder, "exit")
    if phase != "compile":  # where the one that was told leaves alone
        assert {end["how"] for end in ends[:2]} == {"exit 75"}
        assert len({end["step"] for end in ends[:2]}) == 1
    assert [end["how"] for end in ends[-2:]] == ["exit 0", "exit 0"]
    same(folder, undisturbed)
