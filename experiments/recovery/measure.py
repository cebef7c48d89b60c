"""Runs `experiment=recovery` and kills its workers, kill -9, at times that nobody can foresee.

    python experiments/recovery/measure.py [mean_s=30] [seed=0] [key=value ...]

mean_s: mean of the time between two kills, which is drawn from an exponential distribution, so that a worker that has
lived long is no safer than a new one. What is killed is drawn too. Then the table and the figure are made.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

COMMAND = [sys.executable, "-m", "sharder.train", "experiment=recovery", "tracking=off"]
WORKER = "sharder/worker.py"


def main(argv: Sequence[str]) -> int:
    told = dict(text.split("=", 1) for text in argv)
    mean_s, draw = float(told.pop("mean_s", 30.0)), random.Random(int(told.pop("seed", 0)))
    rest = [f"{key}={value}" for key, value in told.items()]
    sweep = subprocess.Popen([*COMMAND, *rest])
    kills = 0
    try:
        while sweep.poll() is None:
            until = time.monotonic() + draw.expovariate(1 / mean_s)
            while sweep.poll() is None and time.monotonic() < until:
                time.sleep(0.1)
            if sweep.poll() is None and (workers := workers_below(sweep.pid)):
                kill(draw.choice(workers))
                kills += 1
    finally:
        if sweep.poll() is None:
            sweep.send_signal(signal.SIGTERM)
            sweep.wait()
    print(f"killed {kills} workers, one in {mean_s:g} s on average")
    root = [f"run.root={told['run.root']}"] if "run.root" in told else []
    report = [sys.executable, "-m", "sharder.report", "experiment=recovery", *root]
    return sweep.returncode or subprocess.run(report, check=False).returncode


def workers_below(ancestor: int) -> list[int]:
    """Training processes that `ancestor` started, or what it started."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            status = (entry / "stat").read_text()
            commands[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:  # ended meanwhile
            continue
        parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])

    def is_below(process: int) -> bool:
        while process in parents:
            process = parents[process]
            if process == ancestor:
                return True
        return False

    found = [one for one, command in commands.items() if is_worker(command) and is_below(one)]
    return sorted(one for one in found if not is_worker(commands.get(parents[one], "")))  # not those that read data


def is_worker(command: str) -> bool:
    return "sharder.worker" in command or WORKER in command


def kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended by itself
        os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
