"""What workers say: all of it goes into a log each, and what of it is for the terminal goes there.

<run folder>/logs/worker-<rank>.log  what each worker said, attempt after attempt
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import subprocess
import threading
from pathlib import Path

CHUNK = 65536  # bytes read at once
LONGEST_LINE = 4096  # bytes of a line that are looked at; the log has all
MOST_WAITING = 2**20  # bytes for a terminal that nobody reads
UNREAD_S = 2.0  # at the end it is given so long to take some more
ERROR = b"error:"  # how a worker begins the line that is meant for the user


class Terminal:
    """Where the command was typed; to be used as a context. When it is gone the run goes on, and when nobody reads it
    (a pipe, a terminal held with Ctrl-S) nothing waits for it: the logs have everything."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._inside_line = False
        self._errors: set[bytes] = set()
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._waiting, self._left_out, self._written = 0, 0, 0  # bytes
        self._writer = threading.Thread(target=self._write_all, name="terminal", daemon=True)

    def __enter__(self) -> Terminal:
        self._writer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Returns when all is written, or nothing has been for a while."""
        self._queue.put(None)
        before = -1
        while self._writer.is_alive() and self._written > before:
            before = self._written
            self._writer.join(UNREAD_S)

    def error(self, rank: int, line: bytes) -> None:
        """What several workers found is said once."""
        if line not in self._errors:
            self._errors.add(line)
            self.print(f"worker {rank}: {line.decode(errors='replace')}")

    def copy(self, chunk: bytes) -> None:
        with self._one_at_a_time:
            self._inside_line = not chunk.endswith(b"\n")
            self._put(1, chunk)

    def print(self, line: str) -> None:
        with self._one_at_a_time:
            start = "\n" if self._inside_line else ""  # never behind half a line of worker 0
            self._inside_line = False
            self._put(2, f"{start}{line}\n".encode())

    def _put(self, file: int, data: bytes) -> None:
        if self._waiting + len(data) > MOST_WAITING:
            self._left_out += len(data)
            return
        if self._left_out:
            note = f"\n[{self._left_out:,} bytes were not shown: nobody read them. They are in the logs]\n".encode()
            self._left_out = 0
            self._put(file, note)
        self._waiting += len(data)
        self._queue.put((file, data))

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            file, data = item
            with contextlib.suppress(OSError):
                _write(file, data)
            with self._one_at_a_time:
                self._waiting -= len(data)
                self._written += len(data)


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


class Output(threading.Thread):
    """Takes what one worker says to its log, and what of it is for the terminal there."""

    def __init__(self, rank: int, worker: subprocess.Popen[bytes], log: Path, heading: str, terminal: Terminal) -> None:
        super().__init__(daemon=True)
        assert worker.stdout is not None
        self._rank = rank
        self._said = worker.stdout
        self._log = open(log, "ab", buffering=0)  # noqa: SIM115 (run closes it)
        self._heading = heading
        self._terminal = terminal
        self._last = b""
        self._error = b""
        self.bytes_heard = 0

    @property
    def last_words(self) -> str:
        """Its error line if there is one: jax may say more after it. Else its last line that is not empty."""
        return (self._error or self._last or b"(it said nothing)").decode(errors="replace")

    def run(self) -> None:
        with self._said, self._log:
            self._keep(self._heading.encode())
            begun = b""
            while chunk := self._said.read(CHUNK):
                self.bytes_heard += len(chunk)
                if self._rank == 0:
                    self._terminal.copy(chunk)
                self._keep(chunk)
                *lines, begun = re.split(rb"[\r\n]", begun + chunk)
                for line in lines:
                    self._see(line)
                begun = begun[:LONGEST_LINE]
            self._see(begun)

    def _keep(self, chunk: bytes) -> None:
        """A worker is not stopped by a full disk here: it says so once and is read on."""
        if self._log.closed:
            return
        try:
            _write(self._log.fileno(), chunk)
        except OSError as error:
            self._log.close()
            self._terminal.print(f"worker {self._rank}: its log cannot be written: {error.strerror}")

    def _see(self, line: bytes) -> None:
        line = line[:LONGEST_LINE].strip()
        if not line:
            return
        self._last = line
        if line.startswith(ERROR):
            self._error = line
            if self._rank != 0:
                self._terminal.error(self._rank, line)
