"""The device mesh: which devices there are, and along which axes work and weights are split."""

from __future__ import annotations

import logging
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from sharder.config import MeshConfig
from sharder.errors import UserError

log = logging.getLogger(__name__)

BATCH, FSDP = "batch", "fsdp"  # both split the batch; fsdp also splits the weights


def make_mesh(config: MeshConfig, devices: Any = None) -> Mesh:
    """Axes (batch, fsdp) over all devices of all processes, or over those given; one process may do with its first few.

    In order of processes, fsdp innermost: an fsdp group lies within a host where it fits there, and a process's devices
    hold neighbouring parts of the batch.
    """
    found = sorted(jax.devices() if devices is None else devices, key=lambda device: (device.process_index, device.id))
    if devices is None and jax.process_count() == 1 and config.size < len(found):
        log.warning(f"mesh: {config.size} of {len(found)} devices are used; a larger mesh takes more")
        found = found[: config.size]
    if config.size != len(found):
        kind = found[0].device_kind
        raise UserError(
            f"mesh: found {config.batch} x {config.fsdp} = {config.size}, allowed: {len(found)}, as there are so many "
            f"devices ({kind}); choose another mesh, or start on other hardware"
        )
    return Mesh(np.array(found).reshape(config.batch, config.fsdp), (BATCH, FSDP), axis_types=2 * (AxisType.Auto,))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def batch_split(mesh: Mesh) -> NamedSharding:
    """Dim 0 over all devices."""
    return NamedSharding(mesh, PartitionSpec((BATCH, FSDP)))


def process_slice(mesh: Mesh, batch_size: int) -> tuple[int, int]:
    """(first, past last) of the examples of a global batch that this process's devices hold."""
    parts = batch_split(mesh).addressable_devices_indices_map((batch_size,)).values()
    starts = [part[0].start or 0 for part in parts if part is not None]
    return min(starts), max(starts) + batch_size // mesh.size
