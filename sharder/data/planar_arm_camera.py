r"""The two cameras of the planar arm, drawn by numpy alone.

Dims: E pictures, K discs, J points of the arm (base, elbow, fingertip), L links, S pixels of a side.

Every shape is an analytic signed distance in metres, negative inside. A pixel's coverage is that distance in pixels,
cut to a ramp one pixel wide: smooth edges without drawing anything twice, at any resolution.

    base camera: fixed above the table                wrist camera: hangs under the fingertip, turns with the last link
    +-----------+  centre BASE_CENTRE                 +-----------+  centre: the fingertip
    |  o     o  |  up: world y                        |     o     |  up: along the last link, away from the elbow
    |     /\    |  side BASE_SIDE metres              |     |     |  side WRIST_SIDE metres
    +----/------+                                     +-----|-----+
"""

from __future__ import annotations

import numpy as np

LINK = 0.5  # m, each of the two
DISC_RADIUS = 0.1  # m
COLOURS = {"red": (214, 40, 40), "green": (40, 160, 60), "blue": (40, 80, 220), "yellow": (245, 205, 30)}

BASE_CENTRE = np.array([0.0, 0.43], np.float32)  # m
BASE_SIDE = 1.24  # m: the area discs may lie in, and a margin of one link width
WRIST_SIDE = 0.8  # m

_FLOOR = np.array((128, 128, 128), np.float32)  # mid-grey, zero to a network: an empty patch adds nothing to its sums
_PALETTE = np.array(list(COLOURS.values()), np.float32)
_LINK_GREY, _JOINT_GREY, _TIP_WHITE = 205.0, 45.0, 255.0
_LINK_HALF_WIDTH, _JOINT_RADIUS, _TIP_RADIUS = (
    0.016,
    0.032,
    0.016,
)  # m: thin, so that a disc under the arm is still seen


def arm_points(joints: np.ndarray) -> np.ndarray:
    """[E, 2] joint angles -> [E, J, 2] metres. Angles turn counter-clockwise; shoulder 0 points straight up."""
    heading_EL = np.cumsum(np.asarray(joints, np.float32), axis=1)
    links_EL2 = LINK * np.stack([-np.sin(heading_EL), np.cos(heading_EL)], axis=-1)
    points_EJ2 = np.zeros((len(links_EL2), 3, 2), np.float32)
    points_EJ2[:, 1:] = np.cumsum(links_EL2, axis=1)
    return points_EJ2


def draw_base(joints: np.ndarray, discs: np.ndarray, colours: np.ndarray, size: int) -> np.ndarray:
    """uint8 [E, S, S, 3] of joints [E, 2], discs [E, K, 2] in metres and colours [E, K], which index COLOURS."""
    return _draw(discs - BASE_CENTRE, arm_points(joints) - BASE_CENTRE, colours, BASE_SIDE, size)


def draw_wrist(joints: np.ndarray, discs: np.ndarray, colours: np.ndarray, size: int) -> np.ndarray:
    """As draw_base, in the frame of the last link."""
    points_EJ2 = arm_points(joints)
    tip_E12 = points_EJ2[:, 2:]
    up_E2 = (points_EJ2[:, 2] - points_EJ2[:, 1]) / LINK
    right_E2 = np.stack([up_E2[:, 1], -up_E2[:, 0]], axis=-1)
    to_camera_E22 = np.stack([right_E2, up_E2], axis=-1)
    seen_discs, seen_arm = (discs - tip_E12) @ to_camera_E22, (points_EJ2 - tip_E12) @ to_camera_E22
    return _draw(seen_discs, seen_arm, colours, WRIST_SIDE, size)


def _draw(discs_EK2: np.ndarray, arm_EJ2: np.ndarray, colours_EK: np.ndarray, side: float, size: int) -> np.ndarray:
    """All positions in the camera's frame: metres from the picture's centre, first right, then up."""
    pixel = np.float32(side / size)
    right_S = ((np.arange(size, dtype=np.float32) + 0.5) - size / 2) * pixel
    up_S = -right_S  # rows run downwards

    # Discs never overlap, so their layer is a sum and needs no order.
    coverage_EKSS = _coverage(_from_points(discs_EK2, right_S, up_S) - DISC_RADIUS, pixel)
    count, discs = colours_EK.shape
    coverage_EPK = coverage_EKSS.reshape(count, discs, size * size).swapaxes(1, 2)
    image_ESSC = (_FLOOR + coverage_EPK @ (_PALETTE[colours_EK] - _FLOOR)).reshape(count, size, size, 3)

    from_joints_EJSS = _from_points(arm_EJ2, right_S, up_S)
    from_links_ESS = np.minimum(
        _from_segment(arm_EJ2[:, 0], arm_EJ2[:, 1], right_S, up_S),
        _from_segment(arm_EJ2[:, 1], arm_EJ2[:, 2], right_S, up_S),
    )
    _paint(image_ESSC, _coverage(from_links_ESS - _LINK_HALF_WIDTH, pixel), _LINK_GREY)
    _paint(image_ESSC, _coverage(from_joints_EJSS.min(axis=1) - _JOINT_RADIUS, pixel), _JOINT_GREY)
    _paint(image_ESSC, _coverage(from_joints_EJSS[:, 2] - _TIP_RADIUS, pixel), _TIP_WHITE)
    return (image_ESSC + np.float32(0.5)).astype(np.uint8)


def _from_points(points: np.ndarray, right_S: np.ndarray, up_S: np.ndarray) -> np.ndarray:
    """Distance of every pixel from every point: [..., 2] -> [..., S, S]."""
    across = right_S - points[..., :1]
    along = up_S - points[..., 1:]
    return np.sqrt(np.square(across)[..., None, :] + np.square(along)[..., :, None])


def _from_segment(start_E2: np.ndarray, end_E2: np.ndarray, right_S: np.ndarray, up_S: np.ndarray) -> np.ndarray:
    """Distance of every pixel from the segment between two points: [E, S, S]."""
    direction_E2 = end_E2 - start_E2
    across_ES, along_ES = right_S - start_E2[:, :1], up_S - start_E2[:, 1:]
    scaled_E2 = direction_E2 / np.square(direction_E2).sum(axis=1, keepdims=True)
    share_ESS = (across_ES * scaled_E2[:, :1])[:, None, :] + (along_ES * scaled_E2[:, 1:])[:, :, None]
    np.clip(share_ESS, 0, 1, out=share_ESS)
    off_across = across_ES[:, None, :] - share_ESS * direction_E2[:, 0, None, None]
    off_along = along_ES[:, :, None] - share_ESS * direction_E2[:, 1, None, None]
    return np.sqrt(off_across * off_across + off_along * off_along)


def _coverage(distance: np.ndarray, pixel: np.float32) -> np.ndarray:
    """The share of a pixel that lies inside a shape whose edge is `distance` metres from the pixel's centre."""
    return np.clip(np.float32(0.5) - distance / pixel, 0, 1)


def _paint(image_ESSC: np.ndarray, coverage_ESS: np.ndarray, grey: float) -> None:
    image_ESSC += coverage_ESS[..., None] * (np.float32(grey) - image_ESSC)
