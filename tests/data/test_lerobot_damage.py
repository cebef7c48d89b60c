"""Whatever is wrong in the folder of a recording: one line that names it, before training, never a traceback."""

import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from toy_recording import ACTION, STATE, TOP, Toy, change, change_json, save

from sharder.data.lerobot import open_recording
from sharder.errors import UserError

VERSIONS = ("v2.1", "v3.0")
DATA = {"v2.1": "data/chunk-000/episode_000002.parquet", "v3.0": "data/chunk-000/file-000.parquet"}
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
TOY = Toy(cameras={TOP: "video", "observation.images.wrist": "image"}, lengths=[5, 4, 6, 3])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    return {version: TOY.write(folder / version, version) for version in VERSIONS}


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture
def root(originals, version, tmp_path):
    shutil.copytree(originals[version], tmp_path / "set")
    return tmp_path / "set"


def refused(root, message=None, **arguments):
    with pytest.raises(UserError, match=message) as caught:
        open_recording(root, **arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def files_of(root):
    return sorted(path for path in root.rglob("*") if path.is_file())


GARBAGE = np.random.default_rng(0).bytes(2000)
DAMAGES = {
    "removed": lambda file: file.unlink(),
    "emptied": lambda file: os.truncate(file, 0),
    "halved": lambda file: os.truncate(file, file.stat().st_size // 2),
    "end cut off": lambda file: os.truncate(file, max(file.stat().st_size - 300, 0)),
    "garbage": lambda file: file.write_bytes(GARBAGE),
    "garbage inside": lambda file: file.write_bytes(file.read_bytes()[:20] + GARBAGE + file.read_bytes()[2020:]),
    "another's": lambda file: shutil.copy(__file__, file),
    "null": lambda file: file.write_text("null"),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_file_damaged_in_turn(originals, version, damage, tmp_path):
    for number, original in enumerate(files_of(originals[version])):
        root = tmp_path / str(number)
        shutil.copytree(originals[version], root)
        file = root / original.relative_to(originals[version])
        DAMAGES[damage](file)
        message = refused(root)
        named = (file.name, "not a LeRobot recording", "meta/episodes holds no parquet file")
        assert any(name in message for name in named), (file, message)


def test_damage_in_episodes_that_are_not_selected_is_no_matter(originals, tmp_path):
    root = tmp_path / "set"
    shutil.copytree(originals["v2.1"], root)
    (root / "data/chunk-000/episode_000001.parquet").unlink()
    (root / f"videos/chunk-000/{TOP}/episode_000002.mp4").unlink()
    assert len(open_recording(root, episodes=[0, 3])) == 8
    refused(root, "episode_000001.parquet is missing", episodes=[1])
    refused(root, f"episode 2 of camera {TOP} needs 6 frames .* 0 were found .*the file is missing", episodes=[2])


@pytest.mark.parametrize(
    ("change_root", "message"),
    [
        (lambda root: root / "nowhere", "data.root: there is no folder"),
        (lambda root: root / "meta/info.json", "data.root: .*info.json is not a folder"),
        (lambda root: root / "data", "data.root: .*is not a LeRobot recording"),
        (lambda root: "hf://lerobot/pusht", "data.root: there is no folder"),
        (lambda root: "a\0b", "data.root: .*cannot be read"),
        (lambda root: "x" * 5000, "data.root: .*cannot be read"),
    ],
)
def test_root_that_is_no_recording(root, change_root, message):
    refused(change_root(root), message)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"codebase_version": "v9.9"}, "codebase_version is v9.9, and what can be read is v2.1 and v3.0"),
        ({"codebase_version": None}, "info.json has no 'codebase_version'"),
        ({"fps": "thirty"}, "'fps' is thirty, and should be int or float"),
        ({"fps": 0}, "fps is 0.0, and should be a positive number"),
        ({"fps": float("nan")}, "fps is nan"),
        ({"fps": 10**400}, "fps is inf"),
        ({"fps": 60}, "says fps 60, but the frames of episode 0 are"),
        ({"total_frames": 19}, "says total_frames = 19, but .*episodes.* has 18"),
        ({"total_episodes": 3}, "says total_episodes = 3, but .*episodes.* has 4"),
        ({"total_tasks": 1}, "says total_tasks = 1, but .*tasks.* has 2"),
        ({"total_tasks": True}, "'total_tasks' is True, and should be int"),
        ({"features": []}, r"'features' is \[\], and should be dict"),
        ({"features": {STATE: 3}}, "feature 'observation.state' is 3"),
        ({"features": {STATE: {"dtype": "float32", "shape": [-3]}}}, r"shape is \[-3\]"),
        ({"features": {}}, "data.state: the recording has no 'observation.state'; what it has is nothing"),
        ({"data_path": "data/{nonsense}.parquet"}, "path template 'data/{nonsense}.parquet' does not fit"),
        ({"data_path": "data/{"}, "path template 'data/{' does not fit"),
        ({"video_path": None}, "no 'video_path'"),
        ({"chunks_size": 0}, "chunks_size is 0"),
    ],
)
def test_info_that_is_wrong(root, entries, message):
    change_json(root / "meta/info.json", **entries)
    refused(root, message)


def test_info_with_other_dims_than_the_files(root):
    info = root / "meta/info.json"
    features = json.loads(info.read_text())["features"]
    change_json(info, features=features | {STATE: {"dtype": "float32", "shape": [4], "names": None}})
    refused(root, r"'observation.state' has 3 values a row, but info.json says shape \[4\]")


@pytest.mark.parametrize("column", [STATE, ACTION, "timestamp", "frame_index", "episode_index", "task_index"])
def test_missing_columns(root, version, column):
    change(root / DATA[version], **{column: None})
    refused(root, f"{DATA[version]} has no column {column}; its columns are ")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_numbers_that_are_not_finite(root, version, bad):
    file = root / DATA[version]
    states = np.array(pq.read_table(file)[STATE].to_pylist())
    states[-2, 1] = bad
    change(file, **{STATE: pa.array(states.tolist())})
    refused(root, "'observation.state' of episode 2 is .* at frame 4, dim 1 .1 values are not finite.")


def test_rows_without_a_value(root, version):
    file = root / DATA[version]
    states = pq.read_table(file)[STATE].to_pylist()
    change(file, **{STATE: [*states[:-1], None]})
    refused(root, "'observation.state' has 1 missing values")
    change(file, **{STATE: [*states[:-1], [1.0, None, 2.0]]})
    refused(root, "'observation.state' has 1 missing values")
    change(file, **{STATE: [*states[:-1], [1.0]]})
    refused(root, r"rows of 'observation.state' differ in length \(3, 1 values\)")
    change(file, **{STATE: ["text"] * len(states)})
    refused(root, "'observation.state' holds string, and should hold numbers")


def test_rows_that_disagree_with_the_list_of_episodes(root, version):
    file = root / DATA[version]
    table = pq.read_table(file)
    save(file, table.slice(0, len(table) - 1))
    refused(root, f"{DATA[version]} has {len(table) - 1} rows, but its episodes .* are {len(table)} frames long")
    save(file, table)
    change(file, episode_index=[9] * len(table))
    refused(root, "has 0 rows of episode .* frames long")
    save(file, table)
    change(file, frame_index=[5] * len(table))
    refused(root, "frame_index of episode .* does not count 0 to ")


def test_tasks_that_are_missing_or_empty(root, version):
    change(root / DATA[version], task_index=[7] * len(pq.read_table(root / DATA[version])))
    refused(root, r"episode . has task_index 7, which the list of tasks lacks \(it has 0, 1\)")


def test_empty_task_text_matters_where_it_is_used(root, version):
    if version == "v2.1":
        tasks = [{"task_index": 0, "task": "push"}, {"task_index": 1, "task": "  "}]
        (root / "meta/tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    else:
        save(root / "meta/tasks.parquet", pa.table({"task_index": [0, 1], "task": ["push", "  "]}))
    refused(root, "episode 1: the text of task_index 1 is empty")
    assert open_recording(root, episodes=[0, 2]).tasks == ["push"]


def test_lists_of_episodes_that_are_wrong(originals, tmp_path):
    shutil.copytree(originals["v2.1"], tmp_path / "v2.1")
    shutil.copytree(originals["v3.0"], tmp_path / "v3.0")
    jsonl, parquet = tmp_path / "v2.1/meta/episodes.jsonl", tmp_path / "v3.0" / EPISODES
    first, *others = jsonl.read_text().splitlines()
    jsonl.write_text("\n".join([first, first, *others[1:]]))
    change(parquet, episode_index=[0, 0, 2, 3])
    for version in VERSIONS:
        refused(tmp_path / version, "episode 0 is listed twice")
    jsonl.write_text("\n".join([first.replace('"length": 5', '"length": 0'), *others]))
    change(parquet, episode_index=[0, 1, 2, 3], length=[0, 4, 6, 3])
    for version in VERSIONS:
        refused(tmp_path / version, "episode 0 has length 0")
    jsonl.write_text("\n".join([first.replace('"length": 5', '"length": 5.5'), *others]))
    change(parquet, length=[5.5, 4.0, 6.0, 3.0])
    for version in VERSIONS:
        refused(tmp_path / version, "'length' is 5.5, and should be int")


def test_an_image_that_does_not_decode(root, version):
    file = root / DATA["v2.1"].replace("2.par", "0.par") if version == "v2.1" else root / DATA["v3.0"]
    key = "observation.images.wrist"
    images = pq.read_table(file)[key].to_pylist()
    change(file, **{key: [{"bytes": GARBAGE, "path": None}, *images[1:]]})
    refused(root, f"episode 0, frame 0 of camera {key}: its image of 2000 bytes does not decode")
    change(file, **{key: [{"bytes": None, "path": None}, *images[1:]]})
    refused(root, f"'{key}' of episode 0, frame 0 holds no image")


def test_a_cache_folder_that_cannot_be_written(root, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    refused(root, "the cache folder .* cannot be written .* set XDG_CACHE_HOME")
