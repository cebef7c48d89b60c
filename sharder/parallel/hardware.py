"""Is the hardware that a run insists on the one it found?"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from sharder.config import HardwareConfig
from sharder.errors import UserError


def check_hardware(hardware: HardwareConfig, devices: Sequence[jax.Device] | None = None) -> None:
    """`hardware=h100` is for H100s, or for `sharder.plan`. `devices`: those of jax, unless given."""
    if hardware.device_kind is None:
        return
    found = sorted({device.device_kind for device in (jax.devices() if devices is None else devices)})
    if found != [hardware.device_kind]:
        raise UserError(
            f"hardware: found {hardware.kind}, which is {hardware.device_kind!r}, but the devices here are "
            f"{', '.join(map(repr, found))}; allowed: auto, cpu, or what is here; leave it out, or plan for it with "
            "python -m sharder.plan"
        )
