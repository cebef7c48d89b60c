"""Writes small LeRobot recordings whose every picture shows its own frame number, as v2.1 and as v3.0."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

HEIGHT, WIDTH = 48, 64
BLOCKS = 4  # a side: 16 bits
STATE, ACTION, TOP, WRIST = "observation.state", "action", "observation.images.top", "observation.images.left_wrist"


def paint(number: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """uint8 [h, w, 3]: the number's bits as black and white blocks, which survive lossy coding."""
    bits = (number >> np.arange(BLOCKS**2)) & 1
    blocks = (bits.reshape(BLOCKS, BLOCKS) * 255).astype(np.uint8)
    grey = np.kron(blocks, np.ones((height // BLOCKS, width // BLOCKS), np.uint8))
    return np.repeat(grey[:, :, None], 3, axis=2)


def number_in(picture: np.ndarray) -> int:
    height, width, _ = picture.shape
    blocks = picture[:, :, 0].reshape(BLOCKS, height // BLOCKS, BLOCKS, width // BLOCKS).mean((1, 3))
    return int(((blocks.ravel() > 127) << np.arange(BLOCKS**2)).sum())


def write_video(
    path: Path,
    numbers: Sequence[int],
    fps: Fraction | int = 30,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    size: tuple[int, int] = (HEIGHT, WIDTH),
    container_options: dict[str, str] | None = None,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", container_options=container_options or {}) as container:
        stream: Any = container.add_stream(codec, rate=Fraction(fps), options={"bf": "0", **(options or {})})
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        for number in numbers:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(paint(number, *size), format="rgb24")))
        container.mux(stream.encode())


def join_videos(path: Path, parts: Sequence[Path], lengths: Sequence[int], fps: float, late_s: float = 0.0) -> None:
    """The parts one after the other without encoding again. Every joint comes `late_s` too late."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before_s = 0.0
    with av.open(str(path), "w") as out:
        target: Any = None
        for part, length in zip(parts, lengths, strict=True):
            with av.open(str(part)) as source:
                stream: Any = source.streams.video[0]
                if target is None:
                    target = out.add_stream_from_template(stream, opaque=True)
                    target.time_base = stream.time_base
                shift = round(before_s / stream.time_base)
                for packet in source.demux(stream):
                    if packet.pts is not None and packet.dts is not None:
                        packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                        packet.stream = target
                        out.mux(packet)
            before_s += length / fps + late_s


@dataclass
class Toy:
    """What is written. Change a field, then `write`."""

    lengths: list[int] = field(default_factory=lambda: [7, 5, 9, 4, 6])
    fps: float = 30
    rate: Fraction | int = 30
    cameras: dict[str, str] = field(default_factory=lambda: {TOP: "video", WRIST: "video"})
    tasks: list[str] = field(default_factory=lambda: ["push the cube", "öffne die Tür"])
    codec: str = "libx264"
    options: dict[str, str] = field(default_factory=dict)
    per_chunk: int = 1000  # episodes in a folder of v2.1
    per_file: int = 3  # episodes in a file of v3.0
    late_s: float = 0.0

    def __post_init__(self) -> None:
        self._encoded: dict[tuple[int, int], bytes] = {}  # of each camera and episode
        random = np.random.default_rng(0)
        self.states = [random.normal(size=(length, 3)).astype(np.float32) for length in self.lengths]
        self.actions = [random.normal(size=(length, 2)).astype(np.float32) for length in self.lengths]
        self.task_numbers = [np.full(length, e % len(self.tasks)) for e, length in enumerate(self.lengths)]

    def number(self, camera: int, episode: int, frame: int) -> int:
        """What the picture of that frame shows."""
        return 20_000 * camera + sum(self.lengths[:episode]) + frame

    def features(self) -> dict[str, Any]:
        one = {"dtype": "int64", "shape": [1], "names": None}
        return {
            STATE: {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
            ACTION: {"dtype": "float32", "shape": [2], "names": None},
            **{
                key: {"dtype": kind, "shape": [HEIGHT, WIDTH, 3], "names": ["height", "width", "channels"]}
                for key, kind in self.cameras.items()
            },
            "timestamp": {"dtype": "float32", "shape": [1], "names": None},
            **{name: one for name in ("frame_index", "episode_index", "index", "task_index")},
        }

    def rows(self, episode: int) -> pa.Table:
        length = self.lengths[episode]
        frames = np.arange(length)
        columns: dict[str, Any] = {
            STATE: pa.FixedSizeListArray.from_arrays(pa.array(self.states[episode].ravel()), 3),
            ACTION: pa.array(list(self.actions[episode]), pa.list_(pa.float32())),
            "timestamp": pa.array((frames / self.fps).astype(np.float32)),
            "frame_index": frames,
            "episode_index": np.full(length, episode),
            "index": sum(self.lengths[:episode]) + frames,
            "task_index": self.task_numbers[episode],
        }
        for number, (key, kind) in enumerate(self.cameras.items()):
            if kind == "image":
                columns[key] = [{"bytes": png(self.number(number, episode, f)), "path": None} for f in range(length)]
        return pa.table(columns)

    def write(self, root: Path, version: str) -> Path:
        meta = root / "meta"
        meta.mkdir(parents=True)
        v30 = version == "v3.0"
        name = "chunk-{chunk_index:03d}/file-{file_index:03d}" if v30 else "chunk-{episode_chunk:03d}"
        paths = {
            "data_path": f"data/{name}.parquet" if v30 else f"data/{name}/episode_{{episode_index:06d}}.parquet",
            "video_path": f"videos/{{video_key}}/{name}.mp4"
            if v30
            else f"videos/{name}/{{video_key}}/episode_{{episode_index:06d}}.mp4",
        }
        totals = {
            "total_episodes": len(self.lengths),
            "total_frames": sum(self.lengths),
            "total_tasks": len(self.tasks),
        }
        info = {
            "codebase_version": version,
            "fps": self.fps,
            "chunks_size": self.per_chunk,
            "features": self.features(),
        }
        (meta / "info.json").write_text(json.dumps({**info, **totals, **paths}))
        (self._write_v30 if v30 else self._write_v21)(root)
        return root

    def _write_v21(self, root: Path) -> None:
        episodes, tasks = [], []
        for e, length in enumerate(self.lengths):
            episodes.append({"episode_index": e, "tasks": [self.tasks[e % len(self.tasks)]], "length": length})
            save(root / f"data/chunk-{e // self.per_chunk:03d}/episode_{e:06d}.parquet", self.rows(e))
            for number, (key, kind) in enumerate(self.cameras.items()):
                if kind == "video":
                    folder = root / f"videos/chunk-{e // self.per_chunk:03d}" / key
                    self._episode_video(folder / f"episode_{e:06d}.mp4", number, e)
        tasks = [{"task_index": number, "task": text} for number, text in enumerate(self.tasks)]
        for name, records in (("episodes", episodes), ("tasks", tasks)):
            (root / f"meta/{name}.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")

    def _write_v30(self, root: Path) -> None:
        numbers = range(len(self.lengths))
        files = [numbers[first : first + self.per_file] for first in range(0, len(numbers), self.per_file)]
        records: list[dict[str, Any]] = []
        for file, members in enumerate(files):
            save(root / f"data/chunk-000/file-{file:03d}.parquet", pa.concat_tables([self.rows(e) for e in members]))
            starts_at_s = 0.0
            for e in members:
                record: dict[str, Any] = {"episode_index": e, "length": self.lengths[e]}
                record |= {"data/chunk_index": 0, "data/file_index": file}
                for key, kind in self.cameras.items():
                    if kind == "video":
                        record |= {f"videos/{key}/chunk_index": 0, f"videos/{key}/file_index": file}
                        record[f"videos/{key}/from_timestamp"] = starts_at_s
                starts_at_s += self.lengths[e] / self.fps
                records.append(record)
            for number, (key, kind) in enumerate(self.cameras.items()):
                if kind == "video":
                    parts = [root / f"parts/{e}.mp4" for e in members]
                    for part, e in zip(parts, members, strict=True):
                        self._episode_video(part, number, e)
                    path = root / f"videos/{key}/chunk-000/file-{file:03d}.mp4"
                    join_videos(path, parts, [self.lengths[e] for e in members], self.fps, self.late_s)
                    for part in parts:
                        part.unlink()
        save(root / "meta/episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(records))
        texts = {"task_index": list(range(len(self.tasks))), "__index_level_0__": self.tasks}
        save(root / "meta/tasks.parquet", pa.table(texts))

    def _episode_video(self, path: Path, camera: int, episode: int) -> None:
        """Encoded once for all the sets that are written: x264 does not always give the same bytes twice."""
        if (camera, episode) not in self._encoded:
            numbers = [self.number(camera, episode, frame) for frame in range(self.lengths[episode])]
            write_video(path, numbers, self.rate, self.codec, self.options)
            self._encoded[camera, episode] = path.read_bytes()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._encoded[camera, episode])


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(paint(number)).save(file, "PNG")
    return file.getvalue()


def save(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def change(path: Path, **columns: Any) -> None:
    """Replaces columns of a parquet file; None drops one."""
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.drop_columns([name])
        if values is not None:
            table = table.append_column(name, values if isinstance(values, pa.Array) else pa.array(values))
    pq.write_table(table, path)


def change_json(path: Path, **entries: Any) -> None:
    """Replaces entries of a JSON file; None drops one."""
    record = json.loads(path.read_text()) | entries
    path.write_text(json.dumps({key: value for key, value in record.items() if value is not None}))
