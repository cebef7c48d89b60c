"""Lets the tests of this folder import micro.py, and compiles each program once a session."""

import sys
from pathlib import Path

import jax
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_compilation_a_program(tmp_path_factory):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.getbasetemp() / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
