"""Attention under pi0's block mask: one signature, several implementations.

B batch   T queries   S keys   N query heads   K key/value heads   G = N / K   H head dim
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from sharder.model.block_mask import MASKED, BlockMask
from sharder.model.flash import flash


def naive(q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, mask: BlockMask) -> jax.Array:
    """The reference: scores and softmax in float32, written out. Queries are already scaled."""
    B, T, N, H = q_BTNH.shape
    K = k_BSKH.shape[2]
    q_BTKGH = q_BTNH.reshape(B, T, K, N // K, H)
    scores_BKGTS = jnp.einsum("BTKGH,BSKH->BKGTS", q_BTKGH, k_BSKH, preferred_element_type=jnp.float32)
    scores_BKGTS = jnp.where(mask.dense()[:, None, None], scores_BKGTS, MASKED)
    shares_BKGTS = jax.nn.softmax(scores_BKGTS, axis=-1).astype(v_BSKH.dtype)
    return jnp.einsum("BKGTS,BSKH->BTKGH", shares_BKGTS, v_BSKH).reshape(B, T, N, H)


def xla(q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, mask: BlockMask) -> jax.Array:
    """JAX's own attention, lowered by XLA."""
    return jax.nn.dot_product_attention(
        q_BTNH, k_BSKH, v_BSKH, mask=mask.dense()[:, None], scale=1.0, implementation="xla"
    )


def ablated(q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, mask: BlockMask) -> jax.Array:
    """No attention: what a step costs without it. Everything that goes in still matters, and gets a gradient."""
    mean_BKH = (k_BSKH + v_BSKH).mean(1)
    queries_a_key = q_BTNH.shape[2] // k_BSKH.shape[2]
    return q_BTNH + jnp.repeat(mean_BKH, queries_a_key, axis=1)[:, None]


ATTENDING = "attending"  # the name of queries, keys and values as attention takes them


def attending(x: jax.Array) -> jax.Array:
    """What a remat that keeps products keeps of a projection: with bias, rotation and scale, not the product alone."""
    return checkpoint_name(x, ATTENDING)


Attention = Callable[[jax.Array, jax.Array, jax.Array, BlockMask], jax.Array]
IMPLEMENTATIONS: dict[str, Attention] = {"naive": naive, "xla": xla, "tiles": flash, "flash": flash}
IN_TILES = ("tiles", "flash")  # flash is tiles, and a kernel in place of some of them where devices have one
