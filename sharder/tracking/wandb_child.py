"""The process in which W&B runs. It reads metrics.jsonl as the training appends to it, and records every row.

    argument  for wandb.init, and what else it has to know; a JSON object
    stdin     its end says that no more rows will come
    stdout    text for the user, a line each

Row n of metrics.jsonl, of all attempts together, is W&B's own step n, or a later one after a breakdown, which takes a
step of its own. That number never goes back, so W&B drops no row of a step that was done again; what its charts count
is `step`.

W&B keeps the newest rows in memory: when it is killed they are lost. So what is recorded starts, not where this attempt
starts, but where W&B ends: online the server knows, offline wandb/recorded.json tells how many rows are in files that
were properly finished, and how many of W&B's steps they took.

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
from sharder.tracking.wandb_breakdown import metrics
from sharder.tracking.wandb_sink import children, command

FINISH_SECONDS = 60  # after the last row: then it ends, whatever W&B is waiting for
LOOK_SECONDS = 0.5  # between two looks for new rows
RECORDED = Path("wandb/recorded.json")  # in the run folder


def main(about: dict[str, Any], told: TextIO, notices: TextIO) -> None:
    folder, rows_before = Path(about["dir"]), about["rows_before"]
    run = _start(about, notices)
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    first, step = _where_it_ends(run, folder, rows_before)
    later = step - first
    rows = 0
    for row in follow(folder / METRICS, ended=lambda: _has_ended(told)):
        if rows >= first:
            run.log(row, step=rows + later, commit=True)
        rows += 1
    signal.alarm(FINISH_SECONDS)
    step = rows + later
    if breakdown := _breakdown(folder / "profile"):
        run.log(breakdown, step=step, commit=True)
        step += 1
    run.finish()
    write_atomically(folder / RECORDED, json.dumps({"rows": rows, "steps": step}) + "\n")


def _where_it_ends(run: Any, folder: Path, rows_before: int) -> tuple[int, int]:
    """(the first row that W&B lacks, W&B's step for it). The step is the larger one when W&B has breakdowns, or rows of
    a folder that is no more."""
    rows, steps = recorded(folder)
    if run.offline:
        return rows, steps
    known = rows if steps <= run.starting_step else 0  # 0: the files were never sent
    since = run.starting_step - (steps if known else 0)  # of W&B's steps, each a row
    first = min(known + since, rows_before)
    return first, max(run.starting_step, first)


def _breakdown(folder: Path) -> dict[str, Any]:
    """The table and the figure of a profiled window, and its metrics, if there is one."""
    import wandb

    try:
        told = json.loads((folder / "breakdown.json").read_text())
        rows = told["rows"]
        columns = list(rows[0])
        table = wandb.Table(columns=columns, data=[[row[column] for column in columns] for row in rows])
        return {"breakdown": table, "breakdown_figure": wandb.Image(str(folder / "breakdown.png")), **metrics(told)}
    except (OSError, ValueError, KeyError):
        return {}


def _start(about: dict[str, Any], notices: TextIO) -> Any:
    environment = dict(os.environ)  # W&B adds to it where its service is
    import wandb

    names = ("project", "id", "name", "group", "job_type", "tags", "dir", "config", "mode")
    arguments = {name: about[name] for name in names}
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


def recorded(folder: Path) -> tuple[int, int]:
    """So many rows of metrics.jsonl, from its beginning, are in W&B's files or on its server for good, in so many of
    W&B's steps."""
    try:
        told = json.loads((folder / RECORDED).read_text())
        return int(told["rows"]), int(told.get("steps", told["rows"]))
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0


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
