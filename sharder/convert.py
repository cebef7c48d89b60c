"""Writes a checkpoint as openpi keeps its own: `resume=<run folder>[@step]`. The way back is model.weights=<folder>."""

import sys
from functools import partial

import sharder.early  # noqa: F401 (importing it does it)
from sharder.usage import answer_help

if __name__ == "__main__":
    answer_help("convert")

    from sharder.compose import main
    from sharder.supervise.local import run_launched

    sys.exit(main("convert", partial(run_launched, "convert")))
