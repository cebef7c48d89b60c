"""Runs a worker as a child of the command, and makes sure that neither outlives what it should not.

The child has its own environment (jax reads it once) and its own process group, so a Ctrl-C in the terminal reaches the
command alone, which passes it on: once, not twice. `python -m sharder.worker <train|evaluate> <run folder>` is all a
worker is told; the rest is in the run folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from sharder.config import Config
from sharder.parallel.environment import worker_environment

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
PARENT_VARIABLE = "SHARDER_PARENT"
SIGNALS_BEFORE_KILL = 3  # this many Ctrl-C mean it: a worker deep in a C++ call hears none of them
PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal a process gets when its parent ends
ORPHANED = 75  # exit code of a worker whose parent is gone


class Interrupted(SystemExit):
    """The command itself was told to stop: what would have come next is not started."""

    def __init__(self, signal_number: int, worker_code: int) -> None:
        super().__init__(worker_code)
        self.signal_number = signal_number


def worker_command(command: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "sharder.worker", command, str(folder)]


def run_inline(command: str, folder: Path, config: Config, lock: int) -> int:
    """Runs one worker in this terminal and returns its exit code; 128 + n when signal n ended it.

    The worker keeps `lock`, an open file, so that the run folder stays taken while either of us lives.
    """
    environment = worker_environment(config, os.environ)
    environment[PARENT_VARIABLE] = str(os.getpid())
    with _forwarding() as forward:
        worker = subprocess.Popen(
            worker_command(command, folder),
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=(lock,),
            process_group=0,
        )
        try:
            code = forward.until_exit(worker)
        finally:
            _end_group(worker)
    code = code if code >= 0 else 128 - code
    for stop in (signal.SIGINT, signal.SIGTERM):
        if stop in forward.received:
            raise Interrupted(stop, code)
    return code


class _Forward:
    """Signals that arrived, passed on to the worker as soon as there is one."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.worker: subprocess.Popen[bytes] | None = None

    def __call__(self, signal_number: int, frame: FrameType | None) -> None:
        self.received.append(signal_number)
        if self.worker is not None:
            self._send(signal_number)

    def until_exit(self, worker: subprocess.Popen[bytes]) -> int:
        self.worker = worker
        for signal_number in tuple(self.received):  # came while the worker was being started
            self._send(signal_number)
        return worker.wait()

    def _send(self, signal_number: int) -> None:
        assert self.worker is not None
        insisted = self.received.count(signal.SIGINT) >= SIGNALS_BEFORE_KILL
        self.worker.send_signal(signal.SIGKILL if insisted else signal_number)


@contextlib.contextmanager
def _forwarding() -> Iterator[_Forward]:
    """Handles the forwarded signals while a worker runs; outside the main thread Python allows no handlers."""
    forward = _Forward()
    if threading.current_thread() is not threading.main_thread():
        yield forward
        return
    previous = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield forward
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end_group(worker: subprocess.Popen[bytes]) -> None:
    """Ends what the worker left behind (its loader processes, when it died without ending them)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def die_with_parent() -> None:
    """Called first by a worker: it ends when the command that started it ends, by kill -9 too.

    A worker started by hand has no such parent and just runs.
    """
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch_parent, args=(int(parent),), daemon=True).start()
    if os.getppid() != int(parent):  # it ended before the line above
        sys.exit(ORPHANED)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(ORPHANED)
