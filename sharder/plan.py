"""Compiles a training run for hardware that is not here. `--help` lists what can be set: all that train takes."""

import os
import sys
from pathlib import Path

import sharder.early  # noqa: F401 (importing it does it)
from sharder.config import Config
from sharder.errors import EXIT_USER_ERROR, UserError
from sharder.parallel.environment import planning_environment
from sharder.predict.available import check_target
from sharder.supervise.workers import run_inline
from sharder.usage import answer_help


def run_plan(folder: Path, config: Config, lock: int) -> int:
    """One worker, which only compiles, however the run itself would be launched."""
    try:
        check_target(config)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    os.environ.update(planning_environment(os.environ))
    return run_inline("plan", folder, config, lock)


if __name__ == "__main__":
    answer_help("plan")

    from sharder.compose import main

    sys.exit(main("plan", run_plan))
