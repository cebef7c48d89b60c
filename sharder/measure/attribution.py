"""What the steps of a window spent their time on: every op of the timeline joined to its instruction, so to a place.

    op of the trace     instruction of the HLO           place
    dot.7               dot, .../jvp()/.../mlp/...       MLP, forward
    fusion.3            fusion of 12 instructions        divided among their places in proportion to modelled cost
    while.2             a loop whose ops are in the      the loop's own place: only what it takes beside them
                        trace themselves
    all-gather.1        all-gather                       collectives, all-gather; exposed, and hidden beside compute
    MemcpyH2D           of no program                    transfers
    fusion.9            none of this name                unknown: never spread over the others

Of a step and a device, a mean over both:  sum of the table + data wait + idle + unseen = wall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace

from sharder.measure.arithmetic import NOTHING, Cost
from sharder.measure.categories import (
    AROUND_COLLECTIVES,
    ATTENTION,
    COLLECTIVES,
    TRANSFER_EVENT,
    TRANSFER_OPCODES,
    TRANSFERS,
    UNKNOWN,
    VISION,
    Pass,
    Place,
    collective_place,
    says_where,
)
from sharder.measure.collectives import kind_of
from sharder.measure.costs import CPU, GPU, Costs, Prices
from sharder.measure.hlo import Instruction, Module
from sharder.measure.places import Places
from sharder.measure.timeline import IsCollective, OpTime, Timeline, is_collective

MISFIT = 0.01  # of the wall time by which the parts may miss it


@dataclass(frozen=True)
class Spent:
    """Of one step and device, a mean over those measured."""

    ns: float = 0.0  # of the busy time; of a collective the exposed part
    hidden_ns: float = 0.0  # of a collective: beside compute, which has that time
    flops: float = 0.0
    bytes: float = 0.0  # moved to and from memory
    flops_known: bool = True  # False: it holds calls whose arithmetic is not known, counted as none

    @property
    def flops_per_byte(self) -> float:
        """Arithmetic intensity; 0 where nothing is moved."""
        return self.flops / self.bytes if self.bytes else 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.ns + other.ns,
            self.hidden_ns + other.hidden_ns,
            self.flops + other.flops,
            self.bytes + other.bytes,
            self.flops_known and other.flops_known,
        )


@dataclass(frozen=True)
class Attribution:
    """Times are of one step and device, a mean over those measured."""

    steps: int
    device_count: int
    wall_ns: float
    table: Mapping[Place, Spent]  # the most time first
    data_wait_ns: float  # idle while the host waited for data
    idle_ns: float  # the rest of the idle time
    unseen_ns: float  # not in the trace
    divided_ns: float  # of fusions that have instructions of several places
    inferred_ns: float  # of instructions that XLA gave no path of scopes: see places.py
    problems: tuple[str, ...] = field(repr=False)  # why no conclusion may be drawn

    @property
    def busy_ns(self) -> float:
        return self.of().ns

    @property
    def accounted_ns(self) -> float:
        return self.busy_ns + self.data_wait_ns + self.idle_ns + self.unseen_ns

    def share(self, ns: float) -> float:
        """Of the wall time."""
        return ns / self.wall_ns

    def of(self, category: str | None = None, part: str | None = None, in_pass: Pass | None = None) -> Spent:
        """On what is named; None: on any."""
        wanted = (category, part, in_pass)
        chosen = (
            spent
            for place, spent in self.table.items()
            if all(want in (None, have) for want, have in zip(wanted, astuple(place), strict=True))
        )
        return sum(chosen, Spent())

    @property
    def attention(self) -> Spent:
        """Scores, softmax and what belongs to them, in the vision encoder too: what replacing attention takes away."""
        return self.of(ATTENTION) + self.of(VISION, ATTENTION)

    @property
    def communication(self) -> Mapping[str, Spent]:
        """By kind of collective: exposed (`ns`) and hidden."""
        kinds = dict.fromkeys(place.part for place in self.table if place.category == COLLECTIVES)
        return {kind: self.of(COLLECTIVES, kind) for kind in kinds if kind != AROUND_COLLECTIVES}


def collective_by_hlo(modules: Mapping[str, Module]) -> IsCollective:
    """For `timeline`: by the instruction, where it is known, else by its name."""
    known: dict[tuple[str, str], bool] = {}

    def found(module: str, op: str, event: str) -> bool:
        if module not in modules or op not in modules[module].home:
            return is_collective(module, op, event)
        if (module, op) not in known:
            known[module, op] = kind_of(modules[module], op) is not None
        return known[module, op]

    return found


def attribute(
    timeline: Timeline, modules: Mapping[str, Module], data_wait_ns: int = 0, prices: Prices | None = None
) -> Attribution:
    """`modules` by their name in the trace, `data_wait_ns` of all steps: how long the host waited for data.

    `prices` None: those of the devices in the timeline.
    """
    devices = timeline.devices
    if not devices:
        raise ValueError("attribution: the timeline has no device")
    prices = prices or (CPU if devices[0].device.startswith("cpu") else GPU)
    ops = [op for device in devices for op in device.ops]
    programs = {name: _Program(module, {op.op for op in ops if op.module == name}) for name, module in modules.items()}
    count = timeline.steps * len(devices)
    table = _Table(programs, prices, count)
    for op in ops:
        table.add(op)
    wall_ns = timeline.blocked_wall_ns / timeline.steps
    idle_ns = sum(device.idle_ns for device in devices) / count
    cut_off_ns = sum(device.unseen_ns for device in devices) / count
    window_ns = (timeline.window_ns[1] - timeline.window_ns[0]) / timeline.steps
    waited_ns = min(data_wait_ns / timeline.steps, idle_ns)
    result = Attribution(
        steps=timeline.steps,
        device_count=len(devices),
        wall_ns=wall_ns,
        table=table.sorted(),
        data_wait_ns=waited_ns,
        idle_ns=idle_ns - waited_ns,
        unseen_ns=cut_off_ns + max(0.0, wall_ns - window_ns),
        divided_ns=table.divided_ns,
        inferred_ns=table.inferred_ns,
        problems=timeline.problems,
    )
    return replace(result, problems=(*timeline.problems, *_misfit(result)))


def _misfit(result: Attribution) -> list[str]:
    if abs(result.accounted_ns - result.wall_ns) <= MISFIT * result.wall_ns:
        return []
    return [f"a step took {result.wall_ns / 1e6:.3f} ms, its parts add up to {result.accounted_ns / 1e6:.3f} ms"]


class _Program:
    """A module, with what is asked of it. `seen`: the instructions that the trace shows."""

    def __init__(self, module: Module, seen: set[str]):
        self.module, self.seen = module, seen
        self.costs, self.places = Costs(module), Places(module)

    def runs_what_is_seen(self, instruction: Instruction) -> bool:
        """A loop or call whose instructions have times of their own."""
        names = [name for found in instruction.sequences.values() for name in found]
        return instruction.opcode != "fusion" and any(
            inner.name in self.seen for name in names for inner in self.module.computations[name].instructions
        )


class _Table:
    """Adds up the ops. `count`: steps times devices."""

    def __init__(self, programs: Mapping[str, _Program], prices: Prices, count: int):
        self.programs, self.prices, self.count = programs, prices, count
        self.spent: dict[Place, Spent] = {}
        self.divided_ns = self.inferred_ns = 0.0

    def add(self, op: OpTime) -> None:
        program = self.programs.get(op.module)
        instruction = program.module.find(op.op) if program else None
        if program is None or instruction is None:
            self._put(_place_without_program(op), op, 1.0, NOTHING)
            return
        kind = kind_of(program.module, op.op)
        if kind is not None or op.is_collective:
            place = collective_place(kind or "", _op_name(program.module, instruction))
            self._put(place, op, 1.0, program.costs.of(op.op))
        elif instruction.opcode in TRANSFER_OPCODES:
            place = Place(TRANSFERS, instruction.opcode, program.places.of(instruction).in_pass)
            self._put(place, op, 1.0, program.costs.of(op.op))
        elif program.runs_what_is_seen(instruction):
            self._divide(op, program, [(instruction, NOTHING)])
        else:
            self._divide(op, program, program.costs.parts(op.op) or [(instruction, NOTHING)])

    def _divide(self, op: OpTime, program: _Program, parts: Sequence[tuple[Instruction, Cost]]) -> None:
        """Among the instructions in it, by price; all alike where they cost nothing."""
        prices = [self.prices.of(cost) for _, cost in parts]
        whole = sum(prices)
        places = set()
        for (inner, cost), price in zip(parts, prices, strict=True):
            share = price / whole if whole else 1 / len(parts)
            if share:
                place = program.places.of(inner)
                places.add(place)
                self._put(place, op, share, cost)
                self.inferred_ns += 0.0 if says_where(inner.op_name) else share * op.wall_ns / self.count
        self.divided_ns += op.wall_ns / self.count if len(places) > 1 else 0.0

    def _put(self, place: Place, op: OpTime, share: float, cost: Cost) -> None:
        """`cost` of one execution."""
        executions = op.count / self.count
        self.spent[place] = self.spent.get(place, Spent()) + Spent(
            share * op.wall_ns / self.count,
            share * op.hidden_ns / self.count,
            cost.flops * executions,
            cost.bytes * executions,
            cost.is_known,
        )

    def sorted(self) -> dict[Place, Spent]:
        return dict(sorted(self.spent.items(), key=lambda item: (-item[1].ns, item[0])))


def _place_without_program(op: OpTime) -> Place:
    if op.is_collective:
        return collective_place("", "")
    if not op.module and TRANSFER_EVENT.search(op.op):
        return Place(TRANSFERS, op.op, "outside")
    return Place(UNKNOWN, "", "outside")


def _op_name(module: Module, instruction: Instruction) -> str:
    """Of a collective: its own, or that of what it wraps."""
    inside = (inner for name in instruction.called.get("calls", ()) for inner in module.computations[name].instructions)
    names = [instruction.op_name, *(inner.op_name for inner in inside)]
    return next((name for name in names if says_where(name)), "")
