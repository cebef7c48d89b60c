"""Several processes of one run: they find each other, wait for each other, and say who is at fault. All real."""

import json
import re
from pathlib import Path

import pytest
from processes import MICRO, TIMEOUT_S, losses, run, saved, start

from sharder.parallel.rollcall import reserve_port

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

TWO = ("mesh=fsdp2", "launch=local", "launch.processes=2", *MICRO)


def logs(where: Path, run_id: str) -> list[str]:
    return [file.read_text() for file in sorted((where / "outputs/train" / run_id / "logs").iterdir())]


def test_two_jobs_at_once_on_one_machine_both_finish(tmp_path: Path) -> None:
    jobs = [start(tmp_path, f"run.id={name}", "train.steps=3", *TWO) for name in ("a", "b")]
    for job in jobs:
        said, _ = job.communicate(timeout=TIMEOUT_S)
        assert job.returncode == 0, said
    assert losses(tmp_path / "outputs/train/a") == losses(tmp_path / "outputs/train/b")


@pytest.mark.parametrize(
    ("overrides", "variables", "field"),
    [
        (["train.log_every=5"], {}, "train.log_every: 1 in process 0, 5 in process 1"),
        ([], {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}, "XLA_FLAGS: '' in process 0, '--xla_cpu_enable"),
        (["data.episodes=[0,1,2,3]"], {}, "data.episodes: None in process 0, .0, 1, 2, 3. in process 1"),
    ],
)
def test_a_process_that_differs_ends_both_and_the_field_is_named(
    tmp_path: Path, overrides: list[str], variables: dict[str, str], field: str
) -> None:
    """Started one by one, as on two machines. The time-out is a minute: it takes some seconds."""
    with reserve_port() as port:
        told = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port.getsockname()[1]}", "JAX_NUM_PROCESSES": "2"}
        shared = ("mesh=fsdp2", "run.id=x", "train.steps=3", *MICRO)
        both = [
            start(tmp_path, *shared, **told, JAX_PROCESS_ID="0"),
            start(tmp_path, *shared, *overrides, **told, **variables, JAX_PROCESS_ID="1"),
        ]
        said = [process.communicate(timeout=TIMEOUT_S)[0] for process in both]
    for process, text in zip(both, said, strict=True):
        assert process.returncode == 2, text
        assert re.search(f"error: start: the processes of this run differ in .*{field}", text), text


SLEEPS_ONCE = """
from sharder.data.pipeline import BatchSource
batch = BatchSource.batch
def slow(self, step):
    if step == 3 and RANK == 1:
        time.sleep({seconds})
    return batch(self, step)
BatchSource.batch = slow
worker()
"""


def test_a_slow_loader_is_named_and_the_run_goes_on(tmp_path: Path) -> None:
    program = SLEEPS_ONCE.format(seconds=30)
    done = run(tmp_path, "run.id=x", "train.steps=6", *TWO, program=program)
    assert done.returncode == 0, done.stdout + done.stderr
    log = logs(tmp_path, "x")[0]
    assert "waiting for process 1 at 'batch ready': not there after 10 s" in log
    assert "process 1 arrived at 'batch ready' after 3" in log or "process 1 arrived at 'batch ready' after 2" in log
    assert len(losses(tmp_path / "outputs/train/x")) == 6


def test_a_loader_that_never_comes_ends_the_run_by_name(tmp_path: Path) -> None:
    limits = ("launch.barrier_timeout_s=8", "launch.late_after_s=2")
    done = run(tmp_path, "run.id=x", "train.steps=6", *limits, *TWO, program=SLEEPS_ONCE.format(seconds=1e6))
    assert done.returncode == 1  # nobody's mistake: a supervisor would try again
    assert "error: process 1 has not reached 'batch ready' after 8 s (launch.barrier_timeout_s)" in done.stdout


STALLS_IN_RESTORE = """
from sharder.training import start
read_state = start.read_state
def stalled(*arguments):
    if RANK == 1:
        time.sleep(1e6)
    return read_state(*arguments)
start.read_state = stalled
worker()
"""


def test_a_restore_that_stalls_is_named(tmp_path: Path) -> None:
    """Each process reads its own slices, and all meet at a named point afterwards."""
    first = run(tmp_path, "run.id=x", "train.steps=2", *TWO)
    assert first.returncode == 0, first.stdout + first.stderr
    limits = ("launch.barrier_timeout_s=8", "launch.late_after_s=2")
    done = run(tmp_path, "run.id=x", "train.steps=4", *limits, *TWO, program=STALLS_IN_RESTORE)
    assert done.returncode == 1
    assert "process 1 has not reached" in done.stdout + done.stderr


STUCK_DEVICE = """
from sharder.parallel import preflight
if RANK == 1:
    preflight.sum_of_devices = lambda mesh: time.sleep(1e6)
worker()
"""


def test_devices_that_cannot_talk_end_the_run_with_the_known_remedies(tmp_path: Path) -> None:
    done = run(tmp_path, "run.id=x", "train.steps=2", "launch.preflight_timeout_s=10", *TWO, program=STUCK_DEVICE)
    assert done.returncode == 2
    assert "preflight: a first sum over 2 devices of 2 processes has not returned after 10 s" in done.stdout
    assert "NCCL_P2P_DISABLE=1" in done.stdout


def test_a_coordinator_nobody_answers_at_is_named(tmp_path: Path) -> None:
    with reserve_port() as port:
        told = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port.getsockname()[1]}", "JAX_NUM_PROCESSES": "2"}
        shared = ("mesh=fsdp2", "run.id=x", "launch.start_timeout_s=5", "launch.late_after_s=2", *MICRO)
        for index, words in (("1", "127.0.0.1:"), ("0", "process 1")):
            done = run(tmp_path, *shared, **told, JAX_PROCESS_ID=index)
            assert done.returncode == 2, done.stdout + done.stderr
            assert words in done.stderr and "launch.start_timeout_s" in done.stderr


def test_only_a_slurm_job_id_is_no_launch(tmp_path: Path) -> None:
    done = run(tmp_path, "run.id=x", "train.steps=1", *MICRO, SLURM_JOB_ID="77")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SLURM_JOB_ID" in done.stdout and "single process" in done.stdout


def test_any_mesh_resumes_what_any_other_saved(tmp_path: Path) -> None:
    """The data go on where they stopped, and the numbers to rounding."""
    straight = run(tmp_path, "run.id=straight", "train.steps=8", *MICRO)
    assert straight.returncode == 0, straight.stdout + straight.stderr
    for steps, placement in (
        (3, ("mesh=fsdp4", "launch=local", "launch.processes=2")),
        (6, ("mesh=hsdp2x2", "layout=auto")),
        (8, ("mesh=dp2", "launch=local", "launch.processes=2")),
    ):
        done = run(tmp_path, "run.id=moved", f"train.steps={steps}", *placement, *MICRO)
        assert done.returncode == 0, done.stdout + done.stderr
    wanted, found = losses(tmp_path / "outputs/train/straight"), losses(tmp_path / "outputs/train/moved")
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in wanted], rel=1e-5)
    one, other = (saved(tmp_path / "outputs/train" / name, 8) for name in ("straight", "moved"))
    assert one.keys() == other.keys()


def test_a_mesh_on_this_machine_as_typed(tmp_path: Path) -> None:
    overrides = ("mesh=fsdp4", "attn=flash", "train.steps=2", "run.id=x", "evaluation.episodes=2")
    done = run(tmp_path, *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mesh: 4 simulated CPU devices of 1 process" in done.stdout
    environment = json.loads((tmp_path / "outputs/train/x/environment.json").read_text())
    assert environment["device_count"] == 4 and environment["mesh"] == {"batch": 1, "fsdp": 4}
