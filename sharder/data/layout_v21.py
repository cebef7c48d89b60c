"""LeRobot v2.1: one parquet file and, for each camera, one video file an episode."""

from __future__ import annotations

from collections.abc import Sequence

from sharder.data.episodes import Clip, Episode, Layout
from sharder.data.files import entry, read_json_lines
from sharder.data.info import Info
from sharder.data.tasks import tasks_by_number


def read_layout(info: Info, video_keys: Sequence[str]) -> Layout:
    episodes_file = info.root / "meta" / "episodes.jsonl"
    tasks_file = info.root / "meta" / "tasks.jsonl"
    episodes = []
    for line, record in enumerate(read_json_lines(episodes_file), 1):
        where = f"{episodes_file}, line {line}"
        number = entry(record, "episode_index", int, where)
        length = entry(record, "length", int, where)
        place: dict[str, int] = {"episode_chunk": number // info.chunk_size, "episode_index": number}
        clips = {key: Clip(info.path(info.video_path, video_key=key, **place), 0.0) for key in video_keys}
        episodes.append(Episode(number, length, info.path(info.data_path, **place), clips))
    tasks = tasks_by_number(read_json_lines(tasks_file), "task", tasks_file)
    return Layout(
        sorted(episodes, key=lambda e: e.number), tasks, episodes_file, tasks_file, [episodes_file, tasks_file]
    )
