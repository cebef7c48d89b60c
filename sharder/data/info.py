"""meta/info.json: what a LeRobot set says about itself, checked before anything else is read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharder.data.files import entry, read_json, shortened
from sharder.errors import UserError

VERSIONS = ("v2.1", "v3.0")


@dataclass(frozen=True)
class Feature:
    key: str
    dtype: str  # float32, int64 ... of numbers; video or image of a camera; string
    shape: tuple[int, ...]
    names: Any  # as recorded: null, a list, a list of lists or a mapping
    is_depth: bool

    @property
    def is_camera(self) -> bool:
        return self.dtype in ("video", "image") and not self.is_depth

    @property
    def dim(self) -> int:
        return math.prod(self.shape)

    def flat_names(self) -> list[str]:
        """One name a dimension; `key[3]` style where the recording does not name them."""
        names = list(texts_in(self.names))
        return names if len(names) == self.dim else [f"{self.key}[{d}]" for d in range(self.dim)]


@dataclass(frozen=True)
class Info:
    root: Path
    version: str
    fps: float
    features: dict[str, Feature]
    episodes: int
    frames: int
    tasks: int
    chunk_size: int
    data_path: str
    video_path: str

    @property
    def file(self) -> Path:
        return self.root / "meta" / "info.json"

    def path(self, template: str, **names: int | str) -> Path:
        """A file of the set, from one of the templates in info.json."""
        try:
            return self.root / template.format(**names)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError):
            raise UserError(
                f"{self.file}: the path template {template!r} does not fit; {self.version} fills in {', '.join(names)}"
            ) from None

    def check_total(self, what: str, said: int, found: int, counted_in: Path) -> None:
        if said != found:
            raise UserError(
                f"{self.file} says total_{what} = {said}, but {counted_in} has {found}; "
                "correct info.json or copy the recording again"
            )


def read_info(root: str | Path) -> Info:
    root = recording_folder(root)
    file = root / "meta" / "info.json"
    where = str(file)
    record = read_json(file)
    version = entry(record, "codebase_version", str, where)
    if version not in VERSIONS:
        raise UserError(
            f"{where}: codebase_version is {shortened(version)}, and what can be read is {' and '.join(VERSIONS)}; "
            "convert the recording with LeRobot's own tools"
        )
    try:
        fps = float(entry(record, "fps", (int, float), where))
    except OverflowError:
        fps = math.inf
    if not (math.isfinite(fps) and fps > 0):
        raise UserError(f"{where}: fps is {fps}, and should be a positive number of frames a second")
    features = {
        key: read_feature(key, feature, where) for key, feature in entry(record, "features", dict, where).items()
    }
    chunk_size = entry(record, "chunks_size", int, where)
    if chunk_size < 1:
        raise UserError(f"{where}: chunks_size is {chunk_size}, and should be at least 1")
    has_video = any(feature.dtype == "video" for feature in features.values())
    return Info(
        root=root,
        version=version,
        fps=fps,
        features=features,
        episodes=entry(record, "total_episodes", int, where),
        frames=entry(record, "total_frames", int, where),
        tasks=entry(record, "total_tasks", int, where),
        chunk_size=chunk_size,
        data_path=entry(record, "data_path", str, where),
        video_path=entry(record, "video_path", str, where) if has_video else "",
    )


def recording_folder(root: str | Path) -> Path:
    folder = Path(root).expanduser()
    try:
        folder = folder.resolve()
        if not folder.exists():
            raise UserError(f"data.root: there is no folder {folder}; give the folder of a LeRobot recording")
        if not folder.is_dir():
            raise UserError(f"data.root: {folder} is not a folder; give the folder of a LeRobot recording")
        if not (folder / "meta" / "info.json").is_file():
            raise UserError(
                f"data.root: {folder} is not a LeRobot recording (it has no meta/info.json); "
                f"what can be read is {' and '.join(VERSIONS)}"
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"data.root: {folder} cannot be read ({error})") from None
    return folder


def read_feature(key: str, record: Any, where: str) -> Feature:
    where = f"{where}: feature {key!r}"
    dtype = entry(record, "dtype", str, where)
    shape = entry(record, "shape", list, where)
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in shape):
        raise UserError(f"{where}: shape is {shortened(shape)}, and should be a list of positive whole numbers")
    details = record.get("info")
    is_depth = isinstance(details, dict) and details.get("video.is_depth_map") is True
    return Feature(key, dtype, tuple(shape), record.get("names"), is_depth)


def texts_in(names: Any) -> Iterator[str]:
    """The texts of a nested list or mapping in order; of a mapping to numbers, its keys."""
    if isinstance(names, str):
        yield names
    elif isinstance(names, list):
        for name in names:
            yield from texts_in(name)
    elif isinstance(names, dict):
        if all(isinstance(value, int) for value in names.values()):
            yield from sorted(names, key=names.__getitem__)
        else:
            yield from texts_in(list(names.values()))
