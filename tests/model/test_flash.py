"""attn=flash is the reference, in one tile or many, and never holds a T x S array of the whole.

B batch   T queries   S keys   N query heads   K key/value heads   H head dim
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharder.model.attention import naive
from sharder.model.block_mask import BlockMask
from sharder.model.execution import POLICIES
from sharder.model.flash import flash, tiled
from sharder.model.tiles import runs

COMPILED_FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def pi0_blocks(prefix: int, actions: int) -> np.ndarray:
    return np.repeat([0, 1, 2], [prefix, 1, actions])


def drawn(shape: tuple[int, int, int, int], S: int, K: int, dtype: Any = jnp.float32) -> tuple[jax.Array, ...]:
    """Queries [B, T, N, H], scaled; keys and values; a cotangent of the output."""
    B, T, N, H = shape
    random = np.random.default_rng(0)
    shapes = ((B, T, N, H), (B, S, K, H), (B, S, K, H), (B, T, N, H))
    q, *rest = (jnp.asarray(random.standard_normal(dims, np.float32), dtype) for dims in shapes)
    return q * H**-0.5, *rest


def result(attend: Any, arrays: tuple[jax.Array, ...], mask: BlockMask) -> list[np.ndarray]:
    """The output, and the gradients of queries, keys and values; of queries that see anything."""
    sees = mask.dense().any(-1)[..., None, None]

    @partial(jax.jit, compiler_options=COMPILED_FAST)
    def compute(q: jax.Array, k: jax.Array, v: jax.Array, cotangent: jax.Array) -> Any:
        out, backward = jax.vjp(lambda q, k, v: jnp.where(sees, attend(q, k, v, mask), 0), q, k, v)
        return out, *backward(cotangent)

    return [np.asarray(x, np.float32) for x in compute(*arrays)]


def error(attend: Any, arrays: tuple[jax.Array, ...], mask: BlockMask) -> float:
    """The largest, of the output and of all gradients, against the reference in the same dtype."""
    pairs = zip(result(attend, arrays, mask), result(naive, arrays, mask), strict=True)
    return max(float(np.abs(found - wanted).max()) for found, wanted in pairs)


def in_tiles(longest: int, spared: int = 1) -> Any:
    return lambda q, k, v, mask: tiled(q, k, v, mask, runs(mask.query_block, mask.key_block, longest, spared))


@pytest.mark.parametrize(
    ("attend", "kv_heads"),
    [(flash, 1), (flash, 4), (in_tiles(1024), 2), (in_tiles(16), 2), (in_tiles(32, spared=10**6), 1)],
)
def test_pi0s_mask_with_padding(attend: Any, kv_heads: int) -> None:
    """One example lacks a camera, the other the end of its prompt. In one tile, and in some that are filled up."""
    blocks = pi0_blocks(40, 10)
    valid = np.ones((2, 51), bool)
    valid[0, 10:20] = valid[1, 33:40] = False
    arrays = drawn((2, 51, 4, 8), 51, kv_heads)
    assert error(attend, arrays, BlockMask(blocks, blocks, jnp.asarray(valid))) < 5e-6


def test_queries_that_read_a_cache() -> None:
    blocks = pi0_blocks(40, 30)
    mask = BlockMask(blocks[40:], blocks, jnp.asarray(np.arange(71)[None] % 7 > 0))
    assert error(in_tiles(16), drawn((1, 31, 2, 8), 71, 1), mask) < 5e-6


def test_head_dim_of_pi0_and_scores_beyond_what_exp_can_hold() -> None:
    """exp overflows float32 at 89."""
    q, k, v, cotangent = drawn((1, 40, 8, 256), 40, 1)
    blocks = pi0_blocks(29, 10)
    mask = BlockMask(blocks, blocks, jnp.ones((1, 40), bool))
    large = (100 * q, k, v, cotangent)
    assert float(jnp.einsum("BTNH,BSKH->BTNS", *large[:2]).max()) > 200
    for found, wanted in zip(result(in_tiles(16), large, mask), result(naive, large, mask), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4 * np.abs(wanted).max())


@settings(max_examples=4, deadline=None)
@given(st.data())
def test_any_blocks_and_any_padding(data: st.DataObject) -> None:
    blocks = st.lists(st.integers(0, 3), min_size=1, max_size=50).map(np.array)
    query_block, key_block = data.draw(blocks), data.draw(blocks)
    valid = data.draw(st.lists(st.booleans(), min_size=len(key_block), max_size=len(key_block)))
    mask = BlockMask(query_block, key_block, jnp.asarray([valid]))
    attend = in_tiles(data.draw(st.sampled_from([16, 32])), data.draw(st.sampled_from([1, 200])))
    assert error(attend, drawn((1, len(query_block), 2, 4), len(key_block), 1), mask) < 5e-6


def test_bfloat16_is_as_near_to_float32_as_the_reference_is() -> None:
    blocks = pi0_blocks(40, 10)
    mask = BlockMask(blocks, blocks, jnp.asarray(np.arange(51)[None] != 5))
    arrays = drawn((1, 51, 4, 16), 51, 1, jnp.bfloat16)
    exact = result(naive, tuple(x.astype(jnp.float32) for x in arrays), mask)
    for found, rounded, wanted in zip(
        result(in_tiles(16), arrays, mask), result(naive, arrays, mask), exact, strict=True
    ):
        assert np.abs(found - wanted).max() < 1.5 * np.abs(rounded - wanted).max()


def temporary_bytes(attend: Any, T: int) -> int:
    """Of the compiled output and gradients: 4 heads of 8 channels, a tenth of the tokens suffix."""
    blocks = pi0_blocks(T - T // 10, T // 10 - 1)
    mask = BlockMask(blocks, blocks, jnp.ones((1, T), bool))

    def compute(q: jax.Array, k: jax.Array, v: jax.Array, cotangent: jax.Array) -> Any:
        out, backward = jax.vjp(lambda q, k, v: attend(q, k, v, mask), q, k, v)
        return out, backward(cotangent)

    shapes = [jax.ShapeDtypeStruct((1, T, heads, 8), jnp.float32) for heads in (4, 1, 1, 4)]
    return jax.jit(compute).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    short, long = (temporary_bytes(in_tiles(128), T) for T in (512, 1024))
    assert long < 2.1 * short
    assert long < 4 * 1024 * 1024 * 4 / 5  # float32 scores of all heads; the reference has several such arrays
    assert temporary_bytes(naive, 1024) > 2.5 * temporary_bytes(naive, 512)


def kept_shapes(remat: str) -> set[tuple[int, ...]]:
    """Of what a checkpointed layer with attention leaves for its backward pass. 48 tokens, 2 heads of 8 channels."""
    blocks = pi0_blocks(40, 7)
    mask = BlockMask(blocks, blocks, jnp.ones((3, 48), bool))

    @partial(jax.checkpoint, policy=POLICIES[remat])
    def layer(x_BTD: jax.Array, w: jax.Array) -> jax.Array:
        q, k, v = (jnp.einsum("BTD,DNH->BTNH", x_BTD, w) for _ in range(3))
        return jnp.sin(flash(jnp.sin(q), jnp.sin(k), jnp.sin(v), mask))

    x_BTD, w = jax.ShapeDtypeStruct((3, 48, 5), jnp.float32), jax.ShapeDtypeStruct((5, 2, 8), jnp.float32)
    left = jax.eval_shape(lambda x, w: jax.vjp(layer, x, w)[1], x_BTD, w)
    return {leaf.shape for leaf in jax.tree.leaves(left)}


@pytest.mark.parametrize("remat", sorted(POLICIES))
def test_what_remat_keeps(remat: str) -> None:
    """The output [B, T, N, H] and the logarithms [B, K, T, G], but for remat=full, and never scores."""
    shapes = kept_shapes(remat)
    assert max(np.prod(shape) for shape in shapes) < 3 * 2 * 48 * 48
    assert ((3, 2, 48, 1) in shapes) == (remat != "full")
    assert ((3, 48, 2, 8) in shapes) == (remat != "full")


@pytest.mark.slow
@pytest.mark.parametrize("T", [866, 2048, 4096, 8192])
def test_pi0_at_length(T: int) -> None:
    """pi0's head dim, two heads for one of keys; T - 51 prefix tokens of which the last 20 are padding."""
    blocks = pi0_blocks(T - 51, 50)
    valid = np.ones((1, T), bool)
    valid[0, T - 71 : T - 51] = False
    largest = error(flash, drawn((1, T, 2, 256), T, 1), BlockMask(blocks, blocks, jnp.asarray(valid)))
    print(f"{T} tokens: largest error {largest:.1e}")
    assert largest < 1e-5
