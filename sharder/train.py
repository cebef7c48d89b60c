"""Trains: composes and checks the run, makes its folder, starts its worker. `--help` lists what can be set."""

import sys
from functools import partial

import sharder.early  # noqa: F401 (importing it does it)
from sharder.usage import answer_help

if __name__ == "__main__":
    answer_help("train")

    from sharder.compose import main
    from sharder.supervise.local import run_launched

    sys.exit(main("train", partial(run_launched, "train")))
