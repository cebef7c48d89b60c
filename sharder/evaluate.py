"""Rolls a checkpoint out closed-loop: `resume=<run folder>[@step]`; its model and data come with it."""

import sys
from functools import partial

import sharder.early  # noqa: F401 (importing it does it)
from sharder.usage import answer_help

if __name__ == "__main__":
    answer_help("evaluate")

    from sharder.compose import main
    from sharder.supervise.local import run_launched

    sys.exit(main("evaluate", partial(run_launched, "evaluate")))
