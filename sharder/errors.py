"""How a command or a worker ends: what it says, and its exit code."""

import sys
from collections.abc import Callable

CRASHED = 1
EXIT_USER_ERROR = 2
RESUME = 75  # exit code of a run that was told to stop and has saved: start it again and it goes on
INTERRUPTED = 130  # exit code after Ctrl-C where nothing was saved: nobody means to go on


class UserError(Exception):
    """Something only the user can put right: shown as one line, exit code 2, no traceback.

    The message names the key or file, what was found, what is allowed, and the fix.
    """

    def __str__(self) -> str:
        return " ".join(str(self.args[0]).split()) if self.args else ""


class Fault(Exception):
    """Something went wrong that is nobody's mistake, a peer that is late or gone: one line, exit code 1, and whoever
    watches over the run may try again."""

    __str__ = UserError.__str__


class Stopped(Exception):
    """The run was told to stop, has saved what there is to save, and ends with exit code `code`."""

    def __init__(self, said: str, code: int = RESUME) -> None:
        super().__init__(said)
        self.code = code


def ended(command: Callable[[], int]) -> int:
    """The exit code of what runs in a terminal: its own, or that of what the user has to put right, said in a line."""
    try:
        return command()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
