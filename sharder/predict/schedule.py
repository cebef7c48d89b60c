"""A step's time, from its instructions in the order that the compiler put them in.

One instruction after the other, a loop's body as often as it runs. A collective that the compiler made asynchronous
moves from its start on; where the program waits for it, what is left of it is exposed. Two that are under way share the
links, so the second begins when the first is through.

    now         start            done
    compute     | fusion | matmul |......| next          ...... exposed: nothing else to do
    link        |=========================|

Beside each other work and transfers are slower, both by CONTENTION: they share cores and the memory's rate. Not
everything is told apart: a collective that is under way while a whole loop runs slows the loop and not its instructions
one by one, and shares no link with those inside. Of a conditional the dearest branch runs. A loop whose length XLA does
not know counts once, and is listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sharder.measure.collectives import Collective, collectives
from sharder.measure.hlo import Computation, Instruction, Module
from sharder.predict.ring import Links, collective_s
from sharder.predict.roofline import Kernel, Roofline

CONTENTION = 0.3  # share of its time that work takes longer beside a collective, and the other way; assumed


@dataclass(frozen=True)
class Run:
    """One instruction, as often as a step runs it. Seconds are of one time."""

    instruction: Instruction
    times: int
    kernel: Kernel | None = None
    collective: Collective | None = None
    transfer_s: float = 0.0  # of a collective, had it the device to itself
    exposed_s: float = 0.0  # of that, with nothing running beside it
    slowed_s: float = 0.0  # longer than alone, for a collective beside it
    unknown: str = ""

    @property
    def busy_s(self) -> float:
        return 0.0 if self.kernel is None else self.kernel.busy_s

    @property
    def gap_s(self) -> float:
        return 0.0 if self.kernel is None else self.kernel.gap_s

    @property
    def total_s(self) -> float:
        """What it adds to the step, all times together."""
        return self.times * (self.busy_s + self.gap_s + self.exposed_s + self.slowed_s)


@dataclass(frozen=True)
class Schedule:
    runs: tuple[Run, ...]

    @property
    def step_s(self) -> float:
        return sum(run.total_s for run in self.runs)

    @property
    def flops(self) -> int:
        """Of all matrix products of a step, on one device."""
        return sum(run.times * run.kernel.flops for run in self.runs if run.kernel is not None)

    @property
    def unknown(self) -> dict[str, int]:
        """What the model does not know: what it is, how often a step runs it."""
        found: Counter[str] = Counter()
        for run in self.runs:
            if run.unknown:
                found[run.unknown] += run.times
        return dict(found)


@dataclass
class Clock:
    """Of the links, in seconds of transfer alone, from the start of one computation."""

    contention: float
    queued: float = 0.0  # by all collectives so far
    moved: float = 0.0  # of that

    def work(self, seconds: float) -> float:
        """Goes on by what would take `seconds` alone. Returns how much longer it took."""
        beside = min(seconds, self.queued - self.moved)
        self.moved += beside
        return beside * self.contention

    def start(self, seconds: float) -> float:
        """Of a collective. Returns what will have moved when it is through."""
        self.queued += seconds
        return self.queued

    def wait(self, until: float) -> float:
        """Until so much has moved. Returns how long."""
        exposed = max(0.0, until - self.moved)
        self.moved += exposed
        return exposed


def schedule(roofline: Roofline, links: Links, overlap: bool = True, contention: float = CONTENTION) -> Schedule:
    """`overlap` False: the program waits for every collective where it starts it."""
    return Schedule(tuple(_Walk(roofline, links, overlap, contention).computation(roofline.module.entry)))


@dataclass
class _Walk:
    roofline: Roofline
    links: Links
    overlap: bool
    contention: float
    found: dict[str, Collective] = field(init=False)

    def __post_init__(self) -> None:
        self.found = {one.name: one for one in collectives(self.module)}

    @property
    def module(self) -> Module:
        return self.roofline.module

    def computation(self, computation: Computation) -> list[Run]:
        """Its runs, each as often as one run of the computation has it."""
        clock, runs = Clock(self.contention), list[Run]()
        under_way: dict[str, tuple[int, float]] = {}  # of a start: its place among the runs, when it is through
        for instruction in computation.instructions:
            if instruction.name in self.found:
                one = self.found[instruction.name]
                seconds = collective_s(one, self.links)
                run = Run(instruction, 1, collective=one, transfer_s=seconds)
                through = clock.start(seconds)
                if one.is_async and self.overlap:
                    under_way[instruction.name] = (len(runs), through)
                else:
                    run = replace(run, exposed_s=clock.wait(through))
                runs.append(run)
            elif instruction.opcode.endswith("-done"):
                place, through = under_way.pop(_start_of(instruction, computation), (-1, 0.0))
                if place >= 0:
                    runs[place] = replace(runs[place], exposed_s=clock.wait(through))
            else:
                runs += self._worked(instruction, clock)
        return runs

    def _worked(self, instruction: Instruction, clock: Clock) -> Iterable[Run]:
        """What it runs, and the clock goes on by that."""
        if instruction.sequences and instruction.opcode != "fusion":
            inside, unknown = self._inside(instruction)
            slowed = clock.work(sum(run.total_s for run in inside))
            if slowed or unknown:
                inside.append(Run(instruction, 1, slowed_s=slowed, unknown=unknown))
            return inside
        kernel = self.roofline.kernel(instruction)
        if kernel is None:
            return []
        return [Run(instruction, 1, kernel, slowed_s=clock.work(kernel.total_s), unknown=kernel.unknown)]

    def _inside(self, instruction: Instruction) -> tuple[list[Run], str]:
        """Of a loop, call or conditional; and what is not known of it."""
        names = instruction.sequences
        if instruction.opcode == "while":
            # A loop of known length is counted by the host; the device asks no condition.
            body = self.computation(self.module.computations[names["body"][0]])
            trips = instruction.trip_count
            if trips is None:
                return body, "while of a length that is not known"
            return [replace(run, times=run.times * trips) for run in body], ""
        bodies = [self.computation(self.module.computations[name]) for found in names.values() for name in found]
        if instruction.opcode == "conditional":
            return max(bodies, key=lambda body: sum(run.total_s for run in body)), ""
        return [run for body in bodies for run in body], ""


def _start_of(done: Instruction, computation: Computation) -> str:
    instruction = computation.by_name[done.operands[0]]
    while instruction.opcode == "async-update":
        instruction = computation.by_name[instruction.operands[0]]
    return instruction.name
