"""A checkpoint holds the whole state to the bit, and what acts can be read without the rest."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from micro import assert_same_state, initial_state, micro_config, random_batch, target, train_step

from sharder.errors import Fault, UserError
from sharder.training.checkpoint import Checkpoints, flat, nest
from sharder.training.restore import read_about, read_best_weights, read_state
from sharder.training.state import state_bytes


def test_nest_and_flat_are_inverses():
    weights = {"a/b/c": 1, "a/b/d": 2, "e": 3}
    assert nest(weights) == {"a": {"b": {"c": 1, "d": 2}}, "e": 3}
    assert flat(nest(weights)) == weights


@pytest.mark.parametrize(("ema_decay", "freeze"), [(0.9, ["vision/"]), (None, [])])
def test_a_trained_state_comes_back_to_the_bit(tmp_path, ema_decay, freeze):
    config = micro_config(tmp_path)
    config.optimizer.ema_decay, config.model.freeze = ema_decay, freeze
    state, _ = jax.jit(train_step(config))(initial_state(config), random_batch(config))
    checkpoints = Checkpoints(tmp_path / "checkpoints", config.checkpoint)
    checkpoints.save(state, 1, {"step": 1, "note": "é"})
    checkpoints.close()
    restored = read_state(tmp_path / "checkpoints", 1, target(config))
    assert_same_state(restored, state)
    assert read_about(tmp_path / "checkpoints", 1) == {"step": 1, "note": "é"}
    best = read_best_weights(tmp_path / "checkpoints", 1, target(config))
    for path, value in state.best_weights.items():
        np.testing.assert_array_equal(best[path], value)


def test_saving_goes_on_beside_a_step_that_reuses_the_buffers(tmp_path):
    """The train step donates its input; what is being written must be the values of the step that was saved."""
    config = micro_config(tmp_path)
    step = jax.jit(train_step(config), donate_argnums=0)
    state = initial_state(config)
    wanted = {path: np.array(value) for path, value in state.trainable.items()}
    checkpoints = Checkpoints(tmp_path / "checkpoints", config.checkpoint)
    checkpoints.save(state, 0, {})
    for i in range(3):
        state, _ = step(state, random_batch(config, i))
    checkpoints.close()
    restored = read_state(tmp_path / "checkpoints", 0, target(config))
    for path, value in wanted.items():
        np.testing.assert_array_equal(restored.trainable[path], value, err_msg=path)


BEGIN = """
import os, sys, traceback
from dataclasses import replace
from pathlib import Path
from micro import assert_same_state, initial_state, micro_config, target
from sharder.errors import Fault
from sharder.training.checkpoint import Checkpoints
from sharder.training.restore import read_state
place = Path(sys.argv[1])
config, folder = micro_config(place), place / "checkpoints"
state = initial_state(config)
checkpoints = Checkpoints(folder, config.checkpoint)
def away():
    folder.rename(place / "away")
    folder.write_text("not a folder")
"""
FAILS = (
    BEGIN
    + """
checkpoints.save(state, 1, {})
checkpoints.wait()
try:
    if sys.argv[2] == "before":
        away()
    checkpoints.save(state, 2, {})
    if sys.argv[2] == "during":
        away()
    checkpoints.wait()
except Fault as fault:
    print(fault, flush=True)
    os._exit(1)  # as a worker does: threads of the save that failed would keep it for minutes
"""
)
GOES_ON = (
    BEGIN
    + """
assert checkpoints.newest_whole() == 1
for step in (2, 3):
    checkpoints.save(state, step, {})
checkpoints.close()
assert checkpoints.newest_whole() == 3
assert_same_state(replace(read_state(folder, 2, target(config)), step=state.step), state)
"""
)


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_save_that_failed_is_told_of_and_the_next_start_saves_that_step(tmp_path, when):
    """The folder is away for a while; what is left of the save must not be taken for one."""

    def python(program):
        path = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])
        command = [sys.executable, "-c", program, str(tmp_path), when]
        return subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
        )

    failed = python(FAILS)
    said = rf"{tmp_path}/checkpoints: saving failed \(.*\); no step is saved; mend that and run the same run.id again"
    assert re.fullmatch(said, failed.stdout.strip()), failed.stderr
    (tmp_path / "checkpoints").unlink()
    (tmp_path / "away").rename(tmp_path / "checkpoints")
    again = python(GOES_ON)
    assert again.returncode == 0, again.stderr


def test_a_manifest_that_cannot_be_written_is_told_of(tmp_path, monkeypatch):
    def full(step):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sharder.training.checkpoint.seal", full)
    config = micro_config(tmp_path)
    checkpoints = Checkpoints(tmp_path / "checkpoints", config.checkpoint)
    checkpoints.save(initial_state(config), 1, {})
    with pytest.raises(
        Fault, match=r"no room to save, .* GB are free; no step is saved; free some and run the same run.id"
    ):
        checkpoints.wait()
    assert checkpoints.newest_whole() is None  # it is not sealed


def test_nothing_older_goes_before_the_newest_is_sealed(tmp_path, monkeypatch):
    """Killed between the arrays and the seal, with the one before it damaged meanwhile: there is a third."""
    from sharder.training import checkpoint

    config, folder = micro_config(tmp_path), tmp_path / "checkpoints"
    config.checkpoint.keep, config.checkpoint.keep_every = 2, 4
    checkpoints = Checkpoints(folder, config.checkpoint)
    state = initial_state(config)

    def steps():
        return sorted(int(path.name) for path in folder.iterdir())

    for step in range(1, 7):
        checkpoints.save(state, step, {})
    checkpoints.wait()
    assert steps() == [4, 5, 6]  # 4 is kept for good
    monkeypatch.setattr(checkpoint, "seal", lambda step: os.truncate(folder / "6" / "about" / "metadata", 1))
    checkpoints.save(state, 7, {})
    checkpoints.wait()
    assert steps() == [4, 5, 6, 7]
    assert checkpoints.newest_whole() == 5


def test_how_long_training_stood_still_is_added_up(tmp_path):
    config = micro_config(tmp_path)
    with Checkpoints(tmp_path / "checkpoints", config.checkpoint) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(initial_state(config), step, {})
        checkpoints.wait()
        assert checkpoints.saves == 3
        assert checkpoints.stalled_s > 0
        assert checkpoints.saving_s > 0


def test_a_missing_or_unfinished_step_and_another_model_are_named(tmp_path):
    config = micro_config(tmp_path)
    checkpoints = Checkpoints(tmp_path / "checkpoints", config.checkpoint)
    checkpoints.save(initial_state(config), 5, {})
    checkpoints.close()
    with pytest.raises(UserError, match="checkpoints/6 is not a complete checkpoint"):
        read_state(tmp_path / "checkpoints", 6, target(config))
    config.model.vocabulary = 300
    with pytest.raises(UserError, match=r"gemma/table has shape \(264, 16\), this model.s has \(300, 16\)"):
        read_state(tmp_path / "checkpoints", 5, target(config))


def test_state_bytes_are_what_the_arrays_take(tmp_path):
    config = micro_config(tmp_path)
    state = initial_state(config)
    assert state_bytes(state) == sum(jnp.asarray(leaf).nbytes for leaf in jax.tree.leaves(state))
    assert state_bytes(target(config)) == state_bytes(state)
