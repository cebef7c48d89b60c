"""Demonstrations of the planar arm by its expert.

Dims: E episodes, T control steps, K discs, S pixels of a side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sharder.data.planar_arm import JOINTS, PlanarArm, draw_cameras, expert_action
from sharder.errors import UserError

TRAINING_SEEDS = 2**40  # seeds of environments from here on belong to recordings; evaluation uses those below
_SETS, _EPISODES = 2**20, 2**20  # seeds of recordings, and environments each owns
_NOISY_SHARE = 0.5  # of the episodes are pushed off the expert's way, so that the set shows how to come back
_NOISE = 0.05  # rad a control step
_REST_STEPS = 4  # control steps recorded after success: what staying on the disc looks like
_LONGEST = 100  # control steps; the expert needs a quarter of it


@dataclass(frozen=True)
class Demonstration:
    discs: np.ndarray  # float32 [K, 2], m
    colours: np.ndarray  # int64 [K]
    prompt: str
    states: np.ndarray  # float32 [T, 2], rad, before each action
    actions: np.ndarray  # float32 [T, 2], what the expert wanted, not what was executed

    def pictures(self, image_size: int) -> dict[str, np.ndarray]:
        """{camera: uint8 [T, S, S, 3]}"""
        steps = len(self.states)
        discs, colours = np.repeat(self.discs[None], steps, axis=0), np.repeat(self.colours[None], steps, axis=0)
        return draw_cameras(self.states, discs, colours, image_size)


def training_seeds(seed: int, episodes: int) -> np.ndarray:
    """Seeds of a recording's environments: no other recording's, and none that evaluation uses."""
    if not 0 <= seed < _SETS:
        raise UserError(f"data.planar_arm.seed={seed}: must be from 0 to {_SETS - 1}; choose one of these")
    if not 1 <= episodes <= _EPISODES:
        raise UserError(f"data.planar_arm.episodes={episodes}: must be from 1 to {_EPISODES}; choose one of these")
    return TRAINING_SEEDS + seed * _EPISODES + np.arange(episodes)


def demonstrate(seeds: np.ndarray) -> list[Demonstration]:
    """One solved episode for each seed."""
    arm = PlanarArm(seeds)
    noise_ET2 = np.stack([_noise(int(seed)) for seed in seeds])
    states, actions = [], []
    solved_after = np.full(len(seeds), _LONGEST)  # [E], control steps
    for step in range(_LONGEST):
        states.append(arm.joints)
        actions.append(expert_action(arm.joints, arm.goal))
        arm.step(actions[-1] + noise_ET2[:, step] * ~arm.success[:, None])
        solved_after[arm.success] = np.minimum(solved_after[arm.success], step + 1)
        if step + 1 >= solved_after.max() + _REST_STEPS:
            break
    if not arm.success.all():
        raise RuntimeError(f"the expert failed from seed {seeds[~arm.success][0]}")
    states_ET2, actions_ET2 = np.stack(states, axis=1), np.stack(actions, axis=1)
    lengths = solved_after + _REST_STEPS
    scenes = arm.scenes
    return [
        Demonstration(scenes.discs[e], scenes.colours[e], prompt, states_ET2[e, :length], actions_ET2[e, :length])
        for e, (prompt, length) in enumerate(zip(scenes.prompts, lengths, strict=True))
    ]


def _noise(seed: int) -> np.ndarray:
    """What is added to the executed actions of an episode, [_LONGEST, 2]: nothing, or nudges."""
    rng = np.random.default_rng([seed, 1])
    noisy = rng.random() < _NOISY_SHARE
    return rng.normal(0, _NOISE if noisy else 0.0, (_LONGEST, len(JOINTS)))
