"""Image augmentation on the device: one resampling for crop and rotation, then colour jitter, keyed per example.

B images   S side in pixels
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.ndimage import map_coordinates

from sharder.config import AugmentConfig

LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in perceived brightness (ITU-R BT.601)


def _warp(image_SSC: jax.Array, key: jax.Array, config: AugmentConfig) -> jax.Array:
    """A random crop of side `crop`, turned by up to `rotation_degrees`; outside is the nearest edge."""
    S = image_SSC.shape[0]
    turn, down, right = jax.random.uniform(key, (3,), minval=-1.0, maxval=1.0)
    angle = turn * jnp.deg2rad(config.rotation_degrees)
    slack = (1 - config.crop) / 2 * S
    row, column = jnp.meshgrid(*2 * [jnp.arange(S) - (S - 1) / 2], indexing="ij")
    source_row = config.crop * (jnp.cos(angle) * row - jnp.sin(angle) * column) + slack * down + (S - 1) / 2
    source_column = config.crop * (jnp.sin(angle) * row + jnp.cos(angle) * column) + slack * right + (S - 1) / 2
    sample = jax.vmap(lambda plane: map_coordinates(plane, [source_row, source_column], 1, "nearest"), -1, -1)
    return sample(image_SSC)


def _jitter(image_SSC: jax.Array, key: jax.Array, config: AugmentConfig) -> jax.Array:
    """Brightness scales, contrast scales about the mean, saturation about the grey image; in [0, 1]."""
    spread = jnp.array([config.brightness, config.contrast, config.saturation])
    brightness, contrast, saturation = 1 + spread * jax.random.uniform(key, (3,), minval=-1.0, maxval=1.0)
    image_SSC = jnp.clip(image_SSC * brightness, 0, 1)
    mean = image_SSC.mean()
    image_SSC = jnp.clip(mean + (image_SSC - mean) * contrast, 0, 1)
    grey = (image_SSC * jnp.array(LUMA)).sum(-1, keepdims=True)
    return jnp.clip(grey + (image_SSC - grey) * saturation, 0, 1)


def augment(images: jax.Array, keys: jax.Array, config: AugmentConfig, camera: str) -> jax.Array:
    """images [B, S, S, 3] float32 in [-1, 1], keys [B] -> the same shape and range."""
    geometric = camera not in config.geometric_except and (config.crop < 1 or config.rotation_degrees > 0)
    colour = config.brightness > 0 or config.contrast > 0 or config.saturation > 0

    def one(image_SSC: jax.Array, key: jax.Array) -> jax.Array:
        warp_key, jitter_key = jax.random.split(key)
        image_SSC = image_SSC / 2 + 0.5
        image_SSC = _warp(image_SSC, warp_key, config) if geometric else image_SSC
        image_SSC = _jitter(image_SSC, jitter_key, config) if colour else image_SSC
        return image_SSC * 2 - 1

    with jax.named_scope("augmentation"):
        return jax.vmap(one)(images, keys) if geometric or colour else images
