"""Recordings open to the same rows and samples in both versions, whichever episodes are chosen."""

import os
import pickle
import shutil
import time

import numpy as np
import pyarrow as pa
import pytest
from toy_recording import ACTION, STATE, TOP, WRIST, Toy, change, number_in, save

from sharder.data import lerobot
from sharder.data.lerobot import open_recording
from sharder.errors import UserError

VERSIONS = ("v2.1", "v3.0")
BASE, LEFT = "base_0_rgb", "left_wrist_0_rgb"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sharder" / "tables"


@pytest.fixture(scope="module")
def toy():
    return Toy()


@pytest.fixture(scope="module")
def roots(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("toys")
    return {version: toy.write(folder / version, version) for version in VERSIONS}


def sample(recording, i):
    return (
        int(recording.episode_of[i]),
        recording.states[i].tolist(),
        recording.action_chunk(i, 4).tolist(),
        recording.task_of(i),
        number_in(recording.image(i, BASE)),
        number_in(recording.image(i, LEFT)),
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_are_what_was_recorded(toy, roots, version):
    recording = open_recording(roots[version])
    assert (recording.version, recording.fps, len(recording)) == (version, 30.0, 31)
    assert recording.cameras == {BASE: TOP, LEFT: WRIST}
    assert (recording.state_dim, recording.state_names) == (3, ["x", "y", "z"])
    assert (recording.action_dim, recording.action_names) == (2, ["action[0]", "action[1]"])
    assert recording.tasks == ["push the cube", "öffne die Tür"]
    np.testing.assert_array_equal(recording.states, np.concatenate(toy.states))
    np.testing.assert_array_equal(recording.actions, np.concatenate(toy.actions))
    assert recording.states.dtype == recording.actions.dtype == np.float32
    assert recording.episode_of.tolist() == [0] * 7 + [1] * 5 + [2] * 9 + [3] * 4 + [4] * 6
    assert [recording.episode_bounds(i) for i in (0, 6, 7, 30)] == [(0, 7), (0, 7), (7, 12), (25, 31)]
    assert [recording.task_of(i) for i in (6, 7)] == ["push the cube", "öffne die Tür"]
    for i in np.random.default_rng(1).permutation(31):
        episode, frame = int(recording.episode_of[i]), i - recording.episode_bounds(i)[0]
        assert number_in(recording.image(i, BASE)) == toy.number(0, episode, frame)
        assert number_in(recording.image(i, LEFT)) == toy.number(1, episode, frame)


def test_versions_are_the_same_recording(roots):
    v21, v30 = (open_recording(roots[version]) for version in VERSIONS)
    assert v21.fingerprint == v30.fingerprint
    for i in range(31):
        assert sample(v21, i) == sample(v30, i)
        assert np.array_equal(v21.image(i, BASE), v30.image(i, BASE))


def test_chunks_repeat_the_last_action_and_never_cross_episodes(toy, roots):
    recording = open_recording(roots["v2.1"])
    assert recording.action_chunk(0, 7).tolist() == toy.actions[0].tolist()
    chunk = recording.action_chunk(5, 4)
    assert chunk.dtype == np.float32
    assert chunk.tolist() == toy.actions[0][[5, 6, 6, 6]].tolist()
    assert recording.action_chunk(30, 2).tolist() == toy.actions[4][[5, 5]].tolist()
    for i in (-1, 31):
        with pytest.raises(IndexError):
            recording.action_chunk(i, 2)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("episodes", [[3], [4, 1], [0, 2, 3], [2, 4]])
def test_a_subset_gives_the_samples_of_the_full_set(roots, version, episodes):
    full, subset = open_recording(roots[version]), open_recording(roots[version], episodes=episodes)
    assert sorted(set(subset.episode_of.tolist())) == sorted(episodes)
    rows = [i for i in range(31) if full.episode_of[i] in episodes]
    assert len(subset) == len(rows)
    assert [sample(subset, i) for i in range(len(subset))] == [sample(full, i) for i in rows]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"episodes": [0, 0, 1]}, "data.episodes lists 0 more than once"),
        ({"episodes": [1, 5]}, "no episode 5; the recording has 5, from 0 to 4"),
        ({"episodes": [-1]}, "no episode -1"),
        ({"episodes": []}, "data.episodes is empty"),
        ({"state": "observation.stat"}, "data.state: .*'observation.stat'.* is observation.state, action"),
        ({"action": TOP}, "data.action: .* is observation.state, action"),
        ({"cameras": {BASE: "observation.images.front"}}, f"data.cameras.base_0_rgb: .*it has {TOP}, {WRIST}"),
        ({"cameras": {"front": TOP}}, "data.cameras: .*'front'; it has base_0_rgb, left_wrist"),
    ],
)
def test_a_wrong_choice_names_what_there_is(roots, arguments, message):
    for root in roots.values():
        with pytest.raises(UserError, match=message):
            open_recording(root, **arguments)


def test_copies_for_workers_are_small_and_equal(roots):
    recording = open_recording(roots["v3.0"])
    recording.image(3, BASE)  # an open decoder does not travel
    sent = pickle.dumps(recording)
    assert len(sent) < 1000
    copy = pickle.loads(sent)
    assert copy.fingerprint == recording.fingerprint
    assert [sample(copy, i) for i in (0, 12, 30)] == [sample(recording, i) for i in (0, 12, 30)]


def test_the_fingerprint_is_of_what_is_sampled(toy, roots, tmp_path):
    of = {"all": open_recording(roots["v2.1"]).fingerprint}
    of["episodes"] = open_recording(roots["v2.1"], episodes=[0, 1, 2, 3]).fingerprint
    of["cameras"] = open_recording(roots["v2.1"], cameras={BASE: TOP}).fingerprint
    of["other camera"] = open_recording(roots["v2.1"], cameras={BASE: WRIST}).fingerprint
    of["state"] = open_recording(roots["v2.1"], state=ACTION).fingerprint
    changed = tmp_path / "changed"
    shutil.copytree(roots["v2.1"], changed)
    assert open_recording(changed).fingerprint == of["all"]  # neither place nor time matters
    data = changed / "data/chunk-000/episode_000003.parquet"
    change(data, **{ACTION: pa.array([[0.0, 1.0]] * 4, pa.list_(pa.float32()))})
    of["action value"] = open_recording(changed).fingerprint
    video = f"videos/chunk-000/{TOP}/episode_000000.mp4"
    shutil.copy(changed / video.replace(TOP, WRIST), changed / video)
    of["pictures"] = open_recording(changed).fingerprint
    assert len(set(of.values())) == len(of)


@pytest.mark.parametrize("version", VERSIONS)
def test_cameras_stored_as_images(tmp_path, version):
    toy = Toy(cameras={TOP: "image", WRIST: "video"})
    recording = open_recording(toy.write(tmp_path / "set", version), episodes=[1, 4])
    assert recording.cameras == {BASE: TOP, LEFT: WRIST}
    for i, (episode, frame) in enumerate([(1, f) for f in range(5)] + [(4, f) for f in range(6)]):
        assert number_in(recording.image(i, BASE)) == toy.number(0, episode, frame)
        assert number_in(recording.image(i, LEFT)) == toy.number(1, episode, frame)
    assert recording.image(0, BASE).dtype == np.uint8


def test_images_have_the_same_fingerprint_in_both_versions(tmp_path):
    toy = Toy(cameras={TOP: "image"})
    v21, v30 = (open_recording(toy.write(tmp_path / version, version)) for version in VERSIONS)
    assert v21.fingerprint == v30.fingerprint


def test_rows_may_lie_in_any_order(toy, tmp_path):
    root = toy.write(tmp_path / "set", "v3.0")
    data = root / "data/chunk-000/file-000.parquet"
    table = pa.concat_tables([toy.rows(e) for e in (0, 1, 2)])
    save(data, table.take(np.random.default_rng(0).permutation(len(table))))
    np.testing.assert_array_equal(open_recording(root).states, np.concatenate(toy.states))


def test_episodes_in_several_folders(toy, roots, tmp_path, monkeypatch):
    monkeypatch.setattr(toy, "per_chunk", 2)
    recording = open_recording(toy.write(tmp_path / "set", "v2.1"))
    one_folder = open_recording(roots["v2.1"])
    assert recording.fingerprint == one_folder.fingerprint
    assert sample(recording, 30) == sample(one_folder, 30)


def test_the_task_can_change_within_an_episode(tmp_path):
    toy = Toy()
    toy.task_numbers[0][:4] = 1
    recording = open_recording(toy.write(tmp_path / "set", "v2.1"))
    assert [recording.task_of(i) for i in (3, 4)] == ["öffne die Tür", "push the cube"]
    assert recording.tasks == ["öffne die Tür", "push the cube"]  # in order of first use


def test_the_second_opening_reads_only_the_cache(roots, cache, monkeypatch):
    first = open_recording(roots["v3.0"])
    monkeypatch.setattr(lerobot, "write_table", lambda *_: pytest.fail("built again"))
    assert open_recording(roots["v3.0"]).fingerprint == first.fingerprint
    assert len(list(cache.iterdir())) == 1


def test_a_file_of_another_time_is_read_again(toy, tmp_path, cache):
    root = toy.write(tmp_path / "set", "v2.1")
    open_recording(root)
    os.utime(root / f"videos/chunk-000/{WRIST}/episode_000002.mp4", (0, 0))
    open_recording(root)
    assert len(list(cache.iterdir())) == 2


def test_a_changed_file_is_read_again(toy, tmp_path):
    root = toy.write(tmp_path / "set", "v2.1")
    before = open_recording(root)
    data = root / "data/chunk-000/episode_000000.parquet"
    change(data, **{STATE: pa.array([[1.0, 2.0, 3.0]] * 7, pa.list_(pa.float64()))})
    after = open_recording(root)
    assert after.states[0].tolist() == [1.0, 2.0, 3.0]
    assert before.states[0].tolist() == toy.states[0][0].tolist()


@pytest.mark.parametrize("damage", [os.unlink, lambda f: os.truncate(f, 50), lambda f: f.write_bytes(b"x" * 200)])
def test_a_damaged_cache_is_built_again(toy, roots, cache, damage):
    open_recording(roots["v3.0"], episodes=[0, 4])
    (table,) = cache.iterdir()
    for name in sorted(os.listdir(table)):
        damage(table / name)
        recording = open_recording(roots["v3.0"], episodes=[0, 4])
        assert recording.states[7].tolist() == toy.states[4][0].tolist()
        assert number_in(recording.image(7, BASE)) == toy.number(0, 4, 0)


def test_a_million_frames_open_quickly_and_no_video_is_needed(tmp_path, monkeypatch):
    frames, length = 1_000_000, 500
    toy = Toy(lengths=[1], cameras={})
    root = toy.write(tmp_path / "set", "v3.0")
    info = root / "meta/info.json"
    info.write_text(
        info.read_text()
        .replace('"total_episodes": 1,', f'"total_episodes": {frames // length},')
        .replace('"total_frames": 1,', f'"total_frames": {frames},')
        .replace('"shape": [3]', '"shape": [14]')
        .replace('"shape": [2]', '"shape": [14]')
    )
    values = np.random.default_rng(0).normal(size=(frames, 14)).astype(np.float32)
    arms = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 14)
    rows = np.arange(frames)
    one = {"timestamp": (rows % length / 30).astype(np.float32), "frame_index": rows % length}
    one |= {"episode_index": rows // length, "task_index": rows * 0}
    save(root / "data/chunk-000/file-000.parquet", pa.table({STATE: arms, ACTION: arms, **one}))
    episodes = {"episode_index": np.arange(frames // length), "length": np.full(frames // length, length)}
    episodes |= {
        "data/chunk_index": np.zeros(frames // length, int),
        "data/file_index": np.zeros(frames // length, int),
    }
    save(root / "meta/episodes/chunk-000/file-000.parquet", pa.table(episodes))

    monkeypatch.setattr("av.open", lambda *_: pytest.fail("a video was opened"))
    started_s = time.perf_counter()
    recording = open_recording(root)
    assert time.perf_counter() - started_s < 20
    assert len(recording) == frames
    assert recording.states[123_456].tolist() == values[123_456].tolist()
