"""What a worker says of itself, and what is read of it."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_workers import within

from sharder.errors import Fault
from sharder.supervise import heartbeat
from sharder.supervise.heartbeat import PHASES, Beat, Heartbeat, memory_mb, read_heartbeats


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.01)


def seen(folder: Path, holds: Callable[[Beat], bool], rank: int = 0) -> Beat:
    within(lambda: rank in read_heartbeats(folder) and holds(read_heartbeats(folder)[rank]))
    return read_heartbeats(folder)[rank]


def test_a_beat_says_who_where_and_with_how_much_memory(tmp_path: Path) -> None:
    before = time.time()
    with Heartbeat(tmp_path, 3, "a1") as own:
        beat = read_heartbeats(tmp_path)[3]  # there at once
        assert (beat.pid, beat.rank, beat.attempt) == (os.getpid(), 3, "a1")
        assert (beat.phase, beat.step) == ("start", None)
        assert before <= beat.since <= beat.written
        assert beat.rss_mb is not None and beat.rss_mb > 5
        assert beat.available_mb is not None and beat.available_mb > 0
        own.phase("data wait", 7)
        assert seen(tmp_path, lambda beat: beat.step == 7, rank=3).phase == "data wait"


def test_it_is_written_again_and_again_but_that_is_no_progress(tmp_path: Path) -> None:
    with Heartbeat(tmp_path, 0, "a") as own:
        own.phase("step", 1)
        first = seen(tmp_path, lambda beat: beat.step == 1)
        own.phase("step", 1)
        later = seen(tmp_path, lambda beat: beat.written > first.written)
        assert later.since == first.since
        own.phase("save", 1)
        assert seen(tmp_path, lambda beat: beat.phase == "save").since > first.since


def test_a_phase_without_a_step_belongs_to_the_last_one(tmp_path: Path) -> None:
    with Heartbeat(tmp_path, 0, "a") as own:
        own.phase("step", 4)
        own.phase("evaluate")
    assert read_heartbeats(tmp_path)[0].step == 4


def test_the_last_word_is_exact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_S", 600.0)
    with pytest.raises(RuntimeError), Heartbeat(tmp_path, 0, "a") as own:
        own.phase("step", 7)
        raise RuntimeError
    beat = read_heartbeats(tmp_path)[0]
    assert (beat.phase, beat.step) == ("step", 7)


def test_without_an_attempt_nothing_is_written(tmp_path: Path) -> None:
    with Heartbeat(tmp_path, 0, "") as own:
        own.phase("step", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_phase_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with Heartbeat(tmp_path, 0, "") as own, pytest.raises(ValueError, match="'stepping' is none of start, decode"):
        own.phase("stepping")
    for name in PHASES:
        own.phase(name)


def test_a_disk_that_cannot_be_written_does_not_end_the_worker(tmp_path: Path) -> None:
    with Heartbeat(tmp_path, 0, "a") as own:
        (tmp_path / "heartbeats").rename(tmp_path / "away")
        (tmp_path / "heartbeats").write_text("in the way")
        own.phase("step", 1)
        (tmp_path / "heartbeats").unlink()
        seen(tmp_path, lambda beat: beat.step == 1)


def test_at_the_start_it_does_since_nobody_could_watch(tmp_path: Path) -> None:
    (tmp_path / "heartbeats").write_text("in the way")
    with (
        pytest.raises(Fault, match=r"heartbeats/0.json: heartbeats cannot be written there \("),
        Heartbeat(tmp_path, 0, "a"),
    ):
        pass


def test_a_full_disk_is_no_hang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without room for a new file the old one is written over: it has always the same size."""
    with Heartbeat(tmp_path, 0, "a") as own:

        def full(path: Path, text: str) -> int:
            raise OSError(28, "No space left on device")

        size = (tmp_path / "heartbeats" / "0.json").stat().st_size
        monkeypatch.setattr(Path, "write_text", full)
        own.phase("step", 123_456)
        seen(tmp_path, lambda beat: beat.step == 123_456)
        assert (tmp_path / "heartbeats" / "0.json").stat().st_size == size


def test_what_is_no_beat_is_not_read(tmp_path: Path) -> None:
    with Heartbeat(tmp_path, 0, "a"):
        pass
    good = json.loads((tmp_path / "heartbeats" / "0.json").read_text())
    for name, text in {"1.json": "{", "2.json": "[]", "3.json": '{"rank": 3}', ".4.json.1": json.dumps(good)}.items():
        (tmp_path / "heartbeats" / name).write_text(text)
    assert list(read_heartbeats(tmp_path)) == [0]
    assert read_heartbeats(tmp_path / "nothing") == {}


def test_a_container_may_have_less_than_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "max").write_text("5000000\n")
    (tmp_path / "current").write_text("4000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 1000000\n")
    monkeypatch.setattr(heartbeat, "CGROUPS", ((tmp_path, "max", "current", "inactive_file"),))
    assert memory_mb()[1] == 2.0  # MB: what is cached can be taken back
    (tmp_path / "max").write_text("max\n")
    available_mb = memory_mb()[1]
    assert available_mb is not None and available_mb > 2.0
