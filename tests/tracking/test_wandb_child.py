"""Where W&B's process begins to record, by what W&B has already. The server is a fake: none answers here."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hand_made_breakdown import breakdown

from sharder.tracking import wandb_child
from sharder.tracking.breakdown import publish
from sharder.tracking.metrics import METRICS

BREAKDOWN = -1  # in place of a step


class FakeRun:
    def __init__(self, offline: bool, starting_step: int) -> None:
        self.offline, self.starting_step = offline, starting_step
        self.logged: list[tuple[int, int]] = []

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        pass

    def log(self, row: dict[str, Any], step: int, commit: bool) -> None:
        assert commit  # or W&B would hold it back until the next
        self.logged.append((step, row.get("step", BREAKDOWN)))

    def finish(self) -> None:
        pass


def recorded(monkeypatch: pytest.MonkeyPatch, folder: Path, run: FakeRun, rows_before: int) -> list[tuple[int, int]]:
    """(W&B's step, the training's step, or BREAKDOWN) of everything it logs; the training has ended."""
    monkeypatch.setattr(wandb_child, "_start", lambda about, notices: run)
    monkeypatch.setattr(wandb_child.signal, "alarm", lambda seconds: None)
    read, write = os.pipe()
    os.close(write)
    with open(read) as told:
        wandb_child.main({"dir": str(folder), "rows_before": rows_before}, told, io.StringIO())
    return run.logged


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run at its second attempt, which began after three rows."""
    attempts = [(1, 0), (2, 0), (3, 0), (3, 1), (4, 1)]
    lines = [json.dumps({"step": step, "attempt": attempt}) for step, attempt in attempts]
    (tmp_path / METRICS).write_text("\n".join([*lines[:3], '{"step": torn', *lines[3:]]) + "\n")
    return tmp_path


def test_offline_rows_are_recorded_once(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    everything = [(0, 1), (1, 2), (2, 3), (3, 3), (4, 4)]
    assert recorded(monkeypatch, folder, FakeRun(offline=True, starting_step=0), 3) == everything
    assert recorded(monkeypatch, folder, FakeRun(offline=True, starting_step=0), 3) == []
    with open(folder / METRICS, "a") as file:
        file.write('{"step": 5, "attempt": 2}\n')
    assert recorded(monkeypatch, folder, FakeRun(offline=True, starting_step=0), 5) == [(5, 5)]


def test_offline_all_is_recorded_again_when_the_files_are_gone(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    recorded(monkeypatch, folder, FakeRun(offline=True, starting_step=0), 3)
    (folder / wandb_child.RECORDED).unlink()  # with the folder wandb, say
    assert len(recorded(monkeypatch, folder, FakeRun(offline=True, starting_step=0), 3)) == 5


def test_a_file_that_does_not_tell_of_steps_had_one_a_row(tmp_path: Path) -> None:
    (tmp_path / "wandb").mkdir()
    (tmp_path / wandb_child.RECORDED).write_text('{"rows": 3}')
    assert wandb_child.recorded(tmp_path) == (3, 3)


@pytest.mark.parametrize("damaged", ["", "[]", "{}", '{"rows": null}'])
def test_nothing_counts_as_recorded_where_nothing_says_so(tmp_path: Path, damaged: str) -> None:
    assert wandb_child.recorded(tmp_path) == (0, 0)
    (tmp_path / "wandb").mkdir()
    (tmp_path / wandb_child.RECORDED).write_text(damaged)
    assert wandb_child.recorded(tmp_path) == (0, 0)


def test_online_the_server_gets_what_it_lacks(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    run = FakeRun(offline=False, starting_step=2)
    assert recorded(monkeypatch, folder, run, 3) == [(2, 3), (3, 3), (4, 4)]


def test_online_rows_of_a_folder_that_is_no_more_stay_and_ours_follow(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    run = FakeRun(offline=False, starting_step=500)
    assert recorded(monkeypatch, folder, run, 3) == [(500, 3), (501, 4)]


@pytest.fixture
def profiled(folder: Path) -> Path:
    publish(breakdown(), folder / "profile", lambda line: None)
    return folder


def test_offline_a_breakdown_takes_a_step_that_no_row_takes_later(
    monkeypatch: pytest.MonkeyPatch, profiled: Path
) -> None:
    first = recorded(monkeypatch, profiled, FakeRun(offline=True, starting_step=0), 3)
    assert first[-2:] == [(4, 4), (5, BREAKDOWN)]
    with open(profiled / METRICS, "a") as file:
        file.write('{"step": 5, "attempt": 2}\n')
    (profiled / "profile" / "breakdown.json").unlink()  # as an attempt that traces anew does
    assert recorded(monkeypatch, profiled, FakeRun(offline=True, starting_step=0), 5) == [(6, 5)]


def test_online_a_breakdown_does_not_count_as_a_row(monkeypatch: pytest.MonkeyPatch, profiled: Path) -> None:
    """W&B was killed in the second attempt after one row of two: the third sends the other one."""
    recorded(monkeypatch, profiled, FakeRun(offline=False, starting_step=0), 0)  # steps 0 to 4, and the breakdown's, 5
    (profiled / "profile" / "breakdown.json").unlink()
    with open(profiled / METRICS, "a") as file:
        file.write('{"step": 5, "attempt": 2}\n{"step": 6, "attempt": 2}\n{"step": 7, "attempt": 3}\n')
    assert recorded(monkeypatch, profiled, FakeRun(offline=False, starting_step=7), 7) == [(7, 6), (8, 7)]


def test_online_all_is_sent_when_the_files_were_not(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    recorded(monkeypatch, folder, FakeRun(offline=True, starting_step=0), 3)
    assert len(recorded(monkeypatch, folder, FakeRun(offline=False, starting_step=0), 5)) == 5
