"""What the world knows of a worker, and asks of it: its phase and step in a heartbeat, and requests to stop.

A request (SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, Ctrl-C) is heard in every phase. Where nothing would be lost the worker
leaves at once, even from the middle of a compile: a thread hears the signal, since Python's own handlers wait for the
main thread to come back from C++. Between steps it is the training loop that asks `stop_requested`, agrees with the
other processes on the step to stop at, saves and leaves.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable

from sharder.errors import INTERRUPTED, RESUME
from sharder.stop_signals import STOP_SIGNALS, heard
from sharder.supervise.heartbeat import Heartbeat

AT_ONCE = ("start", "decode", "restore", "compile", "evaluate", "end")  # phases that lose nothing when they are cut off


class Presence:
    """`leave(code)` ends the process; it is called from another thread than the main one."""

    def __init__(self, heartbeat: Heartbeat | None = None, leave: Callable[[int], None] = os._exit) -> None:
        self.heartbeat, self._leave = heartbeat, leave
        self.saved: Callable[[], bool] = lambda: False  # whether there is a checkpoint to go on from
        self._lock = threading.Lock()
        self._phase = "start"
        self._requested: int | None = None

    def phase(self, name: str, step: int | None = None) -> None:
        """What the worker does from now on. A request that came before is answered here, where that loses nothing."""
        with self._lock:
            self._phase = name
            at_once = self._requested if name in AT_ONCE else None
        if self.heartbeat is not None:
            self.heartbeat.phase(name, step)
        if at_once is not None:
            self._leave(self._code(at_once))

    @property
    def stop_requested(self) -> bool:
        return self._requested is not None

    def request_stop(self, number: int) -> None:
        """Signal `number` has come."""
        with self._lock:
            self._requested = number
            at_once = self._phase in AT_ONCE
        if at_once:
            self._leave(self._code(number))

    def listen(self) -> None:
        """From now on signals are requests; SIGQUIT writes the stacks of all threads. Call it before anything slow."""
        faulthandler.register(signal.SIGQUIT, all_threads=True)
        hears, says = os.pipe()
        os.set_blocking(says, False)
        for number in heard():
            signal.signal(number, lambda number, frame: None)  # the pipe has it already
        signal.set_wakeup_fd(says, warn_on_full_buffer=False)
        threading.Thread(target=self._hear, args=(hears,), name="signals", daemon=True).start()

    def _hear(self, pipe: int) -> None:
        while numbers := os.read(pipe, 64):
            for number in numbers:
                if number in STOP_SIGNALS:
                    self.request_stop(number)

    def _code(self, number: int) -> int:
        return INTERRUPTED if number == signal.SIGINT and not self.saved() else RESUME
