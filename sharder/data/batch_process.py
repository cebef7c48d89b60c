"""A process that makes batches: steps go in through a pipe of its own, batches come back through it in that order.

Every process has its own pipe, so one that dies in the middle of sending leaves an end of file behind, not a lock
that the others wait for. It lives no longer than its parent: when that is killed, however hard, the pipe closes and
a watching thread ends the process even in the middle of a batch.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

# The parent decides when to stop: an interrupt or a termination of the whole group must not take the batches away
# from under the step, or the save, that it still wants to finish.
PARENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM)
WATCH_SECONDS = 2.0


class Source(Protocol):
    def batch(self, step: int) -> dict[str, Any]: ...


class BatchProcess:
    """The parent's side. `submit` and `close` are called by one thread; another receives, so results never queue up."""

    def __init__(self, source: Source, name: str):
        context = multiprocessing.get_context("spawn")  # a fork would copy the locks of jax's threads
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, source), name=name, daemon=True)
        resource_tracker.ensure_running()  # starting it unblocks these signals, so not inside
        with _held_back(PARENTS_SIGNALS):
            self._process.start()
        theirs.close()
        self._asked: queue.SimpleQueue[tuple[int, Future] | None] = queue.SimpleQueue()
        self._receiver = threading.Thread(target=self._receive, name=f"{name} receiver", daemon=True)
        self._receiver.start()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def submit(self, step: int) -> Future:
        future: Future = Future()
        self._asked.put((step, future))
        # When the process is gone the receiver finds the end of file, and says so where the batch is awaited.
        with suppress(OSError):
            self._connection.send(step)
        return future

    def close(self) -> None:
        """At once: a batch under way is of no use any more, and the process holds nothing that could be lost."""
        self._asked.put(None)
        self._process.kill()
        self._process.join()
        self._receiver.join()
        self._connection.close()

    def _receive(self) -> None:
        while (asked := self._asked.get()) is not None:
            step, future = asked
            try:
                answer = self._connection.recv()
            except (EOFError, OSError):
                answer = RuntimeError(self._obituary(step))
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _obituary(self, step: int) -> str:
        self._process.join(timeout=WATCH_SECONDS)
        code = self._process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        return (
            f"step {step}: {self._process.name} (process {self.pid}) {how} while it made batches; "
            "signal 9 is often the kernel out of memory (fewer data.workers, smaller data.frame_cache_mib or "
            "data.prefetch)"
        )


def _serve(connection: Connection, source: Source) -> None:
    """The process: a batch for every step that comes in, until the pipe closes."""
    for number in PARENTS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENTS_SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            step = connection.recv()
        except (EOFError, OSError):
            return
        try:
            answer: Any = source.batch(step)
        except Exception as error:
            error.add_note(f"in the data worker:\n{traceback.format_exc()}")
            answer = error
        try:
            connection.send(answer)
        except OSError:
            return


def _end_with_parent() -> None:
    """The parent's sentinel closes with it; its process id is looked at too, should someone hold the sentinel open."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    while not wait([parent.sentinel], timeout=WATCH_SECONDS) and os.getppid() == parent.pid:
        pass
    os._exit(1)


@contextmanager
def _held_back(signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    """A process started inside inherits these signals blocked, until it is ready to ignore them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
