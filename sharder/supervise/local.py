"""Starts the workers of a run that has several on this machine, and says which of them failed first.

    <run folder>/logs/worker-<rank>.log  what each worker said, attempt after attempt

Each is a child with a process group of its own, as in workers.py. They find one another on a port that the kernel gave
to this attempt alone and that stays ours until the last of them has ended.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sharder.config import Config
from sharder.errors import EXIT_USER_ERROR, UserError
from sharder.parallel.environment import worker_environment
from sharder.parallel.processes import ADDRESS, ATTEMPT_VARIABLE, COUNT, INDEX
from sharder.parallel.rollcall import reserve_port
from sharder.supervise.workers import end_groups, exit_code, forwarding, run_inline, start_worker

HOST = "127.0.0.1"
GRACE_S = 10.0  # for the others to end by themselves after one has failed: they may be about to say why
LAST_WORDS_S = 5.0  # for output to arrive when all have ended; a process that left its group may keep it open for ever
CHUNK = 65536  # bytes read at once
LONGEST_LINE = 4096  # bytes of a line that are looked at; the log has all
ERROR = b"error:"  # how a worker begins the line that is meant for the user
GPUS = "CUDA_VISIBLE_DEVICES"


def run_launched(command: str, folder: Path, config: Config, lock: int) -> int:
    """Runs what `launch` asks for. Refused: one line and the exit code that undoes the folder."""
    if config.launch.name != "local":
        return run_inline(command, folder, config, lock)
    try:
        if command != "train":
            raise UserError(f"launch: found local, allowed for {command}: inline; it runs as one process")
        return run_local(command, folder, config, lock)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR


def run_local(command: str, folder: Path, config: Config, lock: int) -> int:
    """Runs all workers and returns the exit code of the one that failed first; 128 + n when signal n ended it.

    Every worker keeps `lock`, so that the run folder stays taken while any of us lives.
    """
    attempt = secrets.token_hex(8)
    logs = folder / "logs"
    heading = f"attempt {attempt}, {time.strftime('%Y-%m-%d %H:%M:%S%z')}\n"
    workers: list[subprocess.Popen[bytes]] = []
    outputs: list[_Output] = []
    ended: queue.SimpleQueue[End] = queue.SimpleQueue()
    terminal = _Terminal()
    with reserve_port(HOST) as reserved, forwarding() as forward:
        environments = _environments(config, os.environ, reserved.getsockname()[1], attempt)
        logs.mkdir(exist_ok=True)
        started = time.monotonic()
        try:
            for rank, environment in enumerate(environments):
                worker = start_worker(command, folder, environment, lock, output=subprocess.PIPE)
                workers.append(worker)
                forward.to(worker)
                outputs.append(_Output(rank, worker, logs / f"worker-{rank}.log", heading, terminal))
                outputs[-1].start()
                threading.Thread(target=_await, args=(rank, worker, started, ended), daemon=True).start()
            ends = _until_all_end(len(workers), ended)
        finally:
            end_groups(workers)
    deadline = time.monotonic() + LAST_WORDS_S
    for output in outputs:
        output.join(max(0.0, deadline - time.monotonic()))
    first = first_failure(ends)
    if first is not None:
        for line in summary(first, ends, [output.last_words for output in outputs]):
            terminal.print(line)
        terminal.print(f"logs: {logs}/worker-<rank>.log")
    code = 0 if first is None else exit_code(first.returned)
    forward.raise_if_stopped(code)
    return code


def _environments(config: Config, inherited: Mapping[str, str], port: int, attempt: str) -> list[dict[str, str]]:
    """One for each worker, in order of their ranks."""
    count = config.launch.processes
    common = {
        "PYTHONUNBUFFERED": "1",  # into a pipe Python would say nothing for long
        **worker_environment(config, inherited, processes=count),
        ADDRESS: f"{HOST}:{port}",
        COUNT: str(count),
        ATTEMPT_VARIABLE: attempt,
    }
    gpus = [] if config.hardware.kind == "cpu" else _gpus(common, count)
    share = len(gpus) // count
    environments = []
    for rank in range(count):
        mine = {GPUS: ",".join(gpus[rank * share : (rank + 1) * share])} if gpus else {}
        environments.append({**common, **mine, INDEX: str(rank)})
    return environments


def _gpus(environment: Mapping[str, str], processes: int) -> list[str]:
    """The GPUs named for this run; none are named when the variable is missing, or says that none may be used."""
    text = environment.get(GPUS, "").strip()
    gpus = [] if text in ("", "-1") else [name.strip() for name in text.split(",")]
    if len(gpus) % processes:
        raise UserError(
            f"{GPUS}: found {text} ({len(gpus)} for launch.processes={processes}), allowed: a list that divides among "
            "the processes; name another number of GPUs, or set launch.processes"
        )
    return gpus


@dataclass(frozen=True)
class End:
    """How a worker ended by itself."""

    rank: int
    returned: int  # as Popen says it: -n for signal n
    after_s: float  # since the start


def _await(rank: int, worker: subprocess.Popen[bytes], started: float, ended: queue.SimpleQueue[End]) -> None:
    returned = worker.wait()
    ended.put(End(rank, returned, time.monotonic() - started))


def _until_all_end(count: int, ended: queue.SimpleQueue[End]) -> list[End]:
    """Those that ended by themselves, in that order: all, unless one failed and others outlived the grace."""
    ends: list[End] = []
    deadline: float | None = None
    while len(ends) < count:
        try:
            ends.append(ended.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic())))
        except queue.Empty:
            break
        if ends[-1].returned and deadline is None:
            deadline = time.monotonic() + GRACE_S
    return ends


def first_failure(ends: Sequence[End]) -> End | None:
    """The end that explains the others.

    jax aborts a process whose peer goes away, and the peer's own end may come later than that: its exit code 2 is the
    reason and the abort is not.
    """
    failed = [end for end in ends if end.returned]
    if not failed:
        return None
    told = [end for end in failed if end.returned == EXIT_USER_ERROR]
    return told[0] if failed[0].returned == -signal.SIGABRT and told else failed[0]


def summary(first: End, ends: Sequence[End], last_words: Sequence[str]) -> list[str]:
    """One line a worker, the first failure first; `last_words` in order of the ranks."""
    lines = [f"worker {first.rank} failed first: {_how(first)}: {last_words[first.rank]}"]
    for end in ends:
        if end.rank != first.rank:
            words = "the same" if last_words[end.rank] == last_words[first.rank] else last_words[end.rank]
            lines.append(f"worker {end.rank}: {_how(end)}" + (f": {words}" if end.returned else ""))
    by_themselves = {end.rank for end in ends}
    return lines + [f"worker {rank}: killed after it" for rank in range(len(last_words)) if rank not in by_themselves]


def _how(end: End) -> str:
    what = f"exit {end.returned}" if end.returned >= 0 else signal.Signals(-end.returned).name
    return f"{what} after {end.after_s:.1f} s"


class _Terminal:
    """Where the command was typed. When it is gone the run goes on, and the logs have everything."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._inside_line = False
        self._errors: set[bytes] = set()

    def error(self, rank: int, line: bytes) -> None:
        """What several workers found is said once."""
        if line not in self._errors:
            self._errors.add(line)
            self.print(f"worker {rank}: {line.decode(errors='replace')}")

    def copy(self, chunk: bytes) -> None:
        with self._one_at_a_time, contextlib.suppress(OSError):
            self._inside_line = not chunk.endswith(b"\n")
            _write(1, chunk)

    def print(self, line: str) -> None:
        with self._one_at_a_time, contextlib.suppress(OSError):
            start = "\n" if self._inside_line else ""  # never behind half a line of worker 0
            self._inside_line = False
            _write(2, f"{start}{line}\n".encode())


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


class _Output(threading.Thread):
    """Takes what one worker says to its log, and what of it is for the terminal there."""

    def __init__(
        self, rank: int, worker: subprocess.Popen[bytes], log: Path, heading: str, terminal: _Terminal
    ) -> None:
        super().__init__(daemon=True)
        assert worker.stdout is not None
        self._rank = rank
        self._said = worker.stdout
        self._log = open(log, "ab", buffering=0)  # noqa: SIM115 (run closes it)
        self._heading = heading
        self._terminal = terminal
        self._last = b""
        self._error = b""

    @property
    def last_words(self) -> str:
        """Its error line if there is one: jax may say more after it. Else its last line that is not empty."""
        return (self._error or self._last or b"(it said nothing)").decode(errors="replace")

    def run(self) -> None:
        with self._said, self._log:
            self._keep(self._heading.encode())
            begun = b""
            while chunk := self._said.read(CHUNK):
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
