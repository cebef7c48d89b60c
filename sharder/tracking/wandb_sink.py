"""W&B, in a process of its own: whatever it does, it cannot delay a step, end the training or keep it from ending.

Rows go through a pipe that is never waited for. A child that fails is reported once and forgotten; one that does not
finish in time is killed. What it printed is in wandb/sharder.log of the run folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sharder.config import Config
from sharder.tracking.metrics import to_json

LARGEST_BACKLOG = 2**24  # bytes of rows kept while W&B does not take them
LONGEST_ID = 64  # characters W&B allows
POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class Limits:
    init_s: float = 30.0  # for the server to answer
    close_s: float = 45.0  # for the last rows to be sent


class WandbSink:
    def __init__(self, config: Config, folder: Path, warn: Callable[[str], None], limits: Limits | None = None) -> None:
        self._warn = warn
        self._limits = limits or Limits()
        self._backlog = bytearray()
        self._log = folder / "wandb" / "sharder.log"
        self._child: subprocess.Popen[bytes] | None = None
        about = {
            "project": config.tracking.project,
            "id": run_id(folder),
            "name": folder.name,
            "group": folder.parent.name,
            "dir": str(folder),
            "config": dataclasses.asdict(config),
            "mode": config.tracking.mode,
            "init_timeout_s": self._limits.init_s,
        }
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with open(self._log, "ab") as log:
                self._child = subprocess.Popen(
                    [sys.executable, "-m", "sharder.tracking.wandb_child"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    process_group=0,  # a Ctrl-C is for the training, which then closes this
                )
        except OSError as error:
            self._give_up(str(error))
            return
        assert self._child.stdin is not None and self._child.stdout is not None
        os.set_blocking(self._child.stdin.fileno(), False)
        os.set_blocking(self._child.stdout.fileno(), False)
        self._send(to_json(about))

    def log(self, row: Mapping[str, Any]) -> None:
        self._send(to_json(row))

    def message(self, text: str) -> None:
        """Text goes to the terminal."""

    def close(self) -> None:
        deadline = time.monotonic() + self._limits.close_s
        while self._child is not None and self._backlog and time.monotonic() < deadline:
            self._send("")
            time.sleep(POLL_SECONDS)
        child = self._child
        if child is None:
            return
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._give_up(f"not finished {self._limits.close_s:g} s after the last row")
            return
        self._check()
        if self._child is not None:
            self._end()

    def _send(self, text: str) -> None:
        """Queues the text and writes as much as the child takes now."""
        self._check()
        if self._child is None:
            return
        assert self._child.stdin is not None
        self._backlog += text.encode()
        try:
            while self._backlog:
                del self._backlog[: os.write(self._child.stdin.fileno(), self._backlog[:65536])]
        except BlockingIOError:
            if len(self._backlog) > LARGEST_BACKLOG:
                self._give_up("it has taken no rows for long")
        except OSError:  # it ended; why is in its log
            self._check(ended=True)

    def _check(self, ended: bool = False) -> None:
        """Passes on what the child has to say, and gives it up when it has failed."""
        if self._child is None:
            return
        assert self._child.stdout is not None
        for line in (self._child.stdout.read() or b"").decode(errors="replace").splitlines():
            self._warn(line)
        if ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(1.0)
        if ended or self._child.poll():
            lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
            self._give_up(lines[-1] if lines else f"exit code {self._child.returncode}")

    def _give_up(self, reason: str) -> None:
        self._warn(f"W&B is off for the rest of this run ({reason}); training and metrics.jsonl go on; see {self._log}")
        self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        self._backlog.clear()
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


def run_id(folder: Path) -> str:
    """The same for every attempt in a folder, and another for every other folder."""
    digest = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{folder.parent.name}-{folder.name}")
    return f"{name[: LONGEST_ID - 9]}-{digest}"
