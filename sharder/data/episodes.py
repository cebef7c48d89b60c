"""Where the rows and frames of each episode lie: the one thing in which LeRobot v2.1 and v3.0 differ.

        rows                                             frames of a camera                     tasks
v2.1    a parquet file an episode                        a video file an episode                tasks.jsonl
v3.0    several episodes to a parquet file               several episodes to a video file       tasks.parquet
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sharder.data.info import Info
from sharder.errors import UserError


@dataclass(frozen=True)
class Clip:
    """One episode of one camera: part of a video file."""

    file: Path
    starts_at_s: float


@dataclass(frozen=True)
class Episode:
    number: int  # episode_index
    length: int  # frames
    data_file: Path
    clips: Mapping[str, Clip]  # by camera key; empty for cameras stored as images


@dataclass(frozen=True)
class Layout:
    episodes: list[Episode]  # all of them, ascending
    tasks: dict[int, str]  # by task_index
    episodes_at: Path  # the file or folder that lists them
    tasks_at: Path
    files: list[Path]  # all that was read to find out


def check_layout(info: Info, layout: Layout) -> None:
    """Every episode once, not empty, and as many of everything as info.json says."""
    seen: set[int] = set()
    for episode in layout.episodes:
        if episode.number in seen:
            raise UserError(
                f"{layout.episodes_at}: episode {episode.number} is listed twice; correct the list of episodes"
            )
        if episode.length < 1:
            raise UserError(f"{layout.episodes_at}: episode {episode.number} has length {episode.length}; leave it out")
        seen.add(episode.number)
    info.check_total("episodes", info.episodes, len(layout.episodes), layout.episodes_at)
    info.check_total("frames", info.frames, sum(episode.length for episode in layout.episodes), layout.episodes_at)
    info.check_total("tasks", info.tasks, len(layout.tasks), layout.tasks_at)


def select(layout: Layout, numbers: Sequence[int] | None) -> list[Episode]:
    """The episodes of those numbers, ascending. None: all."""
    if numbers is None:
        if not layout.episodes:
            raise UserError("data.root: the recording has no episodes")
        return layout.episodes
    by_number = {episode.number: episode for episode in layout.episodes}
    if not numbers:
        raise UserError("data.episodes is empty; give at least one episode, or null for all of them")
    if len(set(numbers)) < len(numbers):
        twice = sorted({number for number in numbers if list(numbers).count(number) > 1})
        raise UserError(f"data.episodes lists {', '.join(map(str, twice[:10]))} more than once; list each once")
    unknown = [number for number in numbers if number not in by_number]
    if unknown:
        raise UserError(
            f"data.episodes: there is no episode {', '.join(map(str, unknown[:10]))}; "
            f"the recording has {len(by_number)}, from {min(by_number)} to {max(by_number)}"
        )
    return [by_number[number] for number in sorted(numbers)]
