"""The process in which W&B runs. It reads metrics.jsonl as the training appends to it, and records every row.

    argument  for wandb.init, and what else it has to know; a JSON object
    stdin     its end says that no more rows will come
    stdout    text for the user, a line each

Row n of metrics.jsonl, of all attempts together, is W&B's own step n. That number never goes back, so W&B drops no row
of a step that was done again; what its charts count is `step`.

W&B keeps the newest rows in memory: when it is killed they are lost. So what is recorded starts, not where this attempt
starts, but where W&B ends: online the server knows, offline wandb/recorded.json tells how many rows are in files that
were properly finished.

Started by wandb_sink.py. It has no terminal, so W&B cannot ask for an account; without a key, or without an answer from
the server, the run is recorded offline.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn, TextIO

from sharder.run_folder import write_atomically
from sharder.tracking.metrics import METRICS, follow
from sharder.tracking.wandb_sink import children, command

FINISH_SECONDS = 60  # after the last row: then it ends, whatever W&B is waiting for
LOOK_SECONDS = 0.5  # between two looks for new rows
RECORDED = Path("wandb/recorded.json")  # in the run folder


def main(about: dict[str, Any], told: TextIO, notices: TextIO) -> None:
    folder, rows_before = Path(about["dir"]), about["rows_before"]
    run = _start(about, notices)
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    first = recorded_rows(folder) if run.offline else min(run.starting_step, rows_before)
    later = max(run.starting_step, first) - first  # not 0 when the server has rows of a folder that is no more
    rows = 0
    for row in follow(folder / METRICS, ended=lambda: _has_ended(told)):
        if rows >= first:
            run.log(row, step=rows + later, commit=True)
        rows += 1
    signal.alarm(FINISH_SECONDS)
    _log_breakdown(run, folder / "profile")
    run.finish()
    write_atomically(folder / RECORDED, json.dumps({"rows": rows}) + "\n")


def _log_breakdown(run: Any, folder: Path) -> None:
    """The table and the figure of a profiled window, if there is one."""
    import wandb

    with contextlib.suppress(OSError, ValueError, KeyError):
        rows = json.loads((folder / "breakdown.json").read_text())["rows"]
        columns = list(rows[0])
        table = wandb.Table(columns=columns, data=[[row[column] for column in columns] for row in rows])
        run.log({"breakdown": table, "breakdown_figure": wandb.Image(str(folder / "breakdown.png"))})


def _start(about: dict[str, Any], notices: TextIO) -> Any:
    environment = dict(os.environ)  # W&B adds to it where its service is
    import wandb

    arguments = {name: about[name] for name in ("project", "id", "name", "group", "dir", "config", "mode")}
    settings = wandb.Settings(console="off", silent=True, init_timeout=about["init_timeout_s"])
    online = about["mode"] == "online"
    try:
        # W&B takes `resume` for a mistake where there is no server to resume from.
        return wandb.init(**arguments, settings=settings, resume="allow" if online else None)
    except wandb.Error as error:
        if not online:
            raise
        reason = " ".join(str(error).split())
    print(f"W&B cannot be reached ({reason}): recording offline; `wandb sync` sends it later", file=notices, flush=True)
    _start_over({**about, "mode": "offline"}, notices, environment)


def _start_over(about: dict[str, Any], notices: TextIO, environment: dict[str, str]) -> NoReturn:
    """As the same process, but with nothing of W&B in it: its service says for ever that the run's id is in use."""
    for service in children(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(service, signal.SIGKILL)
    os.dup2(notices.fileno(), 1)
    os.execve(sys.executable, command(about), environment)


def recorded_rows(folder: Path) -> int:
    """So many rows of metrics.jsonl, from its beginning, are in W&B's files or on its server for good."""
    try:
        return int(json.loads((folder / RECORDED).read_text())["rows"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _has_ended(told: TextIO) -> bool:
    return bool(select.select([told], [], [], LOOK_SECONDS)[0])


if __name__ == "__main__":
    # W&B and its service may print what they like, to stderr; stdout is ours.
    notices = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        main(json.loads(sys.argv[1]), sys.stdin, notices)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # all is recorded; W&B's exit handlers would wait for its service, and that for a server
