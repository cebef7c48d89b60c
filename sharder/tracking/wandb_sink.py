"""W&B, in a process of its own: whatever it does, it cannot delay a step, end the training or keep it from ending.

That process reads metrics.jsonl by itself (wandb_child.py): nothing waits here for W&B to take it, so nothing piles up
and nothing is dropped when W&B is slow. One that fails is reported once and forgotten. At the end of the training it
gets a while to finish, and is then killed; what it has not recorded, the next attempt in the run folder records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sharder.config import Config
from sharder.tracking.wandb_about import about_run

LONGEST_ID = 64  # characters W&B allows
LAST_WORDS = 4096  # bytes of its log in which the reason of a failure is looked for
KILLED_S = 5.0  # for a killed process to be gone; one inside a dead file system may never be


@dataclasses.dataclass(frozen=True)
class Limits:
    init_s: float = 30.0  # for the server to answer; then the run is recorded offline
    close_s: float = 45.0  # for the last rows to be recorded: the end of a run is delayed by no more
    hurried_close_s: float = 5.0  # the same when the training was stopped or has failed; of launch.grace_s, say


class WandbSink:
    def __init__(
        self,
        config: Config,
        folder: Path,
        rows_before: int,
        warn: Callable[[str], None],
        limits: Limits | None = None,
    ) -> None:
        """`rows_before`: in metrics.jsonl, from earlier attempts."""
        self._warn = warn
        self._limits = limits or Limits()
        self._log = folder / "wandb" / "sharder.log"
        self._log_start = 0  # bytes of earlier attempts
        self._child: subprocess.Popen[bytes] | None = None
        about = {
            **about_run(config, folder),
            "project": config.tracking.project,
            "id": run_id(folder),
            "name": folder.name,
            "dir": str(folder),
            "mode": config.tracking.mode,
            "init_timeout_s": self._limits.init_s,
            "rows_before": rows_before,
        }
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with open(self._log, "ab") as log:
                self._log_start = log.tell()
                self._child = subprocess.Popen(
                    command(about),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    process_group=0,  # a Ctrl-C is for the training, which then closes this
                )
        except OSError as error:
            self._give_up(str(error))
            return
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)

    def log(self, row: Mapping[str, Any]) -> None:
        """The row is in metrics.jsonl, where W&B's process finds it."""
        self._check()

    def message(self, text: str) -> None:
        """Text goes to the terminal."""

    def close(self, hurry: bool = False) -> None:
        self._check()
        if self._child is None:
            return
        within_s = self._limits.hurried_close_s if hurry else self._limits.close_s
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(within_s)
        except subprocess.TimeoutExpired:
            self._check()
            self._give_up(f"not finished {within_s:g} s after the last row")
            return
        self._check(closed=True)
        self._end()

    def _check(self, closed: bool = False) -> None:
        """Passes on what the child has to say, and gives it up when it has ended too early or with an error."""
        if self._child is None:
            return
        returned = self._child.poll()
        assert self._child.stdout is not None
        for line in (self._child.stdout.read() or b"").decode(errors="replace").splitlines():
            self._warn(line)
        if returned is None or (closed and returned == 0):
            return
        if returned < 0:
            self._give_up(f"ended by a signal: {signal.strsignal(-returned)}")
        else:
            self._give_up(self._last_words() or f"exit code {returned}")

    def _last_words(self) -> str:
        """The last line of this attempt in the log, where Python writes what an exception was about."""
        with contextlib.suppress(OSError), open(self._log, "rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - LAST_WORDS))
            lines = log.read().decode(errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""

    def _give_up(self, reason: str) -> None:
        self._warn(
            f"W&B is off for the rest of this run ({reason}); training and metrics.jsonl go on, and the next start of "
            f"this run.id records what W&B lacks; see {self._log}"
        )
        self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.returncode is None:
            for process in (child.pid, *children(child.pid)):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(KILLED_S)
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


def command(about: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-m", "sharder.tracking.wandb_child", json.dumps(about)]


def children(process: int) -> list[int]:
    """W&B's service is one, in a session of its own. It ends when its parent has, unless it is stopped or stuck. None
    are found where there is no /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            if int(stat.read_text(errors="replace").rpartition(")")[2].split()[1]) == process:
                found.append(int(stat.parent.name))
    return found


def run_id(folder: Path) -> str:
    """The same for every attempt in a folder, and another for every other folder."""
    digest = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{folder.parent.name}-{folder.name}")
    return f"{name[: LONGEST_ID - 9]}-{digest}"
