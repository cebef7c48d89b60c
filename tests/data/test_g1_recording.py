"""The real recording beside the repository: one camera, AV1, the same two episodes in both versions."""

from pathlib import Path

import numpy as np
import pytest

from sharder.data.lerobot import open_recording

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
ROOTS = {"v2.1": DATA / "g1_bottle_v21", "v3.0": DATA / "g1_bottle_v30"}

pytestmark = pytest.mark.skipif(
    not all(root.is_dir() for root in ROOTS.values()), reason=f"NOT CHECKED ON REAL DATA: {DATA} is not there"
)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield {version: open_recording(root) for version, root in ROOTS.items()}


def test_what_is_in_it(recordings):
    for version, recording in recordings.items():
        assert (recording.version, recording.fps, len(recording)) == (version, 30.0, 498)
        assert recording.cameras == {"base_0_rgb": "observation.images.cam_high"}
        assert (recording.state_dim, recording.action_dim) == (26, 26)
        assert recording.state_names[::25] == ["kLeftShoulderPitch", "kRightHandThumbRotation"]
        assert recording.tasks == ["Pick up the yellow bottle on the table."]
        assert [recording.episode_bounds(i) for i in (220, 221)] == [(0, 221), (221, 498)]


def test_both_versions_are_the_same(recordings):
    v21, v30 = recordings.values()
    assert v21.fingerprint == v30.fingerprint
    np.testing.assert_array_equal(v21.states, v30.states)
    np.testing.assert_array_equal(v21.actions, v30.actions)
    assert np.ptp(v21.actions, axis=0).max() > 0.1
    for i in (0, 1, 100, 220, 221, 222, 350, 497, 219, 0):
        picture = v21.image(i, "base_0_rgb")
        assert (picture.shape, picture.dtype) == ((480, 640, 3), np.uint8)
        assert picture.std() > 10
        np.testing.assert_array_equal(picture, v30.image(i, "base_0_rgb"))
    assert not np.array_equal(v21.image(0, "base_0_rgb"), v21.image(220, "base_0_rgb"))


def test_the_second_episode_alone(recordings, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for version, full in recordings.items():
        alone = open_recording(ROOTS[version], episodes=[1])
        np.testing.assert_array_equal(alone.states, full.states[221:])
        np.testing.assert_array_equal(alone.image(276, "base_0_rgb"), full.image(497, "base_0_rgb"))
        np.testing.assert_array_equal(alone.action_chunk(270, 20), full.action_chunk(491, 20))
