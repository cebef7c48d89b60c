"""W&B: recorded without an account, and unable to harm a run whatever becomes of it."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sharder.config import Config
from sharder.tracking import wandb_sink
from sharder.tracking.wandb_sink import Limits, WandbSink, run_id

pytestmark = pytest.mark.multiprocess


def config(mode: str) -> Config:
    made = Config()
    made.tracking.mode = mode
    return made


def folder_in(tmp_path: Path) -> Path:
    folder = tmp_path / "train" / "one"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # no netrc
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-own"))


def recorded(folder: Path) -> bytes:
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return file.read_bytes()


def test_an_offline_run_is_recorded_without_account_or_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    folder, warnings = folder_in(tmp_path), []
    sink = WandbSink(config("offline"), folder, warnings.append)
    for step in range(3):
        sink.log({"step": step, "some_loss": 0.5 if step else float("nan")})
    sink.close()
    assert warnings == []
    assert b"some_loss" in recorded(folder)
    assert run_id(folder).encode() in recorded(folder)


def test_online_without_a_key_is_recorded_offline_and_says_so(tmp_path: Path) -> None:
    folder, warnings = folder_in(tmp_path), []
    sink = WandbSink(config("online"), folder, warnings.append)
    sink.log({"step": 1, "some_loss": 0.5})
    sink.close()
    (warning,) = warnings
    assert "recording offline" in warning
    assert b"some_loss" in recorded(folder)


def test_a_server_that_never_answers_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hole = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{hole.getsockname()[1]}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    folder, warnings = folder_in(tmp_path), []
    sink = WandbSink(config("online"), folder, warnings.append, Limits(init_s=600.0, close_s=1.0))
    for step in range(2000):
        sink.log({"step": step, "text": "x" * 200})
    sink.close()
    (warning,) = warnings
    assert warning.startswith("W&B is off for the rest of this run (not finished 1 s after the last row)")
    sink.log({"step": 3})
    hole.close()


@pytest.mark.parametrize("child", ["raise SystemExit('no disk')", "import os; os.abort()", "raise ValueError('bad')"])
def test_a_failing_child_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: str) -> None:
    real = subprocess.Popen
    monkeypatch.setattr(wandb_sink.subprocess, "Popen", lambda argv, **kw: real([sys.executable, "-c", child], **kw))
    folder, warnings = folder_in(tmp_path), []
    sink = WandbSink(config("offline"), folder, warnings.append)
    deadline = time.monotonic() + 10
    while not warnings and time.monotonic() < deadline:
        sink.log({"step": 1})
        time.sleep(0.02)
    sink.log({"step": 2})
    sink.close()
    (warning,) = warnings
    assert warning.startswith("W&B is off for the rest of this run (")
    assert str(folder / "wandb" / "sharder.log") in warning


def test_a_child_that_cannot_start_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    warnings: list[str] = []
    sink = WandbSink(config("offline"), folder_in(tmp_path), warnings.append)
    sink.log({"step": 1})
    sink.close()
    assert len(warnings) == 1


def test_a_child_that_takes_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen
    asleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(wandb_sink.subprocess, "Popen", lambda argv, **kw: real(asleep, **kw))
    monkeypatch.setattr(wandb_sink, "LARGEST_BACKLOG", 2**18)
    warnings: list[str] = []
    sink = WandbSink(config("offline"), folder_in(tmp_path), warnings.append)
    for step in range(1000):
        sink.log({"step": step, "text": "x" * 1000})
    sink.close()
    (warning,) = warnings
    assert "taken no rows" in warning


def test_the_id_belongs_to_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "a" / "train" / "x,train.seed=1", tmp_path / "b" / "train" / "x,train.seed=1"
    assert run_id(one) == run_id(one)
    assert run_id(one) != run_id(two)
    assert run_id(one).startswith("train-x-train-seed-1-")
    assert len(run_id(Path("/" + "long" * 50 + "/" + "name" * 50))) <= 64
    monkeypatch.chdir(tmp_path)
    assert run_id(Path("a/train/x")) == run_id(tmp_path / "a" / "train" / "x")
    assert os.sep not in run_id(one)
