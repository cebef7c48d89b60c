"""The terminal gets what it reads; one that reads nothing holds nobody up."""

import os
import re
import threading
import time

import pytest

from sharder.supervise import output
from sharder.supervise.output import Terminal


def test_lines_begin_at_the_left_and_all_is_written_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    with Terminal() as terminal:
        terminal.copy(b"step 1\nhalf a l")
        terminal.print("relaunch")
        terminal.error(1, b"error: no data")
        terminal.error(2, b"error: no data")
    said = capfd.readouterr()
    assert said.out == "step 1\nhalf a l"
    assert said.err == "\nrelaunch\nworker 1: error: no data\n"


def test_a_terminal_that_nobody_reads_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    stdout = os.dup(1)
    os.dup2(writes, 1)
    monkeypatch.setattr(output, "UNREAD_S", 0.05)
    monkeypatch.setattr(output, "MOST_WAITING", 300_000)
    try:
        with Terminal() as terminal:
            for _ in range(500):
                terminal.copy(b"x" * 1999 + b"\n")  # far more than a pipe holds
            heard: list[bytes] = []
            reader = threading.Thread(target=_read_all, args=(reads, heard))
            assert terminal._left_out > 0
            left_out = terminal._left_out
            reader.start()
            while terminal._waiting:
                time.sleep(0.01)
            terminal.copy(b"read again\n")
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(writes)
    reader.join()
    os.close(reads)
    told = re.search(rb"\[([\d,]+) bytes were not shown.*\]\nread again\n$", b"".join(heard))
    assert told is not None
    assert int(told[1].replace(b",", b"")) == left_out


def test_the_end_of_a_run_does_not_wait_for_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    stderr = os.dup(2)
    os.dup2(writes, 2)
    monkeypatch.setattr(output, "UNREAD_S", 0.05)
    try:
        with Terminal() as terminal:
            terminal.print("y" * 500_000)
        assert terminal._writer.is_alive()  # held by the pipe, and left behind
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(writes)
    heard: list[bytes] = []
    _read_all(reads, heard)
    os.close(reads)
    assert sum(map(len, heard)) == 500_001


def _read_all(pipe: int, heard: list[bytes]) -> None:
    while chunk := os.read(pipe, 65536):
        heard.append(chunk)
