"""The device mesh: which devices there are, and along which axes work and weights are split."""

from __future__ import annotations

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sharder.config import MeshConfig
from sharder.errors import UserError

BATCH, FSDP = "batch", "fsdp"  # both split the batch; fsdp also splits the weights


def make_mesh(config: MeshConfig) -> Mesh:
    """Axes (batch, fsdp) over all devices of all processes."""
    wanted, found = config.batch * config.fsdp, jax.device_count()
    if wanted != found:
        raise UserError(
            f"mesh: {config.batch} x {config.fsdp} needs {wanted} devices, but there are {found}; choose another mesh"
        )
    return jax.make_mesh((config.batch, config.fsdp), (BATCH, FSDP), axis_types=2 * (jax.sharding.AxisType.Auto,))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def batch_split(mesh: Mesh) -> NamedSharding:
    """Dim 0 over all devices."""
    return NamedSharding(mesh, PartitionSpec((BATCH, FSDP)))
