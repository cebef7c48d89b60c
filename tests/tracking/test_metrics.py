"""metrics.jsonl: what is written, what survives a crash, what a reader sees."""

import errno
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from sharder.errors import UserError
from sharder.tracking.metrics import MetricsFile, Row, follow, raw_rows, read_metrics


def attempt(path: Path, *rows: dict[str, object], first_step: int = 0) -> None:
    file = MetricsFile(path, first_step)
    for row in rows:
        file.log(row)
    file.close()


def seen(rows: Iterable[Row]) -> list[tuple[int, int]]:
    return [(row["step"], row["attempt"]) for row in rows]


def test_rows_are_json_lines_with_step_and_attempt(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    attempt(path, {"step": 10, "loss": np.float32(0.5), "tokens": np.int64(7)}, {"step": 20, "loss": 0.25})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 10, "attempt": 0, "loss": 0.5, "tokens": 7},
        {"step": 20, "attempt": 0, "loss": 0.25},
    ]


def test_a_row_is_on_disk_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl", 0)
    file.log({"step": 1, "loss": 1.0})
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1]
    file.close()


def test_a_newer_attempt_supersedes_all_that_follows_its_start(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    attempt(path, *({"step": step, "loss": 0.0} for step in (10, 20, 30, 40, 50)))
    attempt(path, {"step": 40, "loss": 1.0}, first_step=30)
    assert seen(read_metrics(path)) == [(10, 0), (20, 0), (30, 0), (40, 1)]
    attempt(path, {"step": 20, "loss": 2.0}, {"step": 30, "loss": 2.0}, first_step=10)
    assert seen(read_metrics(path)) == [(10, 0), (20, 2), (30, 2)]
    attempt(path, {"step": 10, "loss": 3.0})
    assert seen(read_metrics(path)) == [(10, 3)]
    assert seen(raw_rows(path)) == [(10, 0), (20, 0), (30, 0), (40, 0), (50, 0), (40, 1), (20, 2), (30, 2), (10, 3)]


def test_an_attempt_that_logs_more_rarely_supersedes_from_its_start_too(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    attempt(path, *({"step": step, "loss": 0.0} for step in range(1, 8)))
    attempt(path, {"step": 10, "loss": 1.0}, first_step=5)
    assert seen(read_metrics(path)) == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (10, 1)]


def test_the_evaluation_of_the_restored_step_joins_what_was_logged_of_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    attempt(path, {"step": 90, "loss": 0.5}, {"step": 100, "loss": 0.25})
    attempt(path, {"step": 100, "success_rate": 0.9}, first_step=100)
    assert read_metrics(path)[-1] == {"step": 100, "attempt": 1, "resumed_at": 100, "loss": 0.25, "success_rate": 0.9}


def test_only_the_first_row_of_an_attempt_says_where_it_resumed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    attempt(path, {"step": 4}, {"step": 5}, first_step=3)
    assert [row.get("resumed_at") for row in raw_rows(path)] == [3, None]


def test_an_attempt_that_logged_nothing_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    attempt(path, {"step": 1})
    attempt(path, first_step=1)
    attempt(path, {"step": 2}, first_step=1)
    assert seen(raw_rows(path)) == [(1, 0), (2, 1)]


def test_rows_are_followed_as_they_come_and_to_the_last(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writes = iter(['{"step": 1, "attempt": 0}\n{"step": 2, "at', 'tempt": 0}\n', '{"step": 3, "attempt": 0}\n'])
    path.touch()

    def ended() -> bool:
        with open(path, "a") as file:
            file.write(text := next(writes))
        return '"step": 3' in text

    assert [row["step"] for row in follow(path, ended)] == [1, 2, 3]


def test_rows_of_one_step_and_attempt_are_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    attempt(path, {"step": 10, "loss": 0.5}, {"step": 10, "success_rate": 0.9})
    assert read_metrics(path) == [{"step": 10, "attempt": 0, "loss": 0.5, "success_rate": 0.9}]


def test_a_torn_row_is_skipped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    attempt(path, {"step": 10, "loss": 0.5})
    with open(path, "a") as file:
        file.write('{"step": 20, "att')
    attempt(path, {"step": 20, "loss": 0.25}, first_step=10)
    assert [(row["step"], row["attempt"]) for row in read_metrics(path)] == [(10, 0), (20, 1)]


def test_numbers_that_are_not_finite_come_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    attempt(path, {"step": 1, "loss": math.nan, "grad_norm": -math.inf})
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["loss"] == "nan"
    (row,) = read_metrics(path)
    assert math.isnan(row["loss"])
    assert row["grad_norm"] == -math.inf


def test_no_file_is_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_a_write_that_takes_a_part_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, path = os.write, tmp_path / "metrics.jsonl"
    monkeypatch.setattr("sharder.tracking.metrics.os.write", lambda file, text: whole(file, text[:7]))
    attempt(path, {"step": 1, "loss": 0.5})
    assert read_metrics(path) == [{"step": 1, "attempt": 0, "loss": 0.5}]


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, text: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, 0)
    monkeypatch.setattr("sharder.tracking.metrics.os.write", full)
    with pytest.raises(UserError, match=rf"^{path}: cannot be written \(No space left on device\)"):
        file.log({"step": 1})
    monkeypatch.undo()
    file.close()
