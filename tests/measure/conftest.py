"""Real traces of this machine, made once for all tests that read them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRACED_PROGRAMS = Path(__file__).parent / "traced_programs.py"


@pytest.fixture(scope="session")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What traced_programs.py tells, by program."""
    folder = tmp_path_factory.mktemp("traces")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment.pop("XLA_FLAGS", None)  # as XLA compiles by default: tests/conftest.py asks it to hurry
    command = [sys.executable, str(TRACED_PROGRAMS), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
