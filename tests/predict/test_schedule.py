"""The time of a step from its schedule: loops, overlapped collectives and what is left of them, found by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharder.measure.hlo import parse
from sharder.predict.ring import LINK_SHARE, Links
from sharder.predict.roofline import MEMORY_SHARE, Device, Roofline
from sharder.predict.schedule import Clock, Run, Schedule, schedule

MS = 1e-3
# A kernel takes a millisecond for every 1000 bytes, and 1 to launch; so do 1000 bytes on the links, and 2 of latency.
TOY = Device("toy", {"bfloat16": 1e15}, 1e15, 1e6 / MEMORY_SHARE, 1, (1, 1), 1 * MS)
LINKS = Links(bytes_per_s=1e6 / LINK_SHARE, latency_s=2 * MS, network_bytes_per_s=None, devices_per_host=2)

HEAD = "HloModule test, is_scheduled=true, num_partitions=2\n"
COPY_MS = 9  # of f32[1000]: 4000 bytes read, 4000 written, and the launch
GATHER_MS = 10  # of 2 devices' 2 x 8000 bytes: half of them, and the latency


def scheduled(entry: str, others: str = "", overlap: bool = True, contention: float = 0.0) -> Schedule:
    lines = "\n".join(line for line in entry.split("\n") if line.strip())
    text = f"{HEAD}{others}\nENTRY %main () -> f32[] {{\n{lines}\n}}\n"
    return schedule(Roofline(parse(text), TOY, 1.0), LINKS, overlap, contention)


def ms(found: Schedule) -> float:
    return found.step_s / MS


def runs(found: Schedule, opcode: str) -> list[Run]:
    return [run for run in found.runs if run.instruction.opcode == opcode]


def test_one_kernel_after_the_other() -> None:
    found = scheduled("""
  %a = f32[1000]{0} parameter(0)
  %b = f32[1000]{0} copy(%a)
  ROOT %c = f32[1000]{0} copy(%b)
""")
    assert ms(found) == pytest.approx(2 * COPY_MS)
    assert found.unknown == {}


LOOP = """
%body (carry: (s32[], f32[1000])) -> (s32[], f32[1000]) {
  %carry = (s32[], f32[1000]{0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %x = f32[1000]{0} get-tuple-element(%carry), index=1
  %y = f32[1000]{0} copy(%x)
  ROOT %next = (s32[], f32[1000]{0}) tuple(%i, %y)
}

%condition (carry: (s32[], f32[1000])) -> pred[] {
  %carry.1 = (s32[], f32[1000]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%carry.1), index=0
  %end = s32[] constant(18)
  ROOT %less = pred[] compare(%i.1, %end), direction=LT
}
"""
WHILE = """
  %start = (s32[], f32[1000]{0}) parameter(0)
  ROOT %loop = (s32[], f32[1000]{0}) while(%start), condition=%condition, body=%body"""


def test_a_loop_takes_its_body_times_its_turns() -> None:
    found = scheduled(WHILE + ', backend_config={"known_trip_count":{"n":"18"}}', LOOP)
    assert ms(found) == pytest.approx(18 * COPY_MS)
    (copy,) = found.runs
    assert (copy.times, copy.busy_s) == (18, pytest.approx(8 * MS))


def test_a_loop_of_unknown_length_counts_once_and_is_listed() -> None:
    found = scheduled(WHILE, LOOP)
    assert ms(found) == pytest.approx(COPY_MS)
    assert found.unknown == {"while of a length that is not known": 1}


def test_the_dearest_branch_runs() -> None:
    branches = """
%short (p: f32[1000]) -> f32[1000] {
  %p = f32[1000]{0} parameter(0)
  ROOT %s = f32[1000]{0} copy(%p)
}

%long (q: f32[1000]) -> f32[1000] {
  %q = f32[1000]{0} parameter(0)
  %l = f32[1000]{0} copy(%q)
  ROOT %m = f32[1000]{0} copy(%l)
}
"""
    found = scheduled(
        """
  %which = s32[] parameter(0)
  %x = f32[1000]{0} parameter(1)
  ROOT %c = f32[1000]{0} conditional(%which, %x, %x), branch_computations={%short, %long}
""",
        branches,
    )
    assert ms(found) == pytest.approx(2 * COPY_MS)


def pair(between: int, backend_config: str = "") -> str:
    """A gather of 10 ms with so many copies of 9 ms beside it, and one after."""
    copies = "\n".join(f"  %c{i} = f32[1000]{{0}} copy(%a)" for i in range(between))
    return f"""
  %a = f32[1000]{{0}} parameter(0)
  %w = f32[2000]{{0}} parameter(1)
  %start = (f32[2000]{{0}}, f32[4000]{{0}}) all-gather-start(%w), replica_groups={{{{0,1}}}}, dimensions={{0}}{backend_config}
{copies}
  %done = f32[4000]{{0}} all-gather-done(%start)
  ROOT %last = f32[1000]{{0}} copy(%a)"""  # noqa: E501


def test_a_collective_with_nothing_beside_it_is_exposed() -> None:
    found = scheduled(pair(0))
    (gather,) = runs(found, "all-gather-start")
    assert gather.transfer_s == gather.exposed_s == pytest.approx(GATHER_MS * MS)
    assert ms(found) == pytest.approx(GATHER_MS + COPY_MS)


def test_of_a_collective_with_work_beside_it_the_rest_is_exposed() -> None:
    found = scheduled(pair(1))
    (gather,) = runs(found, "all-gather-start")
    assert gather.exposed_s == pytest.approx((GATHER_MS - COPY_MS) * MS)
    assert ms(found) == pytest.approx(GATHER_MS + COPY_MS)


def test_a_collective_with_enough_beside_it_costs_nothing() -> None:
    found = scheduled(pair(2))
    assert runs(found, "all-gather-start")[0].exposed_s == 0
    assert ms(found) == pytest.approx(3 * COPY_MS)


def test_work_and_a_collective_beside_it_slow_each_other() -> None:
    found = scheduled(pair(2), contention=0.5)
    # 10 ms of the gather and 10 ms of work beside it take 15.
    first, second, last = runs(found, "copy")
    assert first.slowed_s == pytest.approx(0.5 * COPY_MS * MS)
    assert second.slowed_s == pytest.approx(0.5 * (GATHER_MS - COPY_MS) * MS)
    assert last.slowed_s == 0
    assert ms(found) == pytest.approx(3 * COPY_MS + 0.5 * GATHER_MS)
    # With less work than that beside it, all of it is slower, and what is left of the gather is exposed.
    found = scheduled(pair(1), contention=0.1)
    assert runs(found, "copy")[0].slowed_s == pytest.approx(0.1 * COPY_MS * MS)
    assert runs(found, "all-gather-start")[0].exposed_s == pytest.approx((GATHER_MS - COPY_MS) * MS)
    assert ms(found) == pytest.approx(GATHER_MS + 0.1 * COPY_MS + COPY_MS)


def test_without_overlap_every_collective_is_waited_for() -> None:
    assert ms(scheduled(pair(2), overlap=False, contention=0.5)) == pytest.approx(3 * COPY_MS + GATHER_MS)


def test_a_pair_that_xla_runs_at_once_is_exposed() -> None:
    at_once = ', backend_config={"collective_backend_config":{"is_sync":true}}'
    assert ms(scheduled(pair(2, at_once))) == pytest.approx(3 * COPY_MS + GATHER_MS)


def test_two_collectives_under_way_share_the_link() -> None:
    found = scheduled("""
  %w = f32[2000]{0} parameter(0)
  %one = (f32[2000]{0}, f32[4000]{0}) all-gather-start(%w), replica_groups={{0,1}}, dimensions={0}
  %two = (f32[2000]{0}, f32[4000]{0}) all-gather-start(%w), replica_groups={{0,1}}, dimensions={0}
  %done.2 = f32[4000]{0} all-gather-done(%two)
  ROOT %done.1 = f32[4000]{0} all-gather-done(%one)
""")
    assert ms(found) == pytest.approx(2 * GATHER_MS)


def test_a_loop_beside_a_collective_is_slowed_as_a_whole() -> None:
    loop = WHILE.replace("ROOT ", "").replace("%start", "%carry.0") + ', backend_config={"known_trip_count":{"n":"2"}}'
    found = scheduled(
        f"""
  %w = f32[2000]{{0}} parameter(1)
  %gather = (f32[2000]{{0}}, f32[4000]{{0}}) all-gather-start(%w), replica_groups={{{{0,1}}}}, dimensions={{0}}
{loop}
  ROOT %done = f32[4000]{{0}} all-gather-done(%gather)
""",
        LOOP,
        contention=0.5,
    )
    (loop_run,) = runs(found, "while")
    assert loop_run.slowed_s == pytest.approx(0.5 * GATHER_MS * MS)
    assert ms(found) == pytest.approx(2 * COPY_MS + 0.5 * GATHER_MS)


times = st.floats(0, 100)
actions = st.lists(st.tuples(st.sampled_from(["work", "start", "wait"]), times), max_size=30)


@settings(deadline=None)
@given(actions, st.floats(0, 1))
def test_the_clock_shows_work_and_slowing_and_waiting_and_no_more_is_exposed_than_moves(
    done: list[tuple[str, float]], contention: float
) -> None:
    clock = Clock(contention)
    worked = slowed = exposed = moved = 0.0
    under_way: list[float] = []
    for action, seconds in done:
        if action == "work":
            worked += seconds
            slowed += clock.work(seconds)
        elif action == "start":
            moved += seconds
            under_way.append(clock.start(seconds))
        elif under_way:
            exposed += clock.wait(under_way.pop(0))
    hidden = clock.moved - exposed
    assert slowed == pytest.approx(contention * hidden, abs=1e-6)
    assert -1e-6 <= hidden <= min(worked, moved) + 1e-6
    assert 0 <= exposed <= moved * (1 + 1e-9) + 1e-9
    # Never longer than with nothing overlapped, for a transfer slows work by no more than its own time.
    assert worked + slowed + exposed <= worked + moved + 1e-6
