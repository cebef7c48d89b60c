"""What a step's time means, and what the figures rest on."""

import logging

import pytest
from micro import micro_config

from sharder.measure.mfu import machine
from sharder.parallel.mesh import make_mesh
from sharder.training.clock import DATA, DEVICE, HOST, PAUSE, Spent
from sharder.training.program import make_program
from sharder.training.rates import Rates, make_rates

CAMERAS = ("base_0_rgb", "left_wrist_0_rgb")


@pytest.fixture
def rates(tmp_path) -> Rates:
    config = micro_config(tmp_path)
    return make_rates(make_program(config, make_mesh(config.mesh), CAMERAS))


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
