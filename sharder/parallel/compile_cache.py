"""jax's cache of compiled programs: a second start of the same program reads its executable instead of compiling it.

What was read and what was compiled is told by jax's own events, of whatever compiles anything in this process.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

log = logging.getLogger(__name__)

QUICK_S = 0.1  # what compiles in less is not kept: reading it would take about as long
BIG_S = 1.0  # what takes longer to compile has a line of its own in the log

EVENTS = "/jax/compilation_cache/"
READ, KEPT = EVENTS + "cache_hits", EVENTS + "cache_misses"  # the second only for what is written to the cache
SPARED_S, READING_S = EVENTS + "compile_time_saved_sec", EVENTS + "cache_retrieval_time_sec"
DONE_S = "/jax/core/compile/backend_compile_duration"  # the last of a program's events, read or compiled


@dataclass(frozen=True)
class Compiled:
    """A program that is ready to run."""

    name: str  # of the Python function
    seconds: float  # that compiling took, or reading
    read: bool  # from the cache
    kept: bool  # written to it
    compile_s: float  # that compiling took, now or when the entry was written (then in whole seconds)

    def __str__(self) -> str:
        if self.read:
            return f"{self.name} from the compile cache in {self.seconds:.1f} s"
        return (
            f"compiled {self.name} in {self.seconds:.1f} s "
            f"(not in the compile cache{', but now it is' if self.kept else ', and not kept there'})"
        )


class _Listener:
    """Several threads may compile at once, each one program at a time."""

    def __init__(self) -> None:
        self.compiled: list[Compiled] = []
        self._now = threading.local()

    def event(self, event: str, **_: Any) -> None:
        if event in (READ, KEPT):
            self._now.__dict__[event] = True

    def duration(self, event: str, duration_secs: float, **metadata: str | int) -> None:
        seconds = duration_secs  # jax may pass it by that name
        if event in (SPARED_S, READING_S):
            self._now.__dict__[event] = seconds
        if event != DONE_S:
            return
        told = dict(self._now.__dict__)
        self._now.__dict__.clear()
        read = READ in told
        compile_s = told[SPARED_S] + told[READING_S] if read else seconds
        name = (
            str(metadata.get("fun_name", "")).removeprefix("jit(").removesuffix(")").strip("_").replace("_", " ")
            or "a program"
        )
        self.compiled.append(Compiled(name, seconds, read, KEPT in told, compile_s))
        if compile_s >= BIG_S:
            log.info(str(self.compiled[-1]))


_listener: _Listener | None = None


def use_compile_cache(folder: Path) -> None:
    """From now on, in `folder`, unless the user's environment says another one; and what is compiled is told of."""
    global _listener
    settings = {"jax_compilation_cache_dir": str(folder), "jax_persistent_cache_min_compile_time_secs": QUICK_S}
    for name, value in settings.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
    if _listener is None:
        _listener = _Listener()
        jax.monitoring.register_event_listener(_listener.event)
        jax.monitoring.register_event_duration_secs_listener(_listener.duration)


def compiled_so_far() -> list[Compiled]:
    """Since `use_compile_cache`."""
    return [] if _listener is None else list(_listener.compiled)


def in_words(compiled: list[Compiled]) -> str:
    """How many programs came from where, and what it took."""
    read = [one.seconds for one in compiled if one.read]
    kept = [one.seconds for one in compiled if one.kept]
    rest = [one.seconds for one in compiled if not one.read and not one.kept]
    settings = jax.config.values
    where = settings["jax_compilation_cache_dir"] if settings["jax_enable_compilation_cache"] else "off"
    return (
        f"programs: {len(read)} from the compile cache in {sum(read):.2f} s, {len(kept)} compiled and kept there in "
        f"{sum(kept):.2f} s, {len(rest)} only compiled in {sum(rest):.2f} s; the compile cache: {where}"
    )


@contextmanager
def every_process_writes(mesh: Mesh | None = None) -> Iterator[None]:
    """While compiling for CPU devices of several processes: those of `mesh`, or jax's own.

    jax lets process 0 alone write, since on accelerators all read the same entry. On CPU the key names the process's
    own devices, so that the others would compile at every start. There is no public name for this in jax 0.10 to 0.12.
    """
    from jax._src import distributed

    state = distributed.global_state
    if not state.process_id or (mesh.devices.flat[0].platform if mesh else jax.default_backend()) != "cpu":
        yield
        return
    index, state.process_id = state.process_id, 0
    try:
        yield
    finally:
        state.process_id = index
