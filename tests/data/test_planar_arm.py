import numpy as np
import pytest

from sharder.data.planar_arm import (
    CAMERAS,
    DISCS,
    HOLD_STEPS,
    JOINT_LIMITS,
    SPEED_LIMIT,
    PlanarArm,
    advance,
    draw_scenes,
    expert_action,
    expert_chunk,
    fingertip,
    joints_reaching,
)
from sharder.data.planar_arm_camera import BASE_CENTRE, BASE_SIDE, COLOURS, DISC_RADIUS, WRIST_SIDE, draw_wrist

SEEDS = np.arange(1_000_000, 1_000_200)
PALETTE = np.array(list(COLOURS.values()))


def test_fingertip_of_known_angles():
    angles = np.array([[0, 0], [np.pi / 2, 0], [0, np.pi / 2], [-np.pi / 2, np.pi / 2]])
    expected = np.array([[0, 1], [-1, 0], [-0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_allclose(fingertip(angles), expected, atol=1e-6)


def test_joints_reaching_inverts_fingertip_within_the_limits():
    scenes = draw_scenes(SEEDS)
    for disc in range(DISCS):
        joints = joints_reaching(scenes.discs[:, disc])
        np.testing.assert_allclose(fingertip(joints), scenes.discs[:, disc], atol=1e-5)
        assert (joints > JOINT_LIMITS[:, 0]).all() and (joints < JOINT_LIMITS[:, 1]).all()


def test_scenes_keep_their_distances_and_are_framed_by_the_base_camera():
    scenes = draw_scenes(SEEDS)
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert np.linalg.norm(scenes.discs[:, first] - scenes.discs[:, second], axis=1).min() > 2 * DISC_RADIUS
    assert np.linalg.norm(fingertip(scenes.start) - scenes.discs[:, 0], axis=1).min() >= 0.3 - 1e-5
    assert np.linalg.norm(scenes.discs, axis=-1).min() > 0.4 - 1e-5
    assert (np.abs(scenes.discs - BASE_CENTRE) + DISC_RADIUS < BASE_SIDE / 2).all()
    assert all(len(set(colours)) == DISCS for colours in scenes.colours.tolist())
    assert set(scenes.prompts) == {f"touch the {colour} disc" for colour in COLOURS}


def test_a_scene_depends_on_its_own_seed_alone():
    alone, among = PlanarArm([7], 32), PlanarArm([3, 7, 5], 32)
    for arm in (alone, among):
        arm.step(np.full((len(arm.joints), 2), 0.05))
    assert np.array_equal(alone.joints[0], among.joints[1])
    for camera in CAMERAS:
        assert np.array_equal(alone.observe()["images"][camera][0], among.observe()["images"][camera][1])
    assert not np.array_equal(among.scenes.discs[0], among.scenes.discs[1])


def test_advance_obeys_speed_and_joint_limits():
    joints = np.array([[0, 1], [1.15, 2.75], [-2.65, 0.25]], np.float32)
    moved = advance(joints, np.array([[9, -9], [9, 9], [-9, -9]]))
    np.testing.assert_allclose(moved, [[SPEED_LIMIT, 1 - SPEED_LIMIT], [1.2, 2.8], [-2.7, 0.2]], atol=1e-6)


def test_expert_goes_straight_and_slows_down():
    far, near = np.array([[1.0, -0.5]]), np.array([[0.1, -0.04]])
    start = np.zeros((1, 2))
    np.testing.assert_allclose(expert_action(start, far), [[SPEED_LIMIT, -SPEED_LIMIT / 2]], atol=1e-6)
    np.testing.assert_allclose(expert_action(start, near), [[0.05, -0.02]], atol=1e-6)
    assert np.array_equal(expert_action(start, start), [[0, 0]])


def test_expert_chunk_is_what_the_expert_does_step_by_step():
    arm = PlanarArm(SEEDS[:5])
    chunk = expert_chunk(arm.joints, arm.goal, 6)
    for step in range(6):
        assert np.array_equal(chunk[:, step], expert_action(arm.joints, arm.goal))
        arm.step(chunk[:, step])


def test_success_needs_steps_in_a_row_and_is_kept():
    arm = PlanarArm([1])
    away = arm.goal + np.float32(0.5)
    arm.joints = arm.goal.copy()
    still = np.zeros((1, 2))
    for _ in range(HOLD_STEPS - 1):
        arm.step(still)
    arm.joints = away
    arm.step(still)
    arm.joints = arm.goal.copy()
    for _ in range(HOLD_STEPS - 1):
        arm.step(still)
        assert not arm.success[0]
    arm.step(still)
    assert arm.success[0]
    arm.joints = away
    arm.step(still)
    assert arm.success[0]


def test_base_camera_shows_each_disc_in_its_colour_where_it_lies():
    arm = PlanarArm(SEEDS, 64)
    images = arm.observe()["images"]["base_0_rgb"]
    assert images.shape == (len(SEEDS), 64, 64, 3) and images.dtype == np.uint8
    offset = (arm.scenes.discs - BASE_CENTRE) / BASE_SIDE
    column, row = ((0.5 + offset[..., 0]) * 64).astype(int), ((0.5 - offset[..., 1]) * 64).astype(int)
    shown = images[np.arange(len(SEEDS))[:, None], row, column].astype(int)
    right = np.abs(shown - PALETTE[arm.scenes.colours]).max(axis=-1) <= 1
    assert right.mean() > 0.9  # the arm may lie across a centre


def test_wrist_camera_shows_a_disc_along_the_last_link_above_the_centre():
    joints = np.array([[-1.0, 1.6]], np.float32)
    heading = joints.sum()
    ahead = fingertip(joints)[0] + 0.25 * np.array([-np.sin(heading), np.cos(heading)])
    to_the_right = fingertip(joints)[0] + 0.25 * np.array([np.cos(heading), np.sin(heading)])
    image = draw_wrist(joints, np.stack([ahead, to_the_right])[None], np.array([[0, 2]]), 64)[0].astype(int)
    away = round(0.25 / WRIST_SIDE * 64)
    np.testing.assert_allclose(image[32 - away, 32], COLOURS["red"], atol=1)
    np.testing.assert_allclose(image[32, 32 + away], COLOURS["blue"], atol=1)
    np.testing.assert_allclose(image[60, 31:33], 205, atol=1)  # the last link comes in from below
    assert (image[31:33, 31:33] > 200).all()  # the fingertip's mark


@pytest.mark.parametrize("size", [32, 64])
def test_the_base_picture_says_where_the_named_disc_is(size):
    """The centroid of its colour is within a quarter of the radius, so a policy can see all it must know."""
    arm = PlanarArm(SEEDS, size)
    images = arm.observe()["images"]["base_0_rgb"].astype(np.float32)
    named = PALETTE[arm.scenes.colours[:, 0]][:, None, None].astype(np.float32)
    weight = np.abs(images - named).max(axis=-1) < 40
    metres = ((np.arange(size) + 0.5) / size - 0.5) * BASE_SIDE
    count = weight.sum(axis=(1, 2))
    centroid = np.stack([(weight * metres).sum((1, 2)), (weight * -metres[:, None]).sum((1, 2))], -1) / count[:, None]
    error = np.linalg.norm(centroid + BASE_CENTRE - arm.scenes.discs[:, 0], axis=1)
    assert np.median(error) < DISC_RADIUS / 10
    assert np.quantile(error, 0.99) < DISC_RADIUS / 2
