"""AdamW with warm-up and cosine decay, and the clipping before it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from sharder.config import OptimizerConfig
from sharder.model.weight import Weights


def schedule(config: OptimizerConfig) -> optax.Schedule:
    """Learning rate by step: linear from peak / (warmup + 1), cosine from the peak to the final rate."""
    return optax.warmup_cosine_decay_schedule(
        init_value=config.learning_rate / (config.warmup_steps + 1),
        peak_value=config.learning_rate,
        warmup_steps=config.warmup_steps,
        decay_steps=config.decay_steps,
        end_value=config.final_learning_rate,
    )


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Without updates its state is the last step's gradients: so they are computed and written as ever."""
    if not config.updates:
        keep = lambda gradients, state, weights=None: (jax.tree.map(jnp.zeros_like, gradients), gradients)  # noqa: E731
        return optax.GradientTransformation(lambda weights: jax.tree.map(jnp.zeros_like, weights), keep)
    return optax.adamw(schedule(config), b1=config.b1, b2=config.b2, eps=config.eps, weight_decay=config.weight_decay)


def clip(gradients: Weights, norm: jax.Array, largest: float) -> Weights:
    """Gradients whose norm is `norm`, scaled to `largest` if that is smaller. The layout counts the norm, once."""
    scale = jnp.where(norm < largest, 1.0, largest / norm)
    return jax.tree.map(lambda gradient: (gradient * scale).astype(gradient.dtype), gradients)
