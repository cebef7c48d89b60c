"""What fakes of workers share: how their scripts wait for one another, and how a test runs them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sharder.config import Config
from sharder.supervise import workers

Launch = Callable[[str, Path, Config, int], int]  # run_local, run_supervised

# For scripts that have `folder`, `time`: files that appear whole, and waiting for them.
WAITING = """
def wait_until(holds):
    while not holds():
        time.sleep(0.02)
def tell(name, text=""):
    (folder / f".{name}").write_text(text)
    (folder / f".{name}").rename(folder / name)
def wait_for(name):
    wait_until((folder / name).exists)
    return (folder / name).read_text()
"""


def run_as_workers(monkeypatch: pytest.MonkeyPatch, launch: Launch, script: str, folder: Path, config: Config) -> int:
    """The exit code of `launch` in this process, with the script as every worker."""
    argv = [sys.executable, "-c", script]
    monkeypatch.setattr(workers, "worker_command", lambda command, folder: [*argv, command, str(folder)])
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        return launch("train", folder, config, lock)
    finally:
        os.close(lock)


@contextlib.contextmanager
def command_started(text: str, folder: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A command of its own, Python `text`, that ends with the test however that ends."""
    argv = [sys.executable, "-c", text, str(folder)]
    command = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    try:
        yield command
    finally:
        command.kill()
        command.communicate()
