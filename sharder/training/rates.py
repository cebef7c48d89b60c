"""What a step's time means: examples, tokens and FLOPs a second, in all and a device, and the share of the peak."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax

from sharder.errors import UserError
from sharder.measure.flops import parameters, step_flops, tokens
from sharder.measure.mfu import Machine, Utilization, hfu, machine, mfu, mfu_6nd
from sharder.measure.products import Count, Flops
from sharder.model.attention import IN_TILES
from sharder.model.pi0 import CAMERAS
from sharder.model.tiles import SPARED, SPARED_BY_KERNEL, scored
from sharder.training.clock import Spent
from sharder.training.kernels import fused_attention
from sharder.training.program import Program

log = logging.getLogger(__name__)


@dataclass
class Rates:
    batch_size: int  # examples a step, global
    parameters: int
    tokens: int  # a step, global
    flops: Flops  # a step, global
    machine: Machine
    _told: set[str] = field(default_factory=set)

    def row(self, spent: Spent) -> dict[str, Any]:
        """Empty when no step was done since the clock started."""
        row: dict[str, Any] = dict(spent.per_step_ms())
        if not row or not row["step_ms"]:
            return {}
        step_s, devices = row["step_ms"] / 1e3, self.machine.devices
        for what, count in (("examples", self.batch_size), ("tokens", self.tokens)):
            row[f"{what}_per_s"] = count / step_s
            row[f"{what}_per_s_per_device"] = count / step_s / devices
        row["model_flop_per_s"] = self.flops.model / step_s
        if self.machine.peak is None and "peak" not in self._told:
            self._told.add("peak")
            on = f"{self.machine.device_kind!r} in {self.machine.dtype}"
            log.info(
                f"no mfu, but model_flop_per_s: sharder/measure/peaks.py has no peak of {on}; "
                "hardware.peak_flops_per_s=... gives one"
            )
        row |= {figure.name: figure.value for figure in self._figures(step_s) if figure.value is not None}
        return row

    def basis(self) -> dict[str, Any]:
        """What the figures rest on, for the run's folder: numerators, denominators, dtype and formulas."""
        peak = self.machine.peak
        unknown = replace(self.machine, peak=None)  # nothing is impossible there: the time stands for none
        one = {figure.name: figure for figure in (mfu(self.flops, 1.0, unknown), hfu(self.flops, 1.0, unknown))}
        one["mfu_6nd"] = mfu_6nd(self.parameters, self.tokens, 1.0, unknown)
        return {
            "device_kind": self.machine.device_kind,
            "devices": self.machine.devices,
            "dtype": self.machine.dtype,
            "peak_flop_per_s_per_device": None if peak is None else peak.flops_per_s,
            "peak_source": None if peak is None else peak.source,
            "parameters": self.parameters,
            "tokens_per_step": self.tokens,
        } | {name: {"flop_per_step": figure.flops, "formula": figure.formula} for name, figure in one.items()}

    def _figures(self, step_s: float) -> list[Utilization]:
        """An impossible share is told of once and left out: a wrong table is no reason to end a run."""
        figures = []
        counted: list[Callable[[Flops, float, Machine], Utilization]] = [mfu, hfu]
        for figure in counted:
            try:
                figures.append(figure(self.flops, step_s, self.machine))
            except (ValueError, UserError) as error:
                name = str(error).partition(":")[0]
                if name not in self._told:
                    self._told.add(name)
                    log.error(f"{error}; {name} is left out")
                if figure is mfu:
                    return []  # the others are of the same time and peak
        return [*figures, mfu_6nd(self.parameters, self.tokens, step_s, self.machine)]


def make_rates(program: Program, on: Machine | None = None) -> Rates:
    """`on` None: the devices of the program's mesh."""
    config, devices = program.config, program.mesh.devices
    cameras = len(program.batch["images"])
    state, size = program.state, config.train.batch_size
    return Rates(
        batch_size=size,
        parameters=parameters(state.trainable, state.frozen),
        tokens=tokens(config.model, size, cameras),
        flops=counted_flops(program, "loss"),
        machine=on
        or machine(
            devices.flat[0].device_kind,
            devices.size,
            config.model.compute_dtype,
            config.hardware.peak_flops_per_s,
        ),
    )


def counted_flops(program: Program, count: Count) -> Flops:
    """Of the global batch: see measure/flops.py. The loss needs no camera that the data lack; a program may run it."""
    config, state = program.config, program.state
    runs_absent = count == "program" and program.execution.absent_cameras
    spared = SPARED_BY_KERNEL if fused_attention(config, program.mesh) else SPARED
    return step_flops(
        config.model,
        state.trainable,
        state.frozen,
        config.train.batch_size,
        len(CAMERAS if runs_absent else program.batch["images"]),
        config.remat.name,
        count,
        scored=partial(scored, spared=spared) if config.attn.name in IN_TILES else None,
        unrolled=config.work.unroll,
    )


def device_peak_mb(device: jax.Device) -> float | None:
    """Most memory that arrays and programs held so far; None where the backend does not count (CPU)."""
    stats = device.memory_stats() or {}
    peak: int | None = stats.get("peak_bytes_in_use")
    return None if peak is None else peak / 1e6
