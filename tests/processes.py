"""Real runs of several processes on this machine, for tests: started by the command, as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from sharder.tracking.ledger import read_ledger
from sharder.tracking.metrics import read_metrics

ROOT = Path(__file__).parents[1]  # the installed sharder may be another one
TIMEOUT_S = 600  # a hang is a failure, not a wait
QUICK = ("tracking=off", "hardware=cpu", "evaluation.at_start=false", "evaluation.at_end=false", "data.workers=0")
MICRO = ("model=pi0_micro", "data.planar_arm.episodes=12", "train.batch_size=8", "train.log_every=1", *QUICK)


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", **extra}


def command(*overrides: str, program: str | None = None) -> list[str]:
    """`program`: Python to run in place of every worker; it calls `worker()` when it has changed what it will."""
    if program is None:
        return [sys.executable, "-m", "sharder.train", *overrides]
    parent = f"""
import sys
from functools import partial
from sharder import compose
from sharder.supervise import workers
from sharder.supervise.local import run_launched
program = {PREAMBLE + program!r}
workers.worker_command = lambda command, folder: [sys.executable, "-c", program, command, str(folder)]
sys.exit(compose.main("train", partial(run_launched, "train"), sys.argv[1:]))
"""
    return [sys.executable, "-c", parent, *overrides]


PREAMBLE = """
import os, sys, time
from pathlib import Path
RANK = int(os.environ["JAX_PROCESS_ID"])
def worker():
    from sharder import worker
    from sharder.supervise.workers import die_with_parent
    die_with_parent()
    sys.exit(worker.main(sys.argv[1], Path(sys.argv[2])))
"""


def run(where: Path, *overrides: str, program: str | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*overrides, program=program),
        cwd=where, env=environment(**extra), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def start(where: Path, *overrides: str, **extra: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*overrides),
        cwd=where, env=environment(**extra), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def losses(folder: Path) -> list[tuple[float, float]]:
    """(loss, gradient norm) of every step, as the last attempt at it found them."""
    return [(row["loss"], row["grad_norm"]) for row in read_metrics(folder / "metrics.jsonl") if "loss" in row]


def ledger(folder: Path) -> dict[int, list[int]]:
    return read_ledger(sorted(folder.glob("ledger-*.jsonl")))


def supervised(folder: Path, event: str) -> list[dict[str, Any]]:
    """What the supervisor wrote down of these events."""
    lines = (folder / "supervisor.jsonl").read_text().splitlines()
    return [told for told in map(json.loads, lines) if told["event"] == event]


def saved(folder: Path, step: int) -> dict[str, np.ndarray]:
    """Every array of a checkpoint, whole, by item and path."""
    arrays = {}
    for item in ("trainable", "frozen", "optimizer", "ema"):
        path = (folder / "checkpoints" / str(step) / item).absolute()
        if not path.is_dir():
            continue
        with ocp.PyTreeCheckpointer() as reader:
            tree = reader.metadata(path).item_metadata.tree
            whole = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            found = reader.restore(path, restore_args=whole)
        arrays |= {item + jax.tree_util.keystr(k): v for k, v in jax.tree_util.tree_leaves_with_path(found)}
    return arrays
