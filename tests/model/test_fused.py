"""attn=flash with a kernel for the prefix and the cameras. XLA stands in for cuDNN: same call, same arguments."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_flash import COMPILED_FAST, drawn, error, pi0_blocks

from sharder.model.attention import naive
from sharder.model.block_mask import BlockMask
from sharder.model.flash import flash
from sharder.model.fused import Fused, valid_first

ANY = Fused(256, "xla")


def used(fused: Fused, mask: BlockMask, q: jax.Array, k: jax.Array) -> bool:
    """Is the kernel called?"""
    calls: list[None] = []

    def noted(function: Any) -> Any:
        calls.append(None)
        return function

    flash(q, k, k, mask, dataclasses.replace(fused, over_examples=noted))
    return bool(calls)


@pytest.mark.parametrize("prefix", [40, 41])  # jax refuses odd lengths with a gradient
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_a_prefix_whose_valid_tokens_come_first(prefix: int, kv_heads: int) -> None:
    blocks = pi0_blocks(prefix, 10)
    valid = np.ones((3, len(blocks)), bool)
    valid[0, 7:prefix] = valid[1, prefix - 1 : prefix] = False
    mask = BlockMask(blocks, blocks, jnp.asarray(valid), valid_first=prefix)
    arrays = drawn((3, len(blocks), 4, 16), len(blocks), kv_heads)
    assert used(ANY, mask, *arrays[:2])
    assert error(partial(flash, fused=ANY), arrays, mask) < 5e-6


@pytest.mark.parametrize("tokens", [32, 33])
def test_an_image_whose_tokens_are_all_valid(tokens: int) -> None:
    one_block = np.zeros(tokens, int)
    assert error(partial(flash, fused=ANY), drawn((2, tokens, 4, 8), tokens, 4), BlockMask(one_block, one_block)) < 2e-6


def test_it_is_used_where_it_is_right_and_nowhere_else() -> None:
    q, k, *_ = drawn((2, 192, 2, 16), 192, 1)
    blocks, valid = pi0_blocks(141, 50), jnp.ones((2, 192), bool)
    assert used(ANY, BlockMask(blocks, blocks, valid, valid_first=141), q, k)
    assert used(ANY, BlockMask(blocks, blocks), q, k)  # all valid
    assert not used(ANY, BlockMask(blocks, blocks, valid), q, k)  # in which order is not known
    assert not used(ANY, BlockMask(blocks, blocks, valid, valid_first=140), q, k)
    assert not used(Fused(8, "xla"), BlockMask(blocks, blocks), q, k)  # heads are longer than it takes
    q, k, *_ = drawn((2, 192, 2, 12), 192, 1)
    assert not used(ANY, BlockMask(blocks, blocks), q, k)  # no multiple of 8


def test_suffix_queries_are_tiles_also_where_the_last_layer_reads_no_others() -> None:
    blocks = pi0_blocks(141, 50)
    q, k, v, cotangent = drawn((2, 51, 2, 16), 192, 1)
    mask = BlockMask(blocks[-51:], blocks, jnp.asarray(np.arange(192) != 140)[None].repeat(2, 0), valid_first=141)
    assert not used(ANY, mask, q, k)
    assert error(partial(flash, fused=ANY), (q, k, v, cotangent), mask) < 2e-6


def test_an_example_without_a_valid_token_is_no_nan() -> None:
    blocks = np.zeros(32, int)
    mask = BlockMask(blocks, blocks, jnp.asarray([[False] * 32, [True] * 32]), valid_first=32)
    q, k, v, _ = drawn((2, 32, 2, 8), 32, 1)
    out = flash(q, k, v, mask, fused=ANY)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out[1], naive(q, k, v, mask)[1], atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=4))
def test_valid_tokens_first_in_their_order(valid: list[list[bool]]) -> None:
    """And each token's gradient is its own."""
    valid_BP = np.array(valid)
    tokens_BPD = jnp.arange(valid_BP.size * 2.0).reshape(*valid_BP.shape, 2)
    found, front = jax.jit(valid_first, compiler_options=COMPILED_FAST)(tokens_BPD, jnp.asarray(valid_BP))
    weights = jnp.asarray(np.random.default_rng(0).standard_normal(tokens_BPD.shape, np.float32))
    gradient = jax.grad(lambda tokens: (valid_first(tokens, jnp.asarray(valid_BP))[0] * weights).sum())(tokens_BPD)
    for i, row in enumerate(valid_BP):
        order = [*np.flatnonzero(row), *np.flatnonzero(~row)]
        np.testing.assert_array_equal(found[i], tokens_BPD[i][np.array(order)])
        np.testing.assert_array_equal(front[i], np.sort(~row) == 0)
        np.testing.assert_array_equal(gradient[i][np.array(order)], weights[i])


def test_over_examples_wraps_the_call_whole() -> None:
    """What a mesh puts around it gets arrays [B, ...] alone."""
    seen: list[tuple[int, ...]] = []

    def over_examples(function: Any) -> Any:
        def run(*arrays: jax.Array) -> jax.Array:
            seen.extend(x.shape for x in arrays)
            return function(*arrays)

        return run

    blocks = pi0_blocks(141, 50)
    mask = BlockMask(blocks, blocks, jnp.ones((2, 192), bool), valid_first=141)
    q, k, v, _ = drawn((2, 192, 2, 16), 192, 1)
    flash(q, k, v, mask, fused=Fused(256, "xla", over_examples))
    assert seen == [(2, 142, 2, 16), (2, 142, 1, 16), (2, 142, 1, 16), (2,)]
