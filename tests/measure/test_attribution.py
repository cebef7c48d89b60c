"""How the time of a window falls to what it was spent on: by hand, by what must add up, and on this machine's CPU."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharder.measure.attribution import Attribution, Spent, attribute, collective_by_hlo
from sharder.measure.categories import COLLECTIVES, TRANSFERS, UNKNOWN, Place
from sharder.measure.costs import Prices
from sharder.measure.hlo import parse
from sharder.measure.timeline import DeviceTime, OpTime, Timeline, timeline
from sharder.measure.trace import newest_trace_file, read_trace, span

PROGRAM = Path(__file__).parent / "attributed_program.py"
STEPS, WINDOWS = 3, 9  # of attributed_program.py

# One of each: a product, a fusion of two scopes, a loop with a product in it, an asynchronous and a plain collective, a
# copy to the host, and a copy of the product without a name.
STEP = """\
HloModule jit_step, num_partitions=2

%mixed (p: f32[1000]) -> f32[1000] {
  %p = f32[1000]{0} parameter(0)
  %once = f32[1000]{0} add(%p, %p), metadata={op_name="jit(step)/jvp()/mlp/add"}
  %twice = f32[1000]{0} add(%once, %once), metadata={op_name="jit(step)/jvp()/mlp/add"}
  ROOT %wave = f32[1000]{0} sine(%twice), metadata={op_name="jit(step)/jvp()/attention/sin"}
}

%gathered (g: f32[500]) -> f32[1000] {
  %g = f32[500]{0} parameter(0)
  ROOT %inner = f32[1000]{0} all-gather(%g), dimensions={0}, metadata={op_name="jit(step)/jvp(layers)/while/body/gather_weights/all_gather"}
}

%condition (c: (s32[], f32[10,10])) -> pred[] {
  %c = (s32[], f32[10,10]{1,0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

%body (b: (s32[], f32[10,10])) -> (s32[], f32[10,10]) {
  %b = (s32[], f32[10,10]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %x = f32[10,10]{1,0} get-tuple-element(%b), index=1
  %in_loop = f32[10,10]{1,0} dot(%x, %x), lhs_contracting_dims={1}, metadata={op_name="jit(step)/transpose(jvp(layers))/while/body/mlp/dot"}
  ROOT %again = (s32[], f32[10,10]{1,0}) tuple(%i, %in_loop)
}

ENTRY %e (a: f32[10,10], v: f32[1000], w: f32[500]) -> f32[1000] {
  %a = f32[10,10]{1,0} parameter(0)
  %v = f32[1000]{0} parameter(1)
  %w = f32[500]{0} parameter(2)
  %zero = s32[] constant(0)
  %dot = f32[10,10]{1,0} dot(%a, %a), lhs_contracting_dims={1}, metadata={op_name="jit(step)/jvp(vision)/layers/while/body/mlp/dot"}
  %copy = f32[10,10]{0,1} copy(%dot)
  %mixture = f32[1000]{0} fusion(%v), kind=kLoop, calls=%mixed
  %begin = ((f32[500]{0}), f32[1000]{0}) async-start(%w), calls=%gathered
  %end = f32[1000]{0} async-done(%begin)
  %sum = f32[1000]{0} all-reduce(%end), to_apply=%condition, metadata={op_name="jit(step)/reduce_gradients/psum"}
  %away = (f32[10,10]{1,0}, f32[10,10]{1,0}, u32[]) copy-start(%dot)
  %start = (s32[], f32[10,10]{1,0}) tuple(%zero, %copy)
  ROOT %loop = (s32[], f32[10,10]{1,0}) while(%start), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"}}, metadata={op_name="jit(step)/transpose(jvp(layers))/while"}
}
"""  # noqa: E501
MODULE = parse(STEP)
BY_NAME = {MODULE.name: MODULE}
BYTES_COST_NOTHING = Prices(product_flop=1, transcendental=6, byte=0)


def op(name: str, wall_ns: float, count: int = 1, module: str = "jit_step", hidden_ns: float = 0.0) -> OpTime:
    moves = collective_by_hlo(BY_NAME)(module, name, name)
    return OpTime("cpu:0", module, name, moves, count, round(wall_ns), wall_ns, hidden_ns)


def window(*ops: OpTime, idle_ns: int = 0, unseen_ns: int = 0, steps: int = 1, extra_wall_ns: int = 0) -> Timeline:
    compute = round(sum(op.wall_ns for op in ops if not op.is_collective))
    exposed = round(sum(op.wall_ns for op in ops if op.is_collective))
    hidden = round(sum(op.hidden_ns for op in ops))
    device = DeviceTime("cpu:0", compute, hidden, exposed, idle_ns, unseen_ns, ops)
    total = compute + exposed + idle_ns + unseen_ns
    return Timeline((0, total), steps, total + extra_wall_ns, (device,), ())


def nanoseconds(found: Attribution) -> dict[tuple[str, str, str], float]:
    return {(place.category, place.part, place.in_pass): spent.ns for place, spent in found.table.items()}


def test_each_op_goes_to_the_scope_of_its_instruction() -> None:
    found = attribute(window(op("dot", 60), op("copy", 40), idle_ns=100, steps=2), BY_NAME)
    assert nanoseconds(found) == {("vision", "MLP", "forward"): 50}
    assert (found.wall_ns, found.idle_ns, found.inferred_ns) == (100, 50, 20)  # the copy follows the product
    assert found.share(found.of("vision").ns) == 0.5
    assert found.problems == ()


def test_a_fusion_is_divided_by_modelled_cost() -> None:
    """2000 additions in one scope, 1000 sines in another, a sine as dear as 6 additions: 2 to 6."""
    found = attribute(window(op("mixture", 80), op("dot", 20)), BY_NAME, prices=BYTES_COST_NOTHING)
    assert nanoseconds(found) == {
        ("attention", "", "forward"): 60,
        ("MLP", "", "forward"): 20,
        ("vision", "MLP", "forward"): 20,
    }
    assert found.divided_ns == 80
    assert found.of("attention").flops == 1000
    assert found.attention.ns == 60


def test_a_loop_whose_ops_are_seen_has_only_its_own_time() -> None:
    found = attribute(window(op("loop", 10), op("in_loop", 90, count=5)), BY_NAME)
    assert nanoseconds(found) == {("layer loop", "", "backward"): 10, ("MLP", "", "backward"): 90}
    assert found.of("MLP").flops == 5 * 2 * 10**3
    assert found.of("MLP").bytes == 5 * 2 * 400
    assert found.of("MLP").flops_per_byte == 2.5
    assert found.of("layer loop").flops == 0


def test_a_loop_that_the_trace_shows_as_one_op_is_divided() -> None:
    found = attribute(window(op("loop", 100)), BY_NAME)
    assert nanoseconds(found) == {("MLP", "", "backward"): 100}
    assert found.of("MLP").flops == 5 * 2 * 10**3


def test_collectives_by_kind_exposed_and_hidden() -> None:
    ops = op("begin", 0, hidden_ns=30), op("end", 20), op("sum", 50, hidden_ns=5), op("dot", 30)
    found = attribute(window(*ops), BY_NAME)
    exposed_and_hidden = {kind: (spent.ns, spent.hidden_ns) for kind, spent in found.communication.items()}
    assert exposed_and_hidden == {"all-reduce": (50, 5), "all-gather": (20, 30)}
    assert found.of(COLLECTIVES, "all-gather", "forward").bytes == 2000 + 4000
    assert found.of(COLLECTIVES, "all-reduce", "backward").ns == 50
    assert found.of(COLLECTIVES).hidden_ns == 35


def test_what_is_in_no_program_is_unknown_or_a_transfer_and_never_spread() -> None:
    ops = (
        op("dot", 10),
        op("fusion.77", 20),
        op("dot", 30, module="jit_other"),
        op("MemcpyH2D", 25, module=""),
        op("away", 5),
        op("all-gather.3", 10, module="jit_other"),
    )
    assert nanoseconds(attribute(window(*ops), BY_NAME)) == {
        ("unknown", "", "outside"): 50,
        ("transfers", "MemcpyH2D", "outside"): 25,
        ("vision", "MLP", "forward"): 10,
        ("collectives", "of a kind not known", "outside"): 10,
        ("transfers", "copy-start", "forward"): 5,
    }


@pytest.mark.parametrize(("waited_ns", "data_wait_ns", "idle_ns"), [(0, 0, 50), (60, 30, 20), (500, 50, 0)])
def test_waiting_for_data_is_a_part_of_the_idle_time(waited_ns: int, data_wait_ns: float, idle_ns: float) -> None:
    """What the host waited while the device still ran cost nothing."""
    found = attribute(window(op("dot", 100), idle_ns=100, steps=2), BY_NAME, data_wait_ns=waited_ns)
    assert (found.data_wait_ns, found.idle_ns) == (data_wait_ns, idle_ns)
    assert found.accounted_ns == found.wall_ns == 100


def test_what_the_trace_missed_is_a_row_of_its_own() -> None:
    found = attribute(window(op("dot", 100), unseen_ns=40, extra_wall_ns=60), BY_NAME)
    assert (found.busy_ns, found.unseen_ns, found.wall_ns) == (100, 100, 200)
    assert found.problems == ()


def test_more_time_than_there_was_is_a_problem() -> None:
    found = attribute(window(op("dot", 1_000_000), extra_wall_ns=-20_000), BY_NAME)
    assert found.problems == ("a step took 0.980 ms, its parts add up to 1.000 ms",)
    with pytest.raises(ValueError, match="has no device"):
        attribute(Timeline((0, 1), 1, 1, (), ()), BY_NAME)


@pytest.mark.parametrize(
    ("module", "name", "moves"),
    [
        ("jit_step", "sum", True),
        ("jit_step", "begin", True),
        ("jit_step", "end", True),
        ("jit_step", "dot", False),
        ("jit_other", "all-gather.3", True),  # by name, where the program is not known
        ("jit_other", "sum", False),
    ],
)
def test_what_is_a_collective_the_program_knows(module: str, name: str, moves: bool) -> None:
    assert collective_by_hlo(BY_NAME)(module, name, name) == moves


NAMES = ("dot", "copy", "mixture", "begin", "end", "sum", "away", "loop", "in_loop", "fusion.77", "MemcpyD2H")
TIMES = st.floats(0, 1e6)
OPS = st.builds(op, st.sampled_from(NAMES), TIMES, st.integers(0, 9), st.sampled_from(["jit_step", "jit_other", ""]))


@given(st.lists(OPS, max_size=12), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 5), st.data())
def test_categories_idle_and_unseen_add_up_to_the_wall_time(
    ops: Sequence[OpTime], idle_ns: int, unseen_ns: int, steps: int, data: st.DataObject
) -> None:
    measured = window(*ops, idle_ns=idle_ns + 10_000, unseen_ns=unseen_ns, steps=steps)
    found = attribute(measured, BY_NAME, data_wait_ns=data.draw(st.integers(0, 2 * 10**6)))
    assert found.accounted_ns == pytest.approx(found.wall_ns, rel=0.01)
    assert found.problems == ()
    assert found.busy_ns == pytest.approx(sum(op.wall_ns for op in ops) / steps)
    assert 0 <= found.divided_ns <= found.busy_ns + 1e-6
    missing = [op for op in ops if op.module != "jit_step" or op.op not in MODULE.home]
    copies = [op for op in missing if op.module == "" and op.op == "MemcpyD2H"]
    assert found.of(UNKNOWN).ns == pytest.approx(sum(op.wall_ns for op in missing if op not in copies) / steps)
    assert found.of(TRANSFERS, "MemcpyD2H").ns == pytest.approx(sum(op.wall_ns for op in copies) / steps)


def test_spent_adds_up() -> None:
    assert Spent(1, 2, 3, 4) + Spent(10, 20, 30, 40, False) == Spent(11, 22, 33, 44, False)
    assert Spent().flops_per_byte == 0


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[Attribution]:
    """Of each window of attributed_program.py."""
    folder = tmp_path_factory.mktemp("attributed")
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(PROGRAM), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    module = parse((folder / "step.hlo").read_text())
    modules = {module.name: module}
    trace = read_trace(newest_trace_file(folder))
    walls = json.loads(done.stdout.splitlines()[-1])["wall_ns"]
    assert len(walls) == WINDOWS
    return [
        attribute(
            timeline(trace, span(trace, f"window {index}"), STEPS, wall_ns, 1, collective_by_hlo(modules)), modules
        )
        for index, wall_ns in enumerate(walls)
    ]


def test_a_scope_that_has_70_percent_of_the_time_is_found_to_have_it(measured: list[Attribution]) -> None:
    """A part of it is fused with another scope's work. Shares of the busy time; the median of the windows."""
    shares = [found.of("MLP").ns / found.busy_ns for found in measured]
    assert statistics.median(shares) == pytest.approx(0.70, abs=0.03)
    assert all(found.divided_ns > 0.05 * found.busy_ns for found in measured)  # the fused passes
    assert all(found.of("norms").ns < found.divided_ns for found in measured)
    assert {place.category for place in measured[0].table} == {"MLP", "attention", "norms"}


def test_categories_and_idle_are_the_wall_time_that_was_measured(measured: list[Attribution]) -> None:
    for found in measured:
        assert found.accounted_ns == pytest.approx(found.wall_ns, rel=0.01)


def test_its_flops_are_counted(measured: list[Attribution]) -> None:
    per_turn = 2 * 256**3
    assert measured[0].of("MLP").flops == pytest.approx(14 * per_turn, rel=0.02)
    assert measured[0].of("attention").flops == pytest.approx(6 * per_turn, rel=0.02)
    assert measured[0].table[Place("norms", "", "forward")].flops == 6 * (1 << 17)
