"""The commands as typed: train, go on, evaluate; what is wrong is one line, exit code 2, and nothing left behind."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sharder.tracking.metrics import read_metrics

MICRO = (
    "model=pi0_micro",
    "train.batch_size=4",
    "train.log_every=1",
    "data.planar_arm.episodes=4",
    "evaluation.episodes=3",
    "evaluation.max_steps=6",
)


def command(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", f"sharder.{name}", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Programs compiled and demonstrations recorded here are shared by the tests of this file."""
    return tmp_path_factory.mktemp("commands")


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


def test_train_go_on_and_evaluate(folder):
    first = command("train", *MICRO, "run.id=a", "train.steps=2")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "run folder: outputs/train/a" in first.stdout
    assert "success before training: " in first.stdout and "success after training: " in first.stdout
    assert "absent: right_wrist_0_rgb" in first.stdout
    assert "Traceback" not in first.stderr
    assert list(Path("outputs/train/a/wandb").glob("offline-run-*"))

    second = command("train", *MICRO, "run.id=a", "train.steps=4", "tracking=off")
    assert "resumed at step 2" in second.stdout, second.stdout + second.stderr
    assert [row["step"] for row in read_metrics(Path("outputs/train/a/metrics.jsonl"))] == [0, 1, 2, 3, 4]

    moved = folder / "moved"  # the checkpoint alone: nothing else of the run folder is needed
    shutil.copytree("outputs/train/a/checkpoints/4", moved / "checkpoints/4")
    third = command("evaluate", f"resume={moved}", "run.id=e", "evaluation.max_steps=6", "evaluation.episodes=3")
    assert third.returncode == 0, third.stdout + third.stderr
    result = json.loads(Path("outputs/evaluate/e/evaluation.json").read_text())
    assert result["episodes"] == 3 and result["step"] == 4
    assert set(result["baselines"]) == {"random_policy", "zero_actions"}
    assert Path("outputs/evaluate/e/evaluation.mp4").stat().st_size > 1000


def programs(said: str) -> list[int]:
    """How many were read from the compile cache, compiled and kept there, only compiled."""
    found = re.search(r"programs: (\d+) from the compile cache in .* s, (\d+) compiled .* s, (\d+) only compiled", said)
    assert found, said
    return [int(count) for count in found.groups()]


def test_what_was_compiled_once_is_never_compiled_again(monkeypatch):
    """A second start, under another id, and a restart in the middle: evaluation, state and step are read."""
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("cache-of-programs").absolute()))
    base = (*MICRO, "train.steps=2", "checkpoint.every_steps=1", "evaluation.at_end=false", "tracking=off")
    read, kept, rest = programs(command("train", *base, "run.id=first").stdout)
    assert kept > 3 and rest == 0
    assert programs(command("train", *base, "run.id=second").stdout) == [read + kept, 0, 0]

    shutil.rmtree("outputs/train/second/checkpoints/2")
    restarted = command("train", *base, "run.id=second").stdout
    assert "resumed at step 1" in restarted
    assert programs(restarted)[0] > 0 and programs(restarted)[1:] == [0, 0]
    said = re.search(r"first step ([\d.]+) s after the start: (.*)", restarted)
    assert said, restarted
    parts = {name: float(seconds) for name, seconds in (part.rsplit(" ", 1) for part in said[2].split(", "))}
    assert list(parts) == ["imports", "data", "devices", "state", "tracking", "compile", "first batch", "first step"]
    assert sum(parts.values()) == pytest.approx(float(said[1]), abs=0.01 * len(parts))  # each is rounded


def refused(name: str, *arguments: str) -> str:
    """The one line a refused command says."""
    done = command(name, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    errors = done.stderr.splitlines()
    assert len(errors) == 1 and errors[0].startswith("error: "), done.stderr
    return errors[0]


def test_a_refused_recording_leaves_no_run_folder(tmp_path):
    line = refused("train", "data=lerobot", f"data.root={tmp_path}/none", "run.id=bad")
    assert f"{tmp_path}/none" in line
    assert not Path("outputs/train/bad").exists()


def test_a_refused_resume_leaves_the_run_as_it_was():
    config = Path("outputs/train/a/.hydra/config.yaml")
    if not config.exists():
        assert command("train", *MICRO, "run.id=a", "train.steps=2", "tracking=off").returncode == 0
    before = config.read_text()
    line = refused("train", *MICRO, "run.id=a", "train.steps=9", "train.seed=7")
    assert "train.seed was 0, is 7" in line
    assert config.read_text() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_folder_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    assert "run.root" in refused("train", *MICRO, f"run.root={tmp_path}/x")


def test_an_output_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    assert "run.root" in refused("train", *MICRO, f"run.root={tmp_path}/file")


def test_a_damaged_checkpoint_is_one_line_that_says_which(tmp_path):
    """Where it was asked for by its step. A run of its own goes on from the one before (training/test_loop.py)."""
    assert command("train", *MICRO, "run.id=hurt", "train.steps=2", "tracking=off").returncode == 0
    files = [path for path in Path("outputs/train/hurt/checkpoints/2/trainable").rglob("*") if path.is_file()]
    array = max(files, key=lambda path: path.stat().st_size)
    array.write_bytes(array.read_bytes()[:-1] + b"?")
    line = refused("evaluate", "resume=outputs/train/hurt@2")
    assert "checkpoints/2: trainable/" in line and "is not what was written" in line


def test_going_back_within_a_run_is_refused_with_what_to_do():
    base = (*MICRO, "run.id=back", "checkpoint.every_steps=1", "tracking=off")
    assert command("train", *base, "train.steps=2").returncode == 0
    line = refused("train", *base, "train.steps=3", "resume=outputs/train/back@1")
    assert "another run.id" in line
