"""LeRobot recordings, v2.1 and v3.0, read as they are: states, actions, tasks and pictures by frame number.

Opening checks the whole selection, so that nothing is found wrong hours into a run. What it finds out is kept in the
cache folder, keyed by the files' names, sizes and times, and later openings only map it into memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sharder.data import layout_v21, layout_v30
from sharder.data.cache import cache_dir, cached_folder
from sharder.data.camera_images import ImageCamera, write_image_camera
from sharder.data.camera_video import VideoCamera, write_video_camera
from sharder.data.cameras import choose_cameras
from sharder.data.episodes import Episode, Layout, check_layout, select
from sharder.data.files import mapped
from sharder.data.frame_table import INDEX_COLUMNS, data_files, write_frame_table
from sharder.data.info import Feature, Info, read_info
from sharder.data.video import DecoderPool, VideoError
from sharder.errors import UserError

READ_LAYOUT = {"v2.1": layout_v21.read_layout, "v3.0": layout_v30.read_layout}
TABLE_FORMAT = 1  # raise it when the cached folder's contents change

log = logging.getLogger(__name__)

RATE_TOLERANCE = 0.1  # share: clocks run a little fast or slow, another rate is off by far more


def open_recording(
    root: str | Path,
    *,
    cameras: Mapping[str, str] | None = None,
    state: str = "observation.state",
    action: str = "action",
    episodes: Sequence[int] | None = None,
    decoders: int = 32,
) -> Recording:
    info = read_info(root)
    chosen = choose_cameras(info, cameras)
    state_feature = numeric_feature(info, "data.state", state)
    action_feature = numeric_feature(info, "data.action", action)
    video_keys = [key for key in chosen.values() if info.features[key].dtype == "video"]
    layout = READ_LAYOUT[info.version](info, list(dict.fromkeys(video_keys)))
    check_layout(info, layout)
    selected = select(layout, episodes)

    table = cached_folder(
        cache_dir() / "tables",
        table_key(info, layout, selected, chosen, state, action),
        lambda folder: write_table(folder, info, layout, selected, chosen, state_feature, action_feature),
    )
    recording = Recording(table, decoders)
    for name, key in chosen.items():
        check_picture(recording, name, info.features[key], info)
    log.info(
        "%s: LeRobot %s, %d frames of %d episodes at %g fps",
        info.root, info.version, len(recording), len(selected), info.fps,
    )  # fmt: skip
    return recording


class Recording:
    """The selected episodes, frame after frame. Copies sent to other processes share the memory-mapped table."""

    def __init__(self, table: Path, decoders: int = 32):
        self._table, self._decoders = table, decoders
        said = json.loads((table / "table.json").read_text())
        self.version: str = said["version"]
        self.fps: float = said["fps"]
        self.fingerprint: str = said["fingerprint"]
        self.cameras: dict[str, str] = said["cameras"]
        self.state_names: list[str] = said["state_names"]
        self.action_names: list[str] = said["action_names"]
        self.tasks: list[str] = said["tasks"]
        self.states = mapped(table / "states.npy")
        self.actions = mapped(table / "actions.npy")
        self.episode_of = mapped(table / "episode.npy")
        self._task = mapped(table / "task.npy")
        self._bounds = np.array(said["bounds"], np.int64)  # first row of each episode, and the number of rows
        pool = DecoderPool(decoders)
        self._cameras: dict[str, VideoCamera | ImageCamera] = {
            name: ImageCamera(table, name) if files is None else VideoCamera(table, name, files, pool)
            for name, files in said["files"].items()
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return Recording, (self._table, self._decoders)

    def __len__(self) -> int:
        return len(self.states)

    @property
    def state_dim(self) -> int:
        return self.states.shape[1]

    @property
    def action_dim(self) -> int:
        return self.actions.shape[1]

    def task_of(self, i: int) -> str:
        return self.tasks[self._task[self._row(i)]]

    def episode_bounds(self, i: int) -> tuple[int, int]:
        """First and past-last row of the episode that row i belongs to."""
        episode = int(np.searchsorted(self._bounds, self._row(i), side="right")) - 1
        return int(self._bounds[episode]), int(self._bounds[episode + 1])

    def action_chunk(self, i: int, horizon: int) -> np.ndarray:
        """float32 [horizon, A]: the actions from row i on, the episode's last repeated past its end."""
        _, past_last = self.episode_bounds(i)
        return self.actions[np.minimum(np.arange(i, i + horizon), past_last - 1)]

    def image(self, i: int, camera: str) -> np.ndarray:
        """uint8 [h, w, 3] RGB of a model camera."""
        row = self._row(i)
        try:
            return self._cameras[camera].image(row)
        except VideoError as error:
            frame = row - self.episode_bounds(row)[0]
            raise UserError(
                f"episode {self.episode_of[row]}, frame {frame} of camera {self.cameras[camera]}: {error}; "
                "copy it again or leave the episode out with data.episodes"
            ) from None

    def _row(self, i: int) -> int:
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of a recording of {len(self)} frames")
        return int(i)


def numeric_feature(info: Info, setting: str, key: str) -> Feature:
    present = [
        k for k, f in info.features.items() if f.dtype not in ("video", "image", "string") and k not in INDEX_COLUMNS
    ]
    if key not in present:
        raise UserError(f"{setting}: the recording has no {key!r}; what it has is {', '.join(present) or 'nothing'}")
    return info.features[key]


def table_key(
    info: Info, layout: Layout, selected: Sequence[Episode], cameras: Mapping[str, str], state: str, action: str
) -> str:
    clips = [clip.file for episode in selected for clip in episode.clips.values()]
    files = dict.fromkeys([info.file, *layout.files, *(episode.data_file for episode in selected), *clips])
    settings = [TABLE_FORMAT, dict(cameras), state, action, [episode.number for episode in selected]]
    return hashlib.sha256(json.dumps([settings, [identity(file) for file in files]]).encode()).hexdigest()[:32]


def identity(file: Path) -> list[Any]:
    try:
        found = file.stat()
    except OSError:
        return [str(file)]  # reading it will say what is wrong
    return [str(file), found.st_size, found.st_mtime_ns]


def write_table(
    folder: Path,
    info: Info,
    layout: Layout,
    selected: Sequence[Episode],
    cameras: Mapping[str, str],
    state: Feature,
    action: Feature,
) -> None:
    log.info("%s: reading it for the first time (no video is decoded)", info.root)
    bounds = np.cumsum([0, *(episode.length for episode in selected)])
    rows = {e.number: slice(*b) for e, b in zip(selected, pairwise(bounds.tolist()), strict=True)}
    files = data_files(layout.episodes, selected)
    tasks = write_frame_table(folder, files, int(bounds[-1]), state, action, layout.tasks)
    timestamps = mapped(folder / "timestamp.npy")
    check_rate(info, timestamps, selected, rows)
    fingerprint = hashlib.sha256(json.dumps([info.fps, state.key, action.key, tasks, dict(cameras)]).encode())
    for array in ("states", "actions", "episode", "task"):
        fingerprint.update(mapped(folder / f"{array}.npy").data)
    video_files: dict[str, list[str] | None] = {}
    for name, key in cameras.items():
        if info.features[key].dtype == "video":
            video_files[name], crc = write_video_camera(folder, name, key, layout.episodes, rows, timestamps, info.fps)
        else:
            video_files[name], crc = None, write_image_camera(folder, name, key, info.root, files, int(bounds[-1]))
        fingerprint.update(crc.data)
    said = {
        "version": info.version,
        "fps": info.fps,
        "fingerprint": fingerprint.hexdigest(),
        "cameras": dict(cameras),
        "files": video_files,
        "state_names": state.flat_names(),
        "action_names": action.flat_names(),
        "tasks": tasks,
        "bounds": bounds.tolist(),
    }
    (folder / "table.json").write_text(json.dumps(said))


def check_rate(info: Info, timestamps: np.ndarray, selected: Sequence[Episode], rows: Mapping[int, slice]) -> None:
    """Frames are found by time: an fps that is not the recording's would find the wrong ones."""
    for episode in selected:
        steps = np.diff(timestamps[rows[episode.number]])
        if len(steps) and abs(np.median(steps) * info.fps - 1) > RATE_TOLERANCE:
            raise UserError(
                f"{info.root}: meta/info.json says fps {info.fps:g}, but the frames of episode {episode.number} are "
                f"{np.median(steps):.6g} s apart, so {1 / max(np.median(steps), 1e-9):.4g} a second; correct fps"
            )


def check_picture(recording: Recording, name: str, feature: Feature, info: Info) -> None:
    """Decodes one frame: the codec may be one that this machine lacks."""
    height, width, _ = recording.image(0, name).shape
    if (height, width) not in (feature.shape[:2], feature.shape[-2:]):
        raise UserError(
            f"{info.file}: feature {feature.key!r} has shape {list(feature.shape)}, but its pictures are "
            f"{height} high and {width} wide; correct info.json or copy the recording again"
        )
