"""The process in which W&B runs: reads what to record from stdin, and says on stdout what went wrong.

    stdin   1st line  arguments of wandb.init, and how long it may take; a JSON object, like the others
            others    rows to log
    stdout  text for the user, a line each

Started by wandb_sink.py. It has no terminal, so W&B cannot ask for an account; without a key, or without an answer from
the server, the run is recorded offline.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, TextIO

from sharder.tracking.metrics import from_json

FINISH_SECONDS = 60  # after the last row: then it ends, whatever W&B is waiting for


def main(told: TextIO, notices: TextIO) -> None:
    import wandb

    about: dict[str, Any] = json.loads(told.readline())
    settings = wandb.Settings(console="off", silent=True, init_timeout=about.pop("init_timeout_s"))
    mode = about.pop("mode")
    try:
        # W&B takes `resume` for a mistake where there is no server to resume from.
        run = wandb.init(**about, mode=mode, settings=settings, resume="allow" if mode == "online" else None)
    except wandb.Error as error:
        if mode != "online":
            raise
        reason = " ".join(str(error).split())
        print(
            f"W&B cannot be reached ({reason}): recording offline; `wandb sync` sends it later",
            file=notices,
            flush=True,
        )
        run = wandb.init(**about, mode="offline", settings=settings)
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    for line in told:
        run.log(from_json(line))
    signal.alarm(FINISH_SECONDS)
    run.finish()


if __name__ == "__main__":
    # W&B and its service may print what they like, to stderr; stdout is ours.
    notices = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(sys.stdin, notices)
