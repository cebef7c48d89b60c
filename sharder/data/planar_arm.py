"""The embedded default task: a planar two-link arm is told in words which coloured disc to touch.

Dims: E environments, K discs, T control steps, H actions of a chunk.

The elbow always bends to the same side, so a fingertip position has exactly one pair of joint angles, and the angles
stay away from where they would wrap: what there is to learn is seeing and reaching, not choosing between two ways.

    shoulder 0 points straight up, both angles turn counter-clockwise
    reach of the fingertip   = 2 LINK cos(elbow / 2)
    bearing of the fingertip = shoulder + elbow / 2     so a straight way in joint space never leaves the workspace

Everything an environment does is a pure function of its seed and of the actions it is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sharder.data.planar_arm_camera import COLOURS, DISC_RADIUS, LINK, arm_points, draw_base, draw_wrist

TASK_VERSION = 2  # raised whenever the task, its pictures or its demonstrations change: recordings are cached under it
CONTROL_HZ = 10
JOINTS = ("shoulder", "elbow")
SPEED_LIMIT = 0.15  # rad a control step
JOINT_LIMITS = np.array([[-2.7, 1.2], [0.2, 2.8]], np.float32)  # rad
DISCS = 3
HOLD_STEPS = (
    5  # control steps in a row that the fingertip must stay inside the named disc: 3 let chance succeed one time in ten
)
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb")

_REACH = (0.4, 0.9)  # m from the shoulder: where discs lie and where the fingertip starts
_BEARING = np.radians(70)
_HALF_WIDTH = 0.5  # m to either side, so that the base camera frames every disc tightly
_DISC_SPACING = 2 * DISC_RADIUS + 0.04  # m between centres
_START_CLEARANCE = 0.3  # m between the fingertip and the named disc
_DRAWS = 64  # candidates of a scene drawn at once
_GAIN = 0.5  # share of the remaining way that the expert covers in a step


@dataclass(frozen=True)
class Scenes:
    """Where everything lies at the start. The first disc is the named one."""

    discs: np.ndarray  # float32 [E, K, 2], m
    colours: np.ndarray  # int64 [E, K], indices into COLOURS, no colour twice
    start: np.ndarray  # float32 [E, 2], joint angles

    @property
    def prompts(self) -> list[str]:
        names = list(COLOURS)
        return [prompt_for(names[colour]) for colour in self.colours[:, 0]]


def prompt_for(colour: str) -> str:
    return f"touch the {colour} disc"


def fingertip(joints: np.ndarray) -> np.ndarray:
    """[E, 2] joint angles -> [E, 2] metres."""
    return arm_points(joints)[:, 2]


def joints_reaching(points: np.ndarray) -> np.ndarray:
    """The one pair of joint angles that puts the fingertip at each point: [E, 2] metres -> [E, 2] rad."""
    elbow = 2 * np.arccos(np.hypot(points[:, 0], points[:, 1]) / (2 * LINK))
    bearing = np.arctan2(-points[:, 0], points[:, 1])
    return np.stack([bearing - elbow / 2, elbow], axis=-1).astype(np.float32)


def draw_scenes(seeds: np.ndarray) -> Scenes:
    drawn = [_draw_scene(np.random.default_rng([int(seed), 0])) for seed in seeds]
    discs, colours, tips = (np.stack(part) for part in zip(*drawn, strict=True))
    return Scenes(discs.astype(np.float32), colours, joints_reaching(tips))


def _draw_scene(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Disc centres [K, 2], their colours [K] and the fingertip's start [2], by rejection."""
    colours = rng.permutation(len(COLOURS))[:DISCS]
    while True:
        points = rng.uniform((-_HALF_WIDTH, 0), (_HALF_WIDTH, _REACH[1]), (_DRAWS, DISCS + 1, 2))
        discs, tips = points[:, :DISCS], points[:, DISCS]
        reach, bearing = np.hypot(points[..., 0], points[..., 1]), np.arctan2(points[..., 0], points[..., 1])
        inside = (reach >= _REACH[0]) & (reach <= _REACH[1]) & (np.abs(bearing) <= _BEARING)
        first, second = np.triu_indices(DISCS, 1)
        apart = np.linalg.norm(discs[:, first] - discs[:, second], axis=-1) >= _DISC_SPACING
        clear = np.linalg.norm(tips - discs[:, 0], axis=-1) >= _START_CLEARANCE
        valid = np.flatnonzero(inside.all(axis=1) & apart.all(axis=1) & clear)
        if len(valid):
            return discs[valid[0]], colours, tips[valid[0]]


def advance(joints: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """One control step: the speed limit, then the joint limits."""
    speed = np.clip(actions, -SPEED_LIMIT, SPEED_LIMIT).astype(np.float32)
    return np.clip(joints + speed, JOINT_LIMITS[:, 0], JOINT_LIMITS[:, 1])


def expert_action(joints: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Straight in joint space, both joints arriving together, slowing down on the last stretch: [E, 2] -> [E, 2]."""
    wanted = _GAIN * (goal - joints)
    fastest = np.abs(wanted).max(axis=-1, keepdims=True)
    return (wanted * np.minimum(1, SPEED_LIMIT / np.maximum(fastest, 1e-9))).astype(np.float32)


def expert_chunk(joints: np.ndarray, goal: np.ndarray, horizon: int) -> np.ndarray:
    """The next `horizon` actions of the expert from here: [E, H, 2]."""
    actions = []
    for _ in range(horizon):
        actions.append(expert_action(joints, goal))
        joints = advance(joints, actions[-1])
    return np.stack(actions, axis=1)


def draw_cameras(joints: np.ndarray, discs: np.ndarray, colours: np.ndarray, size: int) -> dict[str, np.ndarray]:
    """{camera: uint8 [E, size, size, 3]}. Recording and evaluation both draw through here."""
    pictures = (draw_base(joints, discs, colours, size), draw_wrist(joints, discs, colours, size))
    return dict(zip(CAMERAS, pictures, strict=True))


class PlanarArm:
    """E independent environments stepped together."""

    def __init__(self, seeds: np.ndarray | list[int], image_size: int = 64):
        self.scenes = draw_scenes(np.asarray(seeds))
        self.image_size = image_size
        self.goal = joints_reaching(self.scenes.discs[:, 0])  # float32 [E, 2], rad: only the expert may look
        self.joints = self.scenes.start.copy()  # float32 [E, 2], rad
        self.success = np.zeros(len(self.joints), bool)  # [E], stays true once true
        self._steps_inside = np.zeros(len(self.joints), np.int64)  # [E], in a row

    def observe(self) -> dict[str, Any]:
        """{"images": {camera: uint8 [E, S, S, 3]}, "state": float32 [E, 2], "prompt": E strings}"""
        images = draw_cameras(self.joints, self.scenes.discs, self.scenes.colours, self.image_size)
        return {"images": images, "state": self.joints.copy(), "prompt": self.scenes.prompts}

    def step(self, actions: np.ndarray) -> None:
        """actions [E, 2]: rad that each joint should turn in this control step."""
        self.joints = advance(self.joints, actions)
        self._steps_inside = np.where(self.distance <= DISC_RADIUS, self._steps_inside + 1, 0)
        self.success |= self._steps_inside >= HOLD_STEPS

    @property
    def distance(self) -> np.ndarray:
        """Metres from the fingertip to the centre of the named disc, [E]."""
        return np.linalg.norm(fingertip(self.joints) - self.scenes.discs[:, 0], axis=-1)
