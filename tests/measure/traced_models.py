"""Models of every variant as programs to count: their loss as a function of shapes.

B batch   X action dim
"""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from sharder.compose import composed
from sharder.config import ModelConfig
from sharder.model.execution import Execution
from sharder.model.pi0 import CAMERAS, Observation, abstract_weights, build, flow_matching_loss
from sharder.model.weight import Weights
from sharder.training.state import split_frozen

B = 2
SHAPES: dict[str, Weights] = {}  # of the weights of models seen before
MICRO = ("pi0_micro", "pi05_micro", "pi0_lora_micro")


@cache
def composed_model(name: str) -> ModelConfig:
    return composed("train", [f"model={name}"])[0].model


def model_config(name: str) -> ModelConfig:
    """As composed; and the micro forms of pi05 and pi0_lora, which no option has."""
    config = deepcopy(composed_model("pi0_micro" if name in MICRO else name))
    config.action_dim, config.prompt_tokens = config.action_dim or 4, config.prompt_tokens or 13
    if name == "pi05_micro":
        config.variant = "pi05"
    if name == "pi0_lora_micro":
        config.language.lora_rank, config.action.lora_rank, config.freeze = 3, 5, ["gemma/"]
    return config


def weights(config: ModelConfig) -> tuple[Weights, Weights]:
    """Shapes of those that are trained, and of those that are frozen."""
    key = repr(replace(config, freeze=[]))
    if key not in SHAPES:
        SHAPES[key] = abstract_weights(config)
    return split_frozen(SHAPES[key], config)


def data(config: ModelConfig, cameras: int = len(CAMERAS), batch_size: int = B) -> tuple[Any, ...]:
    """Shapes of the observation, actions, noise and flow time."""
    names, side, b = CAMERAS[:cameras], config.image_size, batch_size

    def shape(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((b, *dims), dtype)

    observation = Observation(
        images={name: shape(side, side, 3) for name in names},
        image_masks={name: shape(dtype=jnp.bool_) for name in names},
        tokens=shape(config.prompt_tokens, dtype=jnp.int32),
        token_mask=shape(config.prompt_tokens, dtype=jnp.bool_),
        state=shape(config.action_dim),
    )
    actions = shape(config.horizon, config.action_dim)
    return observation, actions, actions, shape()


def loss_of(config: ModelConfig, execution: Execution) -> Any:
    """(trainable, frozen, data) -> scalar."""

    def loss(trainable: Weights, frozen: Weights, data: tuple[Any, ...]) -> jax.Array:
        return flow_matching_loss(build(config, trainable | frozen, execution), *data).mean()

    return loss
