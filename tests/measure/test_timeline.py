"""How the time of a window is divided: against values found by hand, by what must add up, and on this machine's CPU."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xspace_writer import Event, plane, space

from sharder.measure.executions import Device, Executions, Pieces, innermost, join_pieces
from sharder.measure.timeline import DeviceTime, OpTime, clipped, is_collective, op_times, split, timeline
from sharder.measure.trace import Trace, newest_trace_file, read_trace, span
from sharder.measure.xspace import MISSING, Names

STEPS, MATMULS = 3, 8  # of traced_programs.py


def kernel(op: str, start: int, end: int, name: str = "kernel") -> Event:
    return Event(name, start, end, {"hlo_op": op, "hlo_module": "jit_step"})


# Two steps of a GPU, in ns: 0 to 100 and 100 to 200.
#
#   compute    |dot.1 0-30|     |fusion.2 40-60|       |dot.1 100-130|          |fusion.2 160-180|
#   collective |  all-gather-start.3 20-50   |         |all-gather-start.3 120-170        |
#   copies     |                  MemcpyD2D 55-65|     |                          MemcpyD2D 175-185|
#   by hand:   compute [0,30) [40,65) [100,130) [160,185) = 110; hidden [20,30) [40,50) [120,130) [160,170) = 40
#              exposed [30,40) [130,160) = 40; idle [65,100) [185,200) = 50
TWO_STEPS = {
    "Stream #13(Compute)": [
        kernel("dot.1", 0, 30),
        kernel("fusion.2", 40, 60),
        kernel("dot.1", 100, 130),
        kernel("fusion.2", 160, 180),
    ],
    "Stream #14(Compute)": [
        kernel("all-gather-start.3", 20, 50, "ncclDevKernel_AllGather_RING_LL"),
        kernel("all-gather-start.3", 120, 170, "ncclDevKernel_AllGather_RING_LL"),
    ],
    "Stream #15(MemcpyD2D)": [Event("MemcpyD2D", 55, 65), Event("MemcpyD2D", 175, 185)],
    "XLA Modules": [Event("jit_step(17)", 0, 65), Event("jit_step(17)", 100, 185)],
    "XLA Ops": [kernel("dot.1", 0, 30), kernel("all-gather-start.3", 20, 50)],
}


def gpu_trace(
    folder: Path, *gpus: dict[str, list[Event]], warnings: Sequence[str] = (), finished: bool = True
) -> Trace:
    planes = [plane(f"/device:GPU:{index}", lines) for index, lines in enumerate(gpus)]
    path = folder / "host.xplane.pb"
    path.write_bytes(space(*planes, warnings=warnings, finished=finished))
    return read_trace(path)


def test_two_steps_of_a_gpu(tmp_path: Path) -> None:
    result = timeline(gpu_trace(tmp_path, TWO_STEPS), (0, 200), steps=2, blocked_wall_ns=204, device_count=1)
    assert result.complete, result.problems
    assert result.coverage == 200 / 204
    (device,) = result.devices
    assert replace(device, ops=()) == DeviceTime("/device:GPU:0", 110, 40, 40, 50, 0, ())
    assert (device.busy_ns, device.communication_ns, device.explained_ns) == (150, 80, 200)
    gpu, step = "/device:GPU:0", "jit_step"
    assert op_times(result) == (
        OpTime(gpu, step, "dot.1", False, 2, 60, 60.0, 0.0),
        OpTime(gpu, step, "all-gather-start.3", True, 2, 80, 40.0, 40.0),
        # From 55 to 60 and from 175 to 180 the copy and the fusion run at once: half of it to each.
        OpTime(gpu, step, "fusion.2", False, 2, 40, 35.0, 0.0),
        OpTime(gpu, "", "MemcpyD2D", False, 2, 20, 15.0, 0.0),
    )


def test_only_the_window_counts(tmp_path: Path) -> None:
    """From 25 on: 5 of the first dot.1 and 25 of the first all-gather are left, which started before."""
    result = timeline(gpu_trace(tmp_path, TWO_STEPS), (25, 60), steps=1, blocked_wall_ns=35, device_count=1)
    assert replace(result.devices[0], ops=()) == DeviceTime("/device:GPU:0", 25, 15, 10, 0, 0, ())
    counts = {op.op: (op.count, op.self_ns) for op in op_times(result)}
    assert counts == {"dot.1": (0, 5), "all-gather-start.3": (0, 25), "fusion.2": (1, 20), "MemcpyD2D": (1, 5)}


def test_an_op_that_launches_two_kernels_ran_once(tmp_path: Path) -> None:
    content = [kernel("dot.1", 0, 10, "gemm"), kernel("dot.1", 10, 14, "splitKreduce")]
    trace = gpu_trace(tmp_path, {"Stream #1": content})
    result = timeline(trace, (0, 14), steps=1, blocked_wall_ns=14, device_count=1)
    assert op_times(result) == (OpTime("/device:GPU:0", "jit_step", "dot.1", False, 1, 14, 14.0, 0.0),)


@pytest.mark.parametrize(
    "op",
    [
        "all-gather-start.3",
        "all-reduce.1",
        "all-to-all",
        "all_gather.3",
        "collective-permute-done",
        "pmax.7.2",
        "ppermute.3",
        "psum_invariant.7",
        "ragged-all-to-all.1",
        "reduce-scatter-start.1",
        "reduce_scatter.7.2",
    ],
)
def test_collectives_by_name(op: str) -> None:
    assert is_collective("jit_step", op, "kernel")


def test_not_every_name_that_begins_so_is_a_collective() -> None:
    assert is_collective("jit_step", "async-start.2", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL")
    for op in ("all-gather_convert_fusion", "reduce.3", "loop_all_reduce_fusion", "psum_fusion", "dot.1", "while.5"):
        assert not is_collective("jit_step", op, "kernel")


def test_the_caller_may_know_the_collectives_better(tmp_path: Path) -> None:
    trace = gpu_trace(tmp_path, TWO_STEPS)
    chosen = timeline(trace, (0, 200), 2, 200, 1, is_collective=lambda module, op, event: op == "fusion.2")
    assert [op.op for op in op_times(chosen) if op.is_collective] == ["fusion.2"]


# Incomplete traces


def problems(trace: Trace, steps: int = 2, blocked_wall_ns: int = 200, device_count: int = 1) -> tuple[str, ...]:
    result = timeline(trace, (0, 200), steps, blocked_wall_ns, device_count)
    assert result.complete == (not result.problems)
    return result.problems


def test_a_timeline_that_explains_too_little_or_too_much_is_incomplete(tmp_path: Path) -> None:
    trace = gpu_trace(tmp_path, TWO_STEPS)
    assert problems(trace, blocked_wall_ns=210) == ()
    assert "the trace explains 94.8% of the 0.00 ms that 2 steps took" in problems(trace, blocked_wall_ns=211)[0]
    assert "explains 105.3%" in problems(trace, blocked_wall_ns=190)[0]


def test_steps_that_are_missing_make_a_timeline_incomplete(tmp_path: Path) -> None:
    """The profiler stopped keeping events after 135 ns: what follows looks idle, but nobody knows."""
    cut = {line: [event for event in events if event.end_ns <= 135] for line, events in TWO_STEPS.items()}
    trace = gpu_trace(tmp_path, cut)
    found = problems(trace)
    assert "/device:GPU:0: the ops of 50% of the time ran not equally often in 2 steps" in found
    assert any("the trace explains 65.0%" in problem for problem in found)
    (device,) = timeline(trace, (0, 200), 2, 200, 1).devices
    assert (device.unseen_ns, device.explained_ns) == (70, 130)


def test_a_few_ops_under_a_condition_do_not(tmp_path: Path) -> None:
    rare = {**TWO_STEPS, "Stream #16": [kernel("conditional_fusion", 190, 195)]}
    assert problems(gpu_trace(tmp_path, rare)) == ()


def test_missing_devices_make_a_timeline_incomplete(tmp_path: Path) -> None:
    assert problems(gpu_trace(tmp_path, TWO_STEPS), device_count=2) == (
        "2 devices took part, the trace has 1 (/device:GPU:0)",
    )
    found = problems(gpu_trace(tmp_path, TWO_STEPS, {"Stream #1": []}), device_count=2)
    assert found[:2] == ("/device:GPU:1 has no op", "/device:GPU:1 has no op in the window")
    assert "explains 0.0%" in found[2]


def test_what_is_wrong_with_the_trace_is_wrong_with_the_timeline(tmp_path: Path) -> None:
    assert problems(gpu_trace(tmp_path, TWO_STEPS, warnings=["5 events dropped"])) == (
        "the profiler says: 5 events dropped",
    )
    assert "'Task Environment', written last, is missing" in problems(gpu_trace(tmp_path, TWO_STEPS, finished=False))[0]


def test_launches_of_a_cpu_are_counted(tmp_path: Path) -> None:
    """Every op has an even number, 6 in all, but of 3 launches."""
    stats = {"hlo_op": "dot", "hlo_module": "jit_step", "device_ordinal": 0}
    ops = [Event("dot", start, start + 30, {**stats, "run_id": start // 60}) for start in range(0, 180, 30)]
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(space(plane("/host:CPU", {"tf_XLAExecute/1": ops})))
    assert "cpu:0 ran jit_step 3 times in 2 steps" in problems(read_trace(path))
    assert problems(read_trace(path), steps=3) == ()


@pytest.mark.parametrize("window_ns, steps, wall_ns", [((5, 5), 1, 1), ((0, 5), 0, 1), ((0, 5), 1, 0)])
def test_an_empty_window_is_a_mistake(tmp_path: Path, window_ns: tuple[int, int], steps: int, wall_ns: int) -> None:
    with pytest.raises(ValueError, match="timeline: window"):
        timeline(gpu_trace(tmp_path, TWO_STEPS), window_ns, steps, wall_ns, 1)


# What must add up, whatever ran

OPS = ["dot", "fusion", "all-reduce", "psum"]
LINE = st.lists(st.tuples(st.integers(0, 80), st.integers(0, 30), st.sampled_from(OPS)), max_size=6)
LINES = st.lists(LINE, min_size=1, max_size=4)
WINDOW = st.tuples(st.integers(0, 60), st.integers(1, 60)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def trace_of(lines: Sequence[Sequence[tuple[int, int, str]]]) -> Trace:
    """One device with these events (start, length, op) on its lines."""
    names = Names()
    events = [(index, *event) for index, line in enumerate(lines) for event in line]
    line, start, length = (np.array([event[part] for event in events], np.int64) for part in range(3))
    op = np.array([names.id(event[3]) for event in events], np.int32)
    none = np.zeros(len(events), np.int32)
    ran = Executions(start, start + length, line, op, none, op, np.full(len(events), MISSING))
    pieces = []
    for index in range(len(lines)):
        rows = np.flatnonzero(line == index)
        own = innermost(ran.start_ns[rows], ran.end_ns[rows])
        pieces.append(Pieces(own.start_ns, own.end_ns, rows[own.owner]))
    device = Device("gpu", tuple(str(index) for index in range(len(lines))), ran, join_pieces(pieces))
    return Trace(Path("made up"), (device,), (), (), names)


def instants(lines: Sequence[Sequence[tuple[int, int, str]]], window_ns: tuple[int, int]) -> list[list[str]]:
    """What is the innermost op of each line, at every ns of the window: the slow way to see what runs."""
    found = []
    for instant in range(*window_ns):
        now = []
        for line in lines:
            running = [(start, -length, index) for index, (start, length, _) in enumerate(line)]
            running = [key for key in running if key[0] <= instant < key[0] - key[1]]
            if running:
                now.append(line[max(running)[2]][2])
        found.append(now)
    return found


@given(LINES, WINDOW)
def test_every_instant_is_counted_once(lines: list[list[tuple[int, int, str]]], window_ns: tuple[int, int]) -> None:
    result = timeline(trace_of(lines), window_ns, 1, window_ns[1] - window_ns[0], 1)
    device = result.devices[0]
    computing = [[not is_collective("", op, op) for op in now] for now in instants(lines, window_ns)]
    assert device.compute_ns == sum(any(now) for now in computing)
    assert device.hidden_ns == sum(any(now) and not all(now) for now in computing)
    assert device.exposed_ns == sum(bool(now) and not any(now) for now in computing)
    assert device.idle_ns + device.unseen_ns == sum(not now for now in computing)
    assert device.busy_ns + device.idle_ns + device.unseen_ns == window_ns[1] - window_ns[0]


@given(LINES, WINDOW)
def test_ops_add_up(lines: list[list[tuple[int, int, str]]], window_ns: tuple[int, int]) -> None:
    """Self times to the sum over lines, wall times to busy, and the hidden time of collectives to hidden."""
    trace = trace_of(lines)
    device = timeline(trace, window_ns, 1, window_ns[1] - window_ns[0], 1).devices[0]
    now = [op for running in instants(lines, window_ns) for op in running]
    assert {op.op: op.self_ns for op in device.ops if op.self_ns} == {op: now.count(op) for op in set(now)}
    assert device.busy_ns <= sum(op.self_ns for op in device.ops)
    assert sum(op.wall_ns for op in device.ops) == pytest.approx(device.busy_ns)
    collectives = [op for op in device.ops if op.is_collective]
    assert sum(op.wall_ns for op in collectives) == pytest.approx(device.exposed_ns)
    assert sum(op.hidden_ns for op in device.ops) == pytest.approx(device.hidden_ns)
    inside = clipped(trace.devices[0].pieces, window_ns)
    names = [trace.names[int(name)] for name in trace.devices[0].executions.op[inside.owner]]
    moving = inside.rows(np.array([is_collective("", name, name) for name in names], bool))
    alone = split(moving.start_ns, moving.end_ns, np.ones(len(moving), bool))
    assert device.communication_ns == alone.exposed_ns, "hidden or not, as long as the collectives alone"


@given(LINES, WINDOW, st.data())
def test_an_event_in_two_parts_is_the_same_time(
    lines: list[list[tuple[int, int, str]]], window_ns: tuple[int, int], data: st.DataObject
) -> None:
    """On a line where nothing overlaps, cutting events in two changes nothing but how many there are."""
    flat = [[(40 * index, length, op) for index, (_, length, op) in enumerate(line)] for line in lines]
    cut = []
    for line in flat:
        parts = []
        for start, length, op in line:
            at = data.draw(st.integers(0, length))
            parts += [(start, at, op), (start + at, length - at, op)]
        cut.append(parts)
    wall_ns = window_ns[1] - window_ns[0]
    (whole,), (parted,) = (timeline(trace_of(one), window_ns, 1, wall_ns, 1).devices for one in (flat, cut))
    assert replace(whole, ops=(), unseen_ns=0, idle_ns=0) == replace(parted, ops=(), unseen_ns=0, idle_ns=0)

    def times(device: DeviceTime) -> dict[str, list[float]]:
        return {op.op: [op.self_ns, op.wall_ns, op.hidden_ns] for op in device.ops if op.self_ns}

    assert times(whole).keys() == times(parted).keys()
    for op, found in times(whole).items():
        assert found == pytest.approx(times(parted)[op])


# This machine


@pytest.mark.parametrize("program, device_count", [("looped", 1), ("summed", 2)])
def test_a_real_trace_of_a_cpu_adds_up(traced: dict[str, dict], program: str, device_count: int) -> None:
    trace = read_trace(newest_trace_file(Path(traced[program]["folder"])))
    window_ns = span(trace, "measured")
    length_ns = window_ns[1] - window_ns[0]
    assert traced[program]["wall_ns"] < 1.01 * length_ns, "it was measured within the annotation, by another clock"
    result = timeline(trace, window_ns, STEPS, length_ns, device_count)
    assert result.complete, result.problems
    assert len(result.devices) == device_count
    for device in result.devices:
        assert device.explained_ns == length_ns
        assert sum(op.wall_ns for op in device.ops) == pytest.approx(device.busy_ns)
        assert {op.module for op in device.ops} == {f"jit_{program}"}
        moving = [(op.op.split("_")[0], op.count) for op in device.ops if op.is_collective]
        assert moving == ([("psum", STEPS)] if program == "summed" else [])


def test_a_real_loop_is_not_charged_for_what_runs_in_it(traced: dict[str, dict]) -> None:
    trace = read_trace(newest_trace_file(Path(traced["looped"]["folder"])))
    window_ns = span(trace, "measured")
    result = timeline(trace, window_ns, STEPS, window_ns[1] - window_ns[0], 1)
    by_name = {op.op: op for op in op_times(result)}
    (loop,) = (op for name, op in by_name.items() if name.startswith("while"))
    assert (loop.count, by_name["wrapped_tanh"].count) == (STEPS, STEPS * MATMULS)
    ran = trace.devices[0].executions
    spans_ns = body_ns = 0
    for row in np.flatnonzero(ran.op == trace.names.find(loop.op)):
        inside = (ran.line == ran.line[row]) & (ran.start_ns > ran.start_ns[row]) & (ran.end_ns <= ran.end_ns[row])
        spans_ns += ran.end_ns[row] - ran.start_ns[row]
        body_ns += (ran.end_ns - ran.start_ns)[inside].sum()
    assert 0 < loop.self_ns <= spans_ns - body_ns < spans_ns
