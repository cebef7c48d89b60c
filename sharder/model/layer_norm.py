"""Layer normalization with a gradient of its own, which passes over its input twice; XLA's takes four passes.

X tokens   C channels
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

STATISTICS = "statistics"  # the name of what a norm leaves to its backward pass: two numbers a token


@jax.custom_vjp
def layer_norm(x_XC: jax.Array, scale_C: jax.Array, bias_C: jax.Array) -> jax.Array:
    """x normalized along C, times scale, plus bias: in float32, to the dtype of x."""
    return _layer_norm(x_XC, scale_C, bias_C)[0]


def _layer_norm(x_XC: jax.Array, scale_C: jax.Array, bias_C: jax.Array) -> tuple[jax.Array, Any]:
    x32_XC = x_XC.astype(jnp.float32)
    mean_X1 = x32_XC.mean(-1, keepdims=True)
    rate_X1 = jax.lax.rsqrt(jnp.square(x32_XC - mean_X1).mean(-1, keepdims=True) + 1e-6)
    mean_X1, rate_X1 = (checkpoint_name(x, STATISTICS) for x in (mean_X1, rate_X1))
    y_XC = ((x32_XC - mean_X1) * rate_X1 * scale_C + bias_C).astype(x_XC.dtype)
    return y_XC, (x_XC, scale_C, mean_X1, rate_X1)


def _layer_norm_gradient(saved: Any, d_y_XC: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x_XC, scale_C, mean_X1, rate_X1 = saved
    normed_XC = (x_XC.astype(jnp.float32) - mean_X1) * rate_X1
    d_y_XC = d_y_XC.astype(jnp.float32)
    d_normed_XC = d_y_XC * scale_C
    along_X1 = (d_normed_XC * normed_XC).mean(-1, keepdims=True)
    d_x_XC = rate_X1 * (d_normed_XC - d_normed_XC.mean(-1, keepdims=True) - normed_XC * along_X1)
    return d_x_XC.astype(x_XC.dtype), (d_y_XC * normed_XC).sum(0), d_y_XC.sum(0)


layer_norm.defvjp(_layer_norm, _layer_norm_gradient)
