"""What a second start costs: the same training twice with an empty compile cache before it, and then gone on with.

    python experiments/start_up/measure.py [Hydra overrides for all]

Writes measured.csv here: see README.md.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sharder.provenance import environment
from sharder.table import write_csv

HERE = Path(__file__).parent
STEPS = 2
RUN = (
    *("model=pi0_micro", "hardware=cpu", "tracking=off", "data.planar_arm.episodes=20", "evaluation.at_end=false"),
    *(f"train.steps={STEPS}", "checkpoint.every_steps=1", "evaluation.episodes=4", "evaluation.max_steps=10"),
)
FIRST_STEP = re.compile(r"first step ([\d.]+) s after the start: (.*)")
PROGRAMS = re.compile(
    r"programs: (\d+) from the compile cache in ([\d.]+) s, (\d+) compiled and kept there in ([\d.]+) s, "
    r"(\d+) only compiled in ([\d.]+) s"
)
HELP_TIMES = 5  # the least of them is told: other work can only make it longer


def start(where: Path, what: str, overrides: list[str]) -> dict[str, str]:
    """One run of the command up to its end, by what its log says of the start."""
    command = [sys.executable, "-m", "sharder.train", *RUN, *overrides]
    cache = {"XDG_CACHE_HOME": str(where / "cache")}
    done = subprocess.run(command, cwd=where, env={**os.environ, **cache}, capture_output=True, text=True, check=False)
    said, programs = FIRST_STEP.search(done.stdout), PROGRAMS.search(done.stdout)
    if done.returncode or said is None or programs is None:
        sys.exit(done.stdout + done.stderr)
    read, read_s, kept, kept_s, rest, rest_s = programs.groups()
    return {
        "kind": "measured",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "jax": environment({})["versions"]["jax"],
        "start": what,
        "to_first_step_s": said[1],
        "programs_read": read,
        "programs_compiled_and_kept": kept,
        "programs_only_compiled": rest,
        "compile_s": f"{float(read_s) + float(kept_s) + float(rest_s):.2f}",
        "parts_s": said[2].replace(",", ";"),
    }


def help_cpu_s() -> float:
    """CPU seconds of `python -m sharder.train --help`, user and system."""
    seconds = []
    for _ in range(HELP_TIMES):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "sharder.train", "--help"], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


def main(overrides: list[str]) -> None:
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        # The demonstrations are recorded and the frames decoded by a run of its own, whose programs are thrown away.
        start(folder, "data only", ["run.id=data", *overrides])
        for file in (folder / "cache/sharder/xla").iterdir():
            file.unlink()
        rows = [start(folder, "first", ["run.id=a", *overrides])]
        rows.append(start(folder, "second", ["run.id=b", *overrides]))
        shutil.rmtree(folder / f"outputs/train/b/checkpoints/{STEPS}")  # as if it had been stopped before
        rows.append(start(folder, "restart", ["run.id=b", *overrides]))
    for row in rows:
        row["compile_ratio"] = f"{float(row['compile_s']) / float(rows[0]['compile_s']):.3f}"
    write_csv(HERE / "measured.csv", rows)
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    print(f"--help: {help_cpu_s():.3f} s of CPU, the least of {HELP_TIMES}")


if __name__ == "__main__":
    main(sys.argv[1:])
