"""metrics.jsonl: what is written, what survives a crash, what a reader sees."""

import errno
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from sharder.errors import UserError
from sharder.tracking.metrics import MetricsFile, read_metrics


def attempt(path: Path, *rows: dict[str, object]) -> None:
    file = MetricsFile(path)
    for row in rows:
        file.log(row)
    file.close()


def test_rows_are_json_lines_with_step_and_attempt(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    attempt(path, {"step": 10, "loss": np.float32(0.5), "tokens": np.int64(7)}, {"step": 20, "loss": 0.25})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 10, "attempt": 0, "loss": 0.5, "tokens": 7},
        {"step": 20, "attempt": 0, "loss": 0.25},
    ]


def test_a_row_is_on_disk_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.log({"step": 1, "loss": 1.0})
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1]
    file.close()


def test_a_newer_attempt_supersedes_all_that_follows_its_start(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    attempt(path, *({"step": step, "loss": 0.0} for step in (10, 20, 30, 40, 50)))
    attempt(path, {"step": 40, "loss": 1.0})
    assert [(row["step"], row["attempt"]) for row in read_metrics(path)] == [(10, 0), (20, 0), (30, 0), (40, 1)]
    attempt(path, {"step": 20, "loss": 2.0}, {"step": 30, "loss": 2.0})
    assert [(row["step"], row["attempt"]) for row in read_metrics(path)] == [(10, 0), (20, 2), (30, 2)]


def test_rows_of_one_step_and_attempt_are_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    attempt(path, {"step": 10, "loss": 0.5}, {"step": 10, "success_rate": 0.9})
    assert read_metrics(path) == [{"step": 10, "attempt": 0, "loss": 0.5, "success_rate": 0.9}]


def test_a_torn_row_is_skipped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    attempt(path, {"step": 10, "loss": 0.5})
    with open(path, "a") as file:
        file.write('{"step": 20, "att')
    attempt(path, {"step": 20, "loss": 0.25})
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


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, text: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    monkeypatch.setattr("sharder.tracking.metrics.os.write", full)
    with pytest.raises(UserError, match=rf"^{path}: cannot be written \(No space left on device\)"):
        file.log({"step": 1})
    monkeypatch.undo()
    file.close()
