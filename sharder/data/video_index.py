"""What is in a video file, found by reading its packets once without decoding, and which frame belongs to which row.

    P packets of one file (a packet is a frame), sorted by the time they are shown (pts), which with
    B-frames is not their order in the file.

The frames of an episode are found by counting. Counting is certain when the file holds exactly the frames that its
episodes need, or when the clock agrees. If neither, the frame nearest in time is taken, within half a frame.
The clock alone is not trusted: joining files adds a little at every joint, and after some dozen episodes that exceeds
half a frame. So it is enough that from each episode to the next it agrees.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np

from sharder.data.episodes import Episode
from sharder.errors import UserError


@dataclass(frozen=True)
class VideoIndex:
    pts: np.ndarray  # int64 [P] in units of the stream's time base
    seek: np.ndarray  # int64 [P] where to seek for it: decoding time of the key frame at or before it
    key: np.ndarray  # int32 [P] which frame that key frame is
    crc: np.ndarray  # uint32 [P] of the encoded bytes
    time_base: float  # seconds a unit
    problem: str = ""  # why there are no (more) frames

    def __len__(self) -> int:
        return len(self.pts)

    @property
    def seconds(self) -> np.ndarray:
        return (self.pts - (self.pts[0] if len(self) else 0)) * self.time_base


def index_video(path: Path) -> VideoIndex:
    """Never raises: a file that cannot be read has no frames, one that ends early has those before."""
    packets: list[tuple[int, int, bool, int]] = []
    problem = ""
    time_base = 0.0
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                return no_frames("no video in it")
            stream = container.streams.video[0]
            time_base = float(stream.time_base or 0)
            for packet in container.demux(stream):
                if packet.size == 0 or packet.is_discard or packet.is_corrupt:
                    continue
                pts = packet.pts if packet.pts is not None else packet.dts
                if pts is None:
                    return no_frames("its frames carry no times")
                dts = packet.dts if packet.dts is not None else pts
                packets.append((pts, dts, packet.is_keyframe, zlib.crc32(packet)))
    except FileNotFoundError:
        problem = "the file is missing"
    except (av.FFmpegError, OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or type(error).__name__
    if not packets:
        return no_frames(problem)
    columns = np.array(sorted(packets), np.int64)
    times, decoding_times, is_key = columns[:, 0], columns[:, 1], columns[:, 2].astype(bool)
    if not is_key[0]:
        return no_frames("it does not begin with a key frame")
    if np.any(np.diff(times) == 0):
        return no_frames("two frames have the same time")
    key = np.maximum.accumulate(np.where(is_key, np.arange(len(times)), 0))
    crc = columns[:, 3].astype(np.uint32)
    return VideoIndex(times, decoding_times[key], key.astype(np.int32), crc, time_base, problem)


def no_frames(problem: str) -> VideoIndex:
    none = np.zeros(0, np.int64)
    return VideoIndex(none, none, none.astype(np.int32), none.astype(np.uint32), 0.0, problem)


def place_episodes(
    camera: str,
    index: VideoIndex,
    in_file: Sequence[Episode],
    wanted: Sequence[tuple[Episode, np.ndarray]],
    fps: float,
) -> list[np.ndarray]:
    """Which frames of one video file belong to each wanted episode (int32 [its length]).

    `in_file`: every episode of the recording that lies in this file; wanted: some of them, each with the seconds since
    its start at which its rows were recorded.
    """
    in_order = sorted(in_file, key=lambda e: (e.clips[camera].starts_at_s, e.number))
    lengths = np.array([episode.length for episode in in_order])
    first_of = dict(zip((e.number for e in in_order), np.cumsum(lengths) - lengths, strict=True))
    seconds, half_frame_s = index.seconds, 0.5 / fps
    steps_agree = clock_steps_agree(camera, in_order, first_of, seconds, half_frame_s)
    whole = steps_agree and len(index) == lengths.sum()
    from_the_start = steps_agree and abs(in_order[0].clips[camera].starts_at_s) <= half_frame_s

    placed = []
    for episode, since_start_s in wanted:
        frames = first_of[episode.number] + np.arange(episode.length)
        shown_at_s = episode.clips[camera].starts_at_s + since_start_s
        counted = whole or (
            from_the_start and shown_at(seconds, frames, seconds[frames[0]] + since_start_s, half_frame_s).all()
        )
        if not counted and not shown_at(seconds, frames, shown_at_s, half_frame_s).all():
            refuse_overlap(camera, episode, in_order, fps)
            frames = nearest(seconds, shown_at_s)
            found = np.unique(frames[shown_at(seconds, frames, shown_at_s, half_frame_s)])
            if len(found) < episode.length:
                raise not_found(camera, episode, index, len(found))
        placed.append(frames.astype(np.int32))
    return placed


def clock_steps_agree(
    camera: str, in_order: Sequence[Episode], first_of: dict[int, int], seconds: np.ndarray, half_frame_s: float
) -> bool:
    """Whether from each episode's start to the next one's it is as long by metadata as by the frames."""
    if len(seconds) < sum(episode.length for episode in in_order):
        return False
    said_s = np.array([episode.clips[camera].starts_at_s for episode in in_order])
    shown_s = seconds[[first_of[episode.number] for episode in in_order]]
    return bool(np.all(np.abs(np.diff(said_s) - np.diff(shown_s)) <= half_frame_s))


def shown_at(seconds: np.ndarray, frames: np.ndarray, shown_at_s: np.ndarray, half_frame_s: float) -> np.ndarray:
    """Of each frame, whether it exists and is shown at that time."""
    exists = (frames >= 0) & (frames < len(seconds))
    times = np.full(len(frames), np.inf)
    times[exists] = seconds[frames[exists]]
    return np.abs(times - shown_at_s) <= half_frame_s


def refuse_overlap(camera: str, episode: Episode, in_order: Sequence[Episode], fps: float) -> None:
    """By the clock alone two episodes can claim the same frames; then one of the start times is wrong."""
    start_s = episode.clips[camera].starts_at_s
    for other in in_order:
        other_start_s = other.clips[camera].starts_at_s
        first, later_start_s = (episode, other_start_s) if start_s <= other_start_s else (other, start_s)
        if other is not episode and later_start_s < min(start_s, other_start_s) + (first.length - 0.5) / fps:
            raise UserError(
                f"{episode.clips[camera].file}: by from_timestamp in meta/episodes, episodes {episode.number} and "
                f"{other.number} of camera {camera} share frames; correct it or leave them out with data.episodes"
            )


def nearest(seconds: np.ndarray, shown_at_s: np.ndarray) -> np.ndarray:
    """The frame nearest to each time; -1 in an empty video."""
    after = np.searchsorted(seconds, shown_at_s)
    before = np.maximum(after - 1, 0)
    after = np.minimum(after, len(seconds) - 1)
    if len(seconds) == 0:
        return after
    return np.where(shown_at_s - seconds[before] <= seconds[after] - shown_at_s, before, after)


def not_found(camera: str, episode: Episode, index: VideoIndex, found: int) -> UserError:
    clip = episode.clips[camera]
    reason = f"; {index.problem}" if index.problem else ""
    return UserError(
        f"{clip.file}: episode {episode.number} of camera {camera} needs {episode.length} frames from "
        f"{clip.starts_at_s:.3f} s on, and {found} were found ({len(index)} in the whole file{reason}); "
        "copy the video again or leave the episode out with data.episodes"
    )
