"""What the simulated devices of a CPU ran, from the threads of its host plane (as jax 0.10 and 0.12 write it).

Ops are the events that have the stats `hlo_op` and `device_ordinal`. Which device an event is of only that stat tells:
the pools of threads (tf_XLAEigen, tf_XLAPjRtCpuClient, tf_XLAExecute) serve all devices of the process.

An op that is cut in parts has its event only on the thread that started it. The others do their part as a task of the
pool, between two markers without a name. The marker that announced the task says which op it works for:

    thread 1    dot [#### Record 7 ####]                                        its event: its time on this thread
    thread 2    StartRegion 7 ######################### StopRegion              its time on another
    thread 2    StartRegion 8 ### ThunkExecutor::Execute [ add ] ## StopRegion  so too, but for what runs in between:
                                                                                the thread went on with the program

A twin event "end: dot" marks the callback of an op, which may run after everything that follows the op. It is left
out, and so is the time between ops, in which a thread looks for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharder.measure.executions import Device, Executions, Pieces, innermost, join_executions, join_pieces
from sharder.measure.xspace import MISSING, Line, Names, Plane

ANNOUNCED, BEGUN, ENDED = (f"ThreadpoolListener::{marker}" for marker in ("Record", "StartRegion", "StopRegion"))
EXECUTOR = "ThunkExecutor::Execute"
# Whom a piece of time belongs to: an execution by its row, or nobody, or a task of the pool as TASK - its number.
NOBODY = -1
TASK = -2


def cpu_devices(plane: Plane, names: Names) -> list[Device]:
    """The devices that had ops, in the order of their numbers."""
    threads = [line for line in plane.lines if len(line.event)]
    ops = [
        np.flatnonzero((line.stat("hlo_op") != MISSING) & (line.stat("device_ordinal") != MISSING)) for line in threads
    ]
    executions = join_executions(
        [_executions(line, index, rows) for index, (line, rows) in enumerate(zip(threads, ops, strict=True))]
    )
    if not len(executions):
        return []
    pieces = _pieces(threads, ops, names)
    ordinal = np.concatenate([line.stat("device_ordinal")[rows] for line, rows in zip(threads, ops, strict=True)])
    lines = tuple(line.name for line in threads)
    devices = []
    for number in np.unique(ordinal):
        mine = np.flatnonzero(ordinal == number)
        own = pieces.rows(np.isin(pieces.owner, mine))
        own = Pieces(own.start_ns, own.end_ns, np.searchsorted(mine, own.owner))
        devices.append(Device(f"cpu:{number}", lines, executions.rows(mine), own))
    return devices


def _executions(line: Line, index: int, rows: np.ndarray) -> Executions:
    module = line.stat("hlo_module")[rows]
    return Executions(
        line.start_ns[rows],
        line.end_ns[rows],
        np.full(len(rows), index, np.int32),
        line.stat("hlo_op")[rows].astype(np.int32),
        np.where(module == MISSING, 0, module).astype(np.int32),
        line.event[rows],
        line.stat("run_id")[rows],
    )


def _pieces(threads: Sequence[Line], ops: Sequence[np.ndarray], names: Names) -> Pieces:
    """The pieces of all executions, with the tasks that worked for them. Rows count on from thread to thread."""
    pieces: list[Pieces] = []
    announced_by: dict[int, int] = {}  # number of a task: to whom the time belongs in which it was announced
    first = 0
    for line, rows in zip(threads, ops, strict=True):
        own = _pieces_of_thread(line, rows, first, names)
        first += len(rows)
        pieces.append(own)
        announced = np.flatnonzero(line.event == names.find(ANNOUNCED))
        within = np.searchsorted(own.start_ns, line.start_ns[announced], "right") - 1
        for row, piece, number in zip(announced, within, line.stat("_p")[announced], strict=True):
            inside = piece >= 0 and line.start_ns[row] < own.end_ns[piece]
            announced_by[int(number)] = int(own.owner[piece]) if inside else NOBODY
    joined = join_pieces(pieces)
    owners, which = np.unique(joined.owner, return_inverse=True)
    served = np.array([_served(int(owner), announced_by) for owner in owners], np.int64)[which]
    return Pieces(joined.start_ns, joined.end_ns, served).rows(served != NOBODY)


def _pieces_of_thread(line: Line, ops: np.ndarray, first: int, names: Names) -> Pieces:
    task_start, task_end, number = _tasks(line, names)
    # Within an op, a `while` or a `call`, the executor runs its body: what it spends between the ops is the op's.
    within_op = _covered(line.start_ns, line.start_ns[ops], line.end_ns[ops])
    resumed = np.flatnonzero((line.event == names.find(EXECUTOR)) & ~within_op)
    own = innermost(
        np.concatenate([task_start, line.start_ns[resumed], line.start_ns[ops]]),
        np.concatenate([task_end, line.end_ns[resumed], line.end_ns[ops]]),
    )
    owners = np.concatenate([TASK - number, np.full(len(resumed), NOBODY), np.arange(first, first + len(ops))])
    return Pieces(own.start_ns, own.end_ns, owners[own.owner])


def _tasks(line: Line, names: Names) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start, end and number, int64 [T] each, of the tasks that a thread ran.

    While a task waits the thread may run another, so they nest. Those of which the trace shows only one end are left
    out.
    """
    begun, ended = names.find(BEGUN), names.find(ENDED)
    rows = np.flatnonzero((line.event == begun) | (line.event == ended))
    rows = rows[np.argsort(line.start_ns[rows], kind="stable")]
    begins = line.event[rows] == begun
    depth = np.cumsum(np.where(begins, 1, -1)) + np.where(begins, 0, 1)  # that of the task, at its begin and at its end
    order = np.argsort(depth, kind="stable")
    rows, begins, depth = rows[order], begins[order], depth[order]
    first = np.flatnonzero(begins[:-1] & ~begins[1:] & (depth[:-1] == depth[1:]))
    starts, ends, numbers = line.start_ns[rows[first]], line.start_ns[rows[first + 1]], line.stat("_c")[rows[first]]
    known = numbers >= 0  # MISSING is not
    return starts[known], ends[known], numbers[known]


def _covered(times: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """bool [E]: which times lie in one of the intervals."""
    if not len(starts):
        return np.zeros(len(times), bool)
    order = np.argsort(starts, kind="stable")
    reach = np.maximum.accumulate(ends[order])
    last = np.searchsorted(starts[order], times, "right") - 1
    return (last >= 0) & (times < reach[last])


def _served(owner: int, announced_by: dict[int, int]) -> int:
    """The execution that a task works for, or NOBODY. A task may itself have been announced by a task."""
    seen: set[int] = set()
    while owner <= TASK and owner not in seen:
        seen.add(owner)
        owner = announced_by.get(TASK - owner, NOBODY)
    return NOBODY if owner <= TASK else owner
