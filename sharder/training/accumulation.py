"""Microbatches: a batch in parts, whose losses and gradients add up.

B batch   A microbatches
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sharder.model.weight import Weights

Examples = tuple[Any, jax.Array]  # (batch, keys): leaves [B, ...]


def microbatches(examples: Any, accumulation: int) -> Any:
    """Leaves [B, ...] -> [A, B / A, ...], taking every A-th row, so that each device's rows stay on it."""
    return jax.tree.map(lambda x: x.reshape(-1, accumulation, *x.shape[1:]).swapaxes(0, 1), examples)


def add_up(loss_of: Callable[[Weights, Any], jax.Array], weights: Weights, parts: Any) -> tuple[jax.Array, Weights]:
    """(loss, gradients), summed in float32 over `parts`, whose leaves have the microbatches on dim 0."""
    if jax.tree.leaves(parts)[0].shape[0] == 1:
        return jax.value_and_grad(loss_of)(weights, jax.tree.map(lambda x: x[0], parts))

    def add(total: Any, part: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, jax.value_and_grad(loss_of)(weights, part)), None

    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (jnp.float32(0), weights))
    return jax.lax.scan(add, zero, parts)[0]
