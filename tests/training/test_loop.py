"""Stopping and resuming is the same as never stopping, to the bit, whatever the loader's workers."""

import json
import signal
import time

import numpy as np
import pytest
from micro import assert_same_state, micro_config, target

from sharder.data.dataset import open_dataset
from sharder.errors import Fault, Stopped, UserError
from sharder.parallel.agreement import Hosts
from sharder.run_folder import checkpoint_steps, completed_step, sealed_steps
from sharder.supervise.presence import Presence
from sharder.tracking.metrics import read_metrics
from sharder.training.loop import train
from sharder.training.restore import read_about, read_state


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


def test_a_disk_that_filled_up_meanwhile_is_worth_another_try(tmp_path, monkeypatch):
    """A run that goes on has fitted before: a Fault, so that whoever watches over it tries again."""
    import shutil

    run(tmp_path, "run", train={"steps": 3})
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("sharder.training.checkpoint.shutil.disk_usage", lambda path: full)
    with pytest.raises(Fault, match=r"checkpoint\.keep: 1 more checkpoints of .* GB free"):
        run(tmp_path, "run", train={"steps": 5})


def test_a_run_whose_end_is_not_to_be_saved_needs_no_room_and_is_complete_all_the_same(tmp_path, monkeypatch):
    import shutil

    _, kept = run(tmp_path, "kept", train={"steps": 3})
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("sharder.training.checkpoint.shutil.disk_usage", lambda path: full)
    _, folder = run(tmp_path, "run", train={"steps": 3}, checkpoint__at_end=False)
    assert checkpoint_steps(folder) == [] and completed_step(folder) == 3
    assert losses(folder) == losses(kept)  # the last step's too, which nothing but its save waited for
    run(tmp_path, "run", train={"steps": 3}, checkpoint__at_end=False)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3


def test_saves_on_the_way_happen_whether_or_not_the_end_is_saved(tmp_path):
    _, folder = run(tmp_path, "run", train={"steps": 3}, checkpoint__every_steps=2, checkpoint__at_end=False)
    assert checkpoint_steps(folder) == [2]


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


def poison(monkeypatch, at):
    """The batch of one step has actions that are no numbers."""
    from sharder.training import loop

    place = loop.on_devices

    def poisoned(batch, target):
        if batch["example"].tolist() == at["example"].tolist():
            batch = batch | {"actions": np.full_like(batch["actions"], np.nan)}
        return place(batch, target)

    monkeypatch.setattr(loop, "on_devices", poisoned)


def test_a_loss_that_is_no_number_ends_the_run_or_is_skipped_and_is_written_down(tmp_path, monkeypatch):
    """Skipping moves no weight, and is repeated by a resumed run."""
    config = micro_config(tmp_path)
    at = open_dataset(config).source().batch(3)
    poison(monkeypatch, at)
    with pytest.raises(UserError, match=r"step 3: loss nan .*; no weight was moved.*train\.on_nonfinite=skip"):
        run(tmp_path, "stopped", train={"steps": 6})
    told = json.loads((tmp_path / "stopped" / "nonfinite-3.json").read_text())
    assert told["examples"] == at["example"].tolist() and told["loss"] == "nan"
    assert len(told["gradient_norms"]) == len(told["weight_norms"]) > 50

    config, straight = run(tmp_path, "straight", train={"steps": 6, "on_nonfinite": "skip"})
    _, resumed = run(tmp_path, "resumed", train={"steps": 2, "on_nonfinite": "skip"})
    _, resumed = run(tmp_path, "resumed", train={"steps": 6, "on_nonfinite": "skip"})
    state = saved(config, straight, 6)
    assert_same_state(state, saved(config, resumed, 6))
    assert all(np.isfinite(value).all() for value in state.trainable.values())
    assert (resumed / "nonfinite-3.json").is_file()


def test_a_damaged_checkpoint_is_skipped_by_name_and_the_next_save_happens(tmp_path, caplog):
    config, folder = run(tmp_path, "run", train={"steps": 4}, checkpoint__every_steps=2)
    array = max((folder / "checkpoints/4/trainable").rglob("*"), key=lambda path: path.stat().st_size)
    array.write_bytes(array.read_bytes()[:-1] + b"x")
    (folder / "complete.json").unlink()
    with caplog.at_level("WARNING", "sharder"):
        run(tmp_path, "run", train={"steps": 6}, checkpoint__every_steps=2)
    assert "checkpoints/4: skipped" in caplog.text and "4.damaged-1" in caplog.text
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["4", "4.damaged-1", "6"]
    _, straight = run(tmp_path, "straight", train={"steps": 6}, checkpoint__every_steps=2)
    assert_same_state(saved(config, straight, 6), saved(config, folder, 6))


def test_when_no_checkpoint_is_whole_nothing_is_moved_and_nothing_begins_anew(tmp_path):
    _, folder = run(tmp_path, "run", train={"steps": 4}, checkpoint__every_steps=2)
    for step in (2, 4):
        array = max((folder / f"checkpoints/{step}/trainable").rglob("*"), key=lambda path: path.stat().st_size)
        array.write_bytes(b"")
    with pytest.raises(UserError, match=r"none of its 2 checkpoints is whole \(step 4: .*another run.id"):
        run(tmp_path, "run", train={"steps": 6})
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["2", "4"]


@pytest.mark.parametrize("sealing", ["slow", "failing"])
def test_stopping_right_after_a_save_waits_for_it(tmp_path, monkeypatch, sealing):
    """There is nothing more to save then; what is told to be saved has to be."""
    from sharder.training import checkpoint

    seal = checkpoint.seal

    def slow(step):
        time.sleep(1.0)
        if sealing == "failing":
            raise OSError(28, "No space left on device")
        seal(step)

    monkeypatch.setattr(checkpoint, "seal", slow)

    class Asked(Presence):
        def phase(self, name, step=None):
            super().phase(name, step)
            if (name, step) == ("data wait", 4):
                self.request_stop(signal.SIGTERM)

    config = micro_config(tmp_path, steps=8)
    config.checkpoint.every_steps = 4
    folder = tmp_path / "stopped"
    folder.mkdir()
    with pytest.raises((Stopped, Fault)) as ended:
        train(open_dataset(config), folder, Hosts(), Asked())
    if sealing == "slow":
        assert ended.type is Stopped
        assert sealed_steps(folder) == [4]
    else:
        assert "no step is saved" in str(ended.value)


def test_a_request_to_stop_saves_where_the_run_is_and_goes_on_from_there(tmp_path):
    class Asked(Presence):
        """Asked at step 3, in the middle of a step."""

        def phase(self, name, step=None):
            super().phase(name, step)
            if (name, step) == ("step", 3):
                self.request_stop(signal.SIGTERM)

    config = micro_config(tmp_path, steps=6)
    folder = tmp_path / "stopped"
    folder.mkdir()
    with pytest.raises(Stopped, match="stopped at step 4, which is saved") as stopped:
        train(open_dataset(config), folder, Hosts(), Asked())
    assert stopped.value.code == 75 and not (folder / "complete.json").exists()
    config, stopped_folder = run(tmp_path, "stopped", train={"steps": 6})
    _, straight = run(tmp_path, "straight", train={"steps": 6})
    assert_same_state(saved(config, straight, 6), saved(config, stopped_folder, 6))
    assert json.loads((stopped_folder / "complete.json").read_text()) == {"step": 6}
