"""Which collectives a compiled program has, how many bytes they move, and what runs meanwhile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sharder.measure.collectives import Collective, Total, Work, by_kind, collectives, kind_of
from sharder.measure.hlo import Loop, Shape, parse

SCANNED_MLP = Path(__file__).parent / "scanned_mlp.py"

# 18 layers on four devices, as XLA schedules them for GPUs: two weights gathered in one while a matmul runs, an
# all-reduce marked as synchronous, and a reduce-scatter and an all-to-all in XLA's general form of asynchronous call.
SCHEDULED = """\
HloModule jit_step, is_scheduled=true, num_partitions=4

%matmul (p.0: bf16[8,64], p.1: bf16[64,64]) -> bf16[8,64] {
  %p.0 = bf16[8,64]{1,0} parameter(0)
  %p.1 = bf16[64,64]{1,0} parameter(1)
  ROOT %dot = bf16[8,64]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%count (p.2: s32[]) -> s32[] {
  %p.2 = s32[] parameter(0)
  ROOT %next = s32[] add(%p.2, %p.2)
}

%scatter_wrapped (p.3: f32[64,64]) -> f32[16,64] {
  %p.3 = f32[64,64]{1,0} parameter(0)
  ROOT %rs = f32[16,64]{1,0} reduce-scatter(%p.3), channel_id=3, replica_groups=[1,4]<=[4], dimensions={0}, to_apply=%count, metadata={op_name="step/mlp/reduce_scatter"}
}

%exchange_wrapped (p.4: bf16[8,64]) -> bf16[8,64] {
  %p.4 = bf16[8,64]{1,0} parameter(0)
  ROOT %aa = bf16[8,64]{1,0} all-to-all(%p.4), channel_id=4, replica_groups=mesh['batch'=2,'fsdp'=2] {'fsdp'}, dimensions={0}
}

%condition (c: (s32[], bf16[8,64])) -> pred[] {
  %c = (s32[], bf16[8,64]{1,0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

%body (b: (s32[], bf16[8,64])) -> (s32[], bf16[8,64]) {
  %b = (s32[], bf16[8,64]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %x = bf16[8,64]{1,0} get-tuple-element(%b), index=1
  %up = bf16[16,64]{1,0} custom-call(), custom_call_target="up"
  %down = bf16[64,16]{1,0} custom-call(), custom_call_target="down"
  %whole = bf16[64,64]{1,0} custom-call(), custom_call_target="whole"
  %ag-start = ((bf16[16,64]{1,0}, bf16[64,16]{1,0}), (bf16[64,64]{1,0}, bf16[256,16]{1,0})) all-gather-start(%up, %down), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, metadata={op_name="step/mlp/all_gather"}, backend_config={"collective_backend_config":{"is_sync":false}}
  %j = s32[] fusion(%i), kind=kLoop, calls=%count
  %view = bf16[512]{0} bitcast(%x)
  %y = bf16[8,64]{1,0} fusion(%x, %whole), kind=kCustom, calls=%matmul
  %z = bf16[8,64]{1,0} add(%y, %y)
  %ag-done = (bf16[64,64]{1,0}, bf16[256,16]{1,0}) all-gather-done(%ag-start)
  %ar-start = bf16[8,64]{1,0} all-reduce-start(%z), channel_id=2, replica_groups={}, to_apply=%count, backend_config={"collective_backend_config":{"is_sync":true}}
  %ar-done = bf16[8,64]{1,0} all-reduce-done(%ar-start)
  ROOT %out = (s32[], bf16[8,64]{1,0}) tuple(%j, %ar-done)
}

ENTRY %main (a: bf16[8,64], g: f32[64,64]) -> f32[16,64] {
  %a = bf16[8,64]{1,0} parameter(0)
  %g = f32[64,64]{1,0} parameter(1)
  %rs-start = ((f32[64,64]{1,0}), f32[16,64]{1,0}, u32[]) async-start(%g), calls=%scatter_wrapped
  %zero = s32[] constant(0)
  %aa-start = ((bf16[8,64]{1,0}), bf16[8,64]{1,0}) async-start(%a), calls=%exchange_wrapped
  %rs-update = ((f32[64,64]{1,0}), f32[16,64]{1,0}, u32[]) async-update(%rs-start)
  %first = (s32[], bf16[8,64]{1,0}) tuple(%zero, %a)
  %layers = (s32[], bf16[8,64]{1,0}) while(%first), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"18"}}
  %aa-done = bf16[8,64]{1,0} async-done(%aa-start)
  %moved = bf16[8,64]{1,0} collective-permute(%aa-done), channel_id=5, source_target_pairs={{0,1},{1,0}}
  ROOT %rs-done = f32[16,64]{1,0} async-done(%rs-update)
}
"""  # noqa: E501


@pytest.fixture(scope="module")
def found() -> dict[str, Collective]:
    return {one.name: one for one in collectives(parse(SCHEDULED))}


def test_all_are_found_once_with_their_kind(found: dict[str, Collective]) -> None:
    assert {name: one.kind for name, one in found.items()} == {
        "rs-start": "reduce-scatter",
        "aa-start": "all-to-all",
        "moved": "collective-permute",
        "ag-start": "all-gather",
        "ar-start": "all-reduce",
    }


def test_a_combined_gather_in_a_loop(found: dict[str, Collective]) -> None:
    gather = found["ag-start"]
    assert gather.computation == "body"
    assert gather.in_loop == (Loop("body", 18),)
    assert gather.times == 18
    assert gather.operands == (Shape("bf16", (16, 64)), Shape("bf16", (64, 16)))
    assert gather.results == (Shape("bf16", (64, 64)), Shape("bf16", (256, 16)))
    assert gather.groups == ((0, 1, 2, 3),)
    assert gather.payload_bytes == 2 * (64 * 64 + 256 * 16)
    assert gather.sent_bytes == 3 / 4 * gather.payload_bytes
    assert gather.op_name == "step/mlp/all_gather"


def test_what_runs_meanwhile_is_real_work(found: dict[str, Collective]) -> None:
    """A loop counter, a view and other transfers are not."""
    assert found["ag-start"].is_async
    assert found["ag-start"].between == (Work("y", "fusion", is_matmul=True), Work("z", "add", is_matmul=False))
    assert found["rs-start"].between == (Work("layers", "while", is_matmul=True),)
    assert found["aa-start"].between == (Work("layers", "while", is_matmul=True),)


def test_a_pair_that_xla_runs_at_once_is_not_async(found: dict[str, Collective]) -> None:
    reduce = found["ar-start"]
    assert not reduce.is_async
    assert reduce.between == ()
    assert reduce.results == (Shape("bf16", (8, 64)),)
    assert reduce.groups == ((0, 1, 2, 3),)  # none named: all
    assert reduce.payload_bytes == 2 * 8 * 64
    assert reduce.sent_bytes == 2 * 3 / 4 * reduce.payload_bytes


def test_the_general_async_call_is_read_through(found: dict[str, Collective]) -> None:
    scatter, exchange = found["rs-start"], found["aa-start"]
    assert scatter.is_async
    assert scatter.in_loop == ()
    assert scatter.times == 1
    assert scatter.operands == (Shape("f32", (64, 64)),)
    assert scatter.results == (Shape("f32", (16, 64)),)
    assert scatter.payload_bytes == 4 * 64 * 64
    assert scatter.sent_bytes == 3 / 4 * scatter.payload_bytes
    assert scatter.op_name == "step/mlp/reduce_scatter"
    assert exchange.groups == ((0, 1), (2, 3))
    assert exchange.sent_bytes == 1 / 2 * exchange.payload_bytes


def test_a_permute_sends_all_it_has(found: dict[str, Collective]) -> None:
    permute = found["moved"]
    assert not permute.is_async
    assert permute.groups == ()
    assert permute.group_size == 2
    assert permute.sent_bytes == permute.payload_bytes == 2 * 8 * 64


def test_totals_are_those_of_a_step(found: dict[str, Collective]) -> None:
    gathered, reduced = 18 * 2 * (64 * 64 + 256 * 16), 18 * 2 * 8 * 64
    assert by_kind(found.values()) == {
        "reduce-scatter": Total(1, 16384, 12288.0),
        "all-to-all": Total(1, 1024, 512.0),
        "collective-permute": Total(1, 1024, 1024),
        "all-gather": Total(18, gathered, 0.75 * gathered),
        "all-reduce": Total(18, reduced, 1.5 * reduced),
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ag-start", "all-gather"),
        ("ag-done", "all-gather"),
        ("ar-done", "all-reduce"),
        ("rs-start", "reduce-scatter"),
        ("rs-update", "reduce-scatter"),
        ("rs-done", "reduce-scatter"),
        ("rs", "reduce-scatter"),
        ("moved", "collective-permute"),
        ("y", None),
        ("layers", None),
    ],
)
def test_any_instruction_knows_what_kind_of_collective_it_serves(name: str, kind: str | None) -> None:
    assert kind_of(parse(SCHEDULED), name) == kind


@pytest.mark.parametrize("kind", ["collective-broadcast", "ragged-all-to-all"])
def test_the_rarer_kinds_are_found_also_in_a_fusion(kind: str) -> None:
    text = SCHEDULED.replace("dot(%p.0, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}", f"{kind}(%p.0)")
    module = parse(text)
    assert kind_of(module, "y") == kind
    assert kind in {one.kind for one in collectives(module)}


def test_a_start_without_a_done_is_an_error() -> None:
    text = SCHEDULED.replace("all-gather-done(%ag-start)", "custom-call(%ag-start)")
    with pytest.raises(ValueError, match="ag-start in body is started and never waited for"):
        collectives(parse(text))


def test_a_program_compiled_here() -> None:
    """Three layers, two weights each, gathered inside the loop by four simulated devices."""
    layers, width = 3, 16
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    program = [sys.executable, str(SCANNED_MLP), "cpu", str(layers), str(width), "8"]
    child = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    module = parse(child.stdout)
    found = collectives(module)
    assert module.device_count == 4
    assert {one.kind for one in found} == {"all-gather"}
    assert all(one.times == layers and one.groups == ((0, 1, 2, 3),) for one in found)
    weight_bytes = 4 * width * 4 * width  # float32
    assert sum(one.payload_bytes for one in found) == 2 * weight_bytes
    assert by_kind(found)["all-gather"].sent_bytes == layers * 2 * weight_bytes * 3 / 4
