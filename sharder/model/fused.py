"""One kernel for all of attention, cuDNN's, for queries that see every valid key: those of cameras and prefix.

B batch   T queries   S keys   N query heads   K key/value heads   H head dim   P tokens of the prefix   D width

cuDNN knows of padding that lies behind the keys. In pi0's prefix it lies anywhere (a masked camera, the rest of a
prompt), but attention does not care in which order keys come: so the prefix is reordered, once, with its valid tokens
in front. jax.nn.dot_product_attention has the kernel and its gradient; which GPUs take it says training/kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from sharder.model.block_mask import BlockMask
from sharder.model.tiles import filled

KEPT = "dot_product_attention_fwd_wrapper"  # the primitive of cuDNN's forward pass: its results are kept, see execution
EVEN = 2  # tokens: jax refuses other lengths with a gradient; cuDNN itself takes any

# Of arrays [B, ...] alone, to the same: how a function runs where each device has some of the examples.
OverExamples = Callable[[Callable[..., Any]], Callable[..., Any]]


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """On one device, or in a device's own program."""
    return function


@dataclass(frozen=True)
class Fused:
    """`implementation`: as jax.nn.dot_product_attention has it; xla computes the same anywhere, and is for tests."""

    longest_head: int  # the largest H that it takes
    implementation: Literal["cudnn", "xla"] = "cudnn"
    over_examples: OverExamples = as_it_is

    def takes(self, q_BTNH: jax.Array, mask: BlockMask, keys: int) -> bool:
        """Can it give what queries get that see all valid ones of the first `keys` keys, and no other?"""
        valid_first = mask.key_valid is None or keys <= mask.valid_first
        return valid_first and self.takes_head(q_BTNH.shape[-1])

    def takes_head(self, dim: int) -> bool:
        return dim <= self.longest_head and dim % 8 == 0

    def __call__(
        self, q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, key_valid: jax.Array | None
    ) -> jax.Array:
        """[B, T, N, H]. Queries are already scaled; scores and softmax are float32. `key_valid` [B, S]: valid first."""
        (B, T, *_), S = q_BTNH.shape, k_BSKH.shape[1]
        count_B = jnp.full(B, S, jnp.int32) if S % EVEN else None
        if key_valid is not None:
            # An example without a valid token is nobody's, but NaN would be everybody's.
            count_B = jnp.maximum(key_valid.sum(1, dtype=jnp.int32), 1)
        q_BTNH, k_BSKH, v_BSKH = (filled(x, x.shape[1] + x.shape[1] % EVEN) for x in (q_BTNH, k_BSKH, v_BSKH))

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, count: jax.Array | None = None) -> jax.Array:
            return jax.nn.dot_product_attention(
                q, k, v, scale=1.0, key_value_seq_lengths=count, implementation=self.implementation
            )

        arrays = (q_BTNH, k_BSKH, v_BSKH) if count_B is None else (q_BTNH, k_BSKH, v_BSKH, count_B)
        return self.over_examples(attend)(*arrays)[:, :T]


def valid_first(tokens_BPD: jax.Array, valid_BP: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same tokens with the valid ones in front, in their order, and which are valid."""
    order_BP = jnp.argsort(~valid_BP, axis=1, stable=True)

    def reordered(x: jax.Array, order: jax.Array) -> jax.Array:
        return x.at[order].get(unique_indices=True, mode="promise_in_bounds")  # no two gradients meet

    return jax.vmap(reordered)(tokens_BPD, order_BP), jax.vmap(reordered)(valid_BP, order_BP)
