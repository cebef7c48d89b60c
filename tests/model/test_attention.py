"""Every implementation is the reference; the block mask is what its drawing says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharder.model.attention import IMPLEMENTATIONS, BlockMask, naive

BLOCKS = np.array([0, 0, 0, 1, 2, 2])


def test_blocks_see_themselves_and_lower_ones_and_never_padding():
    valid = jnp.array([[True, True, False, True, True, True]])
    seen = BlockMask(BLOCKS, BLOCKS, valid).dense()[0].astype(int).tolist()
    assert seen == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 1, 0, 1, 1, 1],
        [1, 1, 0, 1, 1, 1],
    ]


@pytest.mark.parametrize("name", sorted(set(IMPLEMENTATIONS) - {"naive"}))
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_implementations_agree_with_the_reference(name, kv_heads):
    keys = jax.random.split(jax.random.key(0), 4)
    q = jax.random.normal(keys[0], (3, 6, 4, 16))
    k, v = (jax.random.normal(key, (3, 6, kv_heads, 16)) for key in keys[1:3])
    valid = jax.random.bernoulli(keys[3], 0.7, (3, 6)).at[:, 3:].set(True)
    mask = BlockMask(BLOCKS, BLOCKS, valid)

    def total(implementation):
        return lambda q, k, v: jnp.sin(implementation(q, k, v, mask)).sum()

    np.testing.assert_allclose(IMPLEMENTATIONS[name](q, k, v, mask), naive(q, k, v, mask), atol=2e-6)
    found = jax.grad(total(IMPLEMENTATIONS[name]), (0, 1, 2))(q, k, v)
    wanted = jax.grad(total(naive), (0, 1, 2))(q, k, v)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=5e-6)


def test_a_row_that_sees_nothing_is_finite():
    q = jnp.ones((1, 6, 1, 8))
    for attend in IMPLEMENTATIONS.values():
        out = attend(q, q, q, BlockMask(BLOCKS, BLOCKS, jnp.zeros((1, 6), bool)))
        assert bool(jnp.isfinite(out).all())
