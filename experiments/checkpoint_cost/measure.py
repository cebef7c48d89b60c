"""What saving costs a run: the same training twice, with a checkpoint every 50 steps and with one at its end only.

    python experiments/checkpoint_cost/measure.py [Hydra overrides for both]

Writes measured.csv here: see README.md.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sharder.provenance import environment
from sharder.table import write_csv
from sharder.tracking.metrics import METRICS, read_metrics

HERE = Path(__file__).parent
STEPS, EVERY = 150, 50  # the last of them is saved anyway
RUN = (
    *("model=pi0_small", "train.batch_size=1", f"train.steps={STEPS}", "train.log_every=10", "tracking=off"),
    *("hardware=cpu", "evaluation.at_start=false", "evaluation.at_end=false"),
)
SAID = re.compile(r"saved (\d+) times: training stood still for ([\d.]+) of the ([\d.]+) s it took")
STATE = re.compile(r"state ([\d,.]+) MB")


def measure(where: Path, every: int, overrides: list[str]) -> dict[str, str]:
    run_id = f"every-{every}"
    command = [sys.executable, "-m", "sharder.train", *RUN, f"checkpoint.every_steps={every}", f"run.id={run_id}"]
    done = subprocess.run([*command, *overrides], cwd=where, capture_output=True, text=True, check=False)
    said, state = SAID.search(done.stdout), STATE.search(done.stdout)
    if done.returncode or said is None or state is None:
        sys.exit(done.stdout + done.stderr)
    folder = where / "outputs/train" / run_id
    rows = [row for row in read_metrics(folder / METRICS) if row.get("step_ms")]
    saves, stalled_s, saving_s = int(said[1]), float(said[2]), float(said[3])
    newest = max((folder / "checkpoints").iterdir(), key=lambda step: step.stat().st_mtime)
    on_disk = sum(file.stat().st_size for file in newest.rglob("*") if file.is_file())
    before = [row["host_peak_mb"] for row in rows if row["step"] <= EVERY]
    return {
        "kind": "measured",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "jax": environment({})["versions"]["jax"],
        "checkpoint.every_steps": str(every),
        "state_mb": state[1],
        "checkpoint_mb": f"{on_disk / 1e6:.0f}",
        "saves": str(saves),
        "stalled_s": f"{stalled_s:.2f}",
        "saving_s": f"{saving_s:.2f}",
        "stalled_share": f"{stalled_s / saving_s:.3f}",
        "peak_resident_mb_before_the_first_save": f"{max(before):.0f}",
        "peak_resident_mb": f"{max(row['host_peak_mb'] for row in rows):.0f}",
        "step_ms_median": f"{sorted(row['step_ms'] for row in rows)[len(rows) // 2]:.0f}",
    }


def main(overrides: list[str]) -> None:
    with tempfile.TemporaryDirectory() as where:
        rows = [measure(Path(where), every, overrides) for every in (EVERY, STEPS)]
    write_csv(HERE / "measured.csv", rows)
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
