"""What is said of a predicted step: its parts, its rates, its dearest instructions, and how sure it is."""

import csv
import dataclasses
import json
from pathlib import Path

import jax
import pytest

from sharder.compose import composed
from sharder.config import Config
from sharder.measure.hlo import Module, parse
from sharder.model.pi0 import CAMERAS
from sharder.parallel.mesh import make_mesh
from sharder.predict import calibrate
from sharder.predict.calibrate import ACCURACY, Accuracy, solve
from sharder.predict.timing import ARITHMETIC, EXPOSED, GAPS, MEMORY, SLOWED, Assumptions, Timing, bound_by, timing
from sharder.training.program import Program, make_program

MICRO = ("model=pi0_micro", "data=lerobot", "data.root=/nowhere")
MLP_PATH = "jit(train_step)/jvp(layers)/while/body/closed_call/mlp/dot_general"
GEMM = (
    '{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"],'
    '"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}'
)
# 1000 turns of a product of 128 x 8192 x 8192, a copy, a gather of a weight beside both, and a call of unknown work.
STEP = f"""HloModule test, is_scheduled=true, num_partitions=2

%body (carry: (s32[], bf16[128,8192])) -> (s32[], bf16[128,8192]) {{
  %carry = (s32[], bf16[128,8192]{{1,0}}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %x = bf16[128,8192]{{1,0}} get-tuple-element(%carry), index=1
  %w = bf16[4096,8192]{{1,0}} constant({{...}})
  %gather = (bf16[4096,8192]{{1,0}}, bf16[8192,8192]{{1,0}}) all-gather-start(%w), replica_groups={{{{0,1}}}}, dimensions={{0}}, metadata={{op_name="jit(train_step)/jvp(layers)/gather_weights/all_gather"}}
  %moved = bf16[128,8192]{{1,0}} copy(%x), metadata={{op_name="{MLP_PATH}"}}
  %whole = bf16[8192,8192]{{1,0}} all-gather-done(%gather)
  %strange = bf16[128,8192]{{1,0}} custom-call(%moved), custom_call_target="elses"
  %y = (bf16[128,8192]{{1,0}}, s8[1024]{{0}}) custom-call(%strange, %whole), custom_call_target="__cublas$lt$matmul", metadata={{op_name="{MLP_PATH}"}}, backend_config={GEMM}
  %z = bf16[128,8192]{{1,0}} get-tuple-element(%y), index=0
  ROOT %next = (s32[], bf16[128,8192]{{1,0}}) tuple(%i, %z)
}}

%condition (carry.1: (s32[], bf16[128,8192])) -> pred[] {{
  %carry.1 = (s32[], bf16[128,8192]{{1,0}}) parameter(0)
  ROOT %true = pred[] constant(true)
}}

ENTRY %main (start: (s32[], bf16[128,8192])) -> (s32[], bf16[128,8192]) {{
  %start = (s32[], bf16[128,8192]{{1,0}}) parameter(0)
  ROOT %loop = (s32[], bf16[128,8192]{{1,0}}) while(%start), condition=%condition, body=%body, backend_config={{"known_trip_count":{{"n":"1000"}}}}
}}
"""  # noqa: E501


@pytest.fixture(scope="module")
def config() -> Config:
    return composed("train", [*MICRO, "hardware=h100", "model.compute_dtype=bfloat16"])[0]


@pytest.fixture(scope="module")
def program(config: Config) -> Program:
    return make_program(config, make_mesh(config.mesh, jax.devices("cpu")[:1]), CAMERAS[:1])


@pytest.fixture(scope="module")
def module() -> Module:
    return parse(STEP)


@pytest.fixture(scope="module")
def found(program: Program, module: Module, config: Config) -> Timing:
    return timing(program, module, config.hardware)


def test_the_parts_add_up_to_the_step(found: Timing) -> None:
    assert sum(part.ms for part in found.parts) == pytest.approx(found.step_ms)
    assert sum(part.share for part in found.parts) == pytest.approx(1)
    assert [part.name for part in found.parts] == [ARITHMETIC, MEMORY, GAPS, EXPOSED, SLOWED]
    assert sum(place.ms for place in found.places) == pytest.approx(found.step_ms)


def test_it_is_said_to_be_predicted_by_what_and_how_well(found: Timing) -> None:
    assert found.label == "predicted"
    assert found.model == calibrate.MODEL
    assert found.accuracy == ACCURACY.said
    assert (found.device_kind, found.devices) == ("NVIDIA H100 80GB HBM3", 2)
    json.dumps(dataclasses.asdict(found))  # as plan.json takes it


def test_elsewhere_it_says_that_it_was_never_compared(program: Program, module: Module) -> None:
    a100 = composed("train", [*MICRO, "hardware=a100"])[0].hardware
    assert timing(program, module, a100).accuracy == f"never compared on a100; on h100: {ACCURACY.said}"
    two_hosts = ("hardware=h100", "hardware.hosts=2", "mesh=fsdp2")
    h100s = composed("train", [*MICRO, *two_hosts])[0].hardware
    assert timing(program, module, h100s).accuracy == f"never compared between hosts; on h100: {ACCURACY.said}"


def test_the_gather_is_what_the_step_is_bound_by(found: Timing) -> None:
    # 128 MiB over a link of 450 x 2/3 GB/s take longer than their product reads them from memory.
    assert found.bound_by == "links"
    gather = found.top[0]
    assert (gather.what, gather.kind, gather.category, gather.part) == (
        "gather",
        "all-gather",
        "collectives",
        "all-gather",
    )
    assert gather.ms == pytest.approx(found.collectives_exposed_ms)
    assert found.collectives_exposed_ms < found.collectives_alone_ms
    assert found.kernels == 3000


def test_the_dearest_instructions_come_first_with_their_place(found: Timing) -> None:
    assert [one.ms for one in found.top] == sorted((one.ms for one in found.top), reverse=True)
    product = found.top[1]
    assert (product.what, product.kind, product.category, product.in_pass) == ("y", "product", "MLP", "forward")
    assert product.times == 1000


def test_unknown_work_is_listed(found: Timing) -> None:
    assert found.unknown == (("custom-call elses", 1000),)


def test_the_rates_follow_from_the_step(found: Timing, config: Config) -> None:
    assert found.examples_per_s == pytest.approx(config.train.batch_size / (found.step_ms / 1e3))
    assert found.mfu is not None and found.hfu is not None and found.mfu_6nd is not None
    assert 0 < found.mfu < found.hfu < 1


def test_with_nothing_hidden_the_step_is_longer(
    program: Program, module: Module, config: Config, found: Timing
) -> None:
    exposed = timing(program, module, config.hardware, Assumptions(overlap=False))
    assert exposed.collectives_exposed_ms == pytest.approx(exposed.collectives_alone_ms)
    assert exposed.step_ms > found.step_ms
    again = timing(program, module, config.hardware)
    assert again == found  # the same each time


def test_what_the_largest_part_is_bounds_the_step() -> None:
    parts = {ARITHMETIC: 3.0, MEMORY: 2.0, GAPS: 1.0, EXPOSED: 2.0, SLOWED: 1.5}
    assert bound_by(parts) == "links"  # what is exposed and what is slowed together
    assert bound_by(parts | {SLOWED: 0.5}) == "arithmetic"


def test_a_constant_is_found_from_either_side() -> None:
    assert solve(lambda x: 10 * x, 4.0, 0.0, 1.0) == pytest.approx(0.4, abs=1e-5)
    assert solve(lambda x: 10 / x, 20.0, 0.1, 1.0) == pytest.approx(0.5, abs=1e-5)
    with pytest.raises(ValueError, match="40 is wanted, and between 0 and 1 the model says 0 to 10"):
        solve(lambda x: 10 * x, 40.0, 0.0, 1.0)


def test_the_accuracy_is_that_of_the_table() -> None:
    table = Path(__file__).parents[2] / "experiments" / "prediction" / "predicted.csv"
    rows = [row for row in csv.DictReader(table.read_text().splitlines()) if row["fitted"] == "False"]
    errors = [abs(float(row["predicted_ms"]) / float(row["measured_ms"]) - 1) for row in rows]
    assert Accuracy("h100", len(rows), round(sum(errors) / len(errors), 3), round(max(errors), 3)) == ACCURACY
