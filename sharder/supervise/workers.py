"""Runs workers as children of the command, and makes sure that neither outlives what it should not.

A child has its own environment (jax reads it once) and its own process group, so a Ctrl-C in the terminal reaches the
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from sharder.config import Config
from sharder.errors import RESUME
from sharder.measure import start_up
from sharder.parallel.environment import worker_environment
from sharder.parallel.processes import membership
from sharder.stop_signals import heard

PARENT_VARIABLE = "SHARDER_PARENT"
SIGNALS_BEFORE_KILL = 3  # this many Ctrl-C mean it: a worker deep in a C++ call hears none of them
GROUP_END_S = 10.0  # for killed processes to be gone; one inside a driver or a dead file system may never be
PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal a process gets when its parent ends
PR_SET_CHILD_SUBREAPER = 36  # the same: orphans below this process become its children
ORPHANED = RESUME  # exit code of a worker whose parent is gone


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
    with forwarding() as forward:
        processes = max(1, membership(os.environ)[0].count)
        worker = start_worker(command, folder, worker_environment(config, os.environ, processes), lock)
        try:
            forward.to(worker)
            code = exit_code(worker.wait())
        finally:
            end_groups([worker])
    forward.raise_if_stopped(code)
    return code


def start_worker(
    command: str, folder: Path, environment: Mapping[str, str], lock: int, output: int | None = None
) -> subprocess.Popen[bytes]:
    """A worker in a group of its own; what it says goes where ours goes, or both streams where `output` says.

    Linux ends a worker with the thread that started it, so that thread has to stay. It leaves to us what the worker
    leaves behind, so that we can wait for it: the first process of a container often waits for nobody.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    return subprocess.Popen(
        worker_command(command, folder),
        env={**environment, PARENT_VARIABLE: str(os.getpid()), start_up.VARIABLE: str(time.monotonic())},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        bufsize=0,
        pass_fds=(lock,),
        process_group=0,
    )


def exit_code(returned: int) -> int:
    """What a shell would say: 128 + n when signal n ended the worker."""
    return returned if returned >= 0 else 128 - returned


class Forward:
    """Signals that arrived, passed on to every worker as soon as there is one."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._workers: list[subprocess.Popen[bytes]] = []

    def __call__(self, signal_number: int, frame: FrameType | None) -> None:
        self.received.append(signal_number)
        for worker in self._workers:
            self._send(worker, signal_number)

    def to(self, worker: subprocess.Popen[bytes]) -> None:
        self._workers.append(worker)
        for signal_number in tuple(self.received):  # came while the worker was being started
            self._send(worker, signal_number)

    def raise_if_stopped(self, code: int) -> None:
        """`code` is what the worker ended with."""
        if self.received:
            raise Interrupted(self.received[0], code)

    def _send(self, worker: subprocess.Popen[bytes], signal_number: int) -> None:
        insisted = self.received.count(signal.SIGINT) >= SIGNALS_BEFORE_KILL
        worker.send_signal(signal.SIGKILL if insisted else signal_number)


@contextlib.contextmanager
def forwarding() -> Iterator[Forward]:
    """Handles the forwarded signals while workers run; outside the main thread Python allows no handlers."""
    forward = Forward()
    if threading.current_thread() is not threading.main_thread():
        yield forward
        return
    previous = {number: signal.signal(number, forward) for number in heard()}
    try:
        yield forward
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def end_groups(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends the workers and what they left behind (loader processes, when one died without ending them).

    Returns when none is left: what comes next may need their memory and their devices.
    """
    for worker in workers:
        _kill(os.killpg, worker.pid)
    deadline = time.monotonic() + GROUP_END_S
    for worker in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(max(0.0, deadline - time.monotonic()))
        while _kill(os.killpg, worker.pid):
            if time.monotonic() > deadline:
                print(f"processes of group {worker.pid} do not end; they may still hold a device", file=sys.stderr)
                break
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-worker.pid, os.WNOHANG)  # what was left to us; see start_worker
            time.sleep(0.01)


def end_marked(mark: str) -> None:
    """Ends the processes below this one that have `mark`, a NAME=value, in the environment they were started with.

    What workers leave behind outside their groups, a daemon say, is left to us (see start_worker), but so is what
    others have left where we are the first process of a container: that is spared.
    """
    known: set[int] = set()
    deadline = time.monotonic() + GROUP_END_S
    while known := {process for process in known | _marked(mark) if _kill(os.kill, process)}:
        if time.monotonic() > deadline:
            print(f"processes {sorted(known)} do not end; they may still hold a device", file=sys.stderr)
            return
        for process in known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, os.WNOHANG)
        time.sleep(0.01)


def _marked(mark: str) -> set[int]:
    """None where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    below: set[int] = set()
    new = [os.getpid()]
    while new := [child for parent in new for child in children.get(parent, [])]:
        below.update(new)
    return {process for process in below if mark.encode() in _environment(process)}


def _environment(process: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return []


def _kill(send: Callable[[int, int], None], target: int) -> bool:
    """By `os.kill` or `os.killpg`: whether anything was there, be it one that has ended and that nobody has asked for
    its exit code."""
    try:
        send(target, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _prctl(option: int, value: int) -> None:
    """Sets something about this process that only Linux has."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value)


def die_with_parent() -> None:
    """Called first by a worker: it ends when the command that started it ends, by kill -9 too.

    A worker started by hand has no such parent and just runs.
    """
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is None:
        return
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if sys.platform != "linux":
        threading.Thread(target=_watch_parent, args=(int(parent),), daemon=True).start()
    if os.getppid() != int(parent):  # it ended before the line above
        sys.exit(ORPHANED)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(ORPHANED)
