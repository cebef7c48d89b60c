"""Trains: composes and checks the run, makes its folder, starts its worker. `--help` lists what can be set."""

import sys
from functools import partial

import sharder.early  # noqa: F401 (importing it does it)
from sharder.compose import main
from sharder.supervise.local import run_launched

if __name__ == "__main__":
    sys.exit(main("train", partial(run_launched, "train")))
