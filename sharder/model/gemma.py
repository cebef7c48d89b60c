"""Gemma with two experts that share one attention: each token stream has its own weights, all tokens meet in attention.

    B batch   T tokens of one stream   S keys   D width   N query heads   K key/value heads   H head dim
    F mlp width   L layers

The streams are the prefix (cameras and prompt, through the language expert) and the suffix (state and noisy
actions, through the action expert). Either may be absent: the prefix alone fills the cache, the suffix alone reads it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from sharder.config import ExpertConfig
from sharder.model.attention import BlockMask, attending
from sharder.model.execution import Execution
from sharder.model.gelu import gelu
from sharder.model.lora import AttentionLora, MlpLora
from sharder.model.weight import Dense, Init

MAX_WAVELENGTH = 10_000.0  # tokens


class Streams(NamedTuple):
    """One array an expert; None where that stream is absent."""

    language: jax.Array | None  # [B, T, D of the language expert]
    action: jax.Array | None  # [B, T, D of the action expert]


class Cache(NamedTuple):
    """Keys (rotated) and values of the prefix, layer by layer."""

    k: jax.Array  # [L, B, S, K, H]
    v: jax.Array  # [L, B, S, K, H]


def rotate(x_BTNH: jax.Array, positions_BT: jax.Array) -> jax.Array:
    """Rotary embedding: the first half of the head dim against the second, by position / wavelength."""
    half = x_BTNH.shape[-1] // 2
    wavelength = MAX_WAVELENGTH ** (jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions_BT[..., None, None].astype(jnp.float32) / wavelength
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    x32_BTNH = x_BTNH.astype(jnp.float32)
    # Each half with the other beside it, so that XLA makes one kernel of it and writes no half in float32.
    swapped_BTNH = jnp.roll(x32_BTNH, half, axis=-1)
    cos, sin = jnp.concatenate([cos, cos], -1), jnp.concatenate([-sin, sin], -1)
    return (x32_BTNH * cos + swapped_BTNH * sin).astype(x_BTNH.dtype)


def rms(x: jax.Array) -> jax.Array:
    """x / root mean square, in float32."""
    x32 = x.astype(jnp.float32)
    return x32 * jax.lax.rsqrt(jnp.square(x32).mean(-1, keepdims=True) + 1e-6)


class Norm(nnx.Module):
    """RMSNorm. `gate` is None: the block's output is added as it is."""

    def __init__(self, init: Init, width: int):
        self.scale = init.zeros((width,))

    def __call__(self, x_BTD: jax.Array, condition: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
        with jax.named_scope("norm"):
            return (rms(x_BTD) * (1 + self.scale[...].astype(jnp.float32))).astype(x_BTD.dtype), None


class AdaptiveNorm(nnx.Module):
    """RMSNorm whose scale, shift and residual gate are read from a condition [B, D] (pi0.5: the flow time)."""

    def __init__(self, init: Init, width: int):
        self.modulation = Dense(init, width, 3 * width, zero=True)

    def __call__(self, x_BTD: jax.Array, condition: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
        assert condition is not None
        with jax.named_scope("norm"):
            scale, shift, gate = jnp.split(self.modulation(condition)[:, None], 3, axis=-1)
            return (rms(x_BTD) * (1 + scale) + shift).astype(x_BTD.dtype), gate.astype(x_BTD.dtype)


def add(x: jax.Array, y: jax.Array, gate: jax.Array | None) -> jax.Array:
    return x + y if gate is None else x + gate * y


class Projections(nnx.Module):
    """One expert's way into and out of the shared attention."""

    def __init__(self, init: Init, config: ExpertConfig):
        D, N, K, H = config.width, config.heads, config.kv_heads, config.head_dim
        self.q = init.normal((D, N, H), D)
        self.k, self.v = init.normal((D, K, H), D), init.normal((D, K, H), D)
        self.out = init.normal((N, H, D), N * H)
        if config.lora_rank:
            self.lora = AttentionLora(init, config)

    def project(self, name: str, x_BTD: jax.Array) -> jax.Array:
        """To queries, keys or values, by their name: [B, T, heads, H]."""
        with jax.named_scope("attention_projections"):
            lora = getattr(self, "lora", None)
            y = jnp.einsum("BTD,DNH->BTNH", x_BTD, getattr(self, name)[...].astype(x_BTD.dtype))
            return y + getattr(lora, name)(x_BTD) if lora else y

    def merge(self, x_BTNH: jax.Array) -> jax.Array:
        with jax.named_scope("attention_projections"):
            y_BTD = jnp.einsum("BTNH,NHD->BTD", x_BTNH, self.out[...].astype(x_BTNH.dtype))
            lora = getattr(self, "lora", None)
            return y_BTD + lora.out(x_BTNH) if lora else y_BTD


class GatedMlp(nnx.Module):
    """(gelu(x gate) * (x up)) down."""

    def __init__(self, init: Init, config: ExpertConfig):
        D, F = config.width, config.mlp_dim
        self.gate, self.up, self.down = init.normal((D, F), D), init.normal((D, F), D), init.normal((F, D), F)
        if config.lora_rank:
            self.lora = MlpLora(init, config)

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        with jax.named_scope("mlp"):
            lora = getattr(self, "lora", None)

            def project(name: str, x: jax.Array) -> jax.Array:
                y = x @ getattr(self, name)[...].astype(x.dtype)
                return y + getattr(lora, name)(x) if lora else y

            gate_BTF = gelu(project("gate", x_BTD))
            return project("down", gate_BTF * project("up", x_BTD))


class ExpertLayer(nnx.Module):
    def __init__(self, init: Init, config: ExpertConfig, norm: type[Norm] | type[AdaptiveNorm]):
        self.norm_attention, self.norm_mlp = norm(init, config.width), norm(init, config.width)
        self.attention = Projections(init, config)
        self.mlp = GatedMlp(init, config)


class Layer(nnx.Module):
    """One layer of both experts."""

    def __init__(self, init: Init, language: ExpertConfig, action: ExpertConfig, action_norm: type):
        self.language = ExpertLayer(init, language, Norm)
        self.action = ExpertLayer(init, action, action_norm)

    def __call__(
        self,
        x: Streams,
        positions_BT: jax.Array,
        mask: BlockMask,
        condition: jax.Array | None,
        cached: Cache | None,  # this layer's part
        execution: Execution,
        is_last: bool = False,
    ) -> tuple[Streams, Cache]:
        """After the last layer nobody reads the prefix: there it gives keys and values, and no more."""
        experts = [(name, getattr(self, name), part) for name, part in x._asdict().items() if part is not None]
        normed = [expert.norm_attention(part, condition) for _, expert, part in experts]
        reading = [i for i, (name, _, _) in enumerate(experts) if not (is_last and name == "language")]
        ends = list(itertools.accumulate(part.shape[1] for _, _, part in experts))
        positions = jnp.split(positions_BT, ends[:-1], axis=1)

        def projected(name: str, of: Sequence[int]) -> jax.Array:
            parts = [experts[i][1].attention.project(name, normed[i][0]) for i in of]
            with jax.named_scope("attention"):
                # Stream by stream: what attention takes apart again is not put together first.
                if name != "v":
                    parts = [rotate(part, positions[i]) for i, part in zip(of, parts, strict=True)]
                if name == "q":
                    parts = [part * part.shape[-1] ** -0.5 for part in parts]
                return jnp.concatenate([attending(part) for part in parts], axis=1)

        k, v = (projected(name, range(len(experts))) for name in "kv")
        outputs: dict[str, jax.Array | None] = {"language": None, "action": None}
        q = projected("q", reading) if reading else None
        with jax.named_scope("attention"):
            if cached is not None:
                k, v = jnp.concatenate([cached.k, k], axis=1), jnp.concatenate([cached.v, v], axis=1)
            if q is None:
                return Streams(**outputs), Cache(k, v)
            # The queries that are read come last.
            seen = dataclasses.replace(mask, query_block=mask.query_block[-q.shape[1] :])
            attended_BTNH = execution.attend(q, k, v, seen)
        first = 0
        for i in reading:
            (name, expert, part), (_, gate) = experts[i], normed[i]
            own_BTNH = attended_BTNH[:, first : first + part.shape[1]]
            first += part.shape[1]
            part = add(part, expert.attention.merge(own_BTNH), gate)
            normed_part, gate = expert.norm_mlp(part, condition)
            outputs[name] = add(part, expert.mlp(normed_part), gate)
        return Streams(**outputs), Cache(k, v)


class FinalNorms(nnx.Module):
    def __init__(self, init: Init, language: ExpertConfig, action: ExpertConfig, action_norm: type):
        self.language, self.action = Norm(init, language.width), action_norm(init, action.width)


class Gemma(nnx.Module):
    """`adaptive`: the action expert's norms take the condition (pi0.5)."""

    def __init__(self, init: Init, language: ExpertConfig, action: ExpertConfig, vocabulary: int, adaptive: bool):
        action_norm = AdaptiveNorm if adaptive else Norm
        self.table = init.normal((vocabulary, language.width), language.width)
        self.layers = Layer(init.stacked(language.depth), language, action, action_norm)
        self.final_norm = FinalNorms(init, language, action, action_norm)

    def embed(self, tokens_BT: jax.Array, execution: Execution) -> jax.Array:
        """Table rows times the square root of the width: [B, T, D] float32."""
        with jax.named_scope("embedding"):
            rows = execution.take_rows(self.table[...], tokens_BT).astype(jnp.float32)
            return rows * rows.shape[-1] ** 0.5

    def __call__(
        self,
        x: Streams,
        positions_BT: jax.Array,
        mask: BlockMask,
        condition: jax.Array | None,
        execution: Execution,
        cache: Cache | None = None,
        keep_cache: bool = False,
    ) -> tuple[Streams, Cache | None]:
        """The normed streams (of the prefix None where layers are written out, for nobody reads it) and, with
        `keep_cache`, the keys and values of all tokens (the cache's in front)."""

        def step(layer: Layer, x: Streams, cached: Cache | None, is_last: bool = False) -> tuple[Streams, Cache | None]:
            x, seen = layer(x, positions_BT, mask, condition, cached, execution, is_last)
            return x, seen if keep_cache else None

        last_step = partial(step, is_last=True)
        x, cache = execution.scan_layers("gemma/layers", self.layers, step, x, cache, last_step)
        normed = {
            name: None if part is None else getattr(self.final_norm, name)(part, condition)[0]
            for name, part in x._asdict().items()
        }
        return Streams(**normed), cache
