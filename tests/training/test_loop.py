"""Stopping and resuming is the same as never stopping, to the bit, whatever the loader's workers."""

import json

import numpy as np
import pytest
from micro import assert_same_state, micro_config, target

from sharder.data.dataset import open_dataset
from sharder.errors import UserError
from sharder.parallel.agreement import Hosts
from sharder.tracking.metrics import read_metrics
from sharder.training.checkpoint import read_about, read_state
from sharder.training.loop import train


def run(tmp_path, name, **changes):
    config = micro_config(tmp_path, **changes.pop("train", {}))
    for key, value in changes.items():
        section, _, leaf = key.partition("__")
        setattr(getattr(config, section) if leaf else config, leaf or section, value)
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    data = open_dataset(config)
    train(data, folder, Hosts())
    return data.config, folder


def saved(config, folder, step):
    return read_state(folder / "checkpoints", step, target(config))


def losses(folder):
    return [(row["step"], row["loss"], row["grad_norm"]) for row in read_metrics(folder / "metrics.jsonl")]


def test_stop_and_resume_is_bit_identical_across_an_epoch_boundary(tmp_path):
    """6 episodes are some 90 frames: 11 batches of 8 an epoch, so steps 9 to 14 cross from epoch 0 into epoch 1."""
    config, straight = run(tmp_path, "straight", train={"steps": 14})
    _, resumed = run(tmp_path, "resumed", train={"steps": 9})
    _, resumed = run(tmp_path, "resumed", train={"steps": 14}, data__workers=2)
    rows = read_metrics(straight / "metrics.jsonl")
    assert {row["epoch"] for row in rows} == {0, 1}
    assert losses(straight) == losses(resumed)
    assert [row["attempt"] for row in read_metrics(resumed / "metrics.jsonl")] == [0] * 9 + [1] * 5
    assert_same_state(saved(config, straight, 14), saved(config, resumed, 14))


def test_resuming_in_a_later_epoch_and_from_another_run(tmp_path):
    config, straight = run(tmp_path, "straight", train={"steps": 26}, checkpoint__every_steps=24)
    _, other = run(tmp_path, "other", train={"steps": 26}, resume=f"{straight}@24")
    assert losses(straight)[24:] == losses(other)
    assert_same_state(saved(config, straight, 26), saved(config, other, 26))


def test_a_finished_run_started_again_does_nothing(tmp_path):
    _, folder = run(tmp_path, "run", train={"steps": 3})
    before = (folder / "metrics.jsonl").read_text()
    run(tmp_path, "run", train={"steps": 3})
    assert (folder / "metrics.jsonl").read_text() == before


def test_changing_what_a_step_means_is_refused_with_old_and_new(tmp_path):
    run(tmp_path, "run", train={"steps": 2})
    with pytest.raises(UserError, match=r"train\.seed was 0, is 5"):
        run(tmp_path, "run", train={"steps": 4, "seed": 5})
    with pytest.raises(UserError, match=r"data fingerprint was '\w+', is '\w+'"):
        run(tmp_path, "run", train={"steps": 4}, data__episodes=[0, 1, 2])
    run(tmp_path, "run", train={"steps": 4, "accumulation": 2}, data__workers=1)  # changes no step's meaning


def test_checkpoint_retention_and_what_a_checkpoint_says_of_itself(tmp_path):
    config, folder = run(tmp_path, "run", train={"steps": 7}, checkpoint__every_steps=2, checkpoint__keep=2)
    steps = sorted(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdecimal())
    assert steps == [6, 7]
    about = read_about(folder / "checkpoints", 7)
    assert about["config"]["train"]["steps"] == 7 and about["cameras"] == ["base_0_rgb", "left_wrist_0_rgb"]
    data = open_dataset(config)
    assert about["normalization"]["state"]["mean"] == data.normalization.state.mean.tolist()
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["device_count"] == 1 and environment["versions"]["jax"]


def test_a_disk_too_small_for_the_checkpoints_is_refused_at_the_start(tmp_path, monkeypatch):
    import shutil

    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("sharder.training.checkpoint.shutil.disk_usage", lambda path: full)
    with pytest.raises(UserError, match=r"checkpoint\.keep: 2 more checkpoints of .* GB free"):
        run(tmp_path, "run", train={"steps": 3})
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_evaluation_is_logged_before_and_after_training(tmp_path, capsys):
    _, folder = run(
        tmp_path, "run", train={"steps": 2}, evaluation__at_start=True, evaluation__at_end=True,
        evaluation__episodes=3, evaluation__max_steps=8,
    )  # fmt: skip
    printed = capsys.readouterr().out
    for words in ("success before training: ", "for comparison: random policy ", "zero actions", "success after"):
        assert words in printed
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    rates = [row["success_rate"] for row in rows if "success_rate" in row]
    assert len(rates) == 2 and np.isfinite(rates).all()
