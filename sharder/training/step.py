"""The train step: a pure function of state and batch.

B examples, of the global batch or of a part of it   H horizon   X action dim
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from sharder.config import Config
from sharder.model.augment import augment
from sharder.model.execution import Execution
from sharder.model.pi0 import Observation, build, flow_matching_loss
from sharder.model.weight import Weights
from sharder.parallel.layout import Layout
from sharder.training.gradients import GradientsOf, make_gradients
from sharder.training.optimizer import clip, make_optimizer, schedule
from sharder.training.state import TrainState

Batch = dict[str, Any]  # as drawn in data/pipeline.py
Metrics = dict[str, jax.Array]  # float32 scalars
NOISE, TIME, AUGMENTATION = range(3)  # what a key is for


def example_keys(seed: int, step: jax.Array, batch_size: int) -> jax.Array:
    """One key an example [B]: a function of (seed, step, position in the global batch) alone."""
    with jax.named_scope("noise"):
        step_key = jax.random.fold_in(jax.random.key(seed), step)
        return jax.vmap(lambda position: jax.random.fold_in(step_key, position))(jnp.arange(batch_size))


def purpose(keys: jax.Array, what: int) -> jax.Array:
    with jax.named_scope("noise"):
        return jax.vmap(lambda key: jax.random.fold_in(key, what))(keys)


def draw_noise(keys: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Standard normal [B, H, X] float32."""
    with jax.named_scope("noise"):
        return jax.vmap(lambda key: jax.random.normal(key, shape))(purpose(keys, NOISE))


def draw_time(keys: jax.Array) -> jax.Array:
    """Flow times [B] in (0.001, 1): Beta(1.5, 1), more of them near the noise; by inverting its u ** (1 / 1.5)."""
    with jax.named_scope("noise"):
        uniform = jax.vmap(jax.random.uniform)(purpose(keys, TIME))
        return uniform ** (1 / 1.5) * 0.999 + 0.001


def to_unit(images: jax.Array) -> jax.Array:
    """uint8 -> float32 in [-1, 1]."""
    with jax.named_scope("augmentation"):
        return images.astype(jnp.float32) / 127.5 - 1.0


def observe(batch: Batch) -> Observation:
    images = {camera: to_unit(pixels) for camera, pixels in batch["images"].items()}
    return Observation(images, batch["image_masks"], batch["tokens"], batch["token_mask"], batch["state"])


def example_losses(weights: Weights, batch: Batch, keys: jax.Array, config: Config, execution: Execution) -> jax.Array:
    """Training loss of each example [B] float32, with its own noise, flow time and augmentation."""
    observation = observe(batch)
    for index, (camera, pixels) in enumerate(sorted(observation.images.items())):
        camera_keys = purpose(keys, AUGMENTATION + index)
        observation.images[camera] = augment(pixels, camera_keys, config.data.augment, camera)
    noise = draw_noise(keys, batch["actions"].shape[1:])
    model = build(config.model, weights, execution)
    return flow_matching_loss(model, observation, batch["actions"], noise, draw_time(keys)).mean(-1)


def make_step_gradients(config: Config, execution: Execution, mesh: Mesh, layout: Layout) -> GradientsOf:
    def losses(weights: Weights, batch: Batch, keys: jax.Array, execution: Execution) -> jax.Array:
        return example_losses(weights, batch, keys, config, execution)

    return make_gradients(losses, config, execution, mesh, layout)


def unless_skipped(finite: jax.Array, after: TrainState, before: TrainState) -> TrainState:
    """A step without a finite loss and gradient moves nothing but the counters: of the step and of the schedule."""

    def keep(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(finite, new, old) if jnp.issubdtype(new.dtype, jnp.floating) else new

    return jax.tree.map(keep, after, before)


def make_train_step(
    config: Config, execution: Execution, mesh: Mesh, layout: Layout
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    optimizer, learning_rate = make_optimizer(config.optimizer), schedule(config.optimizer)
    decay, clip_norm = config.optimizer.ema_decay, config.optimizer.clip_norm
    gradients_of = make_step_gradients(config, execution, mesh, layout)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        keys = example_keys(config.train.seed, state.step, config.train.batch_size)
        loss, gradients, norm = gradients_of(state.trainable, state.frozen, (batch, keys))

        with jax.named_scope("optimizer"):
            if not config.optimizer.updates:
                _, kept = optimizer.update(gradients, state.optimizer)
                after = dataclasses.replace(state, step=state.step + 1, optimizer=kept)
                return after, {"loss": loss, "finite": jnp.isfinite(loss)}
            updates, optimizer_state = optimizer.update(
                clip(gradients, norm, clip_norm), state.optimizer, state.trainable
            )
            trainable = optax.apply_updates(state.trainable, updates)
            ema = state.ema
            if decay is not None:
                ema = jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, state.ema, trainable)
            after = TrainState(state.step + 1, trainable, state.frozen, optimizer_state, ema)
            finite = jnp.isfinite(loss) & jnp.isfinite(norm)
            metrics = {"loss": loss, "grad_norm": norm, "learning_rate": learning_rate(state.step), "finite": finite}
            return unless_skipped(finite, after, state), metrics

    return train_step
