"""LeRobot v3.0: several episodes to a parquet file and to a video file; meta/episodes says which lies where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sharder.data.episodes import Clip, Episode, Layout
from sharder.data.files import entry, read_columns, reading
from sharder.data.info import Info
from sharder.data.tasks import tasks_by_number
from sharder.errors import UserError


def read_layout(info: Info, video_keys: Sequence[str]) -> Layout:
    folder = info.root / "meta" / "episodes"
    files = sorted(folder.glob("*/*.parquet"))
    if not files:
        raise UserError(f"{folder} holds no parquet file that lists the episodes; copy the recording again")
    columns = ["episode_index", "length", "data/chunk_index", "data/file_index"]
    for key in video_keys:
        columns += [f"videos/{key}/{name}" for name in ("chunk_index", "file_index", "from_timestamp")]
    episodes = [
        read_episode(info, record, video_keys, f"{file}, row {row}")
        for file in files
        for row, record in enumerate(read_columns(file, columns).to_pylist())
    ]
    tasks_file = info.root / "meta" / "tasks.parquet"
    column = task_column(tasks_file)
    tasks = tasks_by_number(read_columns(tasks_file, ["task_index", column]).to_pylist(), column, tasks_file)
    return Layout(sorted(episodes, key=lambda e: e.number), tasks, folder, tasks_file, [*files, tasks_file])


def read_episode(info: Info, record: dict[str, Any], video_keys: Sequence[str], where: str) -> Episode:
    clips = {}
    for key in video_keys:
        starts_at_s = float(entry(record, f"videos/{key}/from_timestamp", (int, float), where))
        if not math.isfinite(starts_at_s):
            raise UserError(f"{where}: videos/{key}/from_timestamp is {starts_at_s}, and should be seconds")
        file = info.path(info.video_path, video_key=key, **place(record, f"videos/{key}/", where))
        clips[key] = Clip(file, starts_at_s)
    return Episode(
        number=entry(record, "episode_index", int, where),
        length=entry(record, "length", int, where),
        data_file=info.path(info.data_path, **place(record, "data/", where)),
        clips=clips,
    )


def place(record: dict[str, Any], prefix: str, where: str) -> dict[str, int]:
    return {name: entry(record, prefix + name, int, where) for name in ("chunk_index", "file_index")}


def task_column(file: Path) -> str:
    """The texts are the index of the table that was saved, so the name of their column varies: the one of texts."""
    with reading(file, "parquet"):
        schema = pq.read_schema(file)
    columns = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
    if not columns:
        raise UserError(f"{file} has no column of task texts; its columns are {', '.join(schema.names)}")
    return "task" if "task" in columns else columns[0]
