"""Hears requests to stop from the first moment on: importing this does it, so import it before anything slow.

The first process of a container gets no signal that it has no handler for, and Kubernetes and Slurm tell only that one.
Nothing has been started yet, so there is nothing to pass on and nothing to lose.
"""

import os
import signal

from sharder.errors import RESUME
from sharder.stop_signals import heard


def _leave(number: int, frame: object) -> None:
    os._exit(RESUME)


for _number in heard():
    if _number != signal.SIGINT:  # Ctrl-C has Python's own
        signal.signal(_number, _leave)
