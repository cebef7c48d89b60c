"""Runs a script as the workers of a local run, for tests of what is made of them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharder.config import Config
from sharder.supervise import local, workers

# What every script here begins with: `rank`, `folder`, and a way to wait for one another.
COMMON = """
import json, os, pathlib, signal, subprocess, sys, time
rank, folder = int(os.environ["JAX_PROCESS_ID"]), pathlib.Path(sys.argv[2])
def wait_until(holds):
    while not holds():
        time.sleep(0.02)
def tell(name, text=""):
    (folder / f".{name}").write_text(text)
    (folder / f".{name}").rename(folder / name)
def wait_for(name):
    wait_until((folder / name).exists)
    return (folder / name).read_text()
def ended_and_noticed(rank):  # when its parent has asked for its exit code, and had time to write that down
    pid = wait_for(f"pid-{rank}")
    wait_until(lambda: not pathlib.Path("/proc", pid).exists())
    time.sleep(0.3)
tell(f"pid-{rank}", str(os.getpid()))
"""


def of(processes: int = 2) -> Config:
    config = Config()
    config.launch.name = "local"
    config.launch.processes = processes
    config.mesh.fsdp = 2 * processes
    return config


def run(monkeypatch: pytest.MonkeyPatch, script: str, folder: Path, config: Config | None = None) -> int:
    argv = [sys.executable, "-c", COMMON + script]
    monkeypatch.setattr(workers, "worker_command", lambda command, folder: [*argv, command, str(folder)])
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        return local.run_local("train", folder, config or of(), lock)
    finally:
        os.close(lock)


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


@contextlib.contextmanager
def started(script: str, folder: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A command whose two workers run the script, and that ends with the test however that ends."""
    worker = "from sharder.supervise.workers import die_with_parent; die_with_parent()\n" + COMMON + script
    argv = [sys.executable, "-c", COMMAND.format(worker=worker), str(folder)]
    command = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    try:
        yield command
    finally:
        command.kill()
        command.communicate()
