"""The micro pi0 that openpi's own implementation was run on, its weights and its inputs, rebuilt from their recipe.

golden/<variant>.npz holds what openpi computed in float32: loss [B, H], v_t [B, H, 32] (the velocity), prefix_embed
[B, 49, 64] (every 16th prefix embedding), sampled_actions [B, H, 32], and every leaf's L2 norm of the gradient.
"""

import zlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from sharder.config import ExpertConfig, ModelConfig, VisionConfig
from sharder.model.openpi_names import abstract_openpi, from_openpi
from sharder.model.pi0 import CAMERAS, Observation, abstract_weights
from sharder.model.weight import Weights

VARIANTS = ("pi0", "pi05", "pi0_lora")
GOLDEN = Path(__file__).parent / "golden"
B, H, X, PROMPT = 2, 10, 32, 16


class Inputs(NamedTuple):
    observation: Observation
    actions: Any
    noise: Any
    time: Any


def config(variant: str) -> ModelConfig:
    lora = variant == "pi0_lora"
    return ModelConfig(
        variant="pi05" if variant == "pi05" else "pi0",
        vision=VisionConfig(width=32, depth=1, mlp_dim=128, heads=2, patch=14),
        language=ExpertConfig(64, 3, 128, 8, 1, 16, lora_rank=4 * lora, lora_alpha=8.0),
        action=ExpertConfig(32, 3, 64, 8, 1, 16, lora_rank=8 * lora, lora_alpha=4.0),
        vocabulary=512,
        image_size=224,
        action_dim=X,
        horizon=H,
        prompt_tokens=PROMPT,
        compute_dtype="float32",
    )


def draw(path: str, shape: tuple[int, ...]) -> np.ndarray:
    """A leaf's weights, seeded by its openpi path."""
    values = 0.05 * np.random.RandomState(zlib.crc32(path.encode()) & 0x7FFFFFFF).standard_normal(shape)
    centre = 1.0 if "/img/" in path and path.endswith("/scale") else 0.0
    return (values + centre).astype(np.float32)


@cache
def weights(variant: str) -> Weights:
    leaves = abstract_openpi(config(variant), abstract_weights(config(variant)))
    return from_openpi(config(variant), {path: draw(path, leaf.shape) for path, leaf in leaves.items()})


@cache
def inputs() -> Inputs:
    r = np.random.RandomState(1000)
    images = {camera: r.uniform(-1, 1, (B, 224, 224, 3)).astype(np.float32) for camera in CAMERAS}
    tokens = r.randint(0, 512, (B, PROMPT)).astype(np.int32)
    lengths = r.randint(3, PROMPT, (B,))
    state, actions, noise = (r.standard_normal(shape).astype(np.float32) for shape in ((B, X), (B, H, X), (B, H, X)))
    time = r.uniform(0.01, 0.99, (B,)).astype(np.float32)
    masks = {camera: jnp.full(B, camera != "right_wrist_0_rgb") for camera in CAMERAS}
    observation = Observation(images, masks, tokens, np.arange(PROMPT) < lengths[:, None], state)
    return Inputs(observation, actions, noise, time)


@cache
def golden(variant: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{variant}.npz") as arrays:
        return dict(arrays)
