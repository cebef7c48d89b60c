"""The buffers of a compiled program, and which of them are alive when most memory is: read from what XLA dumps.

XLA lays all temporaries of a program for GPUs into one block, each at an offset, and values that are never alive
together share bytes. It says so in two texts beside the program, when it is asked to dump:

    *-buffer-assignment.txt    allocation 7: size 5262384, preallocated-temp:
                                value: <91 fusion.5{1} @0> (size=4096,offset=512): f32[32,32]{1,0}
    *-live-range.txt           BufferLiveRange:
                                   fusion.5{1}:297-298          steps of the schedule, loops unrolled once

A value is named by its instruction, and for a part of a tuple by where in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sharder.measure.hlo import ARRAY, Shape

VALUE = re.compile(r" value: <\d+ ([^\s{]+)(?:\{([\d,]*)\})?(?: \(\w+\))? @\d+> \(size=(\d+),offset=(\d+)\): (.*)")
ALLOCATION = re.compile(r"allocation \d+: size (\d+)")
TEMPORARIES = "preallocated-temp"
RANGE = re.compile(r"    ([^\s{]+)(?:\{([\d,]*)\})?:(\d+)-(\d+)")


@dataclass(frozen=True)
class Buffer:
    """One value in the block of temporaries."""

    instruction: str
    index: str  # in a tuple: "" or "1,0"
    shapes: tuple[Shape, ...]  # several: the table of a tuple's addresses
    offset: int
    bytes: int
    first: int  # step of the schedule
    last: int

    @property
    def end(self) -> int:
        return self.offset + self.bytes


def dump_options(folder: Path) -> dict[str, str]:
    """Compiler options under which XLA writes the two texts into `folder`."""
    return {"xla_dump_to": str(folder)}


def read_buffers(folder: Path) -> list[Buffer] | None:
    """Of the only program dumped there; None where this compiler wrote no such texts."""
    assignment, ranges = (sorted(folder.glob(f"*-{name}.txt")) for name in ("buffer-assignment", "live-range"))
    if len(assignment) != 1 or len(ranges) != 1:
        return None
    return list(buffers(assignment[0].read_text(), ranges[0].read_text()))


def buffers(assignment: str, live_ranges: str) -> Iterable[Buffer]:
    alive = {}
    for line in live_ranges[live_ranges.find("BufferLiveRange:") :].splitlines():
        if found := RANGE.fullmatch(line):
            alive[found[1], found[2] or ""] = int(found[3]), int(found[4])
    among_temporaries = False
    for line in assignment.splitlines():
        if ALLOCATION.match(line):
            among_temporaries = TEMPORARIES in line
        elif among_temporaries and (found := VALUE.match(line)):
            name, index = found[1], found[2] or ""
            if (name, index) not in alive:
                continue
            first, last = alive[name, index]
            yield Buffer(name, index, _shapes(found[5]), int(found[4]), int(found[3]), first, last)


def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple(
        Shape(dtype, tuple(int(size) for size in dims.split(",") if size)) for dtype, dims in ARRAY.findall(text)
    )


def at_peak(found: Sequence[Buffer]) -> list[Buffer]:
    """Those alive at the first step at which they take most bytes."""
    starting: dict[int, list[Buffer]] = {}
    for buffer in found:
        starting.setdefault(buffer.first, []).append(buffer)
    alive: list[Buffer] = []
    peak: list[Buffer] = []
    most = 0
    for step in sorted(starting):
        alive = [buffer for buffer in alive if buffer.last >= step] + starting[step]
        if sum(buffer.bytes for buffer in alive) > most and (covered := covered_bytes(alive)) > most:
            most, peak = covered, alive
    return peak


def covered_bytes(found: Iterable[Buffer]) -> int:
    """What several take together, those on the same bytes once."""
    total = end = 0
    for buffer in sorted(found, key=lambda buffer: buffer.offset):
        total += max(0, buffer.end - max(end, buffer.offset))
        end = max(end, buffer.end)
    return total
