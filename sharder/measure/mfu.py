"""How much of the hardware a step makes use of: FLOPs / (its time x devices x the dense peak of the compute dtype).

    mfu       model FLOPs: what the loss and its gradient need, each token through the weights that it meets (flops.py)
    hfu       the same and what remat computes again
    mfu_6nd   6 x all parameters x all tokens: the convention of published figures. No token meets all weights here, so
              it is well above mfu: 38% for what is 26%

Each figure carries its numerator, its denominator, its dtype and its formula, so that it can be checked. On a device
whose peak is not known it has no value; FLOP/s it has everywhere. A share above 1 is impossible, so then one of the
three numbers is wrong, and which one is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sharder.errors import UserError
from sharder.measure.peaks import Peak, known_peak
from sharder.measure.products import Flops

DENOMINATOR = "(step time x devices x dense peak of the compute dtype)"


@dataclass(frozen=True)
class Machine:
    """`devices` of one kind, multiplying in `dtype`. `peak`: of one of them; None: not known."""

    device_kind: str
    devices: int
    dtype: str
    peak: Peak | None


@dataclass(frozen=True)
class Utilization:
    name: str
    formula: str
    flops: int  # numerator: of one step, over all devices
    step_s: float
    machine: Machine

    @property
    def flops_per_s(self) -> float:
        """Over all devices."""
        return self.flops / self.step_s

    @property
    def peak_flops(self) -> float | None:
        """Denominator: what all devices could do in the step's time; None where their peak is not known."""
        peak = self.machine.peak
        return None if peak is None else self.step_s * self.machine.devices * peak.flops_per_s

    @property
    def value(self) -> float | None:
        """A share, from 0 to 1."""
        return None if self.peak_flops is None else self.flops / self.peak_flops

    def row(self) -> dict[str, float | str]:
        """For a log. Without a known peak it has FLOP/s, and neither a share nor a denominator."""
        row: dict[str, float | str] = {
            f"{self.name}_flop": self.flops,
            f"{self.name}_flop_per_s": self.flops_per_s,
            f"{self.name}_dtype": self.machine.dtype,
            f"{self.name}_formula": self.formula,
        }
        if self.value is not None and self.peak_flops is not None:
            row |= {self.name: self.value, f"{self.name}_peak_flop": self.peak_flops}
        return row


def machine(device_kind: str, devices: int, dtype: str, peak_flops_per_s: float | None = None) -> Machine:
    """`device_kind` as JAX has it; `peak_flops_per_s` is of one device and given by the user, else looked up."""
    if devices < 1:
        raise ValueError(f"devices: {devices}, and a step needs one")
    if peak_flops_per_s is None:
        return Machine(device_kind, devices, dtype, known_peak(device_kind, dtype))
    if not 0 < peak_flops_per_s < math.inf:
        raise UserError(
            f"hardware.peak_flops_per_s: found {peak_flops_per_s!r}, allowed: a finite number above 0, or null to look "
            "it up; set hardware.peak_flops_per_s=..."
        )
    return Machine(device_kind, devices, dtype, Peak(peak_flops_per_s, "hardware.peak_flops_per_s", is_given=True))


def mfu(flops: Flops, step_s: float, machine: Machine) -> Utilization:
    """Raises above 1: two counts of the FLOPs agree, so the time is wrong, or the peak, where the user gave it."""
    figure = _figure("mfu", "model FLOPs", flops.model, flops, step_s, machine)
    if figure.value is None or figure.value <= 1:
        return figure
    assert machine.peak is not None
    found = (
        f"mfu: {figure.flops:.4g} FLOP in {step_s * 1e3:.4g} ms on {machine.devices} x {machine.device_kind} is "
        f"{figure.value:.0%} of the {machine.dtype} peak of {machine.peak.flops_per_s:.4g} FLOP/s a device"
    )
    least_ms = 1e3 * flops.model / (machine.devices * machine.peak.flops_per_s)
    if machine.peak.is_given:
        least = figure.flops_per_s / machine.devices
        raise UserError(
            f"{found}; the peak must be wrong: found {machine.peak.source}={machine.peak.flops_per_s:.4g}, allowed: "
            f"the device's dense peak, which is {least:.4g} or more; correct it, or set it to null to look it up"
        )
    raise ValueError(
        f"{found} ({machine.peak.source}); the time must be wrong: no step takes less than {least_ms:.4g} ms there, so "
        "this one was timed without waiting until the devices were done"
    )


def hfu(flops: Flops, step_s: float, machine: Machine) -> Utilization:
    """Raises where it is above 1 although mfu is not: less was computed again than counted."""
    figure = _figure("hfu", "(model FLOPs + recomputation)", flops.total, flops, step_s, machine)
    mfu(flops, step_s, machine)
    if figure.value is not None and figure.value > 1:
        raise ValueError(
            f"hfu: {figure.value:.0%} of the peak, with {flops.recomputation:.4g} of {flops.total:.4g} FLOP computed "
            "again; the recomputation must be wrong: the compiled program computes less again than remat asks for"
        )
    return figure


def mfu_6nd(parameters: int, tokens: int, step_s: float, machine: Machine) -> Utilization:
    """`parameters`: all, frozen ones too; `tokens`: all of the global batch.

    May pass 1 on a step that is possible, where few tokens meet most weights or most are frozen; then the wrong number
    is 6ND. It is a convention and not a count, so it is returned as it is; what is possible is for mfu to say.
    """
    return _utilization("mfu_6nd", "6 x parameters x tokens", 6 * parameters * tokens, step_s, machine)


def _figure(name: str, numerator: str, count: int, flops: Flops, step_s: float, machine: Machine) -> Utilization:
    if flops.count != "loss":
        raise ValueError(f"{name}: found a count of the {flops.count}, and MFU is of what the loss needs: count='loss'")
    return _utilization(name, numerator, count, step_s, machine)


def _utilization(name: str, numerator: str, count: int, step_s: float, machine: Machine) -> Utilization:
    if not 0 < step_s < math.inf:
        raise ValueError(f"{name}: a step of {step_s!r} s, and it takes some time")
    return Utilization(name, f"{numerator} / {DENOMINATOR}", count, step_s, machine)
