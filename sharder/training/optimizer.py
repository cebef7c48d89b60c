"""AdamW after clipping, with warm-up and cosine decay."""

from __future__ import annotations

import optax

from sharder.config import OptimizerConfig


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
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(schedule(config), b1=config.b1, b2=config.b2, eps=config.eps, weight_decay=config.weight_decay),
    )
