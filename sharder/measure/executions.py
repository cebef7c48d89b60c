"""The ops that a device ran, as arrays: every execution, and the time in which it was the innermost of its line.

line     |  while.1                          |
         |    fusion.2     fusion.3          |
pieces   |11222222222222133333333333331111111|
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np


@dataclass(frozen=True)
class Executions:
    """Every execution of an op on one device, E in all. Names are ids into Trace.names."""

    start_ns: np.ndarray = field(repr=False)  # int64 [E] from the start of the profiling session
    end_ns: np.ndarray = field(repr=False)  # int64 [E]
    line: np.ndarray = field(repr=False)  # int32 [E] index into Device.lines
    op: np.ndarray = field(repr=False)  # int32 [E] name of the HLO instruction
    module: np.ndarray = field(repr=False)  # int32 [E] name of the program
    event: np.ndarray = field(repr=False)  # int32 [E] the event's own name: on a GPU the kernel
    run: np.ndarray = field(repr=False)  # int64 [E] which launch of the program; MISSING where the trace does not say

    def __len__(self) -> int:
        return len(self.start_ns)

    def rows(self, chosen: np.ndarray) -> Executions:
        return Executions(*(getattr(self, column.name)[chosen] for column in fields(self)))


@dataclass(frozen=True)
class Pieces:
    """K intervals; those of one line do not overlap."""

    start_ns: np.ndarray = field(repr=False)  # int64 [K]
    end_ns: np.ndarray = field(repr=False)  # int64 [K]
    owner: np.ndarray = field(repr=False)  # int64 [K] row of the execution

    def __len__(self) -> int:
        return len(self.start_ns)

    def rows(self, chosen: np.ndarray) -> Pieces:
        return Pieces(self.start_ns[chosen], self.end_ns[chosen], self.owner[chosen])


@dataclass(frozen=True)
class Device:
    name: str
    lines: tuple[str, ...]  # streams or threads
    executions: Executions
    pieces: Pieces


def join_executions(parts: Sequence[Executions]) -> Executions:
    if not parts:
        none, names = np.zeros(0, np.int64), np.zeros(0, np.int32)
        return Executions(none, none, names, names, names, names, none)
    return Executions(
        *(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(Executions))
    )


def join_pieces(parts: Sequence[Pieces]) -> Pieces:
    none = np.zeros(0, np.int64)
    return Pieces(
        *(np.concatenate([none, *(getattr(part, column.name) for part in parts)]) for column in fields(Pieces))
    )


def innermost(start_ns: np.ndarray, end_ns: np.ndarray) -> Pieces:
    """The time in which each of these events (int64 [E]) of one line is the innermost: the one that started last.

    Owners are rows of the events. The pieces cover what the events cover, and do not overlap. Events of the same time
    are one inside the other in the order given.
    """
    order = np.lexsort((-end_ns, start_ns))  # what encloses comes before what it encloses
    start_ns, end_ns = start_ns[order], end_ns[order]
    if (start_ns[1:] >= end_ns[:-1]).all():
        some = end_ns > start_ns
        return Pieces(start_ns[some], end_ns[some], order[some])
    starts: list[int] = []
    ends: list[int] = []
    owners: list[int] = []
    running: list[tuple[int, int]] = []  # (end, row) from the outermost to the innermost
    now = 0

    def run_until(time: int) -> None:
        nonlocal now
        while running and now < time:
            end, row = running[-1]
            if end > now:
                starts.append(now)
                ends.append(min(end, time))
                owners.append(row)
                now = ends[-1]
            if end <= now:
                running.pop()
        now = time

    for start, end, row in zip(start_ns.tolist(), end_ns.tolist(), order.tolist(), strict=True):
        run_until(start)
        running.append((end, row))
    run_until(max(end for end, _ in running))
    return Pieces(*(np.array(part, np.int64) for part in (starts, ends, owners)))
