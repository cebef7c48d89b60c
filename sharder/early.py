"""Hears requests to stop from the first moment on: importing this does it, so import it before anything slow.

The first process of a container gets no signal that it has no handler for, and Kubernetes and Slurm tell only that one.
Nothing has been started yet, so there is nothing to pass on and nothing to lose.
"""

import os
import signal

from sharder.errors import RESUME

HEARD = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # Ctrl-C has Python's own


def _leave(number: int, frame: object) -> None:
    os._exit(RESUME)


for _number in HEARD:
    if _number != signal.SIGHUP or signal.getsignal(_number) != signal.SIG_IGN:  # nohup's wish is respected
        signal.signal(_number, _leave)
