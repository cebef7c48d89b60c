"""Can this machine compile for a target? Asked without jax, so that the answer is one line and comes at once."""

from __future__ import annotations

import importlib.util

from sharder.config import Config
from sharder.errors import UserError

TARGETS = ("h100", "h200", "a100", "tpu_v5e")
NEEDED = ("device_kind", "hbm_bytes", "memory_share", "hbm_bytes_per_s", "link_bytes_per_s", "link_latency_s")
MOST_BYTES = 2**63 - 1  # of a device, as XLA counts them
PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")  # either has the compiler for GPUs
TPU_SLICES = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}  # of a v5e


def check_target(config: Config) -> None:
    """UserError: no such target, no compiler for it, or no such number of devices."""
    kind, count = config.hardware.kind, config.mesh.size
    if kind not in TARGETS:
        raise UserError(
            f"hardware: found {kind}, allowed for plan: {', '.join(TARGETS)}; name what to compile for, as in "
            f"hardware={TARGETS[0]}"
        )
    for key in NEEDED:
        if getattr(config.hardware, key) is None:
            raise UserError(f"hardware.{key}: found null, allowed for plan: what the device has; leave it out")
    if (found := config.hardware.hbm_bytes or 0) > MOST_BYTES:
        raise UserError(f"hardware.hbm_bytes: found {found}, allowed: at most {MOST_BYTES}; leave it out")
    if kind == "tpu_v5e":
        check_tpu(count)
    elif not has_any(PLUGINS):
        raise UserError(f"hardware: compiling for {kind} needs jax's CUDA plugin; pip install 'sharder[plan]'")


def check_tpu(count: int) -> None:
    if count not in TPU_SLICES:
        raise UserError(
            f"hardware.count: found {count}, allowed with hardware=tpu_v5e: {', '.join(map(str, TPU_SLICES))}, as its "
            "slices have; choose another mesh"
        )
    if not has_any(("libtpu",)):
        raise UserError("hardware: compiling for tpu_v5e needs libtpu; pip install 'sharder[tpu]'")


def has_any(modules: tuple[str, ...]) -> bool:
    return any(importlib.util.find_spec(module) for module in modules)
