"""The ledger: which examples every step consumed, by process and put together again."""

import json
from pathlib import Path

import numpy as np
import pytest

from sharder.config import Config
from sharder.tracking.ledger import open_ledger, read_ledger


@pytest.fixture
def config() -> Config:
    config = Config()
    config.tracking.ledger = True
    return config


def test_nothing_is_written_unless_asked_for(tmp_path: Path) -> None:
    with open_ledger(Config(), tmp_path, 0) as ledger:
        ledger.write(1, np.arange(4))
    assert list(tmp_path.iterdir()) == []


def test_a_line_a_step_is_there_as_soon_as_it_is_written(tmp_path: Path, config: Config) -> None:
    with open_ledger(config, tmp_path, 3) as ledger:
        ledger.write(1, np.array([7, 2], np.int64))
        ledger.write(2, [5, 0])
        lines = (tmp_path / "ledger-3.jsonl").read_text().splitlines()
    assert list(map(json.loads, lines)) == [{"step": 1, "examples": [7, 2]}, {"step": 2, "examples": [5, 0]}]


def test_put_together_in_process_order_it_is_the_ledger_of_one_process(tmp_path: Path, config: Config) -> None:
    batches = {1: [4, 9, 2, 7], 2: [0, 3, 8, 1]}
    for process in range(2):
        with open_ledger(config, tmp_path, process) as ledger:
            for step, batch in batches.items():
                ledger.write(step, batch[2 * process : 2 * process + 2])
    assert read_ledger([tmp_path / "ledger-0.jsonl", tmp_path / "ledger-1.jsonl"]) == batches


def test_steps_that_a_crash_took_back_count_once_as_last_done(tmp_path: Path, config: Config) -> None:
    for first, examples in ((1, [1, 2]), (2, [3, 4])):
        with open_ledger(config, tmp_path, 0) as ledger:
            for step in range(first, 4):
                ledger.write(step, examples)
    assert read_ledger([tmp_path / "ledger-0.jsonl"]) == {1: [1, 2], 2: [3, 4], 3: [3, 4]}


def test_a_ledger_is_closed_when_the_run_fails(tmp_path: Path, config: Config) -> None:
    with pytest.raises(ZeroDivisionError), open_ledger(config, tmp_path, 0) as ledger:
        raise ZeroDivisionError
    with pytest.raises(ValueError, match="closed"):
        ledger.write(1, [0])
