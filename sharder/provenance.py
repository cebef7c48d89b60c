"""What environment.json says: where the numbers of a run come from."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sharder import __version__

MEASURED, SIMULATED = "measured", "simulated"  # what the numbers of a run are
VERSIONS_OF = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "av", "pyarrow", "hydra-core")


def environment(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Versions, machine, and in `extra` what only a worker knows (devices ...)."""
    return {
        "sharder": __version__,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "cpu_count": os.cpu_count(),
        "command": sys.argv,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "jax_platforms": os.environ.get("JAX_PLATFORMS", ""),
        "versions": {name: _version(name) for name in VERSIONS_OF},
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **extra,
    }


def kind_of(told: Mapping[str, Any]) -> str:
    """Of a run with this environment.json. Several devices of a CPU: their results are real, their times are not."""
    return SIMULATED if told["device_kind"] == "cpu" and told["device_count"] > 1 else MEASURED


def _git_commit() -> str | None:
    """Of the checkout this runs from, with -dirty when it is not quite that; None for an installed wheel."""
    checkout = Path(__file__).parent.parent
    if not (checkout / ".git").exists():
        return None
    describe = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(describe, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
