"""attn=flash on H100s is cuDNN's attention: compiled without one, in every layout, and kept where remat keeps it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from plan_extra import needs_plan_extra

SCRIPT = Path(__file__).parent / "attention_calls.py"
# The micro model has one vision layer and two of language. Of the last, only the suffix has queries, which are tiles,
# where layers are written out; in a loop, what is one layer's is in the program once.
ONCE = [2, 2]
AGAIN = {"least": [3, 2], "unrolled": [4, 2]}  # a loop of one turn, the vision's, is none: XLA sees that it is the same
pytestmark = [
    pytest.mark.compile,
    pytest.mark.slow,
    needs_plan_extra,
]


def calls(*arguments: str) -> dict[str, list[int]]:
    """Way to calls forward and backward."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "XLA_FLAGS": ""}
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[int]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("arguments", [("single", "auto"), ("fsdp4", "auto", "gather", "published")], ids=" ".join)
def test_each_pass_once_but_where_remat_computes_it_again(arguments: tuple[str, ...]) -> None:
    for way, counted in calls(*arguments).items():
        _, work, remat = way.split()
        assert counted == (AGAIN[work] if remat == "full" else ONCE), way
