"""A trained model as a policy: observations of a simulator or a recording in, actions in the robot's unit out.

E observations at once   H horizon   X action dim
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sharder.config import Config
from sharder.data.transforms import ExampleTransform
from sharder.model.execution import Execution
from sharder.model.pi0 import build
from sharder.model.weight import Weights
from sharder.training.step import Batch, draw_noise, example_keys, observe


def stack(examples: list[dict[str, Any]]) -> Batch:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *examples)


class Sampler:
    """`sample_actions` compiled once, whatever the weights."""

    def __init__(self, config: Config, transform: ExampleTransform, cameras: tuple[str, ...], execution: Execution):
        self.config, self.transform, self.cameras, self.execution = config, transform, cameras, execution
        self._sample = jax.jit(self._sample_actions)

    def _sample_actions(self, weights: Weights, batch: Batch, keys: jax.Array) -> jax.Array:
        model = self.config.model
        noise = draw_noise(keys, (model.horizon, model.action_dim))
        return build(model, weights, self.execution).sample_actions(observe(batch), noise, model.flow_steps)

    def sample(self, weights: Weights, batch: Batch, draw: int) -> np.ndarray:
        """Actions [E, H, joints] in the recording's unit; `draw` numbers the calls, each with noise of its own."""
        keys = example_keys(self.config.evaluation.seed, jnp.int32(draw), len(batch["state"]))
        return self.transform.robot_actions(np.asarray(self._sample(weights, batch, keys)))

    def act(self, weights: Weights, observation: Mapping[str, Any], control_step: int) -> np.ndarray:
        """What `closed_loop.roll_out` asks for: a chunk for every environment."""
        images = [observation["images"][camera] for camera in self.cameras]
        examples = [
            self.transform.observation(dict(zip(self.cameras, pictures, strict=True)), state, prompt)
            for *pictures, state, prompt in zip(*images, observation["state"], observation["prompt"], strict=True)
        ]
        return self.sample(weights, stack(examples), control_step)

    def policy(self, weights: Weights) -> Any:
        return partial(self.act, weights)
