"""The train step: what is random is a function of (seed, step, position); accumulation changes nothing; it learns."""

import dataclasses
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from micro import initial_state, micro_config, random_batch, train_step

from sharder.config import AugmentConfig
from sharder.data.dataset import open_dataset
from sharder.model.execution import Execution
from sharder.model.pi0 import build, flow_matching_loss
from sharder.training.step import draw_noise, draw_time, example_keys, example_losses, observe


def test_draws_depend_on_seed_step_and_position_only():
    keys = example_keys(7, jnp.int32(3), 8)
    half = draw_noise(keys, (4, 2))[4:]
    np.testing.assert_array_equal(half, draw_noise(keys[4:], (4, 2)))
    for other in (example_keys(8, jnp.int32(3), 8), example_keys(7, jnp.int32(4), 8)):
        assert not np.isin(draw_noise(other, (4, 2)), draw_noise(keys, (4, 2))).any()
    assert len(np.unique(draw_time(keys))) == 8


def test_flow_times_are_beta_one_and_a_half():
    """Beta(1.5, 1) has mean 0.6 and variance 12/175, squeezed into (0.001, 1)."""
    time = np.asarray(draw_time(example_keys(0, jnp.int32(0), 40_000)))
    assert time.min() > 0.001 and time.max() < 1.0
    assert time.mean() == pytest.approx(0.6 * 0.999 + 0.001, abs=0.005)
    assert time.var() == pytest.approx(12 / 175, abs=0.002)


def test_noise_is_standard_normal_and_apart_from_time():
    keys = example_keys(0, jnp.int32(0), 20_000)
    noise, time = np.asarray(draw_noise(keys, (1, 1))).ravel(), np.asarray(draw_time(keys))
    assert noise.mean() == pytest.approx(0, abs=0.03) and noise.std() == pytest.approx(1, abs=0.03)
    assert abs(np.corrcoef(noise, time)[0, 1]) < 0.03


@pytest.mark.parametrize("accumulation", [4])
def test_accumulation_changes_neither_loss_nor_weights(tmp_path, accumulation):
    whole, parts = micro_config(tmp_path), micro_config(tmp_path, accumulation=accumulation)
    for config in (whole, parts):  # AdamW turns rounding in a tiny gradient into a share of the learning rate
        config.optimizer.learning_rate, config.optimizer.final_learning_rate = 5e-4, 1e-4
    one, other = initial_state(whole), initial_state(whole)
    step_whole = jax.jit(train_step(whole))
    step_parts = jax.jit(train_step(parts))
    for step in range(3):
        batch = random_batch(whole, step)
        one, wanted = step_whole(one, batch)
        other, found = step_parts(other, batch)
        assert float(found["loss"]) == pytest.approx(float(wanted["loss"]), rel=1e-6)
        assert float(found["grad_norm"]) == pytest.approx(float(wanted["grad_norm"]), rel=1e-5)
    for path, value in one.trainable.items():
        if not path.endswith("attention/k/bias"):  # its gradient is zero but for rounding, which AdamW makes a step of
            np.testing.assert_allclose(other.trainable[path], value, atol=1e-6, err_msg=path)
    assert int(other.step) == 3


def test_loss_is_the_mean_of_what_each_example_would_lose_alone(tmp_path):
    config = micro_config(tmp_path)
    weights, batch = initial_state(config).weights, random_batch(config)
    keys = example_keys(config.train.seed, jnp.int32(0), config.train.batch_size)
    losses = example_losses(weights, batch, keys, config, Execution())
    for i in range(config.train.batch_size):
        own = jax.tree.map(itemgetter(slice(i, i + 1)), batch)
        alone = example_losses(weights, own, keys[i : i + 1], config, Execution())
        np.testing.assert_allclose(alone[0], losses[i], rtol=2e-5)


def test_schedule_ema_and_frozen_weights(tmp_path):
    config = micro_config(tmp_path)
    config.model = dataclasses.replace(config.model, freeze=["gemma/layers/language"])
    config.model.language.lora_rank = config.model.action.lora_rank = 2
    before = initial_state(config)
    assert before.frozen and all(path.startswith("gemma/layers/language") for path in before.frozen)
    assert any("/lora/" in path and "language" in path for path in before.trainable)
    after, metrics = jax.jit(train_step(config))(before, random_batch(config))
    assert float(metrics["learning_rate"]) == pytest.approx(config.optimizer.learning_rate / 3)
    for path, value in before.frozen.items():
        np.testing.assert_array_equal(after.frozen[path], value)
    for path, value in before.trainable.items():
        expected = 0.9 * before.ema[path] + 0.1 * after.trainable[path]
        np.testing.assert_allclose(after.ema[path], expected, rtol=1e-6, err_msg=path)
        read = path != "gemma/final_norm/language/scale"  # the prefix's own output is read by nobody
        if read and not path.endswith("/a"):  # a correction is zero until its second factor has moved
            assert not np.array_equal(after.trainable[path], value), path


def test_without_updates_a_step_leaves_its_gradients_and_no_weight_moves(tmp_path):
    config = micro_config(tmp_path)
    config.optimizer.updates, config.optimizer.ema_decay = False, None
    before, batch = initial_state(config), random_batch(config)
    keys = example_keys(config.train.seed, before.step, config.train.batch_size)
    wanted, gradients = jax.jit(
        jax.value_and_grad(lambda weights: example_losses(weights, batch, keys, config, Execution()).mean())
    )(before.trainable)
    after, metrics = jax.jit(train_step(config))(before, batch)
    assert float(metrics["loss"]) == pytest.approx(float(wanted), rel=1e-6)
    assert int(after.step) == 1
    for path, value in before.trainable.items():
        np.testing.assert_array_equal(after.trainable[path], value)
        np.testing.assert_allclose(after.optimizer[path], gradients[path], rtol=1e-4, atol=1e-6, err_msg=path)


def test_cameras_that_the_data_lack_change_nothing_where_they_are_run_masked(tmp_path):
    """One camera of three: the loss and every gradient of a whole step."""
    config = micro_config(tmp_path)
    config.optimizer.updates, config.optimizer.ema_decay = False, None
    batch = random_batch(config)
    for name in ("images", "image_masks"):
        batch[name] = {"left_wrist_0_rgb": batch[name]["left_wrist_0_rgb"]}
    spared, wanted = jax.jit(train_step(config))(initial_state(config), batch)
    published = Execution(cameras_together=False, absent_cameras=True)
    after, found = jax.jit(train_step(config, published))(initial_state(config), batch)
    assert float(found["loss"]) == pytest.approx(float(wanted["loss"]), rel=1e-6)
    for path, gradient in spared.optimizer.items():
        furthest, largest = (float(jnp.abs(of).max()) for of in (after.optimizer[path] - gradient, gradient))
        assert furthest <= 5e-5 * largest + 1e-8, path


def test_a_prompt_budget_from_the_data_loses_nothing(tmp_path):
    """model.prompt_tokens=0, as many as the longest prompt needs, and 48: the same loss of each example."""
    losses = {}
    for prompt_tokens in (0, 48):
        config = micro_config(tmp_path)
        config.model.prompt_tokens = prompt_tokens
        data = open_dataset(config)
        batch = data.source().batch(0)
        keys = example_keys(config.train.seed, jnp.int32(0), config.train.batch_size)
        losses[batch["tokens"].shape[1]] = example_losses(
            initial_state(data.config).weights, batch, keys, data.config, Execution()
        )
        assert batch["token_mask"].sum(1).max() <= batch["tokens"].shape[1]
    shortest, longest = sorted(losses)
    assert shortest < longest == 48
    np.testing.assert_allclose(losses[shortest], losses[longest], rtol=1e-6)


def test_nano_overfits_one_batch_with_fixed_noise_and_time(tmp_path):
    """The loss falls at least twentyfold within 300 steps: the gradient reaches every part it needs."""
    from sharder.compose import composed

    config = composed(
        "train", ["model=pi0_nano", "model.action_dim=32", "model.prompt_tokens=48", "train.batch_size=4"]
    )[0]
    config.data.augment = AugmentConfig(1.0, 0.0, 0.0, 0.0, 0.0)
    batch = random_batch(config)
    keys = example_keys(0, jnp.int32(0), 4)
    noise, time = draw_noise(keys, batch["actions"].shape[1:]), draw_time(keys)

    import optax

    optimizer = optax.adam(2e-3)
    state = initial_state(config)

    def loss_of(weights):
        model = build(config.model, weights)
        return flow_matching_loss(model, observe(batch), batch["actions"], noise, time).mean()

    @jax.jit
    def update(weights, moments):
        loss, gradients = jax.value_and_grad(loss_of)(weights)
        updates, moments = optimizer.update(gradients, moments)
        return optax.apply_updates(weights, updates), moments, loss

    weights, moments = state.weights, optimizer.init(state.weights)
    losses = []
    for _ in range(300):
        weights, moments, loss = update(weights, moments)
        losses.append(float(loss))
        if losses[-1] < losses[0] / 20:
            break
    assert min(losses) < losses[0] / 20, (losses[0], min(losses))
