"""One row of a recording to one example of a batch.

    S, A  dimensions of the recording's state and action      D  model.action_dim: both are zero-padded to it
    H     model.horizon                                       T  model.prompt_tokens

images       {camera: uint8 [size, size, 3]}   aspect kept, zero-padded; only the cameras the recording has
image_masks  {camera: bool []}
tokens       int32 [T]           token_mask   bool [T]
state        float32 [D]         actions      float32 [H, D]      normalised

The same object prepares observations for closed-loop evaluation and turns sampled actions back into the robot's unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from PIL import Image

from sharder.config import DataConfig, ModelConfig
from sharder.data.normalize import Normalization, resolve_mode, scaling
from sharder.data.tokenizer import Tokenizer, check_prompts, encode_padded
from sharder.errors import UserError

Example = dict[str, Any]


def resize_with_pad(image: np.ndarray, size: int) -> np.ndarray:
    """uint8 [h, w, 3] to [size, size, 3]: scaled by one factor, antialiased, centred on black.

    An odd pixel of padding goes below or to the right. An image of that size already is returned as it is.
    """
    height, width = image.shape[:2]
    if height == width == size:
        return image
    ratio = max(width / size, height / size)
    new_height, new_width = max(1, int(height / ratio)), max(1, int(width / ratio))
    resized = np.asarray(Image.fromarray(image).resize((new_width, new_height), Image.Resampling.BILINEAR))
    padded = np.zeros((size, size, 3), np.uint8)
    top, left = (size - new_height) // 2, (size - new_width) // 2
    padded[top : top + new_height, left : left + new_width] = resized
    return padded


class ExampleTransform:
    """Built from the config and the normalization; picklable, so worker processes get a copy."""

    def __init__(self, model: ModelConfig, data: DataConfig, normalization: Normalization, tokenizer: Tokenizer):
        _check_dims(model, data, normalization)
        self.image_size, self.action_dim, self.horizon = model.image_size, model.action_dim, model.horizon
        self.prompt_tokens, self.vocabulary = model.prompt_tokens, model.vocabulary
        self.state_in_prompt = model.variant == "pi05"
        self.prompt, self.tokenizer = data.prompt, tokenizer
        mode = resolve_mode(data.normalization, model.variant)
        self.state_scaling = scaling(normalization.state, mode, data.min_range)
        self.action_scaling = scaling(normalization.actions, mode, data.min_range)

    def __call__(self, recording: Any, row: int, frame: Callable[[int, str], np.ndarray] | None = None) -> Example:
        """`frame(row, camera)` gives an image of the model's size; without it one is decoded and resized."""
        frame = frame or (lambda row, camera: self.frame(recording, row, camera))
        example = self.observation(
            {camera: frame(row, camera) for camera in recording.cameras},
            recording.states[row],
            self.prompt if self.prompt is not None else recording.task_of(row),
        )
        chunk = self.action_scaling.normalise(recording.action_chunk(row, self.horizon))
        return example | {"actions": self._pad(chunk)}

    def frame(self, recording: Any, row: int, camera: str) -> np.ndarray:
        return resize_with_pad(recording.image(row, camera), self.image_size)

    def observation(self, images: Mapping[str, np.ndarray], state: np.ndarray, prompt: str) -> Example:
        """Everything of an example but the actions, from raw images, state and text."""
        normalised = self.state_scaling.normalise(state)
        tokens, token_mask = encode_padded(
            self.tokenizer, prompt, normalised if self.state_in_prompt else None, self.prompt_tokens
        )
        return {
            "images": {camera: resize_with_pad(image, self.image_size) for camera, image in images.items()},
            "image_masks": {camera: np.True_ for camera in images},
            "tokens": tokens,
            "token_mask": token_mask,
            "state": self._pad(normalised),
        }

    def robot_actions(self, actions: np.ndarray) -> np.ndarray:
        """The model's [..., H, D] in the recording's unit, [..., H, A]."""
        return self.action_scaling.unnormalise(actions)

    def check_prompts(self, recording: Any) -> int:
        """The most tokens a prompt of this recording needs; a UserError when over model.prompt_tokens."""
        return check_prompts(
            self.tokenizer,
            recording,
            prompt=self.prompt,
            normalise_state=self.state_scaling.normalise if self.state_in_prompt else None,
            prompt_tokens=self.prompt_tokens,
            vocabulary=self.vocabulary,
        )

    def _pad(self, values: np.ndarray) -> np.ndarray:
        padded = np.zeros((*values.shape[:-1], self.action_dim), np.float32)
        padded[..., : values.shape[-1]] = values
        return padded


def _check_dims(model: ModelConfig, data: DataConfig, normalization: Normalization) -> None:
    for key, feature, dims in (
        ("data.state", data.state, normalization.state.dims),
        ("data.action", data.action, normalization.actions.dims),
    ):
        if dims > model.action_dim:
            raise UserError(
                f"{dims} joints > model.action_dim={model.action_dim}: {key}={feature} has {dims} dimensions; "
                f"set model.action_dim to at least {dims} (openpi's weights need 32), or choose another {key}"
            )
