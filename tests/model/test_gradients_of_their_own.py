"""Layer norm and GELU, whose gradients are written out: the same as what JAX derives."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharder.model.gelu import gelu
from sharder.model.layer_norm import layer_norm


def derived_layer_norm(x_XC: jax.Array, scale_C: jax.Array, bias_C: jax.Array) -> jax.Array:
    x32 = x_XC.astype(jnp.float32)
    centred = x32 - x32.mean(-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6)
    return (normed * scale_C + bias_C).astype(x_XC.dtype)


def derived_gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=True)


def output_and_gradients(function: Any, *arrays: jax.Array) -> list[np.ndarray]:
    out, backward = jax.vjp(function, *arrays)
    cotangent = jnp.asarray(np.random.default_rng(1).standard_normal(out.shape, np.float32), out.dtype)
    return [np.asarray(x, np.float32) for x in (out, *backward(cotangent))]


def normal(*shape: int, scale: float = 1.0, around: float = 0.0) -> jax.Array:
    return jnp.asarray(around + scale * np.random.default_rng(sum(shape)).standard_normal(shape, np.float32))


CASES = {
    "norm": (layer_norm, derived_layer_norm, (normal(12, 40, scale=3, around=5), normal(40), normal(40))),
    "gelu": (gelu, derived_gelu, (normal(50, 7, scale=4),)),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_in_float32(case: str) -> None:
    ours, derived, arrays = CASES[case]
    pairs = zip(output_and_gradients(ours, *arrays), output_and_gradients(derived, *arrays), strict=True)
    for found, wanted in pairs:
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("case", sorted(CASES))
def test_in_bfloat16_nearer_to_float32_than_what_is_derived(case: str) -> None:
    ours, derived, (x, *rest) = CASES[case]
    rounded = x.astype(jnp.bfloat16)
    exact = output_and_gradients(derived, rounded.astype(jnp.float32), *rest)
    for found, theirs, wanted in zip(
        output_and_gradients(ours, rounded, *rest), output_and_gradients(derived, rounded, *rest), exact, strict=True
    ):
        assert np.abs(found - wanted).max() <= 1.05 * np.abs(theirs - wanted).max() + 1e-6


def test_far_out_gelu_is_a_line_or_nothing() -> None:
    x = jnp.asarray([-1e4, -30.0, 0.0, 30.0, 1e4])
    np.testing.assert_array_equal(jax.vmap(jax.grad(gelu))(x), [0, 0, 0.5, 1, 1])
