"""What a compiled train step takes on hardware that is not here: predicted, with the error that the model is known by.

The parts add up to the step, and say what it is bound by:

    arithmetic             kernels whose products or vector operations take longer than their bytes
    memory                 kernels whose bytes take longer
    launch gaps            between kernels
    exposed collectives    waiting for bytes on the links, nothing else to do
    slowed by collectives  what kernels take longer for a collective beside them
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from sharder.config import HardwareConfig
from sharder.measure.categories import Place, collective_place
from sharder.measure.hlo import Module
from sharder.measure.mfu import hfu, machine, mfu, mfu_6nd
from sharder.measure.places import Places
from sharder.predict.calibrate import ACCURACY, MATMUL_EFFICIENCY, MODEL
from sharder.predict.ring import links
from sharder.predict.roofline import Roofline, device
from sharder.predict.schedule import CONTENTION, Run, Schedule, schedule
from sharder.training.program import Program
from sharder.training.rates import counted_flops, make_rates

ARITHMETIC, MEMORY, GAPS = "arithmetic", "memory", "launch gaps"
EXPOSED, SLOWED = "exposed collectives", "slowed by collectives"
BOUNDS = {  # part to what it is to be bound by it
    ARITHMETIC: "arithmetic",
    MEMORY: "memory",
    GAPS: "launches",
    EXPOSED: "links",
    SLOWED: "links",
}
TOP = 10


@dataclass(frozen=True)
class Assumptions:
    """Beside the hardware's numbers."""

    matmul_efficiency: float = MATMUL_EFFICIENCY  # share of the peak of a product that fills its tiles and waves
    contention: float = CONTENTION  # how much longer work takes beside a collective
    overlap: bool = True  # False: every collective is waited for where it starts


@dataclass(frozen=True)
class Share:
    name: str
    ms: float
    share: float  # of the step


@dataclass(frozen=True)
class Spending:
    """Of one instruction, or of all in one place."""

    category: str  # as in measure/categories.py
    part: str
    in_pass: str
    what: str  # the instruction; empty for a place
    kind: str  # of work: product, fusion, all-gather ...; empty for a place
    bound_by: str
    times: int  # a step
    ms: float  # a step
    share: float  # of the step


@dataclass(frozen=True)
class Transfer:
    """All times a step of one collective."""

    name: str  # the instruction
    times: int
    alone_ms: float  # had it the device to itself
    exposed_ms: float  # of that, with nothing running beside it


@dataclass(frozen=True)
class Timing:
    """Of one step, all of it predicted."""

    label: str
    model: str  # that predicted it
    accuracy: str  # how far it is off where it can be compared
    assumptions: Assumptions
    device_kind: str
    devices: int
    step_ms: float
    exposed_step_ms: float  # were every collective waited for where it starts
    parts: tuple[Share, ...]  # add up to step_ms
    bound_by: str
    examples_per_s: float
    mfu: float | None  # None: the peak is not known
    mfu_6nd: float | None
    hfu: float | None
    compiled_flops: int  # of all matrix products of the compiled step, over all devices
    counted_flops: int  # what shapes say that the program multiplies, recomputation included: measure/flops.py
    kernels: int  # launched
    moved_bytes: float  # that all of them read and write of one device's memory, as the compiled program says
    collectives_alone_ms: float  # what they would take one after the other
    collectives_exposed_ms: float
    transfers: tuple[Transfer, ...]  # what waits longest first
    top: tuple[Spending, ...]  # the ten dearest instructions, dearest first
    places: tuple[Spending, ...]  # add up to step_ms, dearest first
    unknown: tuple[tuple[str, int], ...]  # what the model knows no time of beyond its bytes, and how often it runs


def timing(
    program: Program, module: Module, hardware: HardwareConfig, assumptions: Assumptions | None = None
) -> Timing:
    """`module`: what `program` compiled to for `hardware`. UserError for hardware whose rates are not known."""
    assumed = assumptions or Assumptions()
    found = scheduled(module, hardware, assumed)
    exposed = scheduled(module, hardware, dataclasses.replace(assumed, overlap=False))
    parts, step_s, config = parts_of(found), found.step_s, program.config
    on = machine(hardware.device_kind or hardware.kind, module.device_count, config.model.compute_dtype)
    rates = make_rates(program, on)
    moving = [run for run in found.runs if run.collective is not None]
    spent = spending(found, module)
    return Timing(
        label="predicted",
        model=MODEL,
        accuracy=accuracy(hardware.kind, hardware.hosts),
        assumptions=assumed,
        device_kind=on.device_kind,
        devices=on.devices,
        step_ms=1e3 * step_s,
        exposed_step_ms=1e3 * exposed.step_s,
        parts=tuple(Share(name, 1e3 * seconds, seconds / step_s) for name, seconds in parts.items()),
        bound_by=bound_by(parts),
        examples_per_s=rates.batch_size / step_s,
        mfu=mfu(rates.flops, step_s, on).value,
        mfu_6nd=mfu_6nd(rates.parameters, rates.tokens, step_s, on).value,
        hfu=hfu(rates.flops, step_s, on).value,
        compiled_flops=found.flops * on.devices,
        counted_flops=counted_flops(program, "program").total,
        kernels=sum(run.times for run in found.runs if run.kernel is not None),
        moved_bytes=sum(run.times * run.kernel.moved_bytes for run in found.runs if run.kernel is not None),
        collectives_alone_ms=1e3 * sum(run.times * run.transfer_s for run in moving),
        collectives_exposed_ms=1e3 * sum(run.times * run.exposed_s for run in moving),
        transfers=transfers_of(moving),
        top=tuple(spent[:TOP]),
        places=tuple(by_place(spent)),
        unknown=tuple(sorted(found.unknown.items())),
    )


def transfers_of(moving: Iterable[Run]) -> tuple[Transfer, ...]:
    found: dict[str, Transfer] = {}
    for run in moving:
        name, alone, exposed = run.instruction.name, 1e3 * run.transfer_s, 1e3 * run.exposed_s
        before = found.get(name, Transfer(name, 0, 0.0, 0.0))
        found[name] = Transfer(
            name,
            before.times + run.times,
            before.alone_ms + run.times * alone,
            before.exposed_ms + run.times * exposed,
        )
    return tuple(sorted(found.values(), key=lambda one: (-one.exposed_ms, -one.alone_ms, one.name)))


def scheduled(module: Module, hardware: HardwareConfig, assumptions: Assumptions) -> Schedule:
    """Any program, not only a train step."""
    roofline = Roofline(module, device(hardware), assumptions.matmul_efficiency)
    return schedule(roofline, links(hardware, module.device_count), assumptions.overlap, assumptions.contention)


def accuracy(kind: str, hosts: int) -> str:
    """What is known of the model's error on hardware of this kind. Published are steps of one host alone."""
    never = [] if kind == ACCURACY.hardware else [f"on {kind}"]
    never += ["between hosts"] if hosts > 1 else []
    if not never:
        return ACCURACY.said
    return f"never compared {' or '.join(never)}; on {ACCURACY.hardware}: {ACCURACY.said}"


def parts_of(found: Schedule) -> dict[str, float]:
    """Seconds of a step."""
    parts = dict.fromkeys(BOUNDS, 0.0)
    for run in found.runs:
        if run.kernel is not None:
            is_arithmetic = run.kernel.arithmetic_s > run.kernel.memory_s
            parts[ARITHMETIC if is_arithmetic else MEMORY] += run.times * run.busy_s
        parts[GAPS] += run.times * run.gap_s
        parts[EXPOSED] += run.times * run.exposed_s
        parts[SLOWED] += run.times * run.slowed_s
    return parts


def bound_by(parts: dict[str, float]) -> str:
    totals = dict.fromkeys(BOUNDS.values(), 0.0)
    for name, seconds in parts.items():
        totals[BOUNDS[name]] += seconds
    return max(totals, key=lambda name: totals[name])


def spending(found: Schedule, module: Module) -> list[Spending]:
    """Every instruction that takes time, dearest first."""
    places, step_s = Places(module), found.step_s
    spent = []
    for run in found.runs:
        seconds = run.total_s
        if not seconds:
            continue
        place = _place(run, places)
        spent.append(
            Spending(
                category=place.category,
                part=place.part,
                in_pass=place.in_pass,
                what=run.instruction.name,
                kind=_kind(run),
                bound_by="links" if run.kernel is None else run.kernel.bound_by,
                times=run.times,
                ms=1e3 * seconds,
                share=seconds / step_s,
            )
        )
    return sorted(spent, key=lambda one: -one.ms)


def by_place(spent: Iterable[Spending]) -> list[Spending]:
    """Dearest first; each bound by what bounds most of its time."""
    cells: dict[tuple[str, str, str], list[Spending]] = {}
    for one in spent:
        cells.setdefault((one.category, one.part, one.in_pass), []).append(one)
    found = []
    for inside in cells.values():
        bounds = dict.fromkeys((one.bound_by for one in inside), 0.0)
        for one in inside:
            bounds[one.bound_by] += one.ms
        found.append(
            dataclasses.replace(
                inside[0],
                what="",
                kind="",
                bound_by=max(bounds, key=lambda name: bounds[name]),
                times=sum(one.times for one in inside),
                ms=sum(one.ms for one in inside),
                share=sum(one.share for one in inside),
            )
        )
    return sorted(found, key=lambda one: -one.ms)


def _place(run: Run, places: Places) -> Place:
    if run.collective is not None:
        return collective_place(run.collective.kind, run.collective.op_name)
    return places.of(run.instruction)


def _kind(run: Run) -> str:
    if run.collective is not None:
        return run.collective.kind
    return run.instruction.opcode if run.kernel is None else run.kernel.kind
