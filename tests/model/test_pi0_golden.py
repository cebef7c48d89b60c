"""Same function: on openpi's weights our model gives openpi's numbers, however it is executed."""

import dataclasses

import golden_case
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharder.model.execution import Execution
from sharder.model.fused import Fused
from sharder.model.openpi_names import to_openpi
from sharder.model.pi0 import Observation, build, flow_matching_loss

TOLERANCE = {  # largest absolute error in float32: loss and velocity, sampled actions
    "pi0": (1e-5, 2e-5),
    "pi0_lora": (1e-5, 2e-5),
    "pi05": (2e-6, 5e-6),
}
ZERO_GRADIENT = 1e-9  # leaves whose gradient is zero in exact arithmetic hold rounding noise
EXECUTIONS = [
    Execution("naive", "none"),
    Execution("naive", "full"),
    Execution("xla", "dots_no_batch", cameras_together=False),
    Execution("xla", "none", unroll=True),
    Execution("flash", "dots"),
    Execution("flash", "none", fused=Fused(256, "xla")),
    Execution("flash", "dots_no_batch", unroll=True, fused=Fused(256, "xla")),
]


@pytest.fixture(autouse=True)
def highest_precision():
    with jax.default_matmul_precision("highest"):
        yield


def loss_and_gradients(variant, execution, inputs):
    def mean_loss(weights):
        model = build(golden_case.config(variant), weights, execution)
        losses = flow_matching_loss(model, inputs.observation, inputs.actions, inputs.noise, inputs.time)
        return losses.mean(), losses

    (mean, losses), gradients = jax.jit(jax.value_and_grad(mean_loss, has_aux=True))(golden_case.weights(variant))
    return mean, losses, gradients


def without_right_wrist(observation: Observation) -> Observation:
    kept = {c: i for c, i in observation.images.items() if c != "right_wrist_0_rgb"}
    return dataclasses.replace(observation, images=kept)


@pytest.mark.parametrize("execution", EXECUTIONS, ids=lambda e: f"{e.attention}-{e.remat}{'-fused' * bool(e.fused)}")
@pytest.mark.parametrize("variant", golden_case.VARIANTS)
def test_loss_and_every_gradient_norm(variant, execution):
    golden = golden_case.golden(variant)
    mean, losses, gradients = loss_and_gradients(variant, execution, golden_case.inputs())
    np.testing.assert_allclose(losses, golden["loss"], rtol=0, atol=TOLERANCE[variant][0])
    assert float(mean) == pytest.approx(float(golden["loss_mean"]), abs=TOLERANCE[variant][0])
    theirs = to_openpi(golden_case.config(variant), gradients)
    assert sorted(theirs) == list(golden["leaf"])
    for leaf, wanted in zip(golden["leaf"], golden["gradient_norm"], strict=True):
        found = float(jnp.linalg.norm(theirs[leaf].ravel()))
        assert abs(found - wanted) <= 5e-5 * wanted + ZERO_GRADIENT, leaf


@pytest.mark.parametrize("attention", ["naive", "xla", "flash", "fused"])
@pytest.mark.parametrize("variant", golden_case.VARIANTS)
def test_velocity_prefix_and_sampled_actions(variant, attention):
    golden, inputs = golden_case.golden(variant), golden_case.inputs()
    time = inputs.time[:, None, None]
    noisy = time * inputs.noise + (1 - time) * inputs.actions

    @jax.jit
    def compute(weights):
        fused = Execution("flash", fused=Fused(256, "xla"))
        model = build(golden_case.config(variant), weights, fused if attention == "fused" else Execution(attention))
        in_order = build(golden_case.config(variant), weights)  # a fused kernel has the valid tokens first
        return (
            model.velocity(inputs.observation, noisy, inputs.time),
            in_order.embed_prefix(inputs.observation).tokens[:, ::16],
            model.sample_actions(inputs.observation, inputs.noise, 10),
        )

    velocity, prefix, actions = compute(golden_case.weights(variant))
    np.testing.assert_allclose(velocity, golden["v_t"], rtol=0, atol=TOLERANCE[variant][0])
    np.testing.assert_allclose(prefix, golden["prefix_embed"], rtol=0, atol=3e-6)
    np.testing.assert_allclose(actions, golden["sampled_actions"], rtol=0, atol=TOLERANCE[variant][1])


@pytest.mark.parametrize("absent_cameras", [False, True], ids=["left out", "run masked"])
@pytest.mark.parametrize("variant", golden_case.VARIANTS)
def test_a_camera_that_is_not_there_equals_that_camera_masked(variant, absent_cameras):
    """Left out, or run all the same with a black image in its place."""
    inputs = golden_case.inputs()
    left_out = inputs._replace(observation=without_right_wrist(inputs.observation))
    execution = Execution(cameras_together=not absent_cameras, absent_cameras=absent_cameras)
    _, losses, gradients = loss_and_gradients(variant, execution, left_out)
    golden = golden_case.golden(variant)
    np.testing.assert_allclose(losses, golden["loss"], rtol=0, atol=TOLERANCE[variant][0])
    for leaf, wanted in zip(golden["leaf"], golden["gradient_norm"], strict=True):
        found = float(jnp.linalg.norm(to_openpi(golden_case.config(variant), gradients)[leaf].ravel()))
        assert abs(found - wanted) <= 5e-5 * wanted + ZERO_GRADIENT, leaf


@pytest.mark.parametrize("variant", golden_case.VARIANTS)
def test_a_kernel_gets_the_prefix_and_the_images_of_these_models(variant):
    """Or the cases named fused would say nothing. With a loop over layers, each is traced once."""
    inputs, shapes = golden_case.inputs(), []

    def noted(function):
        def run(*arrays):
            shapes.append(tuple(x.shape[:2] for x in arrays[:2]))
            return function(*arrays)

        return run

    model = build(golden_case.config(variant), golden_case.weights(variant), Execution("flash"))
    tokens = model.embed_prefix(inputs.observation).tokens.shape[1]
    noting = Execution("flash", fused=Fused(256, "xla", noted))
    model = build(golden_case.config(variant), golden_case.weights(variant), noting)
    jax.eval_shape(model.velocity, inputs.observation, inputs.noise, inputs.time)
    assert {queries[1] - tokens in (0, 1) for queries, keys in shapes if queries[0] == len(inputs.noise)} == {True}
    assert {queries[0] for queries, keys in shapes} == {len(inputs.noise), len(inputs.noise) * 3}
    assert all(queries == keys for queries, keys in shapes)


def test_bfloat16_computes_the_same_function_to_its_own_precision():
    config = dataclasses.replace(golden_case.config("pi0"), compute_dtype="bfloat16")
    inputs = golden_case.inputs()
    model = build(config, golden_case.weights("pi0"))
    losses = flow_matching_loss(model, inputs.observation, inputs.actions, inputs.noise, inputs.time)
    assert losses.dtype == jnp.float32
    np.testing.assert_allclose(losses, golden_case.golden("pi0")["loss"], rtol=0.02)
