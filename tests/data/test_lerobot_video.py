"""Every row gets the picture that was recorded with it: long joined files, drifting clocks, every codec."""

import os
from fractions import Fraction

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from toy_recording import HEIGHT, TOP, WIDTH, Toy, change, change_json, number_in, save, write_video

from sharder.data.lerobot import open_recording
from sharder.errors import UserError

NTSC = Fraction(30_000, 1001)
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
FROM = f"videos/{TOP}/from_timestamp"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def numbers(recording):
    """What every row's picture shows, read in a shuffled order."""
    shown = np.zeros(len(recording), int)
    for i in np.random.default_rng(0).permutation(len(recording)):
        shown[i] = number_in(recording.image(int(i), "base_0_rgb"))
    return shown.tolist()


def without_last_episode(root, frames):
    """Its frames stay in the video."""
    change_json(root / "meta/info.json", total_episodes=59, total_frames=frames)
    for file, rows in ((EPISODES, 59), ("data/chunk-000/file-000.parquet", frames)):
        save(root / file, pq.read_table(root / file).slice(0, rows))


def sixty_episodes(**changes):
    lengths = np.random.default_rng(5).integers(4, 11, 60).tolist()
    return Toy(**{"lengths": lengths, "cameras": {TOP: "video"}, "per_file": 60, **changes})


@pytest.mark.parametrize(
    ("fps", "rate", "late_s"),  # late: at the last episode by none, 0.7 or 7 frames
    [(30, 30, 0.0), (29.97, NTSC, 0.0), (29.97, Fraction(2997, 100), 0.0004), (30, 30, 0.0004), (29.97, NTSC, 0.004)],
)
def test_sixty_joined_episodes(tmp_path, fps, rate, late_s):
    toy = sixty_episodes(fps=fps, rate=rate, late_s=late_s)
    recording = open_recording(toy.write(tmp_path / "set", "v3.0"))
    assert numbers(recording) == list(range(sum(toy.lengths)))


def test_one_encoding_of_sixty_episodes(tmp_path):
    toy = sixty_episodes(fps=29.97, rate=NTSC)
    root = toy.write(tmp_path / "set", "v3.0")
    write_video(root / f"videos/{TOP}/chunk-000/file-000.mp4", range(sum(toy.lengths)), NTSC, options={"bf": "3"})
    assert numbers(open_recording(root)) == list(range(sum(toy.lengths)))


def test_frames_of_episodes_no_longer_listed_are_skipped(tmp_path):
    toy = Toy(cameras={TOP: "video"}, per_file=5)
    root = toy.write(tmp_path / "set", "v3.0")
    write_video(root / f"videos/{TOP}/chunk-000/file-000.mp4", [*range(900, 920), *range(31)])
    change(root / EPISODES, **{FROM: [(20 + first) / 30 for first in (0, 7, 12, 21, 25)]})
    assert numbers(open_recording(root)) == list(range(31))


def test_episodes_may_lie_in_another_order_in_the_file(tmp_path):
    toy = Toy(lengths=[3, 3, 3], cameras={TOP: "video"})
    root = toy.write(tmp_path / "set", "v3.0")
    change(root / EPISODES, **{FROM: [3.2, 3.0, 3.1]})  # and by another clock
    assert numbers(open_recording(root)) == [6, 7, 8, 0, 1, 2, 3, 4, 5]


def test_wrong_start_times_are_refused(tmp_path):
    toy = Toy(cameras={TOP: "video"}, per_file=5)
    root = toy.write(tmp_path / "set", "v3.0")
    right = pq.read_table(root / EPISODES)[FROM].to_pylist()
    change(root / EPISODES, **{FROM: [right[0], right[1], right[1] + 1 / 30, *right[3:]]})
    with pytest.raises(UserError, match=f"episodes 2 and 1 of camera {TOP} share frames"):
        open_recording(root)
    change(root / EPISODES, **{FROM: [*right[:4], 50.0]})
    with pytest.raises(UserError, match=f"episode 4 of camera {TOP} needs 6 frames from 50.000 s on, and 0 were found"):
        open_recording(root)
    assert numbers(open_recording(root, episodes=[0, 3])) == [*range(7), *range(21, 25)]


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"bf": "3", "g": "12", "x264-params": "b-pyramid=normal:ref=3"}),
        ("libx264", {"bf": "2", "g": "8", "x264-params": "open-gop=1"}),
        ("libx265", {"bf": "3", "g": "10", "x265-params": "log-level=none:open-gop=1"}),
        ("libsvtav1", {"g": "2", "crf": "30", "preset": "12"}),
        ("libsvtav1", {"g": "16", "crf": "30", "preset": "12"}),
    ],
)
def test_codecs(tmp_path, version, codec, options):
    toy = Toy(lengths=[25, 40, 31], cameras={TOP: "video"}, codec=codec, options=options)
    try:
        root = toy.write(tmp_path / "set", version)
    except av.codec.codec.UnknownCodecError:
        pytest.skip(f"this PyAV has no encoder {codec}")
    assert numbers(open_recording(root)) == list(range(96))


def test_a_codec_that_nobody_knows(tmp_path):
    root = Toy(lengths=[5], cameras={TOP: "video"}).write(tmp_path / "set", "v2.1")
    file = root / f"videos/chunk-000/{TOP}/episode_000000.mp4"
    file.write_bytes(file.read_bytes().replace(b"avc1", b"what"))
    with pytest.raises(UserError, match=f"frame 0 of camera {TOP}: .*episode_000000.mp4 cannot be opened .*no decoder"):
        open_recording(root)


def test_a_video_that_is_too_short_names_episode_camera_and_counts(tmp_path):
    toy = Toy(cameras={TOP: "video"})
    root = toy.write(tmp_path / "set", "v2.1")
    write_video(root / f"videos/chunk-000/{TOP}/episode_000002.mp4", range(8))
    with pytest.raises(
        UserError, match=f"episode_000002.mp4: episode 2 of camera {TOP} needs 9 frames .* 8 were found"
    ):
        open_recording(root)
    assert len(open_recording(root, episodes=[0, 1, 3, 4])) == 22


def test_a_video_cut_off_after_its_header(tmp_path):
    toy = Toy(lengths=[30], cameras={TOP: "video"})
    root = toy.write(tmp_path / "set", "v2.1")
    file = root / f"videos/chunk-000/{TOP}/episode_000000.mp4"
    write_video(file, range(30), options={"g": "1"}, container_options={"movflags": "faststart"})
    assert numbers(open_recording(root)) == list(range(30))
    with av.open(str(file)) as container:
        ends = [packet.pos + packet.size for packet in container.demux(video=0) if packet.size]
    whole = sum(end <= file.stat().st_size - 300 for end in ends)  # the one that is cut does not count
    assert whole not in (0, 30) and file.stat().st_size - 300 not in ends
    os.truncate(file, file.stat().st_size - 300)
    needed = f"episode 0 of camera {TOP} needs 30 frames from 0.000 s on"
    with pytest.raises(UserError, match=f"{needed}, and {whole} were found"):
        open_recording(root)


def test_a_longer_video_is_read_from_its_start(tmp_path):
    root = Toy(lengths=[5], cameras={TOP: "video"}).write(tmp_path / "set", "v2.1")
    write_video(root / f"videos/chunk-000/{TOP}/episode_000000.mp4", range(100, 110))
    assert numbers(open_recording(root)) == [100, 101, 102, 103, 104]


def test_a_late_clock_and_frames_left_over(tmp_path):
    toy = sixty_episodes(late_s=0.004)
    root = toy.write(tmp_path / "set", "v3.0")
    last = sum(toy.lengths[:-1])
    without_last_episode(root, last)
    assert numbers(open_recording(root)) == list(range(last))


def test_twice_as_many_frames_a_second_are_matched_by_time(tmp_path):
    root = Toy(lengths=[5], cameras={TOP: "video"}).write(tmp_path / "set", "v2.1")
    write_video(root / f"videos/chunk-000/{TOP}/episode_000000.mp4", range(100, 110), 60)
    assert numbers(open_recording(root)) == [100, 102, 104, 106, 108]


def test_pictures_of_another_size_than_info_says(tmp_path):
    root = Toy(lengths=[5], cameras={TOP: "video"}).write(tmp_path / "set", "v2.1")
    write_video(root / f"videos/chunk-000/{TOP}/episode_000000.mp4", range(5), size=(96, 64))
    with pytest.raises(UserError, match=rf"{TOP}' has shape \[{HEIGHT}, {WIDTH}, 3\].* 96 high and 64 wide"):
        open_recording(root)
