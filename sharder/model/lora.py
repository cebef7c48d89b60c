"""Low-rank corrections beside frozen weights, with openpi's contractions.

    B batch   T tokens   D width   N query heads   K key/value heads   H head dim   F mlp width   R rank

The attention corrections are multiplied by alpha / rank, the MLP's are not: that is the published function.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from sharder.config import ExpertConfig
from sharder.model.weight import Init


class HeadLora(nnx.Module):
    """x [B, T, D] -> correction [B, T, N, H]: a low-rank product for every head."""

    def __init__(self, init: Init, width: int, heads: int, head_dim: int, rank: int, alpha: float):
        self.a = init.normal((heads, width, rank), width)
        self.b = init.zeros((heads, rank, head_dim))
        self.factor = alpha / rank

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        a_NDR, b_NRH = self.a[...].astype(x_BTD.dtype), self.b[...].astype(x_BTD.dtype)
        return jnp.einsum("BTNR,NRH->BTNH", jnp.einsum("BTD,NDR->BTNR", x_BTD, a_NDR), b_NRH) * self.factor


class MergeLora(nnx.Module):
    """x [B, T, N, H] -> correction [B, T, D]. Heads are summed in the first product, then again in the second."""

    def __init__(self, init: Init, width: int, heads: int, head_dim: int, rank: int, alpha: float):
        self.a = init.normal((heads, head_dim, rank), heads * head_dim)
        self.b = init.zeros((heads, rank, width))
        self.factor = alpha / rank

    def __call__(self, x_BTNH: jax.Array) -> jax.Array:
        a_NHR, b_NRD = self.a[...].astype(x_BTNH.dtype), self.b[...].astype(x_BTNH.dtype)
        low_BTR = jnp.einsum("BTNH,NHR->BTR", x_BTNH, a_NHR)
        return jnp.einsum("BTR,NRD->BTD", low_BTR, b_NRD) * self.factor


class DenseLora(nnx.Module):
    """x [..., I] -> correction [..., O]."""

    def __init__(self, init: Init, inputs: int, outputs: int, rank: int):
        self.a = init.normal((inputs, rank), inputs)
        self.b = init.zeros((rank, outputs))

    def __call__(self, x: jax.Array) -> jax.Array:
        return (x @ self.a[...].astype(x.dtype)) @ self.b[...].astype(x.dtype)


class AttentionLora(nnx.Module):
    def __init__(self, init: Init, config: ExpertConfig):
        sizes = (config.head_dim, config.lora_rank, config.lora_alpha)
        self.q = HeadLora(init, config.width, config.heads, *sizes)
        self.k = HeadLora(init, config.width, config.kv_heads, *sizes)
        self.v = HeadLora(init, config.width, config.kv_heads, *sizes)
        self.out = MergeLora(init, config.width, config.heads, *sizes)


class MlpLora(nnx.Module):
    def __init__(self, init: Init, config: ExpertConfig):
        self.gate = DenseLora(init, config.width, config.mlp_dim, config.lora_rank)
        self.up = DenseLora(init, config.width, config.mlp_dim, config.lora_rank)
        self.down = DenseLora(init, config.mlp_dim, config.width, config.lora_rank)
