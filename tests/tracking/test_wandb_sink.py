"""W&B: recorded without an account, and unable to harm a run whatever becomes of it (field report F8.10)."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
import wandb_files

from sharder.config import Config
from sharder.tracking import wandb_sink
from sharder.tracking.metrics import METRICS, MetricsFile, raw_rows, read_metrics
from sharder.tracking.sinks import Tracker, open_tracker
from sharder.tracking.wandb_sink import Limits, WandbSink, run_id

pytestmark = pytest.mark.multiprocess

PATIENT = Limits(init_s=600.0, close_s=600.0, hurried_close_s=600.0)
OFF = "W&B is off for the rest of this run ("


class Run:
    """One attempt in a run folder: metrics.jsonl and W&B, and what W&B's sink had to say."""

    def __init__(self, tmp_path: Path, mode: str = "offline", limits: Limits = PATIENT) -> None:
        self.folder = tmp_path / "train" / "one"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.said: list[str] = []
        config = Config()
        config.tracking.mode = mode
        metrics = MetricsFile(self.folder / METRICS, first_step=0)
        self.sink = WandbSink(config, self.folder, metrics.rows_before, self.said.append, limits)
        self.tracker = Tracker([metrics, self.sink])

    @property
    def child(self) -> int:
        assert self.sink._child is not None
        return self.sink._child.pid

    def log(self, *steps: int) -> None:
        for step in steps:
            self.tracker.log({"step": step, "loss": 0.5})

    def close(self) -> None:
        with self.tracker:
            pass

    def service(self) -> int:
        """Once W&B is recording, with no other child that it starts for a moment."""
        wait_until(lambda: bool(wandb_files.files(self.folder)))

        def services() -> list[int]:
            children = [child for child in wandb_sink.children(self.child) if not has_ended(child)]
            return [child for child in children if name_of(child) == "wandb-core"]

        wait_until(lambda: len(services()) == 1)
        return services()[0]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "waited for a minute"
        time.sleep(0.02)


def name_of(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text().strip()
    return ""


def has_ended(process: int) -> bool:
    """Or has yet to be asked for its exit code, by whoever got the orphan."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def recorded_steps(folder: Path) -> list[int]:
    """By the newest file."""
    return [row["step"] for row in wandb_files.rows(wandb_files.files(folder)[-1])]


def test_an_offline_run_is_recorded_without_account_or_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    run = Run(tmp_path)
    run.tracker.log({"step": 1, "loss": float("nan")})
    run.tracker.log({"step": 2, "loss": 0.5})
    run.close()
    assert run.said == []
    (file,) = wandb_files.files(run.folder)
    first, second = wandb_files.rows(file)
    assert (first["step"], str(first["loss"])) == (1, "nan")
    assert second == {"_step": 1, "step": 2, "attempt": 0, "loss": 0.5}
    assert wandb_files.step_metric(file)["*"] == "step"  # what the charts count
    assert wandb_files.run_ids(run.folder) == {run_id(run.folder)}


def test_online_without_a_key_is_recorded_offline_and_says_so(tmp_path: Path) -> None:
    run = Run(tmp_path, "online")
    run.log(1)
    run.close()
    (said,) = run.said
    assert "recording offline" in said
    assert recorded_steps(run.folder) == [1]


def test_tracking_off_starts_nothing_and_keeps_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_sink.subprocess, "Popen", lambda *_, **__: pytest.fail("W&B was started"))
    config = Config()
    config.tracking.mode = "off"
    with open_tracker(config, tmp_path, 0) as tracker:
        tracker.log({"step": 1, "loss": 0.5})
    assert [path.name for path in tmp_path.iterdir()] == [METRICS]
    assert read_metrics(tmp_path / METRICS) == [{"step": 1, "attempt": 0, "loss": 0.5}]


@pytest.fixture
def black_hole(monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """Where W&B is said to be: it can be connected to, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{hole.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        yield hole


def test_a_server_that_never_answers_delays_the_end_by_its_limit_at_most(
    tmp_path: Path, black_hole: socket.socket
) -> None:
    run = Run(tmp_path, "online", Limits(init_s=600.0, close_s=0.5))
    run.log(*range(1, 2001))
    run.close()
    (said,) = run.said
    assert said.startswith(OFF + "not finished 0.5 s after the last row)")
    assert len(read_metrics(run.folder / METRICS)) == 2000


def test_a_server_that_does_not_answer_in_time_is_done_without(tmp_path: Path, black_hole: socket.socket) -> None:
    run = Run(tmp_path, "online", Limits(init_s=1.0, close_s=600.0))
    run.log(1)
    run.service()  # the only one: that which tried to reach the server is gone
    run.log(2)
    run.close()
    (said,) = run.said
    assert "recording offline" in said
    assert recorded_steps(run.folder) == [1, 2]


@pytest.mark.parametrize("who", ["its process", "its service"])
def test_a_stopped_logger_holds_up_nothing_and_costs_no_memory(tmp_path: Path, who: str) -> None:
    run = Run(tmp_path, limits=Limits(close_s=0.5))
    child, service = run.child, run.service()
    run.log(1)
    os.kill(child if who == "its process" else service, signal.SIGSTOP)
    tracemalloc.start()
    run.log(*range(2, 20_001))  # 1 MB, more than a pipe holds
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    run.close()

    assert kept_bytes < 200_000
    (said,) = run.said
    assert said.startswith(OFF + "not finished 0.5 s after the last row)")
    assert [row["step"] for row in read_metrics(run.folder / METRICS)] == list(range(1, 20_001))
    wait_until(lambda: has_ended(child) and has_ended(service))


@pytest.mark.parametrize("who", ["its process", "its service"])
def test_what_a_killed_logger_lost_is_recorded_by_the_next_attempt(tmp_path: Path, who: str) -> None:
    first = Run(tmp_path)
    child, service = first.child, first.service()
    first.log(1, 2)
    os.kill(child if who == "its process" else service, signal.SIGKILL)
    wait_until(lambda: first.log(3) is None and bool(first.said))
    first.log(4)
    first.close()
    (said,) = first.said
    assert said.startswith(OFF)
    assert "the next start of this run.id records what W&B lacks" in said

    second = Run(tmp_path)
    second.log(5)
    second.close()
    assert second.said == []
    assert recorded_steps(second.folder) == [row["step"] for row in raw_rows(second.folder / METRICS)]


def test_a_training_that_failed_waits_for_it_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_child(monkeypatch, "import time; time.sleep(600)")
    run = Run(tmp_path, limits=Limits(close_s=600.0, hurried_close_s=0.1))
    with pytest.raises(ZeroDivisionError), run.tracker:
        raise ZeroDivisionError
    (said,) = run.said
    assert said.startswith(OFF + "not finished 0.1 s after the last row)")


def as_child(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    real = subprocess.Popen
    monkeypatch.setattr(wandb_sink.subprocess, "Popen", lambda argv, **kw: real([sys.executable, "-c", program], **kw))


@pytest.mark.parametrize(
    ("child", "reason"),
    [
        ("raise SystemExit('no disk')", "no disk"),
        ("import os; os.abort()", "ended by a signal: Aborted"),
        ("raise ValueError('bad')", "ValueError: bad"),
        ("raise SystemExit(3)", "exit code 3"),
        ("", "exit code 0"),  # before the training has ended
    ],
)
def test_a_failing_child_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: str, reason: str
) -> None:
    as_child(monkeypatch, child)
    log = tmp_path / "train" / "one" / "wandb" / "sharder.log"
    log.parent.mkdir(parents=True)
    log.write_text("what an earlier attempt said\n")
    run = Run(tmp_path)
    wait_until(lambda: run.log(1) is None and bool(run.said))
    run.log(2)
    run.close()
    (said,) = run.said
    assert said.startswith(f"{OFF}{reason})")
    assert str(log) in said


def test_a_child_that_cannot_start_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    run = Run(tmp_path)
    run.log(1)
    run.close()
    (said,) = run.said
    assert said.startswith(OFF)


def test_a_log_that_is_gone_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_child(monkeypatch, "import sys; sys.stdin.read(); sys.exit(3)")
    run = Run(tmp_path)
    (run.folder / "wandb" / "sharder.log").unlink()
    run.close()
    (said,) = run.said
    assert said.startswith(OFF + "exit code 3)")


def test_the_id_belongs_to_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "a" / "train" / "x,train.seed=1", tmp_path / "b" / "train" / "x,train.seed=1"
    assert run_id(one) == run_id(one)
    assert run_id(one) != run_id(two)
    assert run_id(one).startswith("train-x-train-seed-1-")
    assert len(run_id(Path("/" + "long" * 50 + "/" + "name" * 50))) <= 64
    monkeypatch.chdir(tmp_path)
    assert run_id(Path("a/train/x")) == run_id(tmp_path / "a" / "train" / "x")
    assert os.sep not in run_id(one)


@pytest.mark.slow
def test_a_real_run_trains_while_the_server_never_answers(tmp_path: Path, black_hole: socket.socket) -> None:
    online = ("run.id=a", "train.steps=4", "tracking.mode=online")
    result = processes.run(tmp_path, *processes.MICRO, *online, JAX_PLATFORMS="cpu")
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "outputs" / "train" / "a"
    assert [row["step"] for row in read_metrics(folder / METRICS)] == [1, 2, 3, 4]
    assert "finished at step 4" in result.stdout
    assert result.stdout.count("W&B") == 1  # why it is recorded offline
    assert recorded_steps(folder) == [1, 2, 3, 4]
