"""A window of a trace, divided for every device among compute, communication and nothing.

    stream 20    compute     |#########    #####   |
    stream 25    all-gather  |   ##########        |
                             |ccchhhhhhxxxxccccc...|

    compute  c h   an op that is no collective runs
    hidden   h     a collective runs, and compute too
    exposed  x     a collective runs and no compute: what communication costs, waiting for the others included
    idle     .     no op runs
    busy     c h x some op runs; what runs at once counts once

so busy = compute + exposed, and busy + idle = window. An op is charged its self time: while a child runs, the child is
charged. `wall_ns` goes further and divides every busy instant among the ops that run then (compute if there is
any, equally by piece), so that the wall times of all ops add up to busy.

Nothing may be concluded from a trace that misses something. The window is checked against the wall time that the caller
measured for the same steps, blocked until the last result was there, and every op against the number of steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sharder.measure.executions import Device, Executions, Pieces
from sharder.measure.trace import Trace
from sharder.measure.xspace import MISSING, Names

LEAST, MOST = 0.95, 1.05  # of the wall time that a timeline must explain
UNEVEN = 0.05  # of an op time that may belong to ops whose number is no multiple of the steps: those under a condition
# HLO instructions are named after their opcode or after the jax primitive they come from.
COLLECTIVE_OP = re.compile(
    r"(all[-_]gather|all[-_]reduce|(ragged[-_])?all[-_]to[-_]all|collective-broadcast|collective-permute|pbroadcast|pmax"
    r"|pmin|ppermute|psum|reduce[-_]scatter)(_invariant)?(-start|-done)?(\.|$)"
)
COLLECTIVE_KERNEL = re.compile(r"nccl|nvshmem", re.IGNORECASE)

IsCollective = Callable[[str, str, str], bool]  # of a module, an op and an event


def is_collective(module: str, op: str, event: str) -> bool:
    """By name. Who has the program's HLO knows better: a name is only a name, and an async-start may wrap anything."""
    return bool(COLLECTIVE_OP.match(op) or COLLECTIVE_KERNEL.search(event))


@dataclass(frozen=True)
class OpTime:
    """All executions of one instruction on one device within the window."""

    device: str
    module: str  # program; empty for a copy or kernel that no HLO op launched
    op: str  # HLO instruction
    is_collective: bool
    count: int  # executions that started in the window
    self_ns: int  # without its children, added up over lines: more than the wall time where lines run at once
    wall_ns: float  # its part of the busy time; of a collective, the exposed part
    hidden_ns: float  # of a collective: compute ran meanwhile


@dataclass(frozen=True)
class DeviceTime:
    device: str
    compute_ns: int
    hidden_ns: int
    exposed_ns: int
    idle_ns: int
    unseen_ns: int  # at the edges of a window whose steps are not all there: idle or cut off, nobody can tell
    ops: tuple[OpTime, ...] = field(repr=False)

    @property
    def busy_ns(self) -> int:
        return self.compute_ns + self.exposed_ns

    @property
    def communication_ns(self) -> int:
        return self.hidden_ns + self.exposed_ns

    @property
    def explained_ns(self) -> int:
        return self.busy_ns + self.idle_ns


@dataclass(frozen=True)
class Timeline:
    window_ns: tuple[int, int]
    steps: int
    blocked_wall_ns: int  # measured by the caller over the same steps
    devices: tuple[DeviceTime, ...]
    problems: tuple[str, ...]  # why it is incomplete: draw no conclusion

    @property
    def coverage(self) -> float:
        """The part of the wall time that is explained, on the device where that is least."""
        return min((device.explained_ns for device in self.devices), default=0) / self.blocked_wall_ns

    @property
    def complete(self) -> bool:
        return not self.problems


def timeline(
    trace: Trace,
    window_ns: tuple[int, int],
    steps: int,
    blocked_wall_ns: int,
    device_count: int,
    is_collective: IsCollective = is_collective,
) -> Timeline:
    """`window_ns` holds `steps` steps; `device_count` devices of this process took part."""
    if not window_ns[0] < window_ns[1] or steps < 1 or blocked_wall_ns <= 0:
        raise ValueError(f"timeline: window {window_ns} ns, {steps} steps, {blocked_wall_ns} ns")
    problems = list(trace.problems)
    if len(trace.devices) != device_count:
        names = ", ".join(device.name for device in trace.devices)
        problems.append(f"{device_count} devices took part, the trace has {len(trace.devices)} ({names})")
    devices = []
    for device in trace.devices:
        missing = _missing_steps(device, window_ns, steps, trace.names)
        problems += missing
        devices.append(_device_time(device, window_ns, trace.names, is_collective, all_there=not missing))
    result = Timeline(window_ns, steps, blocked_wall_ns, tuple(devices), ())
    if not LEAST <= result.coverage <= MOST:
        problems.append(
            f"the trace explains {result.coverage:.1%} of the {blocked_wall_ns / 1e6:.2f} ms that {steps} steps took, "
            f"it must be {LEAST:.0%} to {MOST:.0%}"
        )
    return Timeline(window_ns, steps, blocked_wall_ns, tuple(devices), tuple(problems))


def op_times(timeline: Timeline) -> tuple[OpTime, ...]:
    """One row for every (device, module, op), the most wall time first."""
    return tuple(sorted((op for device in timeline.devices for op in device.ops), key=lambda op: -op.wall_ns))


@dataclass(frozen=True)
class Split:
    """What pieces add up to. Their shares are those of each piece, K of them."""

    compute_ns: int
    hidden_ns: int
    exposed_ns: int
    wall_ns: np.ndarray  # float64 [K]
    piece_hidden_ns: np.ndarray  # float64 [K], zero for compute


def split(start_ns: np.ndarray, end_ns: np.ndarray, collective: np.ndarray) -> Split:
    """Divide the time of a device's pieces (int64 [K], bool [K]), none of them empty, of all its lines.

    Between two neighbouring edges nothing changes: there, count how many pieces of either sort run.
    """
    edges = np.unique(np.concatenate([start_ns, end_ns]))  # [N]
    length = np.diff(edges)  # [N-1]
    first, last = np.searchsorted(edges, start_ns), np.searchsorted(edges, end_ns)

    def running(mine: np.ndarray) -> np.ndarray:
        change = np.bincount(first[mine], minlength=len(edges)) - np.bincount(last[mine], minlength=len(edges))
        return np.cumsum(change)[:-1] if len(edges) else change

    computing, communicating = running(~collective), running(collective)
    is_compute, is_hidden = computing > 0, (computing > 0) & (communicating > 0)
    is_exposed = (computing == 0) & (communicating > 0)

    def share(counted: np.ndarray, of: np.ndarray) -> np.ndarray:
        """What a piece gets that runs from its first to its last edge and shares with `of` pieces."""
        until = np.concatenate([[0.0], np.cumsum(np.where(counted, length / np.maximum(of, 1), 0.0))])
        return until[last] - until[first]

    return Split(
        int(length[is_compute].sum()),
        int(length[is_hidden].sum()),
        int(length[is_exposed].sum()),
        np.where(collective, share(is_exposed, communicating), share(is_compute, computing)),
        np.where(collective, share(is_hidden, communicating), 0.0),
    )


def clipped(pieces: Pieces, window_ns: tuple[int, int]) -> Pieces:
    """The parts of the pieces within the window; the rest is dropped."""
    start_ns, end_ns = np.maximum(pieces.start_ns, window_ns[0]), np.minimum(pieces.end_ns, window_ns[1])
    some = start_ns < end_ns
    return Pieces(start_ns[some], end_ns[some], pieces.owner[some])


def _kinds(executions: Executions) -> tuple[np.ndarray, np.ndarray]:
    """A row of each different (module, op, event), int64 [U], and which of them each execution is, int64 [E]."""
    kind = np.zeros(len(executions), np.int64)
    rows = kind[:0]
    for column in (executions.module, executions.op, executions.event):
        _, rows, kind = np.unique(kind * (1 + column.max(initial=0)) + column, return_index=True, return_inverse=True)
    return rows, kind


def _device_time(
    device: Device, window_ns: tuple[int, int], names: Names, is_collective: IsCollective, all_there: bool
) -> DeviceTime:
    executions, pieces = device.executions, clipped(device.pieces, window_ns)
    rows, kind = _kinds(executions)
    columns = (executions.module[rows], executions.op[rows], executions.event[rows])
    texts = [
        (names[int(module)], names[int(op)], names[int(event)]) for module, op, event in zip(*columns, strict=True)
    ]
    collective = np.array([is_collective(*text) for text in texts], bool)  # [U]
    of_piece = kind[pieces.owner]  # [K]
    parts = split(pieces.start_ns, pieces.end_ns, collective[of_piece])
    started = (executions.start_ns >= window_ns[0]) & (executions.start_ns < window_ns[1])
    count = np.bincount(kind[started], minlength=len(texts))
    self_ns, wall_ns, hidden_ns = (
        np.bincount(of_piece, weights, minlength=len(texts))
        for weights in (pieces.end_ns - pieces.start_ns, parts.wall_ns, parts.piece_hidden_ns)
    )
    ops = _ops(device.name, texts, collective, count, self_ns, wall_ns, hidden_ns)
    window = window_ns[1] - window_ns[0]
    seen = int(pieces.end_ns.max() - pieces.start_ns.min()) if len(pieces) else 0
    unseen_ns = 0 if all_there else window - seen
    idle_ns = window - parts.compute_ns - parts.exposed_ns - unseen_ns
    return DeviceTime(device.name, parts.compute_ns, parts.hidden_ns, parts.exposed_ns, idle_ns, unseen_ns, ops)


def _ops(
    device: str,
    texts: Sequence[tuple[str, str, str]],
    collective: np.ndarray,
    count: np.ndarray,
    self_ns: np.ndarray,
    wall_ns: np.ndarray,
    hidden_ns: np.ndarray,
) -> tuple[OpTime, ...]:
    """One row an op; the columns [U] have one for each kernel that an op launches."""
    kernels: dict[tuple[str, str, bool], list[int]] = {}
    for index, (module, op, _) in enumerate(texts):
        if count[index] or self_ns[index]:
            kernels.setdefault((module, op, bool(collective[index])), []).append(index)
    return tuple(
        OpTime(
            device,
            module,
            op,
            moves,
            int(count[rows].max()),
            round(self_ns[rows].sum()),
            float(wall_ns[rows].sum()),
            float(hidden_ns[rows].sum()),
        )
        for (module, op, moves), rows in kernels.items()
    )


def _missing_steps(device: Device, window_ns: tuple[int, int], steps: int, names: Names) -> list[str]:
    """What tells that the trace does not hold all the steps of this device.

    On a CPU every launch of a program has a number. On a GPU it has none, but whole steps run every op equally often,
    save those under a condition.
    """
    started = (device.executions.start_ns >= window_ns[0]) & (device.executions.start_ns < window_ns[1])
    executions = device.executions.rows(started)
    if not len(executions):
        return [f"{device.name} has no op in the window"]
    length_ns = (executions.end_ns - executions.start_ns).astype(np.float64)
    missing = []
    modules, module = np.unique(executions.module, return_inverse=True)
    longest = int(np.argmax(np.bincount(module, length_ns)))
    runs = executions.run[module == longest]
    launches = len(np.unique(runs[runs != MISSING]))
    if launches % steps:
        missing.append(f"{device.name} ran {names[int(modules[longest])]} {launches} times in {steps} steps")
    _, kind = _kinds(executions)
    uneven = np.bincount(kind)[kind] % steps != 0
    if length_ns[uneven].sum() > UNEVEN * length_ns.sum():
        share = length_ns[uneven].sum() / length_ns.sum()
        missing.append(f"{device.name}: the ops of {share:.0%} of the time ran not equally often in {steps} steps")
    return missing
