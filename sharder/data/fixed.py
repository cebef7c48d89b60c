"""A made-up batch that comes again every step: for measuring a step where the data are not the question.

As many rows as a batch has examples, so every epoch is that batch in another order. Numbers and images are noise, a
pure function of the seed; the images are made at the model's size, so nothing is decoded or resized.
"""

from __future__ import annotations

import numpy as np

from sharder.config import Config

DIMS = 32  # of state and actions, where model.action_dim leaves it to the data: openpi's
PROMPT = "do it again"


class FixedRecording:
    """What the loader asks of a recording."""

    def __init__(self, rows: int, dims: int, image_size: int, cameras: tuple[str, ...], seed: int):
        self.rows, self.image_size, self.seed = rows, image_size, seed
        self.state_dim = self.action_dim = dims
        self.cameras = dict.fromkeys(cameras, "noise")
        self.state_names = self.action_names = [f"dim {dim}" for dim in range(dims)]
        self.tasks = [PROMPT]
        self.fingerprint = f"fixed-{rows}x{dims}-{image_size}-{len(cameras)}-{seed}"
        random = np.random.default_rng(seed)
        self.states = random.normal(size=(rows, dims)).astype(np.float32)
        self.actions = random.normal(size=(rows, dims)).astype(np.float32)

    def __len__(self) -> int:
        return self.rows

    def task_of(self, row: int) -> str:
        return PROMPT

    def episode_bounds(self, row: int) -> tuple[int, int]:
        return 0, self.rows

    def action_chunk(self, row: int, horizon: int) -> np.ndarray:
        """float32 [horizon, A]."""
        return self.actions[np.minimum(np.arange(row, row + horizon), self.rows - 1)]

    def image(self, row: int, camera: str) -> np.ndarray:
        """uint8 [image_size, image_size, 3]."""
        random = np.random.default_rng([self.seed, row, sorted(self.cameras).index(camera)])
        return random.integers(0, 256, (self.image_size, self.image_size, 3), np.uint8)


def fixed_recording(config: Config) -> FixedRecording:
    """With the cameras that data.cameras names, or all there can be."""
    model, train = config.model, config.train
    cameras = config.data.cameras.chosen_or_all()
    return FixedRecording(train.batch_size, model.action_dim or DIMS, model.image_size, cameras, train.seed)
