"""A checkpoint holds the whole state to the bit, and what acts can be read without the rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from micro import assert_same_state, initial_state, micro_config, random_batch, target, train_step

from sharder.errors import UserError
from sharder.training.checkpoint import Checkpoints, flat, nest, read_about, read_best_weights, read_state
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
