import pytest

from sharder.data.cameras import guess_cameras


@pytest.mark.parametrize(
    ("present", "chosen"),
    [
        ([], {}),
        (["observation.images.cam_high"], {"base": "observation.images.cam_high"}),
        (["o.cam_right_wrist", "o.cam_high", "o.cam_left_wrist"], {"base": 1, "left_wrist": 2, "right_wrist": 0}),
        (["o.wrist_right", "o.top", "o.side", "o.wrist_left"], {"base": 1, "left_wrist": 3, "right_wrist": 0}),
        (["o.wrist", "o.front"], {"base": 1, "left_wrist": 0}),
        (["o.Gripper_camera", "o.front"], {"base": 1, "left_wrist": 0}),
        (["o.hand_1", "o.hand_2"], {"left_wrist": 0}),
        (["o.right_hand", "o.left_arm"], {"base": 1, "right_wrist": 0}),
        (["o.top", "o.base_0_rgb", "o.left_wrist_0_rgb"], {"base": 1, "left_wrist": 2}),
        (["left_wrist.view"], {"base": 0}),  # only the last part of a key counts
    ],
)
def test_cameras_are_recognised_by_name(present, chosen):
    expected = {f"{name}_0_rgb": key if isinstance(key, str) else present[key] for name, key in chosen.items()}
    assert guess_cameras(present) == expected


def test_unused_cameras_are_logged(caplog):
    with caplog.at_level("INFO"):
        guess_cameras(["o.front", "o.side"])
    assert "not used: o.side" in caplog.text
