"""FLOPs and bytes of instructions: against XLA's own count, and against values found by hand."""

import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from sharder.measure.arithmetic import Cost, arithmetic
from sharder.measure.costs import CPU, GPU, Costs, Prices
from sharder.measure.hlo import Module, parse


def everything(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, ...]:
    """One of each: products, transcendentals, conversions, reductions, windows, sort, scatter, convolution."""
    y = jnp.tanh(jnp.exp(x) @ x)
    shares = jax.nn.softmax(jnp.where(y > 0, y, y / 3).astype(jnp.bfloat16).astype(jnp.float32), axis=-1)
    return (
        shares,
        jnp.argmax(shares, axis=-1),
        jnp.sort(x[0]),
        jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID"),
        x.at[jnp.array([1, 2])].add(y[:2]),
        jax.lax.conv_general_dilated(
            x[None, :, :, None], kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
    )


def everything_but_the_scatter(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, ...]:
    """Of a scatter in place XLA counts all of the target as read and written."""
    results = everything(x, kernel)
    return results[:4] + results[5:]


def compiled(step: Callable[..., tuple[jax.Array, ...]]) -> jax.stages.Compiled:
    # tests/conftest.py asks for another way to compile fusions, for which XLA counts other FLOPs.
    is_changed = "fusion_emitters" in os.environ.get("XLA_FLAGS", "")
    options = {"xla_cpu_use_fusion_emitters": True} if is_changed else {}
    return jax.jit(step).lower(jnp.ones((64, 64)), jnp.ones((3, 3, 1, 4))).compile(compiler_options=options)


def test_the_flops_are_those_that_xla_counts() -> None:
    program = compiled(everything)
    module = parse(program.as_text())
    found = Costs(module).of_all(module.entry)
    expected = program.cost_analysis()
    assert found.is_known
    assert found.product_flops == 2 * 64**3 + 2 * 62 * 62 * 4 * 9
    assert found.transcendentals == expected["transcendentals"] == 3 * 64 * 64
    assert found.product_flops + found.operations == expected["flops"]


def test_the_bytes_are_those_that_xla_counts() -> None:
    program = compiled(everything_but_the_scatter)
    module = parse(program.as_text())
    assert Costs(module).of_all(module.entry).bytes == pytest.approx(
        program.cost_analysis()["bytes accessed"], rel=0.01
    )


def test_a_loop_counts_as_often_as_it_runs() -> None:
    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 7, lambda _, y: y @ x, x)

    module = parse(jax.jit(loop).lower(jnp.ones((32, 32))).compile().as_text())
    assert Costs(module).of_all(module.entry).product_flops == 7 * 2 * 32**3


# A layer of 18 is sliced out of a stack and scaled in one scope, then added to itself in another; the result goes into
# its place in a stack of results.
LAYER = """\
HloModule jit_step

%scaled (p0: f32[18,64,64], p1: f32[64], i: s32[], stack: f32[18,64,64]) -> f32[18,64,64] {
  %p0 = f32[18,64,64]{2,1,0} parameter(0)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  %slice = f32[1,64,64]{2,1,0} dynamic-slice(%p0, %i, %zero, %zero), dynamic_slice_sizes={1,64,64}
  %layer = f32[64,64]{1,0} bitcast(%slice)
  %p1 = f32[64]{0} parameter(1)
  %wide = f32[64,64]{1,0} broadcast(%p1), dimensions={1}
  %product = f32[64,64]{1,0} multiply(%layer, %wide), metadata={op_name="jit(step)/norm/mul"}
  %wave = f32[64,64]{1,0} sine(%product), metadata={op_name="jit(step)/attention/sin"}
  %update = f32[1,64,64]{2,1,0} bitcast(%wave)
  %stack = f32[18,64,64]{2,1,0} parameter(3)
  ROOT %out = f32[18,64,64]{2,1,0} dynamic-update-slice(%stack, %update, %i, %zero, %zero)
}

ENTRY %e (weights: f32[18,64,64], scale: f32[64], n: s32[], results: f32[18,64,64]) -> f32[18,64,64] {
  %weights = f32[18,64,64]{2,1,0} parameter(0)
  %scale = f32[64]{0} parameter(1)
  %n = s32[] parameter(2)
  %results = f32[18,64,64]{2,1,0} parameter(3)
  ROOT %fusion = f32[18,64,64]{2,1,0} fusion(%weights, %scale, %n, %results), kind=kLoop, calls=%scaled
}
"""


def test_a_fusion_moves_the_slices_it_touches_and_nothing_that_stays_inside() -> None:
    costs, layer = Costs(parse(LAYER)), 64 * 64
    parts = {instruction.name: cost for instruction, cost in costs.parts("fusion")}
    assert parts["slice"] == Cost(bytes=4 * layer + 2)  # and its half of the number of the layer
    assert parts["wide"] == Cost(bytes=4 * 64)
    assert parts["product"] == Cost(operations=layer)
    assert parts["wave"] == Cost(transcendentals=layer)
    assert parts["out"] == Cost(bytes=4 * layer + 2)  # in place: the stack is not read
    assert costs.of("fusion") == Cost(operations=layer, transcendentals=layer, bytes=8 * layer + 4 * 64 + 4)
    assert costs.of("fusion").flops == 2 * layer


def one(text: str, *more: str) -> Module:
    lines = "\n".join(f"  {line}" for line in (*more, f"ROOT {text}"))
    return parse(f"HloModule m\n\nENTRY %e () -> f32[] {{\n{lines}\n}}\n")


A, B = "%a = f32[8,32]{1,0} parameter(0)", "%b = f32[32,4]{1,0} parameter(1)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%r = f32[8,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}", Cost(2 * 8 * 4 * 32, bytes=4 * (256 + 128 + 32))),
        (
            '%r = (f32[8,4]{1,0}, s8[64]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config='
            '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}',
            Cost(2 * 8 * 4 * 32, bytes=4 * (256 + 128 + 32)),  # not those that it is given to work in
        ),
        ('%r = f32[8]{0} custom-call(%a), custom_call_target="mine"', Cost(bytes=4 * (256 + 8), is_known=False)),
        ("%r = f32[8,16]{1,0} slice(%a), slice={[0:8], [0:16]}", Cost(bytes=2 * 4 * 128)),
        ("%r = f32[256]{0} bitcast(%a)", Cost()),
        ("%r = f32[8,32]{1,0} multiply(%a, %a)", Cost(operations=256, bytes=4 * (256 + 256))),
        ("%r = f32[8,32]{1,0} all-gather-done(%a)", Cost()),
        ("%r = (f32[8,32]{1,0}, f32[32,32]{1,0}) all-gather-start(%a)", Cost(bytes=4 * (256 + 1024))),
    ],
)
def test_an_instruction_that_stands_alone(text: str, expected: Cost) -> None:
    assert Costs(one(text, A, B)).of("r") == expected


def test_a_call_in_a_fusion_moves_no_more_than_one_that_stands_alone() -> None:
    """As jax 0.12 has its products: the weight is cut from its stack inside."""
    module = parse("""HloModule m
%inside (p: f32[3,32,4], q: s32[], r: f32[8,32]) -> (f32[8,4], s8[1000]) {
  %p = f32[3,32,4]{2,1,0} parameter(0)
  %q = s32[] parameter(1)
  %r = f32[8,32]{1,0} parameter(2)
  %zero = s32[] constant(0)
  %cut = f32[1,32,4]{2,1,0} dynamic-slice(%p, %q, %zero, %zero), dynamic_slice_sizes={1,32,4}
  %weight = f32[32,4]{1,0} bitcast(%cut)
  ROOT %call = (f32[8,4]{1,0}, s8[1000]{0}) custom-call(%r, %weight), custom_call_target="__cublas$gemm"
}

ENTRY %e (a: f32[3,32,4], n: s32[], b: f32[8,32]) -> (f32[8,4], s8[1000]) {
  %a = f32[3,32,4]{2,1,0} parameter(0)
  %n = s32[] parameter(1)
  %b = f32[8,32]{1,0} parameter(2)
  ROOT %f = (f32[8,4]{1,0}, s8[1000]{0}) fusion(%a, %n, %b), kind=kCustom, calls=%inside
}
""")
    assert Costs(module).of("f").bytes == 4 * (128 + 1 + 256 + 32)


def test_of_a_conditional_the_dearest_branch_runs() -> None:
    module = parse("""HloModule m
%cheap (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %c = f32[4]{0} negate(%p)
}
%dear (q: f32[4]) -> f32[4] {
  %q = f32[4]{0} parameter(0)
  ROOT %d = f32[4]{0} tanh(%q)
}
ENTRY %e (which: s32[], x: f32[4]) -> f32[4] {
  %which = s32[] parameter(0)
  %x = f32[4]{0} parameter(1)
  ROOT %r = f32[4]{0} conditional(%which, %x, %x), branch_computations={%cheap, %dear}
}
""")
    assert [instruction.name for instruction, _ in Costs(module).parts("r")] == ["q", "d"]
    assert Costs(module).of("r") == Cost(transcendentals=4, bytes=32)


def test_costs_add_up_and_repeat() -> None:
    some, other = Cost(1, 2, 3, 4), Cost(10, 20, 30, 40, is_known=False)
    assert some + other == Cost(11, 22, 33, 44, is_known=False)
    assert some.times(3) == Cost(3, 6, 9, 12)
    assert some.flops == 6


def test_prices_weigh_what_differs_between_devices() -> None:
    assert Prices(0.5, 10, 2).of(Cost(4, 3, 2, 1)) == 2 + 3 + 20 + 2
    for prices in (CPU, GPU):
        assert prices.product_flop < 1 < prices.byte < prices.transcendental


def test_arithmetic_of_an_opcode_that_nobody_knows() -> None:
    module = one("%r = f32[8]{0} fft(%a), fft_type=FFT", A)
    assert arithmetic(module.entry.by_name["r"], module.entry, module) == Cost(is_known=False)
