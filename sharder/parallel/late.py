"""Saying so when something takes long: a wait is never silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def said_when_late(what: str, late_after_s: float, say: Callable[[str], None]) -> Iterator[None]:
    """While the block runs: `what` and the seconds so far are said every `late_after_s` seconds."""
    over, started = threading.Event(), time.monotonic()

    def watch() -> None:
        while not over.wait(late_after_s):
            say(f"{what} (for {time.monotonic() - started:.0f} s)")

    watcher = threading.Thread(target=watch, name="late", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
