"""SigLIP's vision transformer: an image becomes a grid of tokens.

B images   P patch side   T tokens = (image side / P)^2   X = B T   C width   N heads   H head dim   F mlp width

Between layers, all images' tokens are one dim: with two, XLA lays images out innermost where there are many, and turns
them back and forth around every norm (on an H100, 48 images: 10 ms of 463, predicted).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from sharder.config import VisionConfig
from sharder.model.attention import BlockMask, attending
from sharder.model.execution import Execution
from sharder.model.gelu import gelu
from sharder.model.layer_norm import layer_norm
from sharder.model.weight import Dense, Init


class LayerNorm(nnx.Module):
    def __init__(self, init: Init, width: int):
        self.scale, self.bias = init.ones((width,)), init.zeros((width,))

    def __call__(self, x_XC: jax.Array) -> jax.Array:
        with jax.named_scope("norm"):
            return layer_norm(x_XC, self.scale[...].astype(jnp.float32), self.bias[...].astype(jnp.float32))


class HeadDense(nnx.Module):
    """x [X, C] -> [X, N, H]."""

    def __init__(self, init: Init, width: int, heads: int):
        self.kernel = init.normal((width, heads, width // heads), width)
        self.bias = init.zeros((heads, width // heads))

    def __call__(self, x_XC: jax.Array) -> jax.Array:
        kernel_CNH = self.kernel[...].astype(x_XC.dtype)
        return jnp.einsum("XC,CNH->XNH", x_XC, kernel_CNH) + self.bias[...].astype(x_XC.dtype)


class HeadMerge(nnx.Module):
    """x [X, N, H] -> [X, C]."""

    def __init__(self, init: Init, width: int, heads: int):
        self.kernel = init.normal((heads, width // heads, width), width)
        self.bias = init.zeros((width,))

    def __call__(self, x_XNH: jax.Array) -> jax.Array:
        kernel_NHC = self.kernel[...].astype(x_XNH.dtype)
        return jnp.einsum("XNH,NHC->XC", x_XNH, kernel_NHC) + self.bias[...].astype(x_XNH.dtype)


class SelfAttention(nnx.Module):
    def __init__(self, init: Init, width: int, heads: int):
        self.q, self.k, self.v = (HeadDense(init, width, heads) for _ in range(3))
        self.out = HeadMerge(init, width, heads)

    def __call__(self, x_XC: jax.Array, images: int, execution: Execution) -> jax.Array:
        with jax.named_scope("attention_projections"):
            qkv_XNH = self.q(x_XC), self.k(x_XC), self.v(x_XC)
        with jax.named_scope("attention"):
            q_BTNH, k_BTNH, v_BTNH = (x_XNH.reshape(images, -1, *x_XNH.shape[1:]) for x_XNH in qkv_XNH)
            one_block = np.zeros(q_BTNH.shape[1], int)
            parts = attending(q_BTNH * q_BTNH.shape[-1] ** -0.5), attending(k_BTNH), attending(v_BTNH)
            attended_BTNH = execution.attend(*parts, BlockMask(one_block, one_block))
        with jax.named_scope("attention_projections"):
            return self.out(attended_BTNH.reshape(-1, *attended_BTNH.shape[2:]))


class Mlp(nnx.Module):
    def __init__(self, init: Init, width: int, hidden: int):
        self.up, self.down = Dense(init, width, hidden), Dense(init, hidden, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        with jax.named_scope("mlp"):
            return self.down(gelu(self.up(x)))


class Block(nnx.Module):
    def __init__(self, init: Init, config: VisionConfig):
        self.norm_attention = LayerNorm(init, config.width)
        self.attention = SelfAttention(init, config.width, config.heads)
        self.norm_mlp = LayerNorm(init, config.width)
        self.mlp = Mlp(init, config.width, config.mlp_dim)

    def __call__(self, x_XC: jax.Array, images: int, execution: Execution) -> jax.Array:
        x_XC = x_XC + self.attention(self.norm_attention(x_XC), images, execution)
        return x_XC + self.mlp(self.norm_mlp(x_XC))


class Siglip(nnx.Module):
    """`image_size` in pixels; tokens leave at `output_width`, the language model's."""

    def __init__(self, init: Init, config: VisionConfig, image_size: int, output_width: int, dtype: DTypeLike):
        self.patch, self.dtype = config.patch, dtype
        tokens = (image_size // config.patch) ** 2
        self.patch_kernel = init.normal((config.patch, config.patch, 3, config.width), config.patch**2 * 3)
        self.patch_bias = init.zeros((config.width,))
        self.position = init.normal((tokens, config.width), config.width)
        self.layers = Block(init.stacked(config.depth), config)
        self.norm = LayerNorm(init, config.width)
        self.head = Dense(init, config.width, output_width)

    def __call__(self, images: jax.Array, execution: Execution) -> jax.Array:
        """images [B, side, side, 3] float in [-1, 1] -> [B, T, output_width] in the compute dtype."""
        with jax.named_scope("vision"):
            x_BTC = self._patches(images.astype(jnp.float32)).astype(self.dtype)
            B, T, C = x_BTC.shape
            step = lambda layer, x_XC, _: (layer(x_XC, B, execution), None)  # noqa: E731
            x_XC, _ = execution.scan_layers("vision/layers", self.layers, step, x_BTC.reshape(B * T, C))
            return self.head(self.norm(x_XC)).reshape(B, T, -1)

    def _patches(self, images: jax.Array) -> jax.Array:
        """A convolution whose stride is its size, as one matrix product, in float32."""
        B, side, _, channels = images.shape
        P, rows = self.patch, side // self.patch
        patches = images.reshape(B, rows, P, rows, P, channels).transpose(0, 1, 3, 2, 4, 5)
        patches_BTX = patches.reshape(B, rows * rows, P * P * channels)
        kernel_XC = self.patch_kernel[...].astype(jnp.float32).reshape(P * P * channels, -1)
        return patches_BTX @ kernel_XC + self.patch_bias[...] + self.position[...]
