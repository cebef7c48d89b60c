"""A recording without files: every image says which row and camera it is, and every look at one is counted."""

from __future__ import annotations

import numpy as np

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
