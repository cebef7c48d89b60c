"""What a worker is doing, for whoever watches it: phase, step and memory, in a small file of its own.

    <run folder>/heartbeats/<rank>.json

A thread replaces the file about once a second, so the training thread never waits for a disk. That the file is new says
only that this thread lives: progress is a phase or a step that changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from sharder.errors import Fault

PHASES = ("start", "decode", "restore", "compile", "evaluate", "first step", "step", "data wait", "save", "end")
FOLDER = "heartbeats"
EVERY_S = 1.0  # between two writes
LAST_WRITE_S = 2.0  # for a write that is under way when the worker ends; a dead file system must not keep it
BYTES = 512  # of a beat's file, always: written over in place where there is no room for a new one
MB = 1e6

# Of a container, as it sees them: limit, use, and the name of what could be freed in memory.stat. Versions 2 and 1.
CGROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True)
class Beat:
    pid: int
    rank: int
    attempt: str
    phase: str  # one of PHASES
    step: int | None  # None: no step has begun
    since: float  # wall time at which phase or step last changed
    written: float  # wall time
    rss_mb: float | None  # of this process; None where there is no /proc
    available_mb: float | None  # what it could still get, of the machine or of its container


class Heartbeat:
    """Of one worker, while it is entered. Without an attempt nobody watches, and nothing is written."""

    def __init__(self, folder: Path, rank: int, attempt: str) -> None:
        self._file = folder / FOLDER / f"{rank}.json"
        self._rank, self._attempt = rank, attempt
        self._lock = threading.Lock()
        self._phase, self._since = "start", time.time()
        self._step: int | None = None
        self._failed: OSError | None = None  # why the last beat is not in the file
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write_often, name="heartbeat", daemon=True)

    def phase(self, name: str, step: int | None = None) -> None:
        """What comes now; without a step it belongs to the last one that was named. Costs no I/O."""
        if name not in PHASES:
            raise ValueError(f"phase {name!r} is none of {', '.join(PHASES)}")
        with self._lock:
            step = self._step if step is None else step
            if (name, step) != (self._phase, self._step):
                self._phase, self._step, self._since = name, step, time.time()

    def __enter__(self) -> Heartbeat:
        if self._attempt:
            self._write()  # before anything that may hang
            if self._failed is not None:
                reason = self._failed.strerror
                raise Fault(
                    f"{self._file}: heartbeats cannot be written there ({reason}), and nobody could watch; mend it"
                )
            self._writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The last word is exact: where an exception came from is compared from attempt to attempt."""
        if not self._attempt:
            return
        self._ended.set()
        self._writer.join(LAST_WRITE_S)

    def _write_often(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._write()
        self._write()

    def _write(self) -> None:
        """A disk that is full or away for a while must not end the worker; what is seen from outside is no progress."""
        rss_mb, available_mb = memory_mb()
        with self._lock:
            phase, step, since = self._phase, self._step, self._since
        beat = Beat(
            os.getpid(), self._rank, self._attempt, phase, step, since, time.time(), rss_mb, available_mb
        )  # fmt: skip
        text = json.dumps(dataclasses.asdict(beat)).ljust(BYTES)
        unfinished = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(text)
            os.replace(unfinished, self._file)
        except OSError as error:
            self._failed = error
            with contextlib.suppress(OSError), open(self._file, "r+b") as file:  # takes no new room on a full disk
                file.write(text.encode())
                self._failed = None


def read_heartbeats(folder: Path) -> dict[int, Beat]:
    """The newest of every rank that ever wrote one in this run folder: of which attempt is for the reader to see."""
    beats = {}
    with contextlib.suppress(OSError):  # a file system that is away for a while: nothing is known then
        for file in (folder / FOLDER).glob("[0-9]*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError):
                beat = Beat(**json.loads(file.read_text()))
                beats[beat.rank] = beat
    return beats


def memory_mb() -> tuple[float | None, float | None]:
    """(resident in this process, still available to it)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        available = _field(Path("/proc/meminfo"), "MemAvailable:") * 1024
        return rss / MB, min([available, *_left_to_container()]) / MB
    return None, None


def host_peak_mb() -> float | None:
    """The most that was ever resident in this process; None where there is no /proc."""
    with contextlib.suppress(OSError, ValueError):
        return _field(Path("/proc/self/status"), "VmHWM:") * 1024 / MB
    return None


def _left_to_container() -> list[int]:
    """Bytes that it may still take until it is ended; empty when it may take all there is."""
    for folder, limit, use, freeable in CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
            taken = int((folder / use).read_text()) - _field(folder / "memory.stat", freeable)
            return [max(0, int((folder / limit).read_text()) - taken)]
    return []


def _field(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        words = line.split()
        if words[0] == name:
            return int(words[1])
    raise ValueError(f"{file} has no {name}")
