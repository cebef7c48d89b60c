"""One config, compiled for hardware that is not here: what its train step needs of memory, of the links and of time."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from sharder.config import Config
from sharder.measure.peaks import known_peak
from sharder.parallel.mesh import make_mesh
from sharder.predict.communication import Total
from sharder.predict.compiled import DoesNotFit, compiled_and_read
from sharder.predict.memory import Memory, Saving, memory, placed_parts, refused, saving
from sharder.predict.target import target_devices
from sharder.predict.timing import Timing, timing
from sharder.predict.traffic import Traffic, traffic
from sharder.training.program import make_program


@dataclass(frozen=True)
class Hardware:
    kind: str
    device_kind: str
    devices: int
    hosts: int
    peak_flops_per_s: float | None  # dense, of one device in the compute dtype; None: not known
    peak_source: str


@dataclass(frozen=True)
class Choices:
    """What of the config decides the program, as a user would type it."""

    model: str
    mesh: tuple[int, int]  # batch x fsdp
    layout: str
    attn: str
    remat: str
    batch_size: int  # global
    accumulation: int
    weight_dtype: str
    compute_dtype: str
    ema_decay: float | None
    cameras: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    choices: Choices
    hardware: Hardware
    memory: Memory
    saving: Saving
    traffic: Traffic | None  # None: the compiler refused the program
    totals: tuple[Total, ...]  # of the traffic, by kind and tensor, most bytes first
    timing: Timing | None  # None: the compiler refused the program
    jax_version: str

    @property
    def fits(self) -> bool:
        return self.memory.fits


def make_plan(config: Config, cameras: tuple[str, ...]) -> Plan:
    """Compiles. UserError where the hardware cannot be compiled for here, or has no such number of devices."""
    devices = target_devices(config.hardware, config.mesh.size)
    program = make_program(config, make_mesh(config.mesh, devices), cameras)
    peak = known_peak(devices[0].device_kind, config.model.compute_dtype)
    hardware = Hardware(
        kind=config.hardware.kind,
        device_kind=devices[0].device_kind,
        devices=len(devices),
        hosts=len({device.process_index for device in devices}),
        peak_flops_per_s=None if peak is None else peak.flops_per_s,
        peak_source="" if peak is None else peak.source,
    )
    moved, totals, takes = None, list[Total](), None
    try:
        found = compiled_and_read(program)
    except DoesNotFit as error:
        needs = refused(program, str(error))
    else:
        needs = memory(program, found.memory, found.module, found.temporaries)
        moved, totals = traffic(program, found.module)
        takes = timing(program, found.module, config.hardware)
    return Plan(
        _choices(config, cameras), hardware, needs, saving(program), moved, tuple(totals), takes, jax.__version__
    )


def placed_bytes(config: Config, cameras: tuple[str, ...]) -> int:
    """What one device holds from step to step, without compiling: a program needs no less."""
    devices = target_devices(config.hardware, config.mesh.size)
    return sum(placed_parts(make_program(config, make_mesh(config.mesh, devices), cameras)).values())


def _choices(config: Config, cameras: tuple[str, ...]) -> Choices:
    return Choices(
        model=config.model.name,
        mesh=(config.mesh.batch, config.mesh.fsdp),
        layout=config.layout.name,
        attn=config.attn.name,
        remat=config.remat.name,
        batch_size=config.train.batch_size,
        accumulation=config.train.accumulation,
        weight_dtype=config.model.weight_dtype,
        compute_dtype=config.model.compute_dtype,
        ema_decay=config.optimizer.ema_decay,
        cameras=cameras,
    )
