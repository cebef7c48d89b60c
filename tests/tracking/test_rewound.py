"""Steps that a crash took back: done again, shown once, and lost neither here nor in W&B (field report F8.9)."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
import wandb_files
from hand_made_breakdown import breakdown
from wandb_server import Server, serving

from sharder.config import Config
from sharder.tracking.breakdown import publish
from sharder.tracking.metrics import METRICS, raw_rows, read_metrics
from sharder.tracking.sinks import open_tracker
from sharder.tracking.wandb_sink import run_id

pytestmark = pytest.mark.multiprocess


class Crash(Exception):
    pass


def attempt(folder: Path, first_step: int, last_step: int, crash: bool, mode: str = "offline", fsdp: int = 1) -> None:
    config = Config()
    config.tracking.mode, config.mesh.fsdp = mode, fsdp
    with open_tracker(config, folder, first_step) as tracker:
        for step in range(first_step + 1, last_step + 1):
            tracker.log({"step": step, "loss": 1 / step})
        if crash:
            raise Crash


def all_recorded(folder: Path) -> None:
    """W&B has the raw view, row for row, at steps of its own that never go back; under one run id."""
    of_wandb = {row.pop("_step"): row for file in wandb_files.files(folder) for row in wandb_files.rows(file)}
    assert of_wandb == dict(enumerate(raw_rows(folder / METRICS)))
    assert len(wandb_files.run_ids(folder)) == 1


def test_crash_at_12_resume_at_10(tmp_path: Path) -> None:
    folder = tmp_path / "train" / "one"
    folder.mkdir(parents=True)
    with pytest.raises(Crash):
        attempt(folder, 0, 12, crash=True)
    attempt(folder, 10, 15, crash=False)

    raw = [(row["step"], row["attempt"]) for row in raw_rows(folder / METRICS)]
    assert raw == [*((step, 0) for step in range(1, 13)), *((step, 1) for step in range(11, 16))]
    final = [(row["step"], row["attempt"]) for row in read_metrics(folder / METRICS)]
    assert final == [*((step, 0) for step in range(1, 11)), *((step, 1) for step in range(11, 16))]
    all_recorded(folder)
    first, second = wandb_files.files(folder)
    assert len(wandb_files.rows(first)) + len(wandb_files.rows(second)) == len(raw)  # none of them twice


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        yield server


def all_sent(server: Server, folder: Path) -> None:
    """The raw view, in its order, each row once, as one run."""
    assert list(server.history) == [run_id(folder)]
    raw = raw_rows(folder / METRICS)
    assert server.rows(run_id(folder)) == [{"_step": number, **row} for number, row in enumerate(raw)]


def test_online_attempts_are_one_run_and_nothing_is_dropped(tmp_path: Path, server: Server) -> None:
    folder = tmp_path / "train" / "one"
    folder.mkdir(parents=True)
    with pytest.raises(Crash):
        attempt(folder, 0, 12, crash=True, mode="online")
    assert len(server.rows(run_id(folder))) == 12
    attempt(folder, 10, 15, crash=False, mode="online")
    all_sent(server, folder)


def test_offline_attempts_are_sent_later_as_one_run(tmp_path: Path, server: Server) -> None:
    folder = tmp_path / "train" / "one"
    folder.mkdir(parents=True)
    with pytest.raises(Crash):
        attempt(folder, 0, 12, crash=True)
    attempt(folder, 10, 15, crash=False)
    sync(folder)
    all_sent(server, folder)


def sync(folder: Path) -> None:
    for file in wandb_files.files(folder):
        command = [sys.executable, "-m", "wandb", "sync", file.parent]
        subprocess.run(command, cwd=folder, capture_output=True, check=True)


def test_an_offline_run_resumed_twice_and_profiled_is_sent_later_without_loss(tmp_path: Path, server: Server) -> None:
    """The breakdown is no row of metrics.jsonl: it takes a step of W&B's own, and none of a row's."""
    folder = tmp_path / "train" / "one"
    publish(breakdown(), folder / "profile", lambda line: None)
    for first_step, last_step in ((0, 12), (10, 14), (13, 15)):
        with pytest.raises(Crash):
            attempt(folder, first_step, last_step, crash=True)
    sync(folder)
    assert list(server.history) == [run_id(folder)]
    sent = server.rows(run_id(folder))
    steps = [row.pop("_step") for row in sent]
    assert steps == sorted(set(steps))  # W&B drops what does not come after the one before
    assert [row for row in sent if "breakdown" not in row] == list(raw_rows(folder / METRICS))
    assert [row["breakdown_ms/optimizer"] for row in sent if "breakdown" in row] == [10.0] * 3  # of each attempt


def test_an_attempt_on_another_mesh_is_the_same_run_and_says_so(tmp_path: Path, server: Server) -> None:
    folder = tmp_path / "train" / "one"
    folder.mkdir(parents=True)
    with pytest.raises(Crash):
        attempt(folder, 0, 3, crash=True, mode="online", fsdp=4)
    attempt(folder, 2, 4, crash=False, mode="online", fsdp=2)
    all_sent(server, folder)
    about = server.about[run_id(folder)]
    assert (about["groupName"], about["jobType"]) == ("train", "train")
    assert "mesh=fsdp2" in about["tags"] and "mesh=fsdp4" not in about["tags"]
    assert json.loads(about["config"])["mesh"]["value"]["fsdp"] == 2


KILLED_AT_12 = """
from sharder.tracking import sinks
log = sinks.Tracker.log
def log_and_die(self, row):
    log(self, row)
    if row["step"] == 12 and not Path("killed").exists():
        while not Path("outputs/train/a/checkpoints/10/manifest.json").exists():
            time.sleep(0.05)
        Path("killed").touch()
        os.kill(os.getpid(), 9)
sinks.Tracker.log = log_and_die
worker()
"""


@pytest.mark.slow
def test_a_supervised_run_killed_at_12(tmp_path: Path) -> None:
    """The supervisor ends all that the worker left behind, W&B too, which had written nothing yet."""
    result = processes.run(
        tmp_path,
        *processes.MICRO,
        *("launch=supervised", "run.id=a", "train.steps=15", "checkpoint.every_steps=5", "tracking.mode=offline"),
        program=KILLED_AT_12,
        JAX_PLATFORMS="cpu",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    folder = tmp_path / "outputs" / "train" / "a"
    assert [row["step"] for row in raw_rows(folder / METRICS)] == [*range(1, 13), *range(11, 16)]
    assert [row["step"] for row in read_metrics(folder / METRICS)] == list(range(1, 16))
    all_recorded(folder)
