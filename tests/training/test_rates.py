"""What a step's time means, and what the figures rest on."""

import logging
from pathlib import Path

import pytest
from micro import micro_config

from sharder.compose import composed
from sharder.measure.costs import Costs
from sharder.measure.hlo import parse
from sharder.measure.mfu import machine
from sharder.model.pi0 import CAMERAS as MODEL_CAMERAS
from sharder.parallel.mesh import make_mesh
from sharder.training.clock import DATA, DEVICE, HOST, PAUSE, Spent
from sharder.training.program import Program, make_program
from sharder.training.rates import Rates, counted_flops, make_rates

CAMERAS = ("base_0_rgb", "left_wrist_0_rgb")
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # the products are the same


@pytest.fixture
def rates(tmp_path) -> Rates:
    config = micro_config(tmp_path)
    return make_rates(make_program(config, make_mesh(config.mesh), CAMERAS))


def multiplied(program: Program) -> int:
    """FLOPs of all matrix products of the compiled step."""
    module = parse(program.compile(more=FAST).as_text())
    return int(Costs(module).of_all(module.entry).product_flops)


def program_with(tmp_path: Path, work: str, cameras: tuple[str, ...] = CAMERAS[:1]) -> Program:
    config = micro_config(tmp_path)
    config.work, config.remat.name = composed("train", [f"work={work}"])[0].work, "none"
    return make_program(config, make_mesh(config.mesh), cameras)


@pytest.mark.parametrize("work", ["least", "unrolled", "published"])
def test_without_remat_the_compiled_step_multiplies_what_was_counted_and_nothing_twice(tmp_path, work):
    """One camera of three. Published runs the others as well: two black images, which the compiler must not find out
    to be one."""
    program = program_with(tmp_path, work)
    assert multiplied(program) == counted_flops(program, "program").model == counted_flops(program, "program").total
    all_there = counted_flops(program_with(tmp_path, work, MODEL_CAMERAS), "program").total
    assert (counted_flops(program, "program").total == all_there) == (work == "published")


def test_the_loss_needs_no_camera_that_the_data_lack(tmp_path):
    spared, published = (make_rates(program_with(tmp_path, work)) for work in ("unrolled", "published"))
    assert (published.flops, published.tokens) == (spared.flops, spared.tokens)


def on(rates: Rates, kind: str, peak: float | None = None) -> Rates:
    return Rates(rates.batch_size, rates.parameters, rates.tokens, rates.flops, machine(kind, 4, "bfloat16", peak))


SPENT = Spent(10, {DEVICE: 0.8, DATA: 0.1, HOST: 0.1, PAUSE: 7.0}, dispatch_s=0.02)  # 100 ms a step


def test_rates_are_of_the_step_in_all_and_a_device(rates):
    row = on(rates, "cpu").row(SPENT)
    assert row["step_ms"] == pytest.approx(100)
    assert row["step_ms"] == pytest.approx(
        sum(row[f"{part}_ms"] for part in ("device", "data_wait", "peer_wait", "host"))
    )
    assert row["examples_per_s"] == pytest.approx(10 * rates.batch_size)
    assert row["tokens_per_s_per_device"] == pytest.approx(10 * rates.tokens / 4)
    assert row["model_flop_per_s"] == pytest.approx(10 * rates.flops.model)


def test_shares_need_a_device_that_is_known(rates, caplog):
    caplog.set_level(logging.INFO, "sharder")
    assert not {"mfu", "hfu", "mfu_6nd"} & on(rates, "cpu").row(SPENT).keys()
    assert [record.getMessage() for record in caplog.records] == [
        "no mfu, but model_flop_per_s: sharder/measure/peaks.py has no peak of 'cpu' in bfloat16; "
        "hardware.peak_flops_per_s=... gives one"
    ]
    row = on(rates, "NVIDIA H100 80GB HBM3").row(SPENT)
    assert row["mfu"] == pytest.approx(10 * rates.flops.model / (4 * 989.4e12))
    assert row["mfu_6nd"] == pytest.approx(10 * 6 * rates.parameters * rates.tokens / (4 * 989.4e12))
    assert row["hfu"] >= row["mfu"]


def test_an_impossible_share_is_told_of_once_and_left_out(rates, caplog):
    impossible = on(rates, "x", peak=rates.flops.model)  # a step of 100 ms would be 250% of it
    with caplog.at_level(logging.ERROR, "sharder"):
        rows = [impossible.row(SPENT) for _ in range(3)]
    assert all(not {"mfu", "hfu", "mfu_6nd"} & row.keys() and "step_ms" in row for row in rows)
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if line.startswith("mfu: ") and "the peak must be wrong" in line]) == 1


def test_the_basis_has_numerators_denominator_dtype_and_formulas(rates):
    basis = on(rates, "NVIDIA H100 80GB HBM3").basis()
    assert basis["peak_flop_per_s_per_device"] == 989.4e12
    assert basis["dtype"] == "bfloat16"
    assert basis["mfu"]["flop_per_step"] == rates.flops.model
    assert basis["mfu_6nd"]["flop_per_step"] == 6 * rates.parameters * rates.tokens
    assert basis["mfu"]["formula"] == "model FLOPs / (step time x devices x dense peak of the compute dtype)"
    unknown = on(rates, "cpu").basis()
    assert unknown["peak_flop_per_s_per_device"] is None
    assert unknown["mfu"] == basis["mfu"]


def test_nothing_is_said_of_no_steps(rates):
    assert rates.row(Spent()) == {}
