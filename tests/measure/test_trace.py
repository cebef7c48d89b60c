"""What is read from a profiler's file: every event with its times and stats, the ops of every device, and what is wrong
with a file that misses something."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xspace_writer import Event, message, number, plane, space

from sharder.errors import UserError
from sharder.measure import xspace
from sharder.measure.executions import Device, innermost
from sharder.measure.trace import Trace, newest_trace_file, read_trace, span, steps
from sharder.measure.xspace import MISSING, XSpace, read_xspace

STEPS, MATMULS = 3, 8  # of traced_programs.py
TEXTS, NUMBERS = ("hlo_op", "hlo_module"), ("run_id", "device_ordinal", "_p")


def written(folder: Path, *planes: bytes, warnings: Sequence[str] = (), finished: bool = True) -> Path:
    path = folder / "host.xplane.pb"
    path.write_bytes(space(*planes, warnings=warnings, finished=finished))
    return path


def executions(trace: Trace, device: Device) -> list[tuple[str, str, str, int, int]]:
    """(line, module, op, start, end) of each."""
    ran = device.executions
    return [
        (device.lines[line], trace.names[module], trace.names[op], int(start), int(end))
        for line, module, op, start, end in zip(ran.line, ran.module, ran.op, ran.start_ns, ran.end_ns, strict=True)
    ]


def pieces(trace: Trace, device: Device) -> list[tuple[str, int, int]]:
    """(op, start, end) of each, in order of time."""
    op = device.executions.op[device.pieces.owner]
    rows = zip(op, device.pieces.start_ns, device.pieces.end_ns, strict=True)
    return sorted(((trace.names[name], int(start), int(end)) for name, start, end in rows), key=lambda row: row[1:])


# The file


def read(raw: bytes, texts: Sequence[str] = ("hlo_op",), numbers: Sequence[str] = ("run_id",)) -> XSpace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.xplane.pb"
        path.write_bytes(raw)
        return read_xspace(path, texts, numbers)


def test_events_have_their_names_times_and_stats() -> None:
    content = [
        Event("gemm", 5, 25, {"hlo_op": "dot.1", "run_id": -7, "correlation_id": 9}),
        Event("copy", 30, 30),
        Event("gemm", 40, 1 << 50, {"run_id": 3}),
    ]
    line = read(space(plane("/device:GPU:0", {"Stream #7": content}, timestamp_ns=1000))).planes[0].lines[0]
    assert line.name == "Stream #7"
    assert line.start_ns.tolist() == [1005, 1030, 1040]
    assert line.end_ns.tolist() == [1025, 1030, 1000 + (1 << 50)]
    assert line.stat("run_id").tolist() == [-7, MISSING, 3]
    assert set(line.stats) == {"hlo_op", "run_id"}, "stats that nobody asked for are not kept"
    assert line.stat("step_num").tolist() == [MISSING] * 3


def test_texts_are_read_as_references_and_spelt_out() -> None:
    content = [Event("a", 0, 1, {"hlo_op": "dot.1"}), Event("b", 1, 2, {"hlo_op": "dot.2"}), Event("c", 2, 3)]
    for spelt in (False, True):
        result = read(space(plane("/device:GPU:0", {"Stream #7": content}, spelt=spelt)))
        op = result.planes[0].lines[0].stat("hlo_op")
        assert [result.names[int(key)] for key in op[:2]] == ["dot.1", "dot.2"]
        assert op[2] == MISSING


def test_a_text_is_not_taken_for_a_number_nor_a_number_for_a_text() -> None:
    content = [Event("a", 0, 1, {"hlo_op": 3, "run_id": "three"})]
    line = read(space(plane("/device:GPU:0", {"Stream #7": content}))).planes[0].lines[0]
    assert line.stat("hlo_op").tolist() == line.stat("run_id").tolist() == [MISSING]


def test_events_inherit_the_stats_of_their_kind() -> None:
    content = [Event("a", 0, 1), Event("a", 1, 2, {"hlo_op": "own"}), Event("b", 2, 3)]
    raw = plane("/device:GPU:0", {"Stream #7": content}, of_events={"a": {"hlo_op": "of all a"}})
    result = read(space(raw))
    texts = [None if key == MISSING else result.names[int(key)] for key in result.planes[0].lines[0].stat("hlo_op")]
    assert texts == ["of all a", "own", None]


def test_events_of_every_size_are_read() -> None:
    """A length takes one byte up to 127 and two bytes beyond."""
    content = [Event("a", index, index + 1, {"hlo_op": "x" * index}) for index in range(300)]
    result = read(space(plane("/device:GPU:0", {"Stream #7": content}, spelt=True)))
    op = result.planes[0].lines[0].stat("hlo_op")
    assert [len(result.names[int(key)]) for key in op] == list(range(300))


EVENTS = st.lists(
    st.builds(
        lambda name, start, length, stats: Event(name, start, start + length, stats),
        st.sampled_from(["a", "b", "c" * 200]),
        st.integers(0, 1 << 45),
        st.integers(0, 1 << 40),
        st.fixed_dictionaries(
            {}, optional={"run_id": st.integers(MISSING + 1, -MISSING - 1), "hlo_op": st.text("dot.é→", max_size=200)}
        ),
    ),
    max_size=12,
)


@given(EVENTS, st.booleans(), st.integers(1, 5))
def test_whatever_is_written_is_read(content: list[Event], spelt: bool, chunk: int) -> None:
    """Also where the events of a line are read in several chunks."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(xspace, "CHUNK", chunk)
        result = read(space(plane("/host:CPU", {"main": content}, spelt=spelt)))
    line = result.planes[0].lines[0]
    assert [result.names[name] for name in line.event] == [one.name for one in content]
    assert line.start_ns.tolist() == [one.start_ns for one in content]
    assert line.end_ns.tolist() == [one.end_ns for one in content]
    assert line.stat("run_id").tolist() == [one.stats.get("run_id", MISSING) for one in content]
    ops = [None if key == MISSING else result.names[int(key)] for key in line.stat("hlo_op")]
    assert ops == [one.stats.get("hlo_op") for one in content]


# GPUs


def test_the_ops_of_a_gpu_are_what_its_streams_ran(tmp_path: Path) -> None:
    def kernel(name: str, start: int, end: int, op: str) -> Event:
        return Event(name, start, end, {"hlo_op": op, "hlo_module": "jit_step"})

    lines: Mapping[str, Sequence[Event]] = {
        "Stream #13(Compute)": [kernel("gemm_128x128", 0, 40, "while.1::dot.3"), Event("MemcpyH2D", 50, 60)],
        "Stream #14(Compute)": [kernel("ncclDevKernel_AllGather", 10, 30, "all-gather-start.2")],
        "XLA Ops": [kernel("dot.3", 0, 40, "dot.3")],
        "XLA Modules": [Event("jit_step(17)", 0, 60, {"hlo_module": "jit_step"})],
        "Steps": [Event("1", 0, 60)],
    }
    raw = plane("/device:GPU:0", lines)
    trace = read_trace(written(tmp_path, raw, plane("/host:CPU", {"python": [Event("train", 0, 70)]})))
    (device,) = trace.devices
    assert device.name == "/device:GPU:0"
    assert executions(trace, device) == [
        ("Stream #13(Compute)", "jit_step", "dot.3", 0, 40),
        ("Stream #13(Compute)", "", "MemcpyH2D", 50, 60),
        ("Stream #14(Compute)", "jit_step", "all-gather-start.2", 10, 30),
    ]
    assert [trace.names[name] for name in device.executions.event] == [
        "gemm_128x128",
        "MemcpyH2D",
        "ncclDevKernel_AllGather",
    ]
    assert pieces(trace, device) == [("dot.3", 0, 40), ("all-gather-start.2", 10, 30), ("MemcpyH2D", 50, 60)]
    assert trace.problems == ()


# CPUs


def op(name: str, start: int, end: int, device: int = 0, run: int = 1) -> Event:
    stats = {"hlo_op": name, "hlo_module": "jit_step", "run_id": run, "device_ordinal": device}
    return Event(name, start, end, stats)


def announced(number: int, at: int) -> Event:
    return Event("ThreadpoolListener::Record", at, at, {"_pt": 15, "_p": number})


def begun(number: int, at: int) -> Event:
    return Event("ThreadpoolListener::StartRegion", at, at, {"_ct": 15, "_c": number})


def ended(at: int) -> Event:
    return Event("ThreadpoolListener::StopRegion", at, at)


def cpu_trace(folder: Path, lines: Mapping[str, Sequence[Event]]) -> Trace:
    return read_trace(written(folder, plane("/host:CPU", lines)))


def test_devices_of_a_cpu_share_its_threads(tmp_path: Path) -> None:
    lines = {
        "tf_XLAEigen/1": [op("dot", 0, 10, device=1), op("add", 10, 12, device=0)],
        "tf_XLAEigen/2": [op("dot", 3, 9, device=0), Event("end: dot", 9, 50)],
    }
    trace = cpu_trace(tmp_path, lines)
    assert [device.name for device in trace.devices] == ["cpu:0", "cpu:1"]
    first, second = trace.devices
    assert executions(trace, first) == [
        ("tf_XLAEigen/1", "jit_step", "add", 10, 12),
        ("tf_XLAEigen/2", "jit_step", "dot", 3, 9),
    ]
    assert pieces(trace, first) == [("dot", 3, 9), ("add", 10, 12)], "not the twin that ends later"
    assert pieces(trace, second) == [("dot", 0, 10)]


def test_children_take_their_time_from_what_encloses_them(tmp_path: Path) -> None:
    content = [op("while", 0, 100), op("call", 10, 60), op("dot", 20, 30), op("add", 60, 90)]
    trace = cpu_trace(tmp_path, {"tf_XLAExecute/1": content})
    assert pieces(trace, trace.devices[0]) == [
        ("while", 0, 10),
        ("call", 10, 20),
        ("dot", 20, 30),
        ("call", 30, 60),
        ("add", 60, 90),
        ("while", 90, 100),
    ]


def test_a_task_of_the_pool_works_for_the_op_that_announced_it(tmp_path: Path) -> None:
    lines = {
        "caller": [op("dot", 0, 20, device=1), announced(7, 5), announced(8, 30)],  # 8 within no op
        "pool 1": [begun(7, 10), announced(9, 12), ended(40)],  # a task that announces another
        "pool 2": [begun(9, 15), ended(50), begun(8, 60), ended(90), begun(5, 95), ended(99)],  # nobody announced 5
    }
    trace = cpu_trace(tmp_path, lines)
    (device,) = trace.devices
    assert device.name == "cpu:1"
    assert pieces(trace, device) == [("dot", 0, 20), ("dot", 10, 40), ("dot", 15, 50)]
    assert len(device.executions) == 1, "however many threads, it ran once"


def test_a_thread_that_goes_on_with_the_program_works_for_other_ops(tmp_path: Path) -> None:
    """The last task of `dot` runs what comes after it: another device's `add` too."""
    resumed = Event("ThunkExecutor::Execute", 20, 40)
    lines = {
        "caller": [op("dot", 0, 8), announced(7, 5)],
        "pool": [begun(7, 10), resumed, op("add", 25, 35, device=1), ended(50)],
    }
    trace = cpu_trace(tmp_path, lines)
    assert pieces(trace, trace.devices[0]) == [("dot", 0, 8), ("dot", 10, 20), ("dot", 40, 50)]
    assert pieces(trace, trace.devices[1]) == [("add", 25, 35)]


def test_tasks_nest_while_one_waits_and_may_be_cut_by_the_ends_of_the_trace(tmp_path: Path) -> None:
    lines = {
        "caller": [op("dot", 0, 8), announced(1, 1), announced(2, 2), op("add", 8, 9), announced(3, 8)],
        "pool": [ended(3), begun(1, 10), begun(3, 20), ended(30), ended(40), begun(2, 50)],
    }
    trace = cpu_trace(tmp_path, lines)
    assert pieces(trace, trace.devices[0]) == [
        ("dot", 0, 8),
        ("add", 8, 9),
        ("dot", 10, 20),
        ("add", 20, 30),
        ("dot", 30, 40),
    ]


def test_the_executor_within_an_op_is_that_op(tmp_path: Path) -> None:
    content = [op("while", 0, 30), Event("ThunkExecutor::Execute", 5, 25), op("dot", 10, 20)]
    trace = cpu_trace(tmp_path, {"tf_XLAExecute/1": content})
    assert pieces(trace, trace.devices[0]) == [("while", 0, 10), ("dot", 10, 20), ("while", 20, 30)]


INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=12)


@given(INTERVALS)
def test_pieces_cover_what_the_events_cover_once(intervals: list[tuple[int, int]]) -> None:
    """Also where events overlap without one being inside the other. Every instant is the innermost event's."""
    start = np.array([start for start, _ in intervals], np.int64)
    end = start + np.array([length for _, length in intervals], np.int64)
    own = innermost(start, end)
    for instant in range(90):
        running = np.flatnonzero((start <= instant) & (instant < end))
        owners = own.owner[(own.start_ns <= instant) & (instant < own.end_ns)]
        assert len(owners) == (len(running) > 0)
        if len(owners):
            assert owners[0] in running
            assert start[owners[0]] == start[running].max()


# Files that miss something


def a_cpu_plane() -> bytes:
    return plane("/host:CPU", {"tf_XLAExecute/1": [op("dot", 0, 10), op("add", 10, 12)], "python": []})


def test_a_file_cut_anywhere_is_refused_or_called_incomplete(tmp_path: Path) -> None:
    raw = space(a_cpu_plane())
    path = tmp_path / "host.xplane.pb"
    refused = 0
    for kept in range(len(raw)):
        path.write_bytes(raw[:kept])
        try:
            assert read_trace(path).problems, f"{kept} of {len(raw)} bytes"
        except UserError as error:
            refused += 1
            assert str(path) in str(error)
            assert f"({kept} bytes) is cut short" in str(error)
    assert refused == len(raw) - 1, "all but the cut between the two planes"
    path.write_bytes(raw)
    assert read_trace(path).problems == ()


@pytest.mark.parametrize(
    "line, why",
    [
        (message(4, number(1, 1)) + b"\x22\x09\x08", "an event ends at byte"),  # says that it has nine bytes
        (message(4, number(1, 1) + b"\x22\x05\x08"), "has a field that does not fit"),  # a stat of five bytes
        (message(4, b"\x0b\x01\x01\x01\x01"), "has a field that does not fit"),  # no wire type is 3
        (b"\x0b", "wire type 3"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(tmp_path: Path, line: bytes, why: str) -> None:
    """Also where bytes of the next message follow that could be read instead."""
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(space(message(3, line) + message(2, "/host:CPU"), a_cpu_plane()))
    with pytest.raises(UserError, match=rf"host.xplane.pb .*{why}"):
        read_trace(path)


@given(st.data())
def test_no_bytes_crash_the_reader(data: st.DataObject) -> None:
    raw = bytearray(space(a_cpu_plane()))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.xplane.pb"
        path.write_bytes(raw)
        try:
            read_trace(path)
        except UserError as error:
            assert str(path) in str(error)


def test_what_the_profiler_dropped_is_a_problem(tmp_path: Path) -> None:
    dropped = "Detected GPU events dropped on host: Profiler has collected 10 driver events and 20 device events."
    trace = read_trace(written(tmp_path, a_cpu_plane(), warnings=[dropped]))
    assert trace.problems == (f"the profiler says: {dropped}",)


def test_a_gpu_without_ops_is_a_problem(tmp_path: Path) -> None:
    first = plane("/device:GPU:0", {"Stream #1": [Event("gemm", 0, 10)]})
    trace = read_trace(written(tmp_path, first, plane("/device:GPU:1", {})))
    assert trace.problems == ("/device:GPU:1 has no op",)


def test_files_that_are_no_traces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.pb cannot be read"):
        read_trace(tmp_path / "absent.pb")
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    with pytest.raises(UserError, match=r"trace.json \(19 bytes\) is cut short or is not"):
        read_trace(tmp_path / "trace.json")
    (tmp_path / "empty.xplane.pb").write_bytes(b"")
    with pytest.raises(UserError, match=r"empty.xplane.pb \(0 bytes\) .*no planes"):
        read_trace(tmp_path / "empty.xplane.pb")
    with pytest.raises(UserError, match=r"has no op of a GPU or CPU \(planes: /host:CPU, Task Environment\)"):
        read_trace(written(tmp_path, plane("/host:CPU", {"python": [Event("train", 0, 5)]})))


def test_the_newest_session_is_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no \*\.xplane\.pb below it"):
        newest_trace_file(tmp_path)
    for session in ("2026_11_30_14_00_01", "2026_11_30_14_00_02"):
        for host in ("b", "a"):
            (tmp_path / "plugins" / "profile" / session).mkdir(parents=True, exist_ok=True)
            (tmp_path / "plugins" / "profile" / session / f"{host}.xplane.pb").touch()
    assert newest_trace_file(tmp_path) == tmp_path / "plugins/profile/2026_11_30_14_00_02/a.xplane.pb"


def test_windows_and_steps_come_from_the_host(tmp_path: Path) -> None:
    lines = {
        "tf_XLAExecute/1": [op("dot", 0, 10)],
        "python": [
            Event("measured", 1, 9),
            Event("train", 5, 8, {"step_num": 11}),
            Event("train", 1, 4, {"step_num": 10}),
            Event("train", 0, 9),
        ],
        "other": [Event("measured", 12, 15)],
    }
    trace = cpu_trace(tmp_path, lines)
    assert span(trace, "measured") == (1, 15)
    assert steps(trace, "train") == {10: (1, 4), 11: (5, 8)}
    with pytest.raises(UserError, match="has no host event 'absent'"):
        span(trace, "absent")
    assert steps(trace, "absent") == {}


# Traces of this machine


@pytest.fixture(scope="module")
def traces(traced: dict[str, dict]) -> dict[str, Path]:
    return {name: newest_trace_file(Path(one["folder"])) for name, one in traced.items()}


# jaxlib 0.12 makes its types in a way that Python 3.12 warns of; as an error the warning would abort the process.
@pytest.mark.filterwarnings("ignore:builtin type .* has no __module__ attribute:DeprecationWarning")
def test_jax_reads_the_same_events_from_a_real_trace(traces: dict[str, Path]) -> None:
    path = traces["summed"]
    ours = read_xspace(path, TEXTS, NUMBERS)
    profile = jax.profiler.ProfileData.from_file(str(path))
    theirs = {plane.name: plane for plane in profile.planes}
    assert {plane.name for plane in ours.planes} == set(theirs)
    compared = 0
    for ours_plane in ours.planes:
        for line, expected in zip(ours_plane.lines, theirs[ours_plane.name].lines, strict=True):
            assert line.name == expected.name
            columns = {name: line.stat(name) for name in TEXTS + NUMBERS}
            for row, event in enumerate(expected.events):
                found = {name: int(column[row]) for name, column in columns.items() if column[row] != MISSING}
                found = {name: ours.names[value] if name in TEXTS else value % 2**64 for name, value in found.items()}
                stats = {name: value for name, value in event.stats if name in columns}
                stats = {name: value if name in TEXTS else value % 2**64 for name, value in stats.items()}
                assert (ours.names[line.event[row]], found) == (event.name, stats)
                assert (line.start_ns[row], line.end_ns[row]) == (int(event.start_ns), int(event.end_ns))
                compared += 1
            assert row + 1 == len(line.event)
    assert compared > 100


def test_a_real_trace_of_a_loop_has_every_op_of_every_step(traces: dict[str, Path]) -> None:
    trace = read_trace(traces["looped"])
    assert trace.problems == ()
    (device,) = trace.devices
    assert device.name == "cpu:0"
    assert {trace.names[int(module)] for module in device.executions.module} == {"jit_looped"}
    assert len(np.unique(device.executions.run)) == STEPS
    counts = dict(zip(*np.unique(device.executions.op, return_counts=True), strict=True))
    by_name = {trace.names[int(key)]: int(count) for key, count in counts.items()}
    assert by_name["wrapped_sine"] == STEPS
    assert by_name["wrapped_tanh"] == STEPS * MATMULS
    assert list(steps(trace, "train")) == [10, 11, 12]


def test_a_real_trace_of_two_devices_tells_them_apart(traces: dict[str, Path]) -> None:
    trace = read_trace(traces["summed"])
    assert [device.name for device in trace.devices] == ["cpu:0", "cpu:1"]
    first, second = (sorted(row[2] for row in executions(trace, device)) for device in trace.devices)
    assert first == second
    assert sum(name.startswith("psum") for name in first) == STEPS


def test_a_real_trace_that_was_cut_is_refused(traces: dict[str, Path], tmp_path: Path) -> None:
    raw = traces["looped"].read_bytes()
    path = tmp_path / "cut.xplane.pb"
    path.write_bytes(raw[: len(raw) * 2 // 3])
    with pytest.raises(UserError, match=r"cut.xplane.pb \(\d+ bytes\) is cut short"):
        read_trace(path)
