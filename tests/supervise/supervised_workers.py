"""Runs a script as the workers of a supervised run: fakes without jax that beat, save, fail and hang like real ones."""

import json
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from scripted import WAITING, command_started, run_as_workers

from sharder.config import Config
from sharder.supervise import supervisor

STEPS = 9  # train.steps of every run here

# What every script here begins with: `rank`, `folder`, `attempt` from 1, and what a worker does.
COMMON = (
    """
from sharder.supervise.workers import die_with_parent
die_with_parent()
import faulthandler, json, os, pathlib, signal, subprocess, sys, time
from sharder.run_folder import mark_complete
from sharder.supervise import heartbeat
heartbeat.EVERY_S = 0.02
faulthandler.register(signal.SIGQUIT, all_threads=True)
rank, folder = int(os.environ["JAX_PROCESS_ID"]), pathlib.Path(sys.argv[2])
count = int(os.environ["JAX_NUM_PROCESSES"])
"""
    + WAITING
    + """
attempt = 1
while (folder / f"pid-{rank}-{attempt}").exists():
    attempt += 1
tell(f"pid-{rank}-{attempt}", str(os.getpid()))
beating = heartbeat.Heartbeat(folder, rank, os.environ["SHARDER_ATTEMPT"])
beating.__enter__()
def at(phase, step=None):  # and everyone can see it
    beating.phase(phase, step)
    def seen():
        beat = heartbeat.read_heartbeats(folder).get(rank)
        return beat is not None and (beat.pid, beat.phase) == (os.getpid(), phase) and step in (None, beat.step)
    wait_until(seen)
def saved():
    return max((int(entry.name) for entry in (folder / "checkpoints").glob("*")), default=0)
def save(step):
    (folder / "checkpoints" / str(step)).mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints" / str(step) / "manifest.json").touch()
def peer(other, holds):  # once the other's beat of this attempt says so
    def seen():
        beat = heartbeat.read_heartbeats(folder).get(other)
        return beat is not None and beat.attempt == os.environ["SHARDER_ATTEMPT"] and holds(beat)
    wait_until(seen)
def complete():
    if rank == 0:
        save(9)
        mark_complete(folder, 9)
    sys.exit(0)
"""
)


def of(processes: int = 2, **launch: Any) -> Config:
    """Limits in `launch` end in _s, as they do in the config."""
    config = Config()
    config.train.steps = STEPS
    config.mesh.fsdp = 4
    config.launch.name, config.launch.processes, config.launch.backoff_s = "supervised", processes, 0.01
    for name, value in launch.items():
        setattr(config.launch.limits if hasattr(config.launch.limits, name) else config.launch, name, value)
    return config


def run(monkeypatch: pytest.MonkeyPatch, script: str, folder: Path, config: Config | None = None) -> int:
    monkeypatch.setattr(supervisor, "LOOK_S", 0.05)
    monkeypatch.setattr(supervisor, "QUIET_S", 0.1)
    return run_as_workers(monkeypatch, supervisor.run_supervised, COMMON + script, folder, config or of())


def events(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """Of the kinds, or of all, in order."""
    file = folder / "supervisor.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [event for event in found if not kinds or event["event"] in kinds]


def story(folder: Path) -> list[str]:
    """What happened, less how each worker ended."""
    return [event["event"] for event in events(folder) if event["event"] != "exit"]


COMMAND = """
import os, sys
from pathlib import Path
from sharder.config import Config
from sharder.supervise import supervisor, workers
workers.worker_command = lambda command, folder: [sys.executable, "-c", {worker!r}, command, str(folder)]
supervisor.LOOK_S = 0.05
folder, config = Path(sys.argv[1]), Config()
config.launch.name, config.launch.processes, config.mesh.fsdp, config.train.steps = "supervised", 2, 2, 9
config.launch.grace_s, config.launch.backoff_s = {grace_s}, {backoff_s}
lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
sys.exit(supervisor.run_supervised("train", folder, config, lock))
"""


def started(
    script: str, folder: Path, grace_s: float = 600.0, backoff_s: float = 0.01
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A command whose two workers run the script, and that ends with the test however that ends."""
    text = COMMAND.format(worker=COMMON + script, grace_s=grace_s, backoff_s=backoff_s)
    return command_started(text, folder)
