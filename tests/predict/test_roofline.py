"""The time of one instruction, found by hand on a device of round numbers."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharder.config import HardwareConfig
from sharder.errors import UserError
from sharder.measure.arithmetic import Cost
from sharder.measure.hlo import parse
from sharder.predict.matrix_products import Product, product_of
from sharder.predict.roofline import (
    ATTENTION_SHARE,
    MEMORY_SHARE,
    Device,
    Kernel,
    Roofline,
    device,
    memory_s,
    product_s,
    vector_s,
)

GAP = 1e-6
TOY = Device(
    kind="toy",
    peak_flops_per_s={"bfloat16": 1e12, "float32": 0.5e12},
    vector_flops_per_s=1e11,
    bytes_per_s=1e9 / MEMORY_SHARE,  # so that 1e9 bytes take a second
    cores=4,
    tile=(128, 128),
    launch_gap_s=GAP,
)
EFFICIENCY = 0.5
GEMM = (
    '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],'
    '"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]},'
    '"precision_config":{"operand_precision":["DEFAULT","DEFAULT"]}}}'
)


def kernel(body: str, name: str = "out", fused: str = "") -> Kernel | None:
    """Of the instruction `name` in a program with this entry."""
    entry = "\n".join(line for line in body.split("\n") if line.strip())
    module = parse(f"HloModule test, is_scheduled=true\n{fused}\nENTRY %main () -> f32[] {{\n{entry}\n}}\n")
    instruction = module.find(name)
    assert instruction is not None
    return Roofline(module, TOY, EFFICIENCY).kernel(instruction)


def found(body: str, name: str = "out", fused: str = "") -> Kernel:
    one = kernel(body, name, fused)
    assert one is not None
    return one


def test_a_call_into_cublas_is_a_product_of_its_shape_without_the_bytes_it_works_in() -> None:
    one = found(f"""
  %a = bf16[256,64]{{1,0}} parameter(0)
  %b = bf16[64,256]{{1,0}} parameter(1)
  %out = (bf16[256,256]{{1,0}}, s8[4194304]{{0}}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", """
        f"backend_config={GEMM}")  # fmt: skip
    # 2 x 2 tiles on 4 cores: one full wave.
    assert one.kind == "product"
    assert one.arithmetic_s == pytest.approx(2 * 256 * 256 * 64 / (1e12 * EFFICIENCY))
    assert one.memory_s == pytest.approx(2 * (256 * 64 + 64 * 256 + 256 * 256) / 1e9)
    assert one.total_s == pytest.approx(one.memory_s + GAP)
    assert (one.bound_by, one.unknown) == ("memory", "")


def test_the_last_wave_and_the_last_tile_cost_as_much_as_full_ones() -> None:
    full = product_s(Product(1, 256, 256, 64, "bf16"), TOY, EFFICIENCY)
    assert product_s(Product(1, 257, 256, 64, "bf16"), TOY, EFFICIENCY) == pytest.approx(2 * full)  # 6 tiles: 2 waves
    assert product_s(Product(1, 129, 129, 64, "bf16"), TOY, EFFICIENCY) == pytest.approx(full)  # 4 tiles
    assert product_s(Product(1, 1, 1, 64, "bf16"), TOY, EFFICIENCY) == pytest.approx(full)  # a wave of 1 tile
    assert product_s(Product(4, 128, 128, 64, "bf16"), TOY, EFFICIENCY) == pytest.approx(full)  # a batch of 4 tiles
    assert product_s(Product(1, 0, 256, 64, "bf16"), TOY, EFFICIENCY) == 0


def test_float32_runs_at_its_own_peak_and_exact_float32_on_the_vector_unit() -> None:
    flops = 2 * 256 * 256 * 64
    rounded, exact = Product(1, 256, 256, 64, "f32"), Product(1, 256, 256, 64, "f32", is_exact=True)
    assert product_s(rounded, TOY, EFFICIENCY) == pytest.approx(flops / (0.5e12 * EFFICIENCY))
    assert product_s(exact, TOY, EFFICIENCY) == pytest.approx(flops / 1e11)


def test_the_shape_of_a_product_is_read_however_it_is_written() -> None:
    module = parse("""HloModule test

ENTRY %main () -> f32[] {
  %a = f32[8,3,64]{2,1,0} parameter(0)
  %b = f32[8,64,5]{2,1,0} parameter(1)
  %dot = f32[8,3,5]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}, operand_precision={highest,highest}
  %x = bf16[32,16]{1,0} parameter(2)
  %w = bf16[16,48]{1,0} parameter(3)
  %conv = bf16[32,48]{1,0} convolution(%x, %w), dim_labels=bf_io->bf
  ROOT %out = f32[] constant(0)
}
""")  # noqa: E501
    by_name = module.entry.by_name
    assert product_of(by_name["dot"], module.entry) == Product(8, 3, 5, 64, "f32", is_exact=True)
    assert product_of(by_name["conv"], module.entry) == Product(1, 32, 48, 16, "bf16")
    assert product_of(by_name["a"], module.entry) is None


FUSED = """
%fused (p0: f32[10,1000], i: s32[], p1: f32[1000]) -> f32[1,1000] {
  %p0 = f32[10,1000]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = f32[1,1000]{1,0} dynamic-slice(%p0, %i, %zero), dynamic_slice_sizes={1,1000}
  %p1 = f32[1000]{0} parameter(2)
  %row = f32[1,1000]{1,0} bitcast(%p1)
  %e = f32[1,1000]{1,0} exponential(%slice)
  ROOT %sum = f32[1,1000]{1,0} add(%e, %row)
}"""
FUSION = """
  %stack = f32[10,1000]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %bias = f32[1000]{0} parameter(2)
  ROOT %out = f32[1,1000]{1,0} fusion(%stack, %i, %bias), kind=kLoop, calls=%fused
"""


def test_a_fusion_takes_the_time_of_the_bytes_it_touches() -> None:
    one = found(FUSION, fused=FUSED)
    # A slice of the stack and the bias in, the sum out, and the 4 bytes that say which slice.
    assert one.memory_s == pytest.approx((3 * 4000 + 4) / 1e9)
    # 1000 additions, 1000 exponentials that count 16 each; an operation is half of a multiplication and addition.
    assert one.arithmetic_s == pytest.approx(2 * 17 * 1000 / 1e11)
    assert (one.kind, one.bound_by, one.unknown) == ("fusion", "memory", "")


def test_a_product_in_a_fusion_is_one() -> None:
    fused = """
%fused (p0: bf16[256,64], p1: bf16[64,256]) -> bf16[256,256] {
  %p0 = bf16[256,64]{1,0} parameter(0)
  %p1 = bf16[64,256]{1,0} parameter(1)
  ROOT %d = bf16[256,256]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}"""
    one = found(
        """
  %a = bf16[256,64]{1,0} parameter(0)
  %b = bf16[64,256]{1,0} parameter(1)
  %out = bf16[256,256]{1,0} fusion(%a, %b), kind=kCustom, calls=%fused""",
        fused=fused,
    )
    assert one.kind == "product"
    assert one.arithmetic_s == pytest.approx(2 * 256 * 256 * 64 / (1e12 * EFFICIENCY))


@pytest.mark.parametrize(("target", "products"), [("fmhaSoftmax", 2), ("fmhaSoftmaxBackward", 5)])
def test_attention_by_cudnn_has_a_model(target: str, products: int) -> None:
    one = found(f"""
  %q = bf16[2,256,4,64]{{3,2,1,0}} parameter(0)
  %k = bf16[2,256,4,64]{{3,2,1,0}} parameter(1)
  %v = bf16[2,256,4,64]{{3,2,1,0}} parameter(2)
  %out = (bf16[2,256,4,64]{{3,2,1,0}}, u8[1000]{{0}}) custom-call(%q, %k, %v), custom_call_target="__cudnn${target}"
""")
    scores = product_s(Product(8, 256, 256, 64, "bf16"), TOY, EFFICIENCY * ATTENTION_SHARE)
    weighed = product_s(Product(8, 256, 64, 256, "bf16"), TOY, EFFICIENCY * ATTENTION_SHARE)
    forward, again = scores + weighed, scores + 2 * weighed
    assert one.arithmetic_s == pytest.approx(forward if products == 2 else forward + again)
    assert one.memory_s == pytest.approx(4 * 2 * 2 * 256 * 4 * 64 / 1e9)
    assert (one.kind, one.unknown) == ("attention", "")


def test_what_the_model_does_not_know_is_named_and_takes_the_time_of_its_bytes() -> None:
    one = found("""
  %a = f32[1000]{0} parameter(0)
  %out = f32[1000]{0} custom-call(%a), custom_call_target="somebody$elses"
""")
    assert one.unknown == "custom-call somebody$elses"
    assert one.memory_s == pytest.approx(8000 / 1e9)
    one = found("""
  %a = c64[1000]{0} parameter(0)
  %out = c64[1000]{0} fft(%a), fft_type=FFT, fft_length={1000}
""")
    assert one.unknown == "fft"
    one = found("""
  %q = bf16[2,64]{1,0} parameter(0)
  %out = bf16[2,64]{1,0} custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax"
""")
    assert one.unknown == "custom-call __cudnn$fmhaSoftmax"  # not the operands that attention has


def test_names_for_buffers_take_no_time() -> None:
    body = """
  %a = (f32[1000]{0}, f32[10]{0}) parameter(0)
  %part = f32[1000]{0} get-tuple-element(%a), index=0
  %other = f32[10,100]{1,0} bitcast(%part)
  %five = f32[] constant(5)
  ROOT %out = f32[10,100]{1,0} copy(%other)
"""
    assert [kernel(body, name) for name in ("a", "part", "other", "five")] == [None] * 4
    assert found(body).memory_s == pytest.approx(8000 / 1e9)


def test_a_kernel_shorter_than_its_launch_is_bound_by_it() -> None:
    assert Kernel("fusion", 1e-7, 2e-7, GAP).bound_by == "launch"
    assert Kernel("fusion", 3e-6, 2e-6, GAP).bound_by == "arithmetic"


sizes = st.integers(1, 5000)


@settings(deadline=None, max_examples=50)
@given(sizes, sizes, sizes, st.integers(1, 4), st.sampled_from(["m", "n", "k", "batch"]), sizes)
def test_a_larger_product_is_never_faster_nor_faster_than_the_peak(
    m: int, n: int, k: int, batch: int, dim: str, more: int
) -> None:
    product = Product(batch, m, n, k, "bf16")
    time = product_s(product, TOY, EFFICIENCY)
    assert time >= product.flops / (1e12 * EFFICIENCY) * (1 - 1e-9)
    larger = replace(product, **{dim: getattr(product, dim) + more})
    assert product_s(larger, TOY, EFFICIENCY) >= time


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_more_bytes_and_more_operations_never_take_less(some: int, more: int) -> None:
    assert memory_s(some + more, TOY) >= memory_s(some, TOY)
    assert vector_s(Cost(operations=some, transcendentals=more), TOY) >= vector_s(Cost(operations=some), TOY)


H100 = HardwareConfig(kind="h100", device_kind="NVIDIA H100 80GB HBM3", hbm_bytes_per_s=3.35232e12)


def test_the_numbers_of_an_h100() -> None:
    numbers = device(H100)
    assert numbers.peak_flops_per_s == {"bfloat16": 989.4e12, "float32": 494.7e12}
    assert numbers.vector_flops_per_s == pytest.approx(66.9e12, rel=1e-3)  # float32 in NVIDIA's table
    assert (numbers.cores, numbers.bytes_per_s) == (132, 3.35232e12)


def test_hardware_without_rates_is_refused_in_words() -> None:
    with pytest.raises(UserError, match=r"hardware: found auto, allowed: h100, .*; set hardware=h100"):
        device(HardwareConfig())
    with pytest.raises(UserError, match=r"hardware\.device_kind: found 'NVIDIA H100', allowed"):
        device(replace(H100, device_kind="NVIDIA H100"))
