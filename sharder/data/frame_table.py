"""The numeric columns of the selected episodes as arrays on disk, one row a frame, ordered by episode and frame_index.

    N frames   S state dims   A action dims

    states.npy       float32 [N, S]
    actions.npy      float32 [N, A]
    episode.npy      int64   [N]     episode_index
    timestamp.npy    float64 [N]     seconds since the start of the episode
    task.npy         int32   [N]     place in the list of tasks

Each data file is read once and fills its episodes' rows directly, so memory does not grow with the recording.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sharder.data.episodes import Episode
from sharder.data.files import read_columns, reading
from sharder.data.info import Feature
from sharder.data.tasks import tasks_in_use
from sharder.errors import UserError

READERS = 4  # threads; parquet decoding releases the interpreter
INDEX_COLUMNS = ("episode_index", "frame_index", "task_index", "timestamp")


@dataclass(frozen=True)
class DataFile:
    path: Path
    rows: int  # as its footer says
    episodes: list[tuple[Episode, int]]  # the selected ones in it, each with its first row in the table


def data_files(all_episodes: Sequence[Episode], selected: Sequence[Episode]) -> list[DataFile]:
    """The files the selected episodes are in, after checking that each has the rows its episodes need."""
    rows_needed: dict[Path, int] = {}
    for episode in all_episodes:
        rows_needed[episode.data_file] = rows_needed.get(episode.data_file, 0) + episode.length
    members: dict[Path, list[tuple[Episode, int]]] = {}
    first_row = 0
    for episode in selected:
        members.setdefault(episode.data_file, []).append((episode, first_row))
        first_row += episode.length

    def opened(path: Path) -> DataFile:
        with reading(path, "parquet"):
            rows = pq.read_metadata(path).num_rows
        if rows != rows_needed[path]:
            episodes = ", ".join(str(e.number) for e in all_episodes if e.data_file == path)
            raise UserError(
                f"{path} has {rows} rows, but its episodes ({episodes[:100]}) are {rows_needed[path]} frames long "
                "according to meta; copy the recording again or correct the lengths"
            )
        return DataFile(path, rows, members[path])

    with ThreadPoolExecutor(READERS) as threads:
        return list(threads.map(opened, members))


def write_frame_table(
    folder: Path, files: Sequence[DataFile], rows: int, state: Feature, action: Feature, tasks: dict[int, str]
) -> list[str]:
    """Writes the arrays into `folder` and returns the tasks in use."""
    states = new_array(folder / "states.npy", (rows, state.dim), np.float32)
    actions = new_array(folder / "actions.npy", (rows, action.dim), np.float32)
    episode_of = new_array(folder / "episode.npy", (rows,), np.int64)
    timestamps = new_array(folder / "timestamp.npy", (rows,), np.float64)
    task_numbers = np.zeros(rows, np.int64)

    def fill(file: DataFile) -> None:
        columns = dict.fromkeys([*INDEX_COLUMNS, state.key, action.key])
        table = read_columns(file.path, list(columns))
        with reading(file.path, "parquet"):
            values = {name: numbers(table, name, file.path) for name in columns}
        check_shape(values[state.key], state, file.path)
        check_shape(values[action.key], action, file.path)
        for episode, first, rows_in_file in episode_rows(file, values["episode_index"], values["frame_index"]):
            into = slice(first, first + episode.length)
            for name in columns:
                check_finite(values[name][rows_in_file], name, episode, file.path)
            states[into] = values[state.key][rows_in_file]
            actions[into] = values[action.key][rows_in_file]
            episode_of[into] = episode.number
            timestamps[into] = values["timestamp"][rows_in_file, 0]
            task_numbers[into] = values["task_index"][rows_in_file, 0]

    with ThreadPoolExecutor(READERS) as threads:
        list(threads.map(fill, files))
    texts, task_of = tasks_in_use(task_numbers, episode_of, tasks)
    np.save(folder / "task.npy", task_of)
    return texts


def episode_rows(
    file: DataFile, episode_index: np.ndarray, frame_index: np.ndarray
) -> Iterator[tuple[Episode, int, np.ndarray]]:
    """Of each wanted episode: (episode, its first row in the table, its rows in the file by frame_index)."""
    order = np.lexsort((frame_index[:, 0], episode_index[:, 0]))
    sorted_episodes = episode_index[order, 0]
    for episode, first in file.episodes:
        rows = order[
            np.searchsorted(sorted_episodes, episode.number) : np.searchsorted(
                sorted_episodes, episode.number, side="right"
            )
        ]
        if len(rows) != episode.length:
            raise UserError(
                f"{file.path} has {len(rows)} rows of episode {episode.number}, which is {episode.length} frames long "
                "according to meta; copy the recording again or leave the episode out with data.episodes"
            )
        if not np.array_equal(frame_index[rows, 0], np.arange(episode.length)):
            raise UserError(
                f"{file.path}: frame_index of episode {episode.number} does not count 0 to {episode.length - 1}; "
                "record it again or leave the episode out with data.episodes"
            )
        yield episode, first, rows


def numbers(table: pa.Table, name: str, file: Path) -> np.ndarray:
    """A column as [rows, values a row], however deeply it is nested. Not checked for NaN; nulls are refused."""
    column = table[name]
    rows = len(column)
    while pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or is_fixed_list(column.type):
        refuse_nulls(column, name, file)
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if len(lengths) > 1:
            raise UserError(f"{file}: rows of {name!r} differ in length ({', '.join(map(str, lengths[:5]))} values)")
        column = pc.list_flatten(column)
    refuse_nulls(column, name, file)
    kind = column.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise UserError(f"{file}: {name!r} holds {kind}, and should hold numbers")
    return column.to_numpy().reshape(rows, -1 if rows else 1)


def is_fixed_list(kind: pa.DataType) -> bool:
    return pa.types.is_fixed_size_list(kind)


def refuse_nulls(column: pa.ChunkedArray, name: str, file: Path) -> None:
    if column.null_count:
        raise UserError(
            f"{file}: {name!r} has {column.null_count} missing values; "
            "record them again or leave the episode out with data.episodes"
        )


def check_shape(values: np.ndarray, feature: Feature, file: Path) -> None:
    if values.shape[1] != feature.dim:
        raise UserError(
            f"{file}: {feature.key!r} has {values.shape[1]} values a row, but info.json says shape "
            f"{list(feature.shape)}; correct info.json or record again"
        )


def check_finite(values: np.ndarray, name: str, episode: Episode, file: Path) -> None:
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(values.astype(np.float32, copy=False))
    if bad.any():
        frame, dim = np.argwhere(bad)[0]
        raise UserError(
            f"{file}: {name!r} of episode {episode.number} is {values[frame, dim]} at frame {frame}, dim {dim} "
            f"({bad.sum()} values are not finite); record it again or leave the episode out with data.episodes"
        )


def new_array(path: Path, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """A memory-mapped array whose room on the disk is taken now: a full disk is an error here, not a crash later."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array
