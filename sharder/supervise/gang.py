"""The workers of one attempt on this machine: started together, ended together.

Each is a child with a process group of its own, as in workers.py. They find one another on a port that the kernel gave
to this attempt alone and that stays ours until the last of them has ended.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sharder.config import Config
from sharder.errors import EXIT_USER_ERROR, UserError
from sharder.parallel.environment import worker_environment
from sharder.parallel.processes import ADDRESS, ATTEMPT_VARIABLE, COUNT, INDEX
from sharder.parallel.rollcall import reserve_port
from sharder.supervise.output import Output, Terminal
from sharder.supervise.workers import Forward, end_groups, end_marked, start_worker

HOST = "127.0.0.1"
GRACE_S = 10.0  # for the others to end by themselves after one has failed: they may be about to say why
LAST_WORDS_S = 5.0  # for output to arrive when all have ended; a process that left its group may keep it open for ever
GPUS = "CUDA_VISIBLE_DEVICES"


class CannotStart(Exception):
    """The system has no room for a worker."""

    def __init__(self, attempt: str, rank: int, reason: str) -> None:
        super().__init__(f"worker {rank} cannot be started: {reason}")
        self.attempt, self.rank, self.reason = attempt, rank, reason


@dataclass(frozen=True)
class End:
    """How a worker ended by itself."""

    rank: int
    returned: int  # as Popen says it: -n for signal n
    after_s: float  # since the start

    @property
    def how(self) -> str:
        return f"exit {self.returned}" if self.returned >= 0 else signal.Signals(-self.returned).name

    def __str__(self) -> str:
        return f"{self.how} after {self.after_s:.1f} s"


class Gang:
    """Workers that run, in order of their ranks; `ended` has the end of each as it comes."""

    def __init__(self, attempt: str) -> None:
        self.attempt = attempt
        self.started = time.monotonic()
        self.workers: list[subprocess.Popen[bytes]] = []
        self.outputs: list[Output] = []
        self.ended: queue.SimpleQueue[End] = queue.SimpleQueue()

    @property
    def last_words(self) -> list[str]:
        """Final once the gang is over."""
        return [output.last_words for output in self.outputs]

    def _start(self, command: str, folder: Path, environment: Mapping[str, str], lock: int) -> subprocess.Popen[bytes]:
        worker = start_worker(command, folder, environment, lock, output=subprocess.PIPE)
        self.workers.append(worker)
        threading.Thread(target=self._await, args=(len(self.workers) - 1, worker), daemon=True).start()
        return worker

    def _await(self, rank: int, worker: subprocess.Popen[bytes]) -> None:
        returned = worker.wait()
        self.ended.put(End(rank, returned, time.monotonic() - self.started))


@contextlib.contextmanager
def running(
    command: str, folder: Path, config: Config, lock: int, processes: int, terminal: Terminal, forward: Forward
) -> Iterator[Gang]:
    """A gang of so many `processes`. Afterwards none of it is left, and all it said is in the logs.

    Every worker keeps `lock`, so that the run folder stays taken while any of us lives.
    """
    gang = Gang(secrets.token_hex(8))
    logs = folder / "logs"
    heading = f"attempt {gang.attempt}, {time.strftime('%Y-%m-%d %H:%M:%S%z')}\n"
    with reserve_port(HOST) as reserved:
        environments = _environments(config, os.environ, reserved.getsockname()[1], gang.attempt, processes)
        try:
            for rank, environment in enumerate(environments):
                try:
                    logs.mkdir(exist_ok=True)
                    worker = gang._start(command, folder, environment, lock)
                    gang.outputs.append(Output(rank, worker, logs / f"worker-{rank}.log", heading, terminal))
                except OSError as error:
                    raise CannotStart(gang.attempt, rank, error.strerror or str(error)) from error
                gang.outputs[-1].start()
                forward.to(worker)
            yield gang
        finally:
            end_groups(gang.workers)
            end_marked(f"{ATTEMPT_VARIABLE}={gang.attempt}")
            for worker in gang.workers[len(gang.outputs) :]:  # whose log could not be opened
                assert worker.stdout is not None
                worker.stdout.close()
    deadline = time.monotonic() + LAST_WORDS_S
    for output in gang.outputs:
        output.join(max(0.0, deadline - time.monotonic()))


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


def _environments(
    config: Config, inherited: Mapping[str, str], port: int, attempt: str, count: int
) -> list[dict[str, str]]:
    """One for each worker, in order of their ranks."""
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
