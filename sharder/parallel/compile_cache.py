"""jax's cache of compiled programs: a second start of the same program reads its executable instead of compiling it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
from jax.sharding import Mesh

QUICK_S = 1.0  # what compiles in less is not kept


def use_compile_cache(folder: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", QUICK_S)


@contextmanager
def every_process_writes(mesh: Mesh) -> Iterator[None]:
    """While compiling for CPU devices of several processes.

    jax lets process 0 alone write, since on accelerators all read the same entry. On CPU the key names the process's
    own devices, so that the others would compile at every start. There is no public name for this in jax 0.10 to 0.12.
    """
    from jax._src import distributed

    state = distributed.global_state
    if not state.process_id or mesh.devices.flat[0].platform != "cpu":
        yield
        return
    index, state.process_id = state.process_id, 0
    try:
        yield
    finally:
        state.process_id = index
