"""Closed-loop evaluation: any policy, rolled out in the planar arm, with baselines to compare it to.

Dims: E environments, H actions of a chunk, T pictures of a video, S pixels of a side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharder.data.planar_arm import JOINTS, SPEED_LIMIT, PlanarArm, draw_cameras, expert_chunk
from sharder.data.planar_arm_camera import COLOURS
from sharder.data.planar_arm_video import write_video

__all__ = [
    "Policy",
    "Rollouts",
    "expert_policy",
    "random_policy",
    "roll_out",
    "wilson_interval",
    "write_video",
    "zero_policy",
]

# (what PlanarArm.observe returns, control step) -> actions float32 [E, H, 2] in rad, not normalised
Policy = Callable[[dict[str, Any], int], np.ndarray]

_VIDEO_SIZE = 192  # pixels of a camera's picture in a video: for people, whatever size the policy sees
_VIDEO_REST = 5  # pictures added after an episode's end
_FRAME = 6  # pixels around a tile


@dataclass(frozen=True)
class Rollouts:
    success: np.ndarray  # bool [E]
    steps: np.ndarray  # int64 [E], control steps until success, or all that were allowed
    final_distance: np.ndarray  # float32 [E], metres from the named disc's centre after those steps
    frames: np.ndarray | None  # uint8 [T, height, width, 3] of the first environments side by side

    @property
    def success_rate(self) -> float:
        return float(self.success.mean())


def roll_out(
    policy: Policy,
    *,
    seeds: np.ndarray | list[int],
    image_size: int,
    max_steps: int,
    execute: int,
    video: int | None = None,
) -> Rollouts:
    """Run one episode from each seed, all together, and end when all have succeeded.

    The policy always sees all E environments, so that a compiled one keeps its shapes; what it does to an environment
    after success counts for nothing. Of each chunk the first `execute` actions are carried out (all of a shorter one).
    `video` is the number of environments to film.
    """
    if execute < 1:
        raise ValueError(f"execute={execute}: at least one action of a chunk must be carried out")
    arm = PlanarArm(seeds, image_size)
    count = len(arm.joints)
    steps, distance = np.full(count, max_steps), arm.distance
    filmed = [_film(arm, video)] if video else []
    done = 0
    while done < max_steps and not arm.success.all():
        chunk = np.asarray(policy(arm.observe(), done))
        if chunk.ndim != 3 or chunk.shape[0] != count or chunk.shape[2] != len(JOINTS) or not chunk.shape[1]:
            raise ValueError(
                f"the policy returned actions of shape {chunk.shape}; allowed: ({count}, H, {len(JOINTS)})"
            )
        if not np.isfinite(chunk).all():
            raise ValueError(f"the policy returned actions that are not finite at control step {done}")
        for actions in chunk[:, : min(execute, max_steps - done)].swapaxes(0, 1):
            running = ~arm.success
            arm.step(actions)
            done += 1
            distance[running] = arm.distance[running]
            steps[running & arm.success] = done
            if video:
                filmed.append(_film(arm, video, over=~running))
    if filmed:
        filmed += filmed[-1:] * _VIDEO_REST
    return Rollouts(arm.success.copy(), steps, distance, np.stack(filmed) if filmed else None)


def zero_policy(observation: dict[str, Any], control_step: int) -> np.ndarray:
    """Stands still."""
    return np.zeros((len(observation["state"]), 8, len(JOINTS)), np.float32)


def random_policy(seed: int, hold: int = 4) -> Policy:
    """Uniform within the speed limit, each draw held for `hold` control steps.

    Held, because chance then sweeps the table: with a new draw each step it succeeds less often, and far longer holds
    run into the joint limits.
    """

    def act(observation: dict[str, Any], control_step: int) -> np.ndarray:
        rng = np.random.default_rng([seed, control_step])
        actions = rng.uniform(-SPEED_LIMIT, SPEED_LIMIT, (len(observation["state"]), 1, len(JOINTS)))
        return np.repeat(actions.astype(np.float32), hold, axis=1)

    return act


def expert_policy(seeds: np.ndarray | list[int], horizon: int = 8) -> Policy:
    """Knows where the named discs lie in the environments of these seeds."""
    goal = PlanarArm(seeds).goal
    return lambda observation, control_step: expert_chunk(observation["state"], goal, horizon)


def wilson_interval(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Bounds of a success rate, sound at 0 and at n too; z = 1.96 for 95%."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"{successes} successes of {n}: must be from 0 to n, and n at least 1")
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def _film(arm: PlanarArm, count: int, over: np.ndarray | None = None) -> np.ndarray:
    """The first `count` environments side by side, base camera over wrist camera, framed in the named disc's colour.

    An episode fades after the picture that shows its success.
    """
    scenes = arm.scenes
    pictures = draw_cameras(arm.joints[:count], scenes.discs[:count], scenes.colours[:count], _VIDEO_SIZE)
    palette = np.array(list(COLOURS.values()), np.uint8)
    tiles = []
    for environment, both in enumerate(zip(*pictures.values(), strict=True)):
        tile = np.concatenate(both, axis=0)
        if over is not None and over[environment]:
            tile = (tile // 3) + 160
        height, width, _ = tile.shape
        framed = np.empty((height + 2 * _FRAME, width + 2 * _FRAME, 3), np.uint8)
        framed[:] = palette[scenes.colours[environment, 0]]
        framed[_FRAME:-_FRAME, _FRAME:-_FRAME] = tile
        tiles.append(framed)
    return np.concatenate(tiles, axis=1)
