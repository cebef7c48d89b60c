"""The count over the jaxpr: on small programs by hand, and on every model against the count from shapes."""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, PartitionSpec
from traced_models import MICRO, B, data, loss_of, model_config, weights

from sharder.compose import composed
from sharder.config import ModelConfig
from sharder.measure.flops import step_flops
from sharder.measure.jaxpr_flops import Product, gradient_products, program_flops
from sharder.measure.products import REMATS
from sharder.model.attention import IMPLEMENTATIONS, IN_TILES
from sharder.model.execution import Execution
from sharder.model.tiles import scored
from sharder.parallel.layout import make_layout
from sharder.parallel.mesh import BATCH, FSDP
from sharder.training.program import abstract_batch
from sharder.training.state import abstract_state
from sharder.training.step import make_train_step

X, W = jnp.ones((8, 4)), jnp.ones((4, 4))
ONCE = 2 * 8 * 4 * 4  # X @ W


def by_pass(products: list[Product]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for product in products:
        total[product.in_pass] += product.flops
    return dict(total)


def passes(loss: Any, trainable: Any, data: Any = X) -> dict[str, int]:
    return by_pass(gradient_products(lambda trainable, frozen, data: loss(trainable, data).sum(), trainable, (), data))


def layers(w: jax.Array, x: jax.Array, body: Any) -> jax.Array:
    """Three layers with the weights `w` [3, 4, 4]."""
    return jax.lax.scan(lambda x, w: (body(x, w), None), x, w)[0]


def test_a_product_is_a_multiplication_and_an_addition_for_each_element_and_each_term() -> None:
    assert program_flops(jnp.matmul, X, W) == ONCE
    assert program_flops(lambda x, y: jnp.einsum("bij,bjk->bik", x, y), jnp.ones((5, 2, 3)), jnp.ones((5, 3, 7))) == (
        2 * 5 * 2 * 3 * 7
    )


def test_what_lies_in_calls_and_loops_counts_as_often_as_it_runs() -> None:
    stack = jnp.ones((3, 4, 4))
    assert program_flops(jax.jit(lambda x: jax.jit(jnp.matmul)(x, W)), X) == ONCE
    assert program_flops(lambda w, x: layers(w, x, jnp.matmul), stack, X) == 3 * ONCE
    nested = lambda w, x: jax.lax.scan(lambda x, _: (layers(w, x, jnp.matmul), None), x, None, length=5)[0]  # noqa: E731
    assert program_flops(nested, stack, X) == 5 * 3 * ONCE


def test_a_body_for_each_device_counts_once_a_device() -> None:
    mesh = AbstractMesh((2, 4), (BATCH, FSDP), axis_types=(AxisType.Auto,) * 2)
    rows = PartitionSpec((BATCH, FSDP))
    split = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(rows, PartitionSpec()), out_specs=rows)
    assert program_flops(split, X, W) == ONCE
    whole = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec())
    assert program_flops(whole, X, W) == 8 * ONCE  # every device computes all of it


def test_a_convolution_of_patches_is_a_matrix_product_and_so_are_its_gradients() -> None:
    images, kernel = jnp.ones((2, 6, 6, 3)), jnp.ones((2, 2, 3, 5))
    patches = jax.lax.conv_dimension_numbers(images.shape, kernel.shape, ("NHWC", "HWIO", "NHWC"))

    def convolve(kernel: jax.Array, images: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(images, kernel, (2, 2), "VALID", dimension_numbers=patches)

    once = 2 * (2 * 3 * 3) * (2 * 2 * 3) * 5  # 9 patches of each image
    assert program_flops(convolve, kernel, images) == once
    both = jax.grad(lambda kernel, images: convolve(kernel, images).sum(), argnums=(0, 1))
    assert program_flops(both, kernel, images) == 3 * once


def test_the_backward_pass_of_a_product_with_a_weight_is_two_products() -> None:
    assert passes(lambda w, x: x @ w, W) == {"forward": ONCE, "backward_weights": ONCE}
    assert passes(lambda w, x: x @ w @ w, W) == {
        "forward": 2 * ONCE,
        "backward_activations": ONCE,  # the first product's input is data
        "backward_weights": 2 * ONCE,
    }
    stack = jnp.ones((3, 4, 4))
    assert passes(lambda w, x: layers(w, x, lambda x, w: jnp.sin(x @ w)), stack) == {
        "forward": 3 * ONCE,
        "backward_activations": 3 * ONCE,  # all turns of a loop are alike
        "backward_weights": 3 * ONCE,
    }


def test_a_frozen_weight_has_no_gradient() -> None:
    loss = lambda trainable, frozen, x: (x @ trainable @ frozen).sum()  # noqa: E731
    found = by_pass(gradient_products(loss, W, W, X))
    assert found == {"forward": 2 * ONCE, "backward_activations": ONCE, "backward_weights": ONCE}


def test_both_operands_of_scores_are_activations() -> None:
    def attend(w: jax.Array, x: jax.Array) -> jax.Array:
        q = x @ w
        with jax.named_scope("attention"):
            return q @ q.T

    scores = 2 * 8 * 8 * 4
    assert passes(attend, W) == {
        "forward": ONCE + scores,
        "backward_activations": 2 * scores,
        "backward_weights": ONCE,
    }


def test_what_a_gradient_of_ones_own_computes_again_says_so_by_its_scope() -> None:
    @jax.custom_vjp
    def cube(x: jax.Array) -> jax.Array:
        return x @ x @ x

    def gradient(x: jax.Array, g: jax.Array) -> tuple[jax.Array]:
        with jax.named_scope("recomputation"):
            square = x @ x
        return (g @ square,)

    cube.defvjp(lambda x: (cube(x), x), gradient)
    square = 2 * 4 * 4 * 4
    found = passes(lambda w, _: cube(w), W)
    assert (found["forward"], found["recomputation"], found["backward_activations"]) == (2 * square, square, square)


@pytest.mark.parametrize("in_loop", [False, True])
def test_what_a_checkpoint_computes_again_is_told_from_the_backward_pass(in_loop: bool) -> None:
    two = jax.checkpoint(lambda x, w: jnp.sin(jnp.sin(x @ w) @ w))
    stack, turns = (jnp.ones((3, 4, 4)), 3) if in_loop else (W, 1)
    found = passes(lambda w, x: layers(w, x, two) if in_loop else two(x, w), stack)
    assert found["forward"] == 2 * ONCE * turns
    assert found["backward_weights"] == 2 * ONCE * turns
    assert found["recomputation"] == 2 * ONCE * turns  # sin's derivative reads both


def test_a_checkpoint_that_keeps_products_computes_none_again() -> None:
    kept = jax.checkpoint(lambda x, w: jnp.sin(jnp.sin(x @ w) @ w), policy=jax.checkpoint_policies.dots_saveable)
    assert "recomputation" not in passes(lambda w, x: kept(x, w), W)


def test_a_gradient_of_ones_own_is_read() -> None:
    @jax.custom_vjp
    def double(w: jax.Array) -> jax.Array:
        return w @ W

    double.defvjp(lambda w: (double(w), None), lambda _, gradient: (gradient @ W @ W,))
    square = 2 * 4 * 4 * 4
    assert program_flops(double, W) == square
    assert passes(lambda w, x: x @ double(w), W) == {
        "forward": square + ONCE,
        "backward_activations": 2 * square,  # cotangents times what is no data
        "backward_weights": ONCE,
    }


def test_scopes_are_those_of_the_program() -> None:
    def scoped(w: jax.Array, x: jax.Array) -> jax.Array:
        with jax.named_scope("outer"):
            return layers(
                w, x, jax.checkpoint(jax.named_scope("inner")(lambda x, w: jnp.sin(jnp.einsum("ij,jk->ik", x, w))))
            )

    products = gradient_products(lambda w, _, x: scoped(w, x).sum(), jnp.ones((3, 4, 4)), (), X)
    assert {product.in_pass for product in products} >= {"forward", "recomputation", "backward_weights"}
    assert {product.scopes for product in products} == {("outer", "inner")}
    assert {product.times for product in products} == {3}
    assert ((8, 4), (4, 4)) in {product.operands for product in products}


def test_a_loop_of_unknown_length_is_refused_if_it_multiplies() -> None:
    def until_large(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ W, x)

    with pytest.raises(ValueError, match="how often while runs the matrix products in it cannot be told"):
        program_flops(until_large, X)
    assert program_flops(lambda x: jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x + 1, x) @ W, X) == ONCE


def test_a_kernel_that_hides_its_products_is_refused() -> None:
    with pytest.raises(ValueError, match="ragged_dot_general is a kernel whose products a jaxpr does not show"):
        program_flops(jax.lax.ragged_dot, X, W[None], jnp.array([8]))


# The models. `program` counts what is traced, so both must be the same number, in every place and pass.

PARTS = {"mlp": "mlp", "attention_projections": "projections", "attention": "scores", "norm": "modulation"}


def where_traced(product: Product) -> tuple[str, str, str]:
    """The scopes do not tell the two experts apart, nor a camera's patches from the vision tower's head."""
    component = next((name for name in ("vision", "action_head") if name in product.scopes), "experts")
    return component, next((PARTS[name] for name in product.scopes if name in PARTS), "ends"), product.in_pass


def assert_counts_agree(config: ModelConfig, remat: str, attn: str, cameras: int = 3, unrolled: bool = False) -> None:
    trainable, frozen = weights(config)
    loss = loss_of(config, Execution(attn, remat, unroll=unrolled))
    traced: Counter[tuple[str, str, str]] = Counter()
    for product in gradient_products(loss, trainable, frozen, data(config, cameras)):
        traced[where_traced(product)] += product.flops
    counted: Counter[tuple[str, str, str]] = Counter()
    in_tiles = scored if attn in IN_TILES else None
    flops = step_flops(config, trainable, frozen, B, cameras, remat, "program", in_tiles, unrolled)
    for (component, part, in_pass), count in flops.by_key.items():
        component = "experts" if component in ("language", "action") else component
        counted[component, "ends" if part in ("embedding", "head") else part, in_pass] += count
    assert counted == traced
    assert flops.total == sum(traced.values())


@pytest.mark.parametrize("model", MICRO)
@pytest.mark.parametrize(
    ("remat", "attn"),
    [
        *((remat, attn) for remat in REMATS for attn in ("naive", "flash")),
        *(("dots_no_batch", attn) for attn in IMPLEMENTATIONS if attn not in ("naive", "flash")),
    ],
)
def test_shapes_and_jaxpr_agree(model: str, remat: str, attn: str) -> None:
    assert_counts_agree(model_config(model), remat, attn)


@pytest.mark.parametrize(
    ("model", "remat", "attn"),
    [
        *(("pi0", "full", "xla"), ("pi05", "full", "xla"), ("pi0_lora", "dots_no_batch", "xla")),
        *(("pi0_nano", "none", "xla"), ("pi0", "none", "flash"), ("pi0_lora", "full", "flash")),
    ],
)
def test_shapes_and_jaxpr_agree_on_the_models_that_are_trained(model: str, remat: str, attn: str) -> None:
    assert_counts_agree(model_config(model), remat, attn)


@pytest.mark.parametrize("model", MICRO)
@pytest.mark.parametrize(("remat", "attn"), [("none", "naive"), ("full", "flash"), ("dots_no_batch", "xla")])
def test_shapes_and_jaxpr_agree_on_layers_that_are_written_out(model: str, remat: str, attn: str) -> None:
    """The last layer does for the prefix what its keys and values need, and no more."""
    assert_counts_agree(model_config(model), remat, attn, unrolled=True)


def test_shapes_and_jaxpr_agree_on_tokens_that_fill_several_tiles() -> None:
    """A prompt of 1300 tokens, whose suffix is cut off, and keys in two tiles."""
    config = model_config("pi0_micro")
    config.prompt_tokens = 1300
    assert_counts_agree(config, "dots", "flash")


@pytest.mark.parametrize("cameras", [0, 1, 2])
def test_cameras_that_are_not_there_cost_nothing(cameras: int) -> None:
    assert_counts_agree(model_config("pi0_micro"), "full", "naive", cameras)


FREEZABLE = (
    *("vision/patch", "vision/position", "vision/layers/attention/", "vision/layers/mlp/down", "vision/layers/norm"),
    *("vision/", "gemma/table", "gemma/layers/language", "gemma/layers/language/attention/out", "gemma/layers/action"),
    *("gemma/layers/action/attention/", "gemma/layers/action/norm", "action_in", "gemma/final_norm"),
)


@settings(max_examples=4, deadline=None)
@given(
    st.sampled_from(MICRO),
    st.lists(st.sampled_from(FREEZABLE), unique=True),
    st.sampled_from(REMATS),
    st.sampled_from(["naive", "flash"]),
    st.booleans(),
)
@example("pi0_micro", ["gemma/layers/language/attention/out"], "dots_no_batch", "naive", False)  # who reads the result?
@example("pi05_micro", [], "full", "naive", True)  # gates are trained, the flow time's condition is not
@example("pi0_micro", ["vision/", "gemma/layers/", "gemma/table"], "full", "flash", False)
def test_shapes_and_jaxpr_agree_whatever_is_frozen(
    model: str, freeze: list[str], remat: str, attn: str, head_too: bool
) -> None:
    config = model_config(model)
    inputs = ["time_in", "time_out"] if config.variant == "pi05" else ["state_in", "action_time"]
    config.freeze = [*freeze, *(inputs if head_too else [])]
    assert_counts_agree(config, remat, attn)


@pytest.mark.parametrize(
    ("mesh", "accumulation", "layout", "remat", "attn"),
    [
        ("fsdp4", 1, "auto", "dots_no_batch", "naive"),
        ("hsdp2x2", 2, "gather", "full", "naive"),
        ("fsdp4", 1, "gather", "none", "flash"),
    ],
)
def test_the_whole_step_multiplies_what_was_counted(
    mesh: str, accumulation: int, layout: str, remat: str, attn: str
) -> None:
    """With the optimizer, augmentation and collectives around it, over all devices and microbatches."""
    options = [f"mesh={mesh}", f"train.accumulation={accumulation}", f"layout={layout}", "train.batch_size=8"]
    config = composed(
        "train", ["model=pi0_micro", "layout.reduction=transport", "layout.min_shard_bytes=64", *options]
    )[0]
    devices = AbstractMesh((config.mesh.batch, config.mesh.fsdp), (BATCH, FSDP), axis_types=(AxisType.Auto,) * 2)
    state = abstract_state(config)
    step = make_train_step(config, Execution(attn, remat), devices, make_layout(state.weights, config.layout, devices))
    batch = abstract_batch(config, ("base_0_rgb", "left_wrist_0_rgb"))
    tiled = scored if attn in IN_TILES else None
    counted = step_flops(config.model, state.trainable, state.frozen, 8, 2, remat, "program", tiled)
    assert program_flops(step, state, batch) == counted.total
