"""The environment variables of a worker, settled before it starts: jax reads them once, when it is imported.

What the user has set wins, variable by variable, and inside XLA_FLAGS flag by flag.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from sharder.config import Config

QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "2",  # XLA's and TensorStore's C++ log: errors only
    "GRPC_VERBOSITY": "ERROR",
    "ABSL_MIN_LOG_LEVEL": "2",
}


PLANNING = {  # compiling for devices that are not here
    "JAX_PLATFORMS": "cpu",  # whatever else there is: with another, jax's plugin looks for a driver first
    "TPU_SKIP_MDS_QUERY": "1",  # libtpu asks a TPU's host about its slice
}
PLANNING_UNLESS_SET = {  # one CPU device, however many are planned for, and no log of XLA's: its errors are raised
    "NPROC": str(os.cpu_count() or 1),
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "ABSL_MIN_LOG_LEVEL": "3",
}


def planning_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """`inherited` for `worker_environment`, where the worker only compiles."""
    flags = merge_flags(["--xla_force_host_platform_device_count=1"], inherited.get("XLA_FLAGS", ""))
    return {**PLANNING_UNLESS_SET, **inherited, **PLANNING, "XLA_FLAGS": flags}


def worker_environment(config: Config, inherited: Mapping[str, str], processes: int = 1) -> dict[str, str]:
    """`inherited` with what one of the `processes` workers of this config needs added."""
    ours = dict(QUIET)
    flags = []
    if config.hardware.kind == "cpu":
        ours["JAX_PLATFORMS"] = "cpu"
    local = config.mesh.size // processes
    if local > 1:  # where there is an accelerator, jax ignores it
        flags.append(f"--xla_force_host_platform_device_count={local}")
    if config.mesh.size > 1:
        # The CPU backend's threads, else as many as cores or as this process has devices, whichever is more. How a
        # matrix product is shared out, and so its last bits, depends on it: it has to be the same for every placement.
        ours["NPROC"] = str(max(os.cpu_count() or 1, config.mesh.size))
    environment = {**ours, **inherited}
    merged = merge_flags(flags, inherited.get("XLA_FLAGS", ""))
    if merged:
        environment["XLA_FLAGS"] = merged
    return environment


def merge_flags(ours: list[str], users: str) -> str:
    """Our XLA flags, less those the user has set to something, and then the user's own."""
    set_by_user = {flag.split("=")[0] for flag in users.split()}
    return " ".join([*(flag for flag in ours if flag.split("=")[0] not in set_by_user), *users.split()])
