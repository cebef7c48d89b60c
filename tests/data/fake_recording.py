"""A recording without files: every image says which row and camera it is, and every look at one is counted."""

from __future__ import annotations

import time

import numpy as np

from sharder.config import DataConfig, ModelConfig
from sharder.data.normalize import compute
from sharder.data.tokenizer import ByteTokenizer
from sharder.data.transforms import ExampleTransform

TASKS = ["touch the red ball", "touch the_green box"]


class FakeRecording:
    def __init__(self, rows=103, *, state_dim=4, action_dim=3, episode_rows=25, poisoned=None, image_hw=(12, 20)):
        random = np.random.default_rng(rows)
        self.rows, self.episode_rows, self.poisoned, self.image_hw = rows, episode_rows, poisoned, image_hw
        self.states = random.normal(1.0, 2.0, (rows, state_dim)).astype(np.float32)
        self.actions = random.normal(-1.0, 0.5, (rows, action_dim)).astype(np.float32)
        self.state_dim, self.action_dim = state_dim, action_dim
        self.state_names = [f"joint{dim}" for dim in range(state_dim)]
        self.action_names = [f"motor{dim}" for dim in range(action_dim)]
        self.cameras = {"base_0_rgb": "observation.images.top", "left_wrist_0_rgb": "observation.images.wrist"}
        self.tasks = list(TASKS)
        self.fingerprint = f"fake{rows}"
        self.image_calls = 0

    def __len__(self):
        return self.rows

    def episode_bounds(self, row):
        first = row - row % self.episode_rows
        return first, min(first + self.episode_rows, self.rows)

    def task_of(self, row):
        return self.tasks[row // self.episode_rows % len(self.tasks)]

    def action_chunk(self, row, horizon):
        _, past_last = self.episode_bounds(row)
        return self.actions[np.minimum(np.arange(row, row + horizon), past_last - 1)]

    def image(self, row, camera):
        self.image_calls += 1
        if row == self.poisoned:
            raise OSError("the video is truncated")
        image = np.zeros((*self.image_hw, 3), np.uint8)
        image[..., 0], image[..., 1] = row % 256, row // 256 % 256
        image[..., 2] = sorted(self.cameras).index(camera)
        return image


class HugeRecording(FakeRecording):
    """Any number of rows in no memory: every row has the same state."""

    def __init__(self, rows):
        super().__init__(50)
        self.rows = rows
        self.states = np.broadcast_to(self.states[:1], (rows, self.state_dim))
        self.actions = np.broadcast_to(self.actions[:1], (rows, self.action_dim))


class SlowSource:
    """Batches that name their step, each taking as long as told."""

    def __init__(self, seconds, first_slow_step=0):
        self.seconds, self.first_slow_step = seconds, first_slow_step

    def batch(self, step):
        if step >= self.first_slow_step:
            time.sleep(self.seconds)
        return {"example": np.array([step])}


class ModuleSource:
    """Batches that say whether a module was imported where they are made."""

    def batch(self, step):
        import sys

        return {"jax": "jax" in sys.modules}


def transform_of(recording, *, variant="pi0", prompt=None, action_dim=8, prompt_tokens=24, **data):
    return ExampleTransform(
        ModelConfig(
            variant=variant,
            vocabulary=258,
            image_size=16,
            action_dim=action_dim,
            horizon=4,
            prompt_tokens=prompt_tokens,
        ),
        DataConfig(prompt=prompt, **data),
        compute(recording.states, recording.actions),
        ByteTokenizer(),
    )
