"""What the commands start: `python -m sharder.worker <command> <run folder>` reads the config there and runs it.

Nothing slow is imported at the top: data worker processes import this file again, and bad data is refused before jax.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from sharder.errors import EXIT_USER_ERROR, UserError

INTERRUPTED = 130

log = logging.getLogger(__name__)


def train(folder: Path) -> None:
    from sharder.data.dataset import open_dataset
    from sharder.run_folder import load_config

    data = open_dataset(load_config(folder))

    from sharder.training import loop

    loop.use_compilation_cache()
    loop.train(data, folder)


def evaluate(folder: Path) -> None:
    from sharder.run_folder import load_config, write_atomically

    config = load_config(folder)

    from sharder.training import loop, scoring

    loop.use_compilation_cache()
    result = scoring.score(config, folder)
    write_atomically(folder / "evaluation.json", json.dumps(result, indent=2) + "\n")
    log.info(f"written: {folder / 'evaluation.json'}")


def convert(folder: Path) -> None:
    from sharder.run_folder import load_config

    config = load_config(folder)

    from sharder.training import export

    export.to_openpi_layout(config, folder)


COMMANDS = {"train": train, "evaluate": evaluate, "convert": convert}


def main(command: str, folder: Path) -> int:
    _set_up_logging()
    try:
        COMMANDS[command](folder)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        return INTERRUPTED
    return 0


def _set_up_logging() -> None:
    """Our own lines as they are; of other libraries only what is wrong."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    ours = logging.getLogger("sharder")
    ours.setLevel(logging.INFO)
    ours.addHandler(handler)
    ours.propagate = False
    logging.getLogger("absl").setLevel(logging.ERROR)


if __name__ == "__main__":
    from sharder.supervise.workers import die_with_parent

    die_with_parent()
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
