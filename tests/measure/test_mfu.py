"""The three figures, on the published steps of pi0 and on steps that cannot be."""

import pytest
from traced_models import model_config, weights

from sharder.errors import UserError
from sharder.measure.flops import parameters, step_flops, tokens
from sharder.measure.mfu import Machine, hfu, machine, mfu, mfu_6nd
from sharder.measure.peaks import DENSE_PEAKS, Peak, known_peak
from sharder.measure.products import Flops, Key

H100 = "NVIDIA H100 80GB HBM3"
FLOPS = Flops({Key("language", "mlp", "forward"): 300, Key("language", "mlp", "recomputation"): 100}, "loss")


def device(devices: int = 1, peak: float | None = 1000.0) -> Machine:
    return machine("a device of ours", devices, "bfloat16", peak)


def test_a_figure_is_its_numerator_over_its_denominator() -> None:
    figure = mfu(FLOPS, step_s=0.5, machine=device(devices=4))
    assert figure.flops == 300
    assert figure.peak_flops == 0.5 * 4 * 1000
    assert figure.value == 300 / 2000
    assert figure.flops_per_s == 600
    assert figure.row() == {
        "mfu": 0.15,
        "mfu_flop": 300,
        "mfu_peak_flop": 2000.0,
        "mfu_flop_per_s": 600.0,
        "mfu_dtype": "bfloat16",
        "mfu_formula": "model FLOPs / (step time x devices x dense peak of the compute dtype)",
    }


def test_hfu_adds_what_is_computed_again() -> None:
    figure = hfu(FLOPS, 0.5, device())
    assert figure.value == 400 / 500
    assert figure.formula.startswith("(model FLOPs + recomputation) / ")
    once = Flops({Key("language", "mlp", "forward"): 300}, "loss")
    assert hfu(once, 0.5, device()).value == mfu(once, 0.5, device()).value


def test_6nd_is_the_convention() -> None:
    figure = mfu_6nd(parameters=10, tokens=5, step_s=1.0, machine=device())
    assert (figure.flops, figure.value) == (300, 0.3)
    assert figure.formula.startswith("6 x parameters x tokens / ")


@pytest.mark.parametrize(
    ("step_ms", "of_6nd", "of_program", "of_loss"),
    [(195.6, 0.348, 0.250, 0.239), (177.61, 0.383, 0.276, 0.263), (211.9, 0.321, 0.231, 0.220)],
)
def test_the_published_steps_of_pi0(step_ms: float, of_6nd: float, of_program: float, of_loss: float) -> None:
    """Batch 4 on one H100, published as 34.7, 38.3 and 32.1%; by what the program multiplies 25.0 to 27.6%."""
    config, on = model_config("pi0"), machine(H100, 1, "bfloat16")
    trainable, frozen = weights(config)
    convention = mfu_6nd(parameters(trainable, frozen), tokens(config, 4, 3), step_ms / 1e3, on)
    needed, program = (step_flops(config, trainable, frozen, 4, 3, count=count) for count in ("loss", "program"))
    assert convention.value == pytest.approx(of_6nd, abs=5e-4)
    assert mfu(needed, step_ms / 1e3, on).value == pytest.approx(of_loss, abs=5e-4)
    assert program.model / (step_ms / 1e3 * 989.4e12) == pytest.approx(of_program, abs=5e-4)


def test_a_device_that_is_not_known_has_flops_per_second_and_no_mfu() -> None:
    unknown = machine("cpu", 2, "float32")
    assert unknown.peak is None
    for figure in (mfu(FLOPS, 0.5, unknown), hfu(FLOPS, 0.5, unknown), mfu_6nd(10, 5, 0.5, unknown)):
        row = figure.row()
        assert figure.value is None
        assert row[f"{figure.name}_flop_per_s"] == figure.flops / 0.5
        assert figure.name not in row
        assert f"{figure.name}_peak_flop" not in row


@pytest.mark.parametrize("kind", ["NVIDIA H100", "NVIDIA H100 80GB HBM3e", "nvidia h100 80gb hbm3", "TPU v7", ""])
def test_no_peak_is_guessed_from_a_name(kind: str) -> None:
    assert known_peak(kind, "bfloat16") is None


def test_peaks_are_dense_and_by_dtype() -> None:
    for kind, (by_dtype, source) in DENSE_PEAKS.items():
        for dtype, flops_per_s in by_dtype.items():
            assert known_peak(kind, dtype) == Peak(flops_per_s, source)
        assert known_peak(kind, "float8") is None
    assert DENSE_PEAKS[H100][0]["bfloat16"] == 989.4e12  # with sparsity the data sheet says 1979
    assert DENSE_PEAKS[H100][0]["float32"] == 494.7e12  # TF32, in which JAX multiplies float32


def test_above_the_peak_the_time_is_wrong() -> None:
    flops = Flops({Key("language", "mlp", "forward"): 46_174_200_201_216}, "loss")
    with pytest.raises(ValueError) as error:
        mfu(flops, 0.030, machine(H100, 1, "bfloat16"))
    said = str(error.value)
    assert said.startswith(
        f"mfu: 4.617e+13 FLOP in 30 ms on 1 x {H100} is 156% of the bfloat16 peak of 9.894e+14 FLOP/s"
    )
    assert "the time must be wrong: no step takes less than 46.67 ms there" in said
    assert mfu(flops, 0.0467, machine(H100, 1, "bfloat16")).value == pytest.approx(0.9993, abs=1e-4)


def test_above_a_peak_that_the_user_gave_the_peak_is_wrong() -> None:
    with pytest.raises(UserError) as error:
        mfu(FLOPS, 0.1, device(devices=2))
    said = str(error.value)
    assert "the peak must be wrong: found hardware.peak_flops_per_s=1000, allowed: the device's dense peak" in said
    assert "which is 1500 or more" in said  # 300 FLOP in 0.1 s on 2


def test_above_the_peak_by_recomputation_alone_the_recomputation_is_wrong() -> None:
    with pytest.raises(
        ValueError, match="hfu: 133% of the peak, with 100 of 400 FLOP computed again; the recomputation"
    ):
        hfu(FLOPS, 0.3, device())
    with pytest.raises(UserError, match="the peak must be wrong"):
        hfu(FLOPS, 0.1, device())


def test_6nd_may_pass_the_peak_on_a_step_that_is_possible() -> None:
    """LoRA at half of the peak: 6ND counts gradients of frozen weights, and weights that tokens never meet."""
    config, on = model_config("pi0_lora"), machine(H100, 1, "bfloat16")
    trainable, frozen = weights(config)
    flops = step_flops(config, trainable, frozen, 4, 3)
    step_s = flops.model / (0.55 * 989.4e12)
    assert mfu(flops, step_s, on).value == pytest.approx(0.55)
    assert mfu_6nd(parameters(trainable, frozen), tokens(config, 4, 3), step_s, on).value == pytest.approx(
        1.098, abs=1e-3
    )


def test_numbers_that_are_none_are_refused() -> None:
    for step_s in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="mfu: a step of"):
            mfu(FLOPS, step_s, device())
    with pytest.raises(ValueError, match="devices: 0"):
        device(devices=0)
    with pytest.raises(UserError, match=r"hardware\.peak_flops_per_s: found -1\.0, allowed: a finite number above 0"):
        device(peak=-1.0)
    with pytest.raises(ValueError, match="found a count of the program, and MFU is of what the loss needs"):
        mfu(Flops(FLOPS.by_key, "program"), 1.0, device())
