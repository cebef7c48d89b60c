"""Demonstrations of the planar arm, recorded as a LeRobot v2.1 data set with h264 video."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sharder.data.cache import cache_dir
from sharder.data.planar_arm import CAMERAS, CONTROL_HZ, JOINTS, TASK_VERSION, prompt_for
from sharder.data.planar_arm_camera import COLOURS
from sharder.data.planar_arm_demonstrations import Demonstration, demonstrate, training_seeds
from sharder.data.planar_arm_video import write_video
from sharder.errors import UserError

CAMERA_KEYS = {"base_0_rgb": "observation.images.base", "left_wrist_0_rgb": "observation.images.wrist"}
_CHUNK = 1000  # episodes a folder
_DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
_VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"

_log = logging.getLogger(__name__)


def record(
    root: str | Path,
    *,
    episodes: int,
    seed: int,
    image_size: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a complete data set at `root`, or nothing. `progress` hears (episodes written, episodes)."""
    root = Path(root)
    seeds = training_seeds(seed, episodes)
    if image_size < 16 or image_size % 2:
        raise UserError(
            f"data.planar_arm.image_size={image_size}: must be an even number of pixels, at least 16; 64 is usual"
        )
    if root.exists():
        raise UserError(
            f"{root}: exists already; a recording is never written over, choose another folder or remove it"
        )
    root.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _sibling(root)
    try:
        _write_set(unfinished, demonstrate(seeds), image_size, progress)
        unfinished.rename(root)  # fails when somebody else was quicker: a folder with files in it is never replaced
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def ensure_recorded(
    episodes: int, seed: int, image_size: int, progress: Callable[[int, int], None] | None = None
) -> Path:
    """The recording with these parameters in the user's cache, made on first use."""
    name = f"v{TASK_VERSION}-episodes{episodes}-seed{seed}-pixels{image_size}"
    root = cache_dir() / "planar_arm" / name
    if _is_whole(root, episodes):
        return root
    started = time.monotonic()
    _log.info("recording %d demonstrations of the planar arm in %s", episodes, root)
    try:
        if root.exists() and not _is_whole(root, episodes):
            _log.warning("%s lacks files; recording it again", root)
            _discard(root)
        record(root, episodes=episodes, seed=seed, image_size=image_size, progress=progress)
    except (OSError, UserError) as problem:
        if _is_whole(root, episodes):  # another process recorded the same meanwhile
            return root
        if isinstance(problem, UserError):
            raise
        raise UserError(
            f"{root}: cannot write the planar arm's recording ({problem.strerror or problem}); "
            "free space there, or name a writable folder in XDG_CACHE_HOME"
        ) from problem
    _log.info("recorded in %.0f s", time.monotonic() - started)
    return root


def _is_whole(root: Path, episodes: int) -> bool:
    """Whether no file is missing or empty: those who clean up caches delete files one by one."""
    places = [_place(episode) for episode in range(episodes)]
    paths = [_DATA_PATH.format(**place) for place in places]
    paths += [_VIDEO_PATH.format(video_key=key, **place) for key in CAMERA_KEYS.values() for place in places]
    paths += [f"meta/{name}" for name in ("info.json", "tasks.jsonl", "episodes.jsonl", "episodes_stats.jsonl")]
    try:
        return all((root / path).stat().st_size for path in paths)
    except OSError:
        return False


def _discard(root: Path) -> None:
    """Moved away first: others then find the folder absent, never half removed."""
    discarded = _sibling(root)
    root.rename(discarded)
    shutil.rmtree(discarded)


def _sibling(root: Path) -> Path:
    return root.parent / f".{root.name}.{os.getpid()}-{secrets.token_hex(4)}"


def _write_set(
    root: Path, demonstrations: list[Demonstration], image_size: int, progress: Callable[[int, int], None] | None
) -> None:
    tasks = [prompt_for(colour) for colour in COLOURS]
    episode_rows, statistics_rows, first_row = [], [], 0
    for episode, demonstration in enumerate(demonstrations):
        place = _place(episode)
        length = len(demonstration.states)
        columns = _columns(demonstration, episode, first_row, tasks.index(demonstration.prompt))
        statistics = {key: _statistics(values) for key, values in columns.items()}
        _write_parquet(_made(root / _DATA_PATH.format(**place)), columns)
        for camera, pictures in demonstration.pictures(image_size).items():
            key = CAMERA_KEYS[camera]
            path = _made(root / _VIDEO_PATH.format(video_key=key, **place))
            write_video(path, pictures, fps=CONTROL_HZ, quantizer=12, chroma="yuv444p", group=2)
            statistics[key] = _image_statistics(pictures)
        episode_rows.append({"episode_index": episode, "tasks": [demonstration.prompt], "length": length})
        statistics_rows.append({"episode_index": episode, "stats": statistics})
        first_row += length
        if progress:
            progress(episode + 1, len(demonstrations))
    _write_lines(root / "meta/tasks.jsonl", [{"task_index": i, "task": task} for i, task in enumerate(tasks)])
    _write_lines(root / "meta/episodes.jsonl", episode_rows)
    _write_lines(root / "meta/episodes_stats.jsonl", statistics_rows)
    info = _info(len(demonstrations), first_row, len(tasks), image_size)
    (root / "meta/info.json").write_text(json.dumps(info, indent=2))


def _columns(demonstration: Demonstration, episode: int, first_row: int, task: int) -> dict[str, np.ndarray]:
    frames = np.arange(len(demonstration.states))
    return {
        "observation.state": demonstration.states,
        "action": demonstration.actions,
        "timestamp": (frames / CONTROL_HZ).astype(np.float32),
        "frame_index": frames,
        "episode_index": np.full(len(frames), episode),
        "index": first_row + frames,
        "task_index": np.full(len(frames), task),
    }


def _write_parquet(path: Path, columns: dict[str, np.ndarray]) -> None:
    arrays = {
        key: pa.array(values)
        if values.ndim == 1
        else pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1])
        for key, values in columns.items()
    }
    pq.write_table(pa.table(arrays), path)


def _statistics(values: np.ndarray) -> dict[str, list]:
    rows = values.reshape(len(values), -1).astype(np.float64)
    summary = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
    return {name: value.tolist() for name, value in summary.items()} | {"count": [len(values)]}


def _image_statistics(pictures: np.ndarray) -> dict[str, list]:
    """Per channel, of values from 0 to 1, each shaped [3, 1, 1] as the format wants for images."""
    statistics = _statistics(pictures.reshape(-1, 3) / np.float32(255))
    channels = {name: [[[channel]] for channel in values] for name, values in statistics.items() if name != "count"}
    return channels | {"count": [len(pictures)]}


def _info(episodes: int, frames: int, tasks: int, image_size: int) -> dict[str, Any]:
    def numbers(dtype: str, names: list[str] | None = None) -> dict[str, Any]:
        return {"dtype": dtype, "shape": [len(names) if names else 1], "names": names}

    video = {
        "dtype": "video",
        "shape": [image_size, image_size, 3],
        "names": ["height", "width", "channel"],
        "info": {
            "video.height": image_size,
            "video.width": image_size,
            "video.codec": "h264",
            "video.pix_fmt": "yuv444p",
            "video.is_depth_map": False,
            "video.fps": CONTROL_HZ,
            "video.channels": 3,
            "has_audio": False,
        },
    }
    return {
        "codebase_version": "v2.1",
        "robot_type": "planar_arm",
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": tasks,
        "total_videos": episodes * len(CAMERAS),
        "total_chunks": -(-episodes // _CHUNK),
        "chunks_size": _CHUNK,
        "fps": CONTROL_HZ,
        "splits": {"train": f"0:{episodes}"},
        "data_path": _DATA_PATH,
        "video_path": _VIDEO_PATH,
        "features": {
            "observation.state": numbers("float32", list(JOINTS)),
            "action": numbers("float32", list(JOINTS)),
            **{CAMERA_KEYS[camera]: video for camera in CAMERAS},
            "timestamp": numbers("float32"),
            **{key: numbers("int64") for key in ("frame_index", "episode_index", "index", "task_index")},
        },
    }


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    _made(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def _place(episode: int) -> dict[str, int]:
    return {"episode_chunk": episode // _CHUNK, "episode_index": episode}


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
