"""A profiled run as typed events: what every device ran and when, and what the threads of the host did.

    trace = read_trace(newest_trace_file(folder))
    window_ns = span(trace, "measured")            # the caller's own jax.profiler.TraceAnnotation("measured")

Of a GPU's plane ("/device:GPU:0") the ops are the events of the lines "Stream #...": every kernel and every copy, once.
Lines derived from them ("XLA Modules", "XLA Ops", "Steps", "Framework Name Scope") show the same time again and are
left out. The op is the stat `hlo_op`, the last where a stack of them is joined by "::". A kernel or copy that no HLO op
launched goes by its own name, without a module. For CPUs see cpu_threads.py. The CPU is not read as a device
where there are GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sharder.errors import UserError
from sharder.measure.cpu_threads import cpu_devices
from sharder.measure.executions import Device, Executions, Pieces, innermost, join_executions, join_pieces
from sharder.measure.xspace import MISSING, Line, Names, Plane, XSpace, read_xspace

TEXT_STATS = ("hlo_op", "hlo_module")
NUMBER_STATS = ("run_id", "device_ordinal", "step_num", "_p", "_c")
GPU_PLANE = re.compile(r"/device:GPU:\d+$")
HOST_PLANE = "/host:CPU"
LAST_PLANE = "Task Environment"  # the profiler writes it when all the others are complete
STREAM = "Stream #"


@dataclass(frozen=True)
class HostThread:
    name: str
    start_ns: np.ndarray = field(repr=False)  # int64 [E]
    end_ns: np.ndarray = field(repr=False)  # int64 [E]
    event: np.ndarray = field(repr=False)  # int32 [E] name, an id into Trace.names
    step: np.ndarray = field(repr=False)  # int64 [E] of a StepTraceAnnotation; MISSING for other events


@dataclass(frozen=True)
class Trace:
    path: Path
    devices: tuple[Device, ...]
    host_threads: tuple[HostThread, ...]
    problems: tuple[str, ...]  # why it cannot be complete
    names: Names = field(repr=False)


def newest_trace_file(folder: Path) -> Path:
    """Of the last profiling session below this folder; where several hosts have a file, the first by name."""
    sessions = {file.parent for file in folder.glob("**/*.xplane.pb")}
    if not sessions:
        raise UserError(f"trace: {folder} has no *.xplane.pb below it; profile first, with profile=window")
    newest = max(sessions, key=lambda session: session.name)  # the name is the time
    return min(newest.glob("*.xplane.pb"))


def read_trace(path: Path) -> Trace:
    xspace = read_xspace(path, TEXT_STATS, NUMBER_STATS)
    hosts = [plane for plane in xspace.planes if plane.name == HOST_PLANE]
    devices = [_gpu(plane, xspace.names) for plane in xspace.planes if GPU_PLANE.match(plane.name)]
    devices = devices or [device for plane in hosts for device in cpu_devices(plane, xspace.names)]
    if not any(len(device.executions) for device in devices):
        found = ", ".join(plane.name for plane in xspace.planes)
        raise UserError(
            f"trace: {path} has no op of a GPU or CPU (planes: {found}); profile steps that run while the trace is on"
        )
    threads = tuple(
        HostThread(line.name, line.start_ns, line.end_ns, line.event, line.stat("step_num"))
        for plane in hosts
        for line in plane.lines
    )
    return Trace(path, tuple(devices), threads, tuple(_problems(xspace, devices)), xspace.names)


def span(trace: Trace, annotation: str) -> tuple[int, int]:
    """From the start of the first to the end of the last host event of this name, in ns: the window of a timeline."""
    key = trace.names.find(annotation)
    found = [(thread, thread.event == key) for thread in trace.host_threads]
    starts = np.concatenate([np.zeros(0, np.int64), *(thread.start_ns[rows] for thread, rows in found)])
    ends = np.concatenate([np.zeros(0, np.int64), *(thread.end_ns[rows] for thread, rows in found)])
    if not len(starts):
        raise UserError(
            f"trace: {trace.path} has no host event {annotation!r}; run the steps within an annotation of that name"
        )
    return int(starts.min()), int(ends.max())


def steps(trace: Trace, annotation: str) -> dict[int, tuple[int, int]]:
    """Start and end, in ns, of every StepTraceAnnotation of this name, by step number."""
    key = trace.names.find(annotation)
    found = {}
    for thread in trace.host_threads:
        for row in np.flatnonzero((thread.event == key) & (thread.step != MISSING)):
            found[int(thread.step[row])] = (int(thread.start_ns[row]), int(thread.end_ns[row]))
    return dict(sorted(found.items()))


def _problems(xspace: XSpace, devices: Sequence[Device]) -> list[str]:
    problems = [f"the profiler says: {' '.join(complaint.split())}" for complaint in xspace.complaints]
    if not any(plane.name == LAST_PLANE for plane in xspace.planes):
        problems.append(f"the plane {LAST_PLANE!r}, written last, is missing: the file was never finished, or was cut")
    return problems + [f"{device.name} has no op" for device in devices if not len(device.executions)]


def _gpu(plane: Plane, names: Names) -> Device:
    streams = [line for line in plane.lines if line.name.startswith(STREAM)]
    executions = join_executions([_gpu_executions(line, index, names) for index, line in enumerate(streams)])
    pieces = []
    first = 0
    for line in streams:
        own = innermost(line.start_ns, line.end_ns)
        pieces.append(Pieces(own.start_ns, own.end_ns, own.owner + first))
        first += len(line.event)
    return Device(plane.name, tuple(line.name for line in streams), executions, join_pieces(pieces))


def _gpu_executions(line: Line, index: int, names: Names) -> Executions:
    stacks, which = np.unique(line.stat("hlo_op"), return_inverse=True)
    last = [MISSING if stack == MISSING else names.id(names[int(stack)].rsplit("::", 1)[-1]) for stack in stacks]
    op = np.array(last, np.int64)[which]
    module = line.stat("hlo_module")
    return Executions(
        line.start_ns,
        line.end_ns,
        np.full(len(line.event), index, np.int32),
        np.where(op == MISSING, line.event, op).astype(np.int32),
        np.where(module == MISSING, 0, module).astype(np.int32),
        line.event,
        line.stat("run_id"),
    )
