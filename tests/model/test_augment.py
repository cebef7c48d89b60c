"""Augmentation is keyed per example, leaves what it should alone, and moves pixels as it says."""

import jax
import jax.numpy as jnp
import numpy as np

from sharder.config import AugmentConfig
from sharder.model.augment import augment

NOTHING = AugmentConfig(crop=1.0, rotation_degrees=0.0, brightness=0.0, contrast=0.0, saturation=0.0)
CAMERA = "base_0_rgb"


def pictures(n=3, side=16):
    return jax.random.uniform(jax.random.key(0), (n, side, side, 3), minval=-1.0)


def test_nothing_asked_nothing_done():
    images = pictures()
    assert augment(images, jax.random.split(jax.random.key(1), 3), NOTHING, CAMERA) is images


def test_an_example_does_not_depend_on_its_neighbours():
    images, keys = pictures(), jax.random.split(jax.random.key(1), 3)
    whole = augment(images, keys, AugmentConfig(), CAMERA)
    alone = augment(images[1:2], keys[1:2], AugmentConfig(), CAMERA)
    np.testing.assert_allclose(whole[1], alone[0], atol=1e-6)
    assert not np.allclose(whole[0], augment(images[:1], keys[1:2], AugmentConfig(), CAMERA)[0])


def test_stays_in_range_and_changes_something():
    images = pictures()
    out = augment(images, jax.random.split(jax.random.key(2), 3), AugmentConfig(), CAMERA)
    assert out.shape == images.shape and out.dtype == images.dtype
    assert float(jnp.abs(out).max()) <= 1.0
    assert float(jnp.abs(out - images).mean()) > 0.01


def test_half_crop_shows_half_of_a_ramp():
    """On a horizontal ramp a crop of one half spans half the values, and every row stays the same."""
    side = 32
    ramp = jnp.broadcast_to(jnp.linspace(-1, 1, side)[None, None, :, None], (1, side, side, 3))
    config = AugmentConfig(crop=0.5, rotation_degrees=0.0, brightness=0.0, contrast=0.0, saturation=0.0)
    out = augment(ramp, jax.random.split(jax.random.key(3), 1), config, CAMERA)[0, :, :, 0]
    np.testing.assert_allclose(out.max() - out.min(), 1.0, atol=0.04)
    np.testing.assert_allclose(out, jnp.broadcast_to(out[:1], out.shape), atol=1e-6)


def test_rotation_keeps_the_centre_and_turns_by_at_most_the_limit():
    side = 33
    image = jnp.full((1, side, side, 3), -1.0).at[0, 16, 16].set(1.0).at[0, 16, 30].set(1.0)
    config = AugmentConfig(crop=1.0, rotation_degrees=20.0, brightness=0.0, contrast=0.0, saturation=0.0)
    seen = []
    for seed in range(20):
        out = augment(image, jax.random.split(jax.random.key(seed), 1), config, CAMERA)[0, :, :, 0]
        assert float(out[16, 16]) > 0.99
        row, column = np.unravel_index(np.argmax(out[:, 24:]), (side, side - 24))
        seen.append(np.degrees(np.arctan2(row - 16, column + 24 - 16)))
    assert max(map(abs, seen)) <= 22
    assert max(seen) > 8 and min(seen) < -8


def test_wrist_cameras_can_be_left_unturned():
    ramp = jnp.broadcast_to(jnp.linspace(-1, 1, 16)[None, None, :, None], (1, 16, 16, 3))
    config = AugmentConfig(0.5, 20.0, 0.0, 0.0, 0.0, geometric_except=["left_wrist_0_rgb"])
    keys = jax.random.split(jax.random.key(0), 1)
    np.testing.assert_array_equal(augment(ramp, keys, config, "left_wrist_0_rgb"), ramp)
    assert not np.allclose(augment(ramp, keys, config, CAMERA), ramp)


def test_grey_stays_grey_under_saturation():
    grey = jnp.broadcast_to(pictures()[..., :1], (3, 16, 16, 3))
    config = AugmentConfig(1.0, 0.0, 0.0, 0.0, 0.9)
    out = augment(grey, jax.random.split(jax.random.key(0), 3), config, CAMERA)
    np.testing.assert_allclose(out, grey, atol=1e-5)
