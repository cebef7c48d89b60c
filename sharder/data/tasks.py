"""What the robot was told, in words. The order here is that of first use, so that it does not depend on numbering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sharder.data.files import entry
from sharder.errors import UserError


def tasks_by_number(records: list[Any], text_key: str, file: Path) -> dict[int, str]:
    """task_index -> text. Empty texts are let through: only those in use matter."""
    tasks: dict[int, str] = {}
    for row, record in enumerate(records, 1):
        where = f"{file}, row {row}"
        number = entry(record, "task_index", int, where)
        if number in tasks:
            raise UserError(f"{where}: task_index {number} is there twice; give every task its own")
        tasks[number] = entry(record, text_key, str, where)
    return tasks


def tasks_in_use(numbers: np.ndarray, episode_of: np.ndarray, tasks: dict[int, str]) -> tuple[list[str], np.ndarray]:
    """The different texts in order of first use, and for every row which of them it is."""
    used, first_rows, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    place_of_text: dict[str, int] = {}
    place_of_number = np.zeros(len(used), np.int32)
    for place in np.argsort(first_rows):
        number, episode = int(used[place]), int(episode_of[first_rows[place]])
        if number not in tasks:
            raise UserError(
                f"episode {episode} has task_index {number}, which the list of tasks lacks "
                f"(it has {', '.join(map(str, sorted(tasks)[:10])) or 'none'}); correct meta/tasks or leave it out"
            )
        text = tasks[number]
        if text != text.encode(errors="replace").decode():
            raise UserError(
                f"episode {episode}: the text of task_index {number} is not Unicode; write it in meta/tasks"
            )
        if not text.strip():
            raise UserError(
                f"episode {episode}: the text of task_index {number} is empty; write it in meta/tasks, "
                "or leave the episode out with data.episodes"
            )
        place_of_number[place] = place_of_text.setdefault(text, len(place_of_text))
    return list(place_of_text), place_of_number[inverse.reshape(-1)]
