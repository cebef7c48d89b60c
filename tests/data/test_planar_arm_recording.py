import json
import os
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from sharder.data import planar_arm_recording
from sharder.data.planar_arm import PlanarArm
from sharder.data.planar_arm_demonstrations import TRAINING_SEEDS, demonstrate, training_seeds
from sharder.data.planar_arm_recording import CAMERA_KEYS, ensure_recorded, record
from sharder.errors import UserError

EPISODES, SEED, SIZE = 6, 3, 48


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("recordings") / "arm"
    record(root, episodes=EPISODES, seed=SEED, image_size=SIZE)
    return root


def decode(path):
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        return [(frame.pts * frame.time_base, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_of_tables_equal_frames_of_videos_and_what_info_says(root):
    info = json.loads((root / "meta/info.json").read_text())
    assert info["codebase_version"] == "v2.1" and info["total_episodes"] == EPISODES
    tasks = {row["task_index"]: row["task"] for row in read_lines(root / "meta/tasks.jsonl")}
    first_row = 0
    for row in read_lines(root / "meta/episodes.jsonl"):
        place = {"episode_chunk": 0, "episode_index": row["episode_index"]}
        table = pq.read_table(root / info["data_path"].format(**place)).to_pydict()
        assert set(table) == set(info["features"]) - set(CAMERA_KEYS.values())
        assert table["index"] == list(range(first_row, first_row + row["length"]))
        assert {tasks[task] for task in table["task_index"]} == set(row["tasks"])
        for key in CAMERA_KEYS.values():
            frames = decode(root / info["video_path"].format(video_key=key, **place))
            assert len(frames) == row["length"]
            np.testing.assert_allclose([float(time) for time, _ in frames], table["timestamp"], atol=1e-6)
            assert frames[0][1].shape == tuple(info["features"][key]["shape"])
        first_row += row["length"]
    assert first_row == info["total_frames"]


def test_statistics_are_those_of_the_columns(root):
    rows = read_lines(root / "meta/episodes_stats.jsonl")
    assert len(rows) == EPISODES
    table = pq.read_table(root / "data/chunk-000/episode_000002.parquet").to_pydict()
    stats = rows[2]["stats"]
    np.testing.assert_allclose(stats["action"]["mean"], np.mean(table["action"], axis=0), atol=1e-6)
    np.testing.assert_allclose(stats["observation.state"]["max"], np.max(table["observation.state"], axis=0))
    assert stats["action"]["count"] == [len(table["action"])]
    pictures = demonstrate(training_seeds(SEED, EPISODES))[2].pictures(SIZE)["base_0_rgb"]
    expected = pictures.mean(axis=(0, 1, 2)).reshape(3, 1, 1) / 255
    np.testing.assert_allclose(stats["observation.images.base"]["mean"], expected, atol=1e-6)


def test_the_recorded_pictures_are_what_evaluation_shows(root):
    arm = PlanarArm(training_seeds(SEED, EPISODES), SIZE)
    shown = arm.observe()
    for episode in range(EPISODES):
        table = pq.read_table(root / f"data/chunk-000/episode_{episode:06d}.parquet").to_pydict()
        assert np.array_equal(np.float32(table["observation.state"][0]), shown["state"][episode])
        for camera, key in CAMERA_KEYS.items():
            first = decode(root / f"videos/chunk-000/{key}/episode_{episode:06d}.mp4")[0][1]
            error = np.abs(first.astype(int) - shown["images"][camera][episode]).mean()
            assert error < 1, (camera, episode)


def test_the_reader_reads_it_back(root, monkeypatch, tmp_path):
    lerobot = pytest.importorskip("sharder.data.lerobot")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    recording = lerobot.open_recording(root, cameras=None, state="observation.state", action="action", episodes=None)
    demonstrations = demonstrate(training_seeds(SEED, EPISODES))
    assert recording.cameras == CAMERA_KEYS
    assert recording.state_names == recording.action_names == ["shoulder", "elbow"]
    assert np.array_equal(recording.states, np.concatenate([demo.states for demo in demonstrations]))
    assert np.array_equal(recording.actions, np.concatenate([demo.actions for demo in demonstrations]))
    row = 0
    for demonstration in demonstrations:
        assert recording.task_of(row) == demonstration.prompt
        for camera, pictures in demonstration.pictures(SIZE).items():
            for step in (0, 5, len(pictures) - 1):
                assert np.abs(recording.image(row + step, camera).astype(int) - pictures[step]).mean() < 1
        row += len(demonstration.states)


def test_replaying_the_recorded_actions_succeeds_unless_noise_was_added():
    seeds = training_seeds(0, 40)
    demonstrations = demonstrate(seeds)
    arm = PlanarArm(seeds)
    replayed = [arm.joints]
    for step in range(max(len(demo.actions) for demo in demonstrations)):
        arm.step(np.stack([demo.actions[min(step, len(demo.actions) - 1)] for demo in demonstrations]))
        replayed.append(arm.joints)
    as_recorded = np.array(
        [all(np.array_equal(replayed[t][e], s) for t, s in enumerate(d.states)) for e, d in enumerate(demonstrations)]
    )
    assert 10 < as_recorded.sum() < 30  # the clean ones; the others were pushed
    assert arm.success[as_recorded].all()


def test_demonstrations_depend_on_their_own_seed_alone():
    together, alone = demonstrate(training_seeds(0, 5)), demonstrate(training_seeds(0, 5)[3:4])
    assert np.array_equal(together[3].states, alone[0].states)
    assert np.array_equal(together[3].actions, alone[0].actions)
    other = demonstrate(training_seeds(1, 5))
    assert not np.array_equal(together[3].states[0], other[3].states[0])


def test_training_seeds_are_out_of_evaluations_way():
    assert training_seeds(0, 10).min() == TRAINING_SEEDS > 1_000_000_000
    assert not set(training_seeds(0, 2**20)) & set(training_seeds(1, 10))


@pytest.mark.parametrize(
    ("change", "named"),
    [({"seed": -1}, "seed=-1"), ({"episodes": 0}, "episodes=0"), ({"image_size": 33}, "image_size=33")],
)
def test_bad_parameters_are_named(tmp_path, change, named):
    with pytest.raises(UserError, match=f"data.planar_arm.{named}"):
        record(tmp_path / "arm", **({"episodes": 1, "seed": 0, "image_size": 32} | change))
    assert not any(tmp_path.iterdir())


def test_a_recording_is_never_written_over(root):
    with pytest.raises(UserError, match="exists already"):
        record(root, episodes=1, seed=0, image_size=32)


def test_a_recording_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full(path, frames, **settings):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(planar_arm_recording, "write_video", full)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"No space left on device.*XDG_CACHE_HOME"):
        ensure_recorded(2, 0, 32)
    assert not any((tmp_path / "sharder/planar_arm").iterdir())


def test_it_is_recorded_once_and_again_when_a_file_is_gone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    heard = []
    root = ensure_recorded(2, 0, 32, progress=lambda done, total: heard.append((done, total)))
    assert root.is_relative_to(tmp_path / "sharder/planar_arm") and heard == [(1, 2), (2, 2)]
    assert ensure_recorded(2, 0, 32, progress=lambda done, total: heard.append(done)) == root and len(heard) == 2
    video = next(root.rglob("*.mp4"))
    video.unlink()
    assert ensure_recorded(2, 0, 32) == root and video.stat().st_size
    assert ensure_recorded(3, 0, 32) != root


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(UserError, match=f"{blocked}.*XDG_CACHE_HOME"):
        ensure_recorded(1, 0, 32)


def test_two_processes_may_record_the_same(tmp_path):
    command = "from sharder.data.planar_arm_recording import ensure_recorded; print(ensure_recorded(20, 0, 32))"
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    started = [
        subprocess.Popen([sys.executable, "-c", command], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=60)[0].strip() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert printed[0] == printed[1] and Path(printed[0], "meta/info.json").exists()
    assert len(list(Path(printed[0]).parent.iterdir())) == 1
