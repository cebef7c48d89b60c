"""What a supervisor wrote is told in one line an attempt: the event that explains the others."""

import json
from pathlib import Path
from typing import Any

import pytest

from sharder.inspect.__main__ import main
from sharder.inspect.attempts import Attempt, read_attempts

Event = dict[str, Any]


def start(attempt: str, saved: int | None = None) -> Event:
    return {"time": 100.0, "event": "start", "attempt": attempt, "processes": 2, "pids": [1, 2], "saved": saved}


def exit_(attempt: str, rank: int, how: str, after_s: float | None, step: int | None = 7) -> Event:
    return {
        "time": 101.0, "event": "exit", "attempt": attempt, "rank": rank, "how": how, "after_s": after_s,
        "phase": "step", "step": step,
    }  # fmt: skip


def other(attempt: str, event: str, **details: Any) -> Event:
    return {"time": 102.0, "event": event, "attempt": attempt, **details}


def write(folder: Path, events: list[Event]) -> None:
    (folder / "supervisor.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def test_a_run_that_was_not_watched_has_none(tmp_path: Path) -> None:
    assert read_attempts(tmp_path) == []


def test_attempts_come_in_order_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    events = [start("b"), exit_("b", 0, "SIGKILL", 3.0), start("a", 40), other("a", "complete", step=60)]
    write(tmp_path, events)
    with open(tmp_path / "supervisor.jsonl", "a") as file:
        file.write('{"time": 1, "eve')
    assert read_attempts(tmp_path) == [
        Attempt(100.0, 2, None, "worker 0, step 7, phase step: SIGKILL after 3.0 s"),
        Attempt(100.0, 2, 40, "complete at step 60"),
    ]


@pytest.mark.parametrize(
    ("events", "end"),
    [
        # Worker 1 was aborted sooner than worker 0, whose crash was the reason for it.
        (
            [exit_("a", 0, "exit 1", 5.0), exit_("a", 1, "SIGABRT", 4.0)],
            "worker 0, step 7, phase step: exit 1 after 5.0 s",
        ),
        # Worker 0 was ended by the supervisor.
        (
            [exit_("a", 0, "killed", None), exit_("a", 1, "exit 2", 4.0)],
            "worker 1, step 7, phase step: exit 2 after 4.0 s",
        ),
        ([exit_("a", 0, "exit 1", 5.0, step=None)], "worker 0, phase step: exit 1 after 5.0 s"),
        (
            [
                other("a", "stuck", rank=1, phase="step", step=9, for_s=20.5, limit_s=20.0),
                exit_("a", 1, "killed", None),
            ],
            "worker 1, step 9, phase step: stuck for 20.5 s, limit 20.0 s",
        ),
        (
            [other("a", "stop", signal="SIGTERM"), exit_("a", 0, "exit 75", 5.0)],
            "stopped by SIGTERM; worker 0, step 7, phase step: exit 75 after 5.0 s",
        ),
        (
            [exit_("a", 0, "exit 1", 5.0), other("a", "give_up", message="the same again", code=1)],
            "worker 0, step 7, phase step: exit 1 after 5.0 s; given up: the same again",
        ),
        ([exit_("a", 0, "exit 0", 5.0), other("a", "complete", step=60)], "complete at step 60"),
        ([exit_("a", 0, "exit 0", 5.0)], "exit 0"),
        ([], "it goes on, or its supervisor was killed"),
        ([start("b"), other("b", "complete", step=60)], "its supervisor was killed"),
    ],
)
def test_the_end_of_an_attempt(events: list[Event], end: str, tmp_path: Path) -> None:
    write(tmp_path, [start("a"), *events])
    assert read_attempts(tmp_path)[0].end == end


def test_workers_that_could_not_be_started(tmp_path: Path) -> None:
    write(tmp_path, [other("a", "exit", rank=1, how="cannot start", reason="no such file")])
    assert read_attempts(tmp_path) == [Attempt(None, None, None, "worker 1: cannot start (no such file)")]


def test_the_newest_of_many_are_shown_with_their_numbers(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "checkpoints").mkdir()
    write(tmp_path, [start(f"{number:03}", number) for number in range(1, 31)])
    assert main([f"resume={tmp_path}"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    first = lines.index("attempts by the supervisor: 30, the newest 20") + 2
    assert lines[first].startswith("11 ") and "2 step 11 its supervisor was killed" in lines[first]
    assert lines[-1].startswith("30 ") and lines[-1].endswith("2 step 30 it goes on, or its supervisor was killed")
