"""The compile cache: what is read, what is compiled, what is kept, and that the log says so."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sharder.parallel.compile_cache import DONE_S, KEPT, READ, READING_S, SPARED_S, Compiled, _Listener, in_words

PROGRAM = """
import logging, os, sys
from pathlib import Path
import jax
from sharder.parallel import compile_cache

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
logging.getLogger("absl").setLevel(logging.ERROR)
compile_cache.BIG_S = 0.0  # everything is worth a line
compile_cache.use_compile_cache(Path(sys.argv[1]))

def doubled_sine(x):
    return 2 * jax.numpy.sin(x)

jax.jit(doubled_sine).lower(jax.ShapeDtypeStruct((3,), "float32")).compile()
print(compile_cache.in_words(compile_cache.compiled_so_far()))
"""


def start(cache: Path, **environment: str) -> list[str]:
    """What a process that compiles one program says."""
    argv = [sys.executable, "-c", PROGRAM, str(cache)]
    everything = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PLATFORMS": "cpu"}
    environ = {**os.environ, **everything, **environment}
    return subprocess.run(argv, capture_output=True, text=True, check=True, env=environ).stdout.splitlines()


def test_a_second_start_reads_what_the_first_compiled_and_both_say_so(tmp_path: Path) -> None:
    first, second = start(tmp_path / "cache"), start(tmp_path / "cache")
    assert first[0].startswith("compiled doubled sine in ")
    assert first[0].endswith("(not in the compile cache, but now it is)")
    assert "programs: 0 from the compile cache" in first[-1] and " 1 compiled and kept there" in first[-1]
    assert second[0].startswith("doubled sine from the compile cache in ")
    assert "programs: 1 from the compile cache" in second[-1] and " 0 compiled and kept there" in second[-1]
    assert second[-1].endswith(f"the compile cache: {tmp_path / 'cache'}")


def test_the_users_own_environment_wins(tmp_path: Path) -> None:
    said = start(tmp_path / "ours", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "theirs"))
    assert said[-1].endswith(f"the compile cache: {tmp_path / 'theirs'}")
    assert list((tmp_path / "theirs").iterdir()) and not (tmp_path / "ours").exists()
    off = start(tmp_path / "ours", JAX_ENABLE_COMPILATION_CACHE="false")
    assert off[0].endswith("(not in the compile cache, and not kept there)")
    assert off[-1].endswith("the compile cache: off") and not (tmp_path / "ours").exists()


def test_jax_events_become_programs_and_only_big_ones_have_a_line(caplog: pytest.LogCaptureFixture) -> None:
    listener = _Listener()
    with caplog.at_level(logging.INFO, logger="sharder.parallel.compile_cache"):
        listener.duration(DONE_S, 0.2, fun_name="jit(add)")
        listener.event(KEPT)
        listener.duration(DONE_S, 8.0, fun_name="jit(train_step)")
        listener.event(READ)
        listener.duration(SPARED_S, 7.5)
        listener.duration(READING_S, 0.5)
        listener.duration("/jax/core/compile/jaxpr_trace_duration", 3.0, fun_name="another")
        listener.duration(DONE_S, 0.6, fun_name="jit(train_step)")
        listener.duration(DONE_S, 2.0, fun_name="jit(train_step)")
    assert listener.compiled == [
        Compiled("add", 0.2, read=False, kept=False, compile_s=0.2),
        Compiled("train step", 8.0, read=False, kept=True, compile_s=8.0),
        Compiled("train step", 0.6, read=True, kept=False, compile_s=8.0),
        Compiled("train step", 2.0, read=False, kept=False, compile_s=2.0),
    ]
    assert caplog.messages == [
        "compiled train step in 8.0 s (not in the compile cache, but now it is)",
        "train step from the compile cache in 0.6 s",
        "compiled train step in 2.0 s (not in the compile cache, and not kept there)",
    ]
    assert in_words(listener.compiled).startswith(
        "programs: 1 from the compile cache in 0.60 s, 1 compiled and kept there in 8.00 s, 2 only compiled in 2.20 s"
    )
