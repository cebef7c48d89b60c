"""A request to stop is heard before anything of weight is imported: Kubernetes tells only the first process, once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize("command", ["train", "evaluate", "convert"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
def test_a_request_at_the_very_start(tmp_path: Path, command: str, number: signal.Signals) -> None:
    """As soon as there is a handler, hundreds of milliseconds before Hydra is there."""
    started = subprocess.Popen(
        [sys.executable, "-m", f"sharder.{command}", "data.workers=0"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    while not hears(started.pid, number):
        assert started.poll() is None
        time.sleep(0.001)
    os.kill(started.pid, number)
    said, _ = started.communicate(timeout=60)
    assert started.returncode == 75, said
    assert said == ""
    assert not list(tmp_path.iterdir())


def hears(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (number - 1) & 1)
