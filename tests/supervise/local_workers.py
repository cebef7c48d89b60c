"""Runs a script as the workers of a local run, for tests of what is made of them."""

import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from scripted import WAITING, command_started, run_as_workers

from sharder.config import Config
from sharder.supervise import local

# What every script here begins with: `rank`, `folder`, and a way to wait for one another.
COMMON = (
    """
import json, os, pathlib, signal, subprocess, sys, time
rank, folder = int(os.environ["JAX_PROCESS_ID"]), pathlib.Path(sys.argv[2])
"""
    + WAITING
    + """
def ended_and_noticed(rank):  # when its parent has asked for its exit code, and had time to write that down
    pid = wait_for(f"pid-{rank}")
    wait_until(lambda: not pathlib.Path("/proc", pid).exists())
    time.sleep(0.3)
tell(f"pid-{rank}", str(os.getpid()))
"""
)


def of(processes: int = 2) -> Config:
    config = Config()
    config.launch.name = "local"
    config.launch.processes = processes
    config.mesh.fsdp = 2 * processes
    return config


def run(monkeypatch: pytest.MonkeyPatch, script: str, folder: Path, config: Config | None = None) -> int:
    return run_as_workers(monkeypatch, local.run_local, COMMON + script, folder, config or of())


def log(folder: Path, rank: int) -> list[str]:
    return (folder / "logs" / f"worker-{rank}.log").read_text(errors="replace").splitlines()


COMMAND = """
import os, sys
from pathlib import Path
from sharder.config import Config
from sharder.supervise import local, workers
workers.worker_command = lambda command, folder: [sys.executable, "-c", {worker!r}, command, str(folder)]
folder, config = Path(sys.argv[1]), Config()
config.launch.name, config.launch.processes, config.mesh.fsdp = "local", 2, 2
lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
try:
    sys.exit(local.run_local("train", folder, config, lock))
finally:
    (folder / "unwound").touch()
"""


def started(script: str, folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A command whose two workers run the script, and that ends with the test however that ends."""
    worker = "from sharder.supervise.workers import die_with_parent; die_with_parent()\n" + COMMON + script
    return command_started(COMMAND.format(worker=worker), folder)
