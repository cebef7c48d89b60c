"""Lists a run and its checkpoints: `resume=<run folder>[@step]`. Needs no device, imports no jax, changes nothing.

This folder has no __init__.py on purpose. A regular module or package named inspect would stand in for the standard
library's wherever sharder/ itself is on sys.path: `python sharder/train.py`, a debugger, a shell in that folder.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from rich.console import Console

from sharder.errors import UserError, ended
from sharder.inspect.checkpoints import bytes_on_disk
from sharder.inspect.listing import check_run, human_bytes, listing
from sharder.run_folder import Resume, parse_resume
from sharder.table import print_table

USAGE = """Lists a run and its checkpoints, from the files alone: no device, no jax, whatever mesh wrote them.

python -m sharder.inspect resume=<run folder>          the run, every checkpoint, what else lies there, its attempts
python -m sharder.inspect resume=<run folder>@<step>   one checkpoint, and the path, shape and dtype of its arrays

Every file of a checkpoint is read and held against its manifest: its size and its checksum.
Nothing is written or moved; a run may go on meanwhile."""
ALLOWED = "allowed: resume=<run folder>[@step], --help"


def main(argv: Sequence[str], console: Console | None = None) -> int:
    """Returns the exit code: 0 when there was a run to list, whatever the state of its checkpoints."""
    return ended(lambda: _main(argv, console or Console()))


def _main(argv: Sequence[str], console: Console) -> int:
    if {"-h", "--help"} & set(argv):
        print(USAGE)
        return 0
    resume = _resume(argv)
    check_run(resume)
    with _reading(resume, console):
        tables = list(listing(resume))
    for table in tables:
        print_table(table, console)
    return 0


def _resume(argv: Sequence[str]) -> Resume:
    """An override as the other commands take it; quotes of its own, which they need around commas, are allowed."""
    for text in argv:
        if not text.startswith("resume="):
            raise UserError(f"found {text!r}, {ALLOWED}; leave it out")
    if len(argv) != 1:
        raise UserError(f"resume: found {len(argv)} of them, {ALLOWED}; name one run")
    value = argv[0].removeprefix("resume=")
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return parse_resume(value)


def _reading(resume: Resume, console: Console) -> contextlib.AbstractContextManager[object]:
    """What there is to wait for, where someone watches: every byte is read."""
    if not console.is_terminal:
        return contextlib.nullcontext()
    assert resume.folder is not None
    return console.status(f"reading {human_bytes(bytes_on_disk(resume.folder, resume.step))} of checkpoints")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
