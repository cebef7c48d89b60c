"""Frames decoded once: the same to the bit, made by one process, resumed when killed, never half or too large."""

import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_recording import FakeRecording, transform_of
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from toy_recording import TOP, WRIST, Toy

from sharder.config import Config, DataConfig
from sharder.data import decoded_frames as reading
from sharder.data import decoding_progress, frame_decoding
from sharder.data.dataset import open_dataset
from sharder.data.frame_decoding import decoded_frames
from sharder.data.lerobot import open_recording
from sharder.data.pipeline import BatchSource, Loader
from sharder.data.transforms import resize_with_pad
from sharder.errors import UserError
from sharder.training.meaning import meaning

SIZE, ROWS = 16, 103
REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "g1_bottle_v21"


@pytest.fixture(autouse=True)
def decoded(tmp_path, monkeypatch):
    """The folder that decoded frames are kept in; long recordings are no part of these tests, many pieces are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(frame_decoding, "PIECE_ROWS", 25)
    return tmp_path / "cache" / "sharder" / "decoded"


def settings(frames="decoded", *, workers=0, decoded_gib=1.0):
    return DataConfig(frames=frames, workers=workers, decoded_gib=decoded_gib)


def assert_as_on_demand(frames, recording, size=SIZE):
    for camera in recording.cameras:
        for row in range(len(recording)):
            expected = resize_with_pad(recording.image(row, camera), size)
            np.testing.assert_array_equal(frames.image(row, camera), expected, f"{camera} {row}")


def folders(decoded):
    return sorted(path.name for path in decoded.iterdir() if path.is_dir())


# The same pictures


@pytest.mark.parametrize(
    ("version", "workers", "toy"),
    [
        ("v2.1", 0, Toy()),
        ("v3.0", 2, Toy(cameras={TOP: "video", WRIST: "image"})),
        ("v3.0", 0, Toy([25, 40, 31], options={"bf": "3", "g": "12", "x264-params": "b-pyramid=normal:ref=3"})),
        ("v3.0", 0, Toy([25, 40, 31], options={"bf": "2", "g": "8", "x264-params": "open-gop=1"})),
    ],
)
def test_they_are_what_decoding_on_demand_gives(tmp_path, monkeypatch, version, workers, toy):
    monkeypatch.setattr(frame_decoding, "PIECE_ROWS", 8)
    monkeypatch.setattr(frame_decoding, "LONGEST_PIECE_ROWS", 30)  # begins in the middle of an episode
    recording = open_recording(toy.write(tmp_path / "set", version))
    frames = decoded_frames(recording, 28, settings(workers=workers))
    assert frames.image(3, "base_0_rgb").shape == (28, 28, 3) and frames.image(3, "base_0_rgb").std() > 10
    assert_as_on_demand(frames, recording, 28)


@pytest.mark.skipif(not REAL.is_dir(), reason=f"NOT CHECKED ON REAL DATA: {REAL} is not there")
def test_the_real_recording_too():
    recording = open_recording(REAL, episodes=[0])
    frames = decoded_frames(recording, 224, settings())
    for row in (0, 1, 57, 130, 220):
        expected = resize_with_pad(recording.image(row, "base_0_rgb"), 224)
        np.testing.assert_array_equal(frames.image(row, "base_0_rgb"), expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_the_same_and_decode_nothing(workers):
    recording = FakeRecording(ROWS)
    transform = transform_of(recording)
    frames = decoded_frames(FakeRecording(ROWS), SIZE, settings())
    source = BatchSource(recording, transform, seed=7, batch_size=10, frames=frames)
    with Loader(source, first_step=8, last_step=12, workers=workers, prefetch=2) as loader:
        found = list(loader)
    assert recording.image_calls == 0
    on_demand = BatchSource(recording, transform, seed=7, batch_size=10, frame_cache_mib=0)
    for step, batch in enumerate(found, start=8):
        expected = on_demand.batch(step)
        assert batch.keys() == expected.keys()
        np.testing.assert_array_equal(batch["example"], expected["example"])
        for camera, images in expected["images"].items():
            assert batch["images"][camera].dtype == np.uint8
            np.testing.assert_array_equal(batch["images"][camera], images)


def planar_arm(frames):
    config = Config()
    config.train.batch_size = 8
    config.data.planar_arm.episodes, config.data.planar_arm.image_size = 4, 16
    config.data.frames, config.data.workers = frames, 0
    config.model.image_size = SIZE
    return config


def test_a_run_means_the_same_with_either(decoded):
    data = {frames: open_dataset(planar_arm(frames)) for frames in ("auto", "decoded", "on_demand")}
    assert not decoded.exists()  # until batches are wanted
    batches = {frames: data[frames].source().batch(1)["images"] for frames in data}
    assert [data[frames].frames is None for frames in data] == [False, False, True]
    for camera in data["auto"].recording.cameras:
        np.testing.assert_array_equal(batches["auto"][camera], batches["on_demand"][camera])
        np.testing.assert_array_equal(batches["decoded"][camera], batches["on_demand"][camera])
    assert meaning(data["decoded"]) == meaning(data["auto"]) == meaning(data["on_demand"])


def test_nobody_can_change_them():
    frames = decoded_frames(FakeRecording(ROWS), SIZE, settings())
    with pytest.raises(ValueError, match="read-only"):
        frames.image(0, "base_0_rgb")[:] = 0


# Made once


def test_they_are_decoded_once(decoded):
    first, second = FakeRecording(ROWS), FakeRecording(ROWS)
    decoded_frames(first, SIZE, settings())
    frames = decoded_frames(second, SIZE, settings())
    assert (first.image_calls, second.image_calls) == (2 * ROWS, 0)
    assert_as_on_demand(frames, second)
    assert folders(decoded) == [frames.folder.name]


def test_what_they_depend_on_is_in_their_name(monkeypatch):
    recording, other, fewer_cameras = FakeRecording(ROWS), FakeRecording(ROWS), FakeRecording(ROWS)
    other.fingerprint = "another"
    del fewer_cameras.cameras["left_wrist_0_rgb"]
    names = {decoded_frames(each, SIZE, settings()).folder.name for each in (recording, other, fewer_cameras)}
    names.add(decoded_frames(recording, 20, settings()).folder.name)
    monkeypatch.setattr(reading, "FORMAT", reading.FORMAT + 1)
    names.add(decoded_frames(recording, SIZE, settings()).folder.name)
    assert len(names) == 5


@pytest.mark.parametrize("data", [settings("on_demand"), replace(settings("decoded"), kind="fixed")])
def test_asked_to_keep_nothing_it_keeps_nothing(decoded, data):
    recording = FakeRecording(ROWS)
    assert decoded_frames(recording, SIZE, data) is None
    assert recording.image_calls == 0 and not decoded.exists()


class Waiting(FakeRecording):
    """Its pictures come once they may."""

    def __init__(self, may):
        super().__init__(ROWS)
        self.may = may

    def image(self, row, camera):
        assert self.may.wait(10)
        return super().image(row, camera)


def test_of_two_at_once_one_decodes_and_the_other_waits(caplog):
    may, found = threading.Event(), {}
    recordings = [Waiting(may), Waiting(may)]

    def run(number):
        found[number] = decoded_frames(recordings[number], SIZE, settings())

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    with caplog.at_level(logging.INFO):
        for thread in threads:
            thread.start()
        wait_for(lambda: "frames: another process decodes them, waiting: " in caplog.text)
        may.set()
        for thread in threads:
            thread.join(10)
    assert sorted(recording.image_calls for recording in recordings) == [0, 2 * ROWS]
    assert_as_on_demand(found[0], FakeRecording(ROWS))
    assert_as_on_demand(found[1], FakeRecording(ROWS))


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


# Stopped in the middle


@pytest.mark.parametrize("cut_off", ["", "50 7"])
def test_killed_in_the_middle_it_goes_on_with_what_is_missing(decoded, caplog, cut_off):
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])])}
    process = subprocess.Popen([sys.executable, str(here / "decode_script.py")], env=environment)
    try:
        wait_for(lambda: [file.read_text() for file in decoded.glob("*/finished.txt")] == ["0 25\n25 50\n"])
    finally:
        process.kill()
        process.wait()
    (finished,) = decoded.glob("*/finished.txt")
    with finished.open("a") as file:
        file.write(cut_off)
    recording = FakeRecording(ROWS)
    with caplog.at_level(logging.INFO):
        frames = decoded_frames(recording, SIZE, settings())
    assert recording.image_calls == 2 * (ROWS - 50)
    assert "decoding 103 frames of 2 cameras at 16x16" in caplog.text and "50 are there from before" in caplog.text
    assert_as_on_demand(frames, FakeRecording(ROWS))
    assert folders(decoded) == [frames.folder.name]
    assert sorted(os.listdir(frames.folder)) == ["base_0_rgb.npy", "contents.json", "left_wrist_0_rgb.npy"]


def test_a_line_of_what_is_finished_is_written_when_its_pixels_are_there(decoded):
    with pytest.raises(RuntimeError, match="row 60 of the recording: OSError: the video is truncated"):
        decoded_frames(FakeRecording(ROWS, poisoned=60), SIZE, settings())
    (unfinished,) = decoded.glob(".unfinished-*")
    said = (unfinished / "finished.txt").read_text().splitlines()
    assert said[:2] == ["0 25", "25 50"] and "50 75" not in said
    for number, camera in enumerate(["base_0_rgb", "left_wrist_0_rgb"]):
        pixels = np.load(unfinished / f"{camera}.npy")
        assert pixels[:50, 8, 8].tolist() == [[row, 0, number] for row in range(50)]


def test_unfinished_files_of_another_length_are_made_again(decoded):
    with pytest.raises(RuntimeError):
        decoded_frames(FakeRecording(ROWS, poisoned=60), SIZE, settings())
    (file,) = decoded.glob(".unfinished-*/base_0_rgb.npy")
    os.truncate(file, 5000)
    recording = FakeRecording(ROWS)
    assert_as_on_demand(decoded_frames(recording, SIZE, settings()), FakeRecording(ROWS))
    assert recording.image_calls == 2 * ROWS


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(1, 200))
def test_pieces_are_whole_episodes_unless_those_are_long(lengths, longest):
    ends = np.cumsum(lengths).tolist()

    class Episodes:
        def __len__(self):
            return ends[-1]

        def episode_bounds(self, row):
            number = int(np.searchsorted(ends, row, side="right"))
            return ends[number] - lengths[number], ends[number]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_decoding, "LONGEST_PIECE_ROWS", longest)
        pieces = frame_decoding.pieces_of(Episodes())
    assert [row for first, past in pieces for row in range(first, past)] == list(range(ends[-1]))
    for first, past in pieces:
        assert past - first < frame_decoding.PIECE_ROWS + longest
        assert past - first >= frame_decoding.PIECE_ROWS or past == ends[-1]
        start_of_its_episode = Episodes().episode_bounds(past - 1)[0]
        assert past in ends or (past - start_of_its_episode) % longest == 0


# Damaged, and without room


def damage_by(change):
    return lambda folder: change(folder / "base_0_rgb.npy")


def lengthen(file):
    with file.open("ab") as appended:
        appended.write(b"more")


DAMAGE = {
    "cut": (damage_by(lambda file: os.truncate(file, 9000)), r"base_0_rgb\.npy cannot be read"),
    "longer": (damage_by(lengthen), r"base_0_rgb\.npy has 79,236 bytes, not 79,232"),
    "gone": (damage_by(Path.unlink), r"base_0_rgb\.npy cannot be read \(No such file"),
    "empty": (damage_by(lambda file: os.truncate(file, 0)), r"base_0_rgb\.npy cannot be read"),
    "fewer rows": (
        damage_by(lambda file: np.save(file, np.zeros((9, SIZE, SIZE, 3), np.uint8))),
        r"base_0_rgb\.npy holds uint8 \[9, 16, 16, 3\], not uint8 \[103, 16, 16, 3\]",
    ),
    "not said": (lambda folder: (folder / "contents.json").unlink(), r"contents\.json cannot be read \(No such file"),
    "said wrongly": (
        lambda folder: (folder / "contents.json").write_text(json.dumps({"format": 0})),
        r"contents\.json says something else than its folder's name",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_damaged_is_named_removed_and_made_again(caplog, kind):
    damage, words = DAMAGE[kind]
    folder = decoded_frames(FakeRecording(ROWS), SIZE, settings()).folder
    damage(folder)
    recording = FakeRecording(ROWS)
    frames = decoded_frames(recording, SIZE, settings())
    assert recording.image_calls == 2 * ROWS
    (told,) = [record.getMessage() for record in caplog.records if "damaged" in record.getMessage()]
    assert told.startswith(f"frames: removing {folder}, which is damaged: ")
    assert_matches(words, told)
    assert_as_on_demand(frames, FakeRecording(ROWS))


def assert_matches(words, text):
    assert re.search(words, text), text


BYTES = ROWS * 2 * SIZE * SIZE * 3  # 158,208


def give_free(monkeypatch, free):
    usage = frame_decoding.shutil.disk_usage("/")
    monkeypatch.setattr(frame_decoding.shutil, "disk_usage", lambda path: usage._replace(free=free))


@pytest.mark.parametrize(
    ("gib", "free", "words"),
    [
        ((BYTES - 1) / 2**30, 10**9, r"decoded_gib=0\.000147\d* allows 0\.000158 GB, 0 GB of it .* has 1 GB free"),
        (1.0, BYTES - 1, r"decoded_gib=1 allows 1\.07 GB, .* the disk has 0\.000158 GB free"),
    ],
)
def test_without_room_it_is_refused_or_done_on_demand(decoded, monkeypatch, caplog, gib, free, words):
    give_free(monkeypatch, free)
    with pytest.raises(UserError) as refused:
        decoded_frames(FakeRecording(ROWS), SIZE, settings(decoded_gib=gib))
    message = str(refused.value)
    needed = "data.frames=decoded: 103 frames of 2 cameras at 16x16 need 0.000158 GB; data."
    assert message.startswith(needed) and "\n" not in message
    assert_matches(words, message)
    assert message.endswith("XDG_CACHE_HOME to a larger disk, or set data.frames=on_demand")

    assert decoded_frames(FakeRecording(ROWS), SIZE, settings("auto", decoded_gib=gib)) is None
    assert_matches(r"^frames: decoded on demand in every epoch, .*: 103 frames of .*" + words, caplog.messages[-1])
    assert folders(decoded) == []


def test_auto_leaves_half_of_the_disk_to_others(monkeypatch, caplog):
    give_free(monkeypatch, 2 * BYTES - 1)
    assert decoded_frames(FakeRecording(ROWS), SIZE, settings("auto")) is None
    assert "of which data.frames=auto takes up to 50%" in caplog.text
    give_free(monkeypatch, 2 * BYTES)
    assert decoded_frames(FakeRecording(ROWS), SIZE, settings("auto")) is not None


def test_the_limit_is_for_all_recordings_together(decoded, caplog):
    gib = 1.5 * BYTES / 2**30
    assert decoded_frames(FakeRecording(ROWS), SIZE, settings("auto", decoded_gib=gib)) is not None
    other = FakeRecording(ROWS - 1)
    assert decoded_frames(other, SIZE, settings("auto", decoded_gib=gib)) is None
    assert_matches(r"allows 0\.000237 GB, 0\.0001[67]\d* GB of it taken by other recordings", caplog.text)
    for file in next(path for path in decoded.iterdir() if path.is_dir()).iterdir():
        file.unlink()
    assert decoded_frames(other, SIZE, settings("auto", decoded_gib=gib)) is not None


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert decoded_frames(FakeRecording(ROWS), SIZE, settings("auto")) is None
    assert "cannot be written (Not a directory)" in caplog.text
    with pytest.raises(UserError, match=r"^data\.frames=decoded: .*/decoded cannot be written .*XDG_CACHE_HOME"):
        decoded_frames(FakeRecording(ROWS), SIZE, settings())


# Told


def test_progress_in_a_log_is_a_line_every_ten_seconds(caplog):
    now = iter(range(0, 100, 4))
    with (
        caplog.at_level(logging.INFO),
        decoding_progress.DecodingProgress(1000, 100, Console(file=io.StringIO()), lambda: next(now)) as progress,
    ):
        for _ in range(6):
            progress.advance(120)
    assert caplog.messages[0] == "decoding frames: 460 of 1,000, 30 a second, 18 s left"
    assert len(caplog.messages) == 2


def test_progress_on_a_terminal_is_a_bar():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system=None, width=80)
    with decoding_progress.DecodingProgress(1000, 100, console) as progress:
        progress.advance(300)
    assert "decoding frames  400/1000" in screen.getvalue()
