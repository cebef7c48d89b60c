"""The collectives of a compiled program: what moves, how often, and what runs meanwhile.

An asynchronous collective is a start and a done instruction; whatever the schedule puts between the two runs while the
bytes move. XLA marks a pair that it decided to run at once, and newer versions print it as a plain instruction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sharder.measure.hlo import Computation, Instruction, Loop, Module, Shape, times_round

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)
SENDER = re.compile(r"\{\d+,\d+\}")
NO_WORK = {
    "after-all",
    "async-update",
    "bitcast",
    "constant",
    "get-tuple-element",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
}


@dataclass(frozen=True)
class Work:
    """An instruction that runs while a collective is under way."""

    name: str
    opcode: str
    is_matmul: bool


@dataclass(frozen=True)
class Collective:
    kind: str
    name: str
    computation: str
    in_loop: tuple[Loop, ...]  # outermost first
    operands: tuple[Shape, ...]  # several when XLA combined several collectives
    results: tuple[Shape, ...]
    groups: tuple[tuple[int, ...], ...]  # device ids; () for a permute
    group_size: int  # for a permute, how many devices send
    is_async: bool
    between: tuple[Work, ...]  # in the order of the schedule
    op_name: str

    @property
    def times(self) -> int:
        """In a step."""
        return times_round(self.in_loop)

    @property
    def payload_bytes(self) -> int:
        """Of the whole tensors, once: the gathered weight, the gradient before it is scattered."""
        operand_bytes = sum(shape.bytes for shape in self.operands)
        return max(operand_bytes, sum(shape.bytes for shape in self.results))

    @property
    def sent_bytes(self) -> float:
        """By each device, once: around a ring all but its own part passes through, twice to reduce and gather again."""
        if self.kind == "collective-permute":
            return self.payload_bytes if self.group_size else 0
        rounds = 2 if self.kind == "all-reduce" else 1
        return rounds * (self.group_size - 1) / self.group_size * self.payload_bytes


class Total(NamedTuple):
    """Of one step."""

    times: int
    payload_bytes: int
    sent_bytes: float


def collectives(module: Module) -> list[Collective]:
    """All of them, each once for every place its computation is called from."""
    found = []
    for visit in module.visits():
        if visit.caller is not None and visit.caller.opcode == "async-start":
            continue  # what it wraps is seen at the start
        for instruction in visit.computation.instructions:
            core = _core(module, instruction)
            if core is not None:
                found.append(_collective(module, visit.computation, visit.loops, instruction, core))
    return found


def kind_of(module: Module, name: str) -> str | None:
    """The kind of collective that this instruction is, starts, waits for or, being a fusion, has inside; else None."""
    home = module.home[name]
    instruction = home.by_name[name]
    while instruction.opcode in ("async-done", "async-update"):
        instruction = home.by_name[instruction.operands[0]]
    if instruction.opcode == "fusion":
        inside = (module.computations[called] for called in instruction.called.get("calls", ()))
        return next((kind for one in inside for inner in one.instructions if (kind := _kind(inner))), None)
    core = _core(module, instruction) or instruction
    return next((kind for kind in KINDS if core.opcode in (kind, f"{kind}-start", f"{kind}-done")), None)


def by_kind(found: Iterable[Collective]) -> dict[str, Total]:
    totals: dict[str, Total] = {}
    for one in found:
        times, payload, sent = totals.get(one.kind, Total(0, 0, 0))
        totals[one.kind] = Total(
            times + one.times, payload + one.times * one.payload_bytes, sent + one.times * one.sent_bytes
        )
    return totals


def _core(module: Module, instruction: Instruction) -> Instruction | None:
    """The instruction that says what is moved among whom: itself, or the one that an async-start wraps."""
    if _kind(instruction) is not None:
        return instruction
    if instruction.opcode == "async-start":
        for name in instruction.called.get("calls", ()):
            for inner in module.computations[name].instructions:
                if _kind(inner) is not None:
                    return inner
    return None


def _kind(instruction: Instruction) -> str | None:
    kind = instruction.opcode.removesuffix("-start")
    return kind if kind in KINDS else None


def _collective(
    module: Module, computation: Computation, loops: tuple[Loop, ...], start: Instruction, core: Instruction
) -> Collective:
    end = start
    if start.opcode.endswith("-start"):
        end = _done(computation, start)
    kind = _kind(core)
    assert kind is not None
    groups = core.replica_groups
    if kind == "collective-permute":
        group_size = len(SENDER.findall(core.attributes["source_target_pairs"]))
    else:
        groups = groups or (tuple(range(module.device_count)),)
        group_size = len(groups[0])
    first, last = computation.position[start.name], computation.position[end.name]
    is_async = end is not start and '"is_sync":true' not in start.attributes.get("backend_config", "")
    return Collective(
        kind=kind,
        name=start.name,
        computation=computation.name,
        in_loop=loops,
        operands=tuple(shape for name in start.operands for shape in computation.by_name[name].shapes),
        results=end.shapes,
        groups=groups,
        group_size=group_size,
        is_async=is_async,
        between=tuple(
            Work(inner.name, inner.opcode, module.is_matmul(inner))
            for inner in computation.instructions[first + 1 : last]
            if _is_work(inner)
        ),
        op_name=core.op_name or start.op_name,
    )


def _done(computation: Computation, start: Instruction) -> Instruction:
    """The instruction that waits for `start`; async-updates may stand between the two."""
    waited = start.name
    for instruction in computation.instructions[computation.position[start.name] + 1 :]:
        if waited in instruction.operands:
            if instruction.opcode == "async-update":
                waited = instruction.name
            elif instruction.opcode.endswith("-done"):
                return instruction
    raise ValueError(f"HLO: {start.name} in {computation.name} is started and never waited for")


def _is_work(instruction: Instruction) -> bool:
    """More than a name for a buffer, a loop counter, or another transfer's start or end."""
    if instruction.opcode in NO_WORK or instruction.opcode.endswith(("-start", "-done")):
        return False
    is_scalar = all(shape.elements == 1 for shape in instruction.shapes)
    return not is_scalar and _kind(instruction) is None
