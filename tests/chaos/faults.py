"""What can befall a run, done to a real one: each fault takes a run that is under way and says what it did to whom."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sharder.run_folder import checkpoint_steps
from sharder.supervise.heartbeat import Beat, read_heartbeats
from sharder.training.manifest import MANIFEST

LOOK_S = 0.05
PATIENCE_S = 60.0  # for the moment that a fault wants


@dataclass(frozen=True)
class Run:
    """A supervised run that is under way."""

    command: subprocess.Popen[str]
    folder: Path
    random: random.Random

    def workers(self) -> list[Beat]:
        """Those that are alive now, by rank."""
        return [beat for _, beat in sorted(read_heartbeats(self.folder).items()) if _alive(beat.pid)]

    def worker(self) -> Beat | None:
        workers = self.workers()
        return self.random.choice(workers) if workers else None

    def loaders_of(self, beat: Beat) -> list[int]:
        """Its data workers."""
        try:
            children = Path(f"/proc/{beat.pid}/task/{beat.pid}/children").read_text().split()
            return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        except OSError:
            return []

    def wait_for_a_moment(self) -> None:
        """Some seconds into whatever goes on, or some steps: starting takes longer than all steps together."""
        if self.random.random() < 0.4:
            time.sleep(self.random.uniform(0.5, 15.0))
            return
        saved = max(checkpoint_steps(self.folder), default=0)
        wanted = saved + self.random.randint(1, 60)
        for _ in _looks():
            if self.command.poll() is not None or any((beat.step or 0) >= wanted for beat in self.workers()):
                return


Fault = Callable[[Run], str | None]  # what was done; None: the moment never came


def kill_a_worker(run: Run) -> str | None:
    return _signal(run.worker(), signal.SIGKILL)


def kill_rank_0(run: Run) -> str | None:
    return _signal(next((beat for beat in run.workers() if beat.rank == 0), None), signal.SIGKILL)


def kill_the_supervisor(run: Run) -> str | None:
    workers = run.workers()
    run.command.kill()
    return f"SIGKILL to the supervisor{_while(workers)}"


def stop_a_worker(run: Run) -> str | None:
    """A hang: it lives, and does nothing."""
    return _signal(run.worker(), signal.SIGSTOP)


def ask_to_stop(run: Run) -> str | None:
    number = run.random.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT])
    run.command.send_signal(number)
    return f"{number.name} to the supervisor{_while(run.workers())}"


def preempt_one_rank(run: Run) -> str | None:
    return _signal(run.worker(), signal.SIGTERM)


def kill_inside_a_save(run: Run) -> str | None:
    """While a checkpoint's folder still has its unfinished name, or no manifest yet."""
    for _ in _looks():
        checkpoints = run.folder / "checkpoints"
        names = [entry for entry in _entries(checkpoints) if entry.is_dir()]
        if any("tmp" in entry.name or (entry.name.isdecimal() and not (entry / MANIFEST).exists()) for entry in names):
            return _signal(run.worker(), signal.SIGKILL, " inside a save")
    return None


def truncate_the_newest_checkpoint(run: Run) -> str | None:
    """And kill a worker, so that someone reads it."""
    for _ in _looks():
        steps = [
            step for step in checkpoint_steps(run.folder) if (run.folder / f"checkpoints/{step}/{MANIFEST}").exists()
        ]
        if len(steps) > 1:
            newest = run.folder / "checkpoints" / str(steps[-1])
            with contextlib.suppress(OSError, ValueError):
                array = max(
                    (path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
                )
                os.truncate(array, array.stat().st_size // 2)
                _signal(run.worker(), signal.SIGKILL)
                return f"step {steps[-1]}: {array.name[:12]} truncated, SIGKILL to a worker"
    return None


def no_checkpoint_folder_for_a_while(run: Run) -> str | None:
    """Nothing can be written where checkpoints go: for root too, since a file is in its place."""
    checkpoints, away = run.folder / "checkpoints", run.folder / "checkpoints.away"
    if not checkpoints.is_dir():
        return None
    checkpoints.rename(away)
    checkpoints.write_text("not a folder")
    time.sleep(3.0)
    checkpoints.unlink()
    away.rename(checkpoints)
    return "no checkpoint folder for 3 s"


def stall_a_loader(run: Run) -> str | None:
    return _to_the_loader(run, signal.SIGSTOP)


def kill_a_loader(run: Run) -> str | None:
    return _to_the_loader(run, signal.SIGKILL)


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        *(kill_a_worker, kill_rank_0, kill_the_supervisor, stop_a_worker, ask_to_stop, preempt_one_rank),
        *(kill_inside_a_save, truncate_the_newest_checkpoint, no_checkpoint_folder_for_a_while, stall_a_loader),
        kill_a_loader,
    )
}


def _to_the_loader(run: Run, number: signal.Signals) -> str | None:
    beat = run.worker()
    loaders = run.loaders_of(beat) if beat else []
    for pid in loaders:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return f"{number.name} to the loader of rank {beat.rank}, step {beat.step}" if beat and loaders else None


def _while(workers: list[Beat]) -> str:
    return ", " + ("; ".join(f"rank {beat.rank} in phase {beat.phase}" for beat in workers) or "no worker running")


def _signal(beat: Beat | None, number: int, where: str = "") -> str | None:
    if beat is None:
        return None
    try:
        os.kill(beat.pid, number)
    except ProcessLookupError:
        return None
    return f"{signal.Signals(number).name} to rank {beat.rank} in phase {beat.phase}, step {beat.step}{where}"


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def _looks() -> Iterator[None]:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        yield
        time.sleep(LOOK_S)
