"""Starts the workers of a run that has several on this machine, and says which of them failed first."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sharder.config import Config
from sharder.errors import EXIT_USER_ERROR, UserError
from sharder.supervise.gang import GRACE_S, End, first_failure, running
from sharder.supervise.output import Terminal
from sharder.supervise.supervisor import run_supervised
from sharder.supervise.workers import exit_code, forwarding, run_inline


def run_launched(command: str, folder: Path, config: Config, lock: int) -> int:
    """Runs what `launch` asks for. Refused: one line and the exit code that undoes the folder."""
    name = config.launch.name
    if name == "inline":
        return run_inline(command, folder, config, lock)
    try:
        if command != "train":
            raise UserError(f"launch: found {name}, allowed for {command}: inline; it runs as one process")
        run = run_local if name == "local" else run_supervised
        return run(command, folder, config, lock)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR


def run_local(command: str, folder: Path, config: Config, lock: int) -> int:
    """Runs all workers and returns the exit code of the one that failed first; 128 + n when signal n ended it."""
    with forwarding() as forward, Terminal() as terminal:
        with running(command, folder, config, lock, config.launch.processes, terminal, forward) as gang:
            ends = _until_all_end(len(gang.workers), gang.ended)
        first = first_failure(ends)
        if first is not None:
            for line in summary(first, ends, gang.last_words):
                terminal.print(line)
            terminal.print(f"logs: {folder}/logs/worker-<rank>.log")
        code = 0 if first is None else exit_code(first.returned)
    forward.raise_if_stopped(code)
    return code


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


def summary(first: End, ends: Sequence[End], last_words: Sequence[str]) -> list[str]:
    """One line a worker, the first failure first; `last_words` in order of the ranks."""
    lines = [f"worker {first.rank} failed first: {first}: {last_words[first.rank]}"]
    for end in ends:
        if end.rank != first.rank:
            words = "the same" if last_words[end.rank] == last_words[first.rank] else last_words[end.rank]
            lines.append(f"worker {end.rank}: {end}" + (f": {words}" if end.returned else ""))
    by_themselves = {end.rank for end in ends}
    return lines + [f"worker {rank}: killed after it" for rank in range(len(last_words)) if rank not in by_themselves]
