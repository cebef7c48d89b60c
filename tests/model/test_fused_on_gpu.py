"""cuDNN itself, on an NVIDIA GPU that is here:  python -m pytest -m gpu tests/model/test_fused_on_gpu.py"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_flash import drawn, pi0_blocks, result

from sharder.model.attention import naive
from sharder.model.block_mask import BlockMask
from sharder.model.flash import flash
from sharder.model.fused import Fused
from sharder.training.kernels import compute_capability

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(
        (compute_capability(jax.devices()[0]) or (0, 0))[0] != 9,
        reason="needs an NVIDIA GPU of the Hopper generation",
    ),
]


def valid_first(prefix: int) -> BlockMask:
    """One example is whole, one has 500 valid tokens in its prefix, one a single one."""
    blocks = pi0_blocks(prefix, 50)
    valid = np.ones((3, len(blocks)), bool)
    valid[1, 500:prefix] = valid[2, 1:prefix] = False
    return BlockMask(blocks, blocks, jnp.asarray(valid), valid_first=prefix)


IMAGE = np.zeros(256, int)
CASES = {  # mask; examples, heads, heads of keys, head dim: pi0's prefix, one of odd length, pi0's images
    "prefix": (valid_first(816), (3, 8, 1, 256)),
    "odd": (valid_first(817), (3, 8, 1, 256)),
    "image": (BlockMask(IMAGE, IMAGE), (6, 16, 16, 72)),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_as_near_to_float32_as_the_reference_is(case: str) -> None:
    """Output and gradients, in bfloat16."""
    mask, (B, N, K, H) = CASES[case]
    T = len(mask.query_block)
    arrays = drawn((B, T, N, H), T, K, jnp.bfloat16)
    exact = result(naive, tuple(x.astype(jnp.float32) for x in arrays), mask)
    rounded, found = result(naive, arrays, mask), result(partial(flash, fused=Fused(256)), arrays, mask)
    for name, ours, theirs, wanted in zip(("out", "q", "k", "v"), found, rounded, exact, strict=True):
        assert np.abs(ours - wanted).max() < 2 * np.abs(theirs - wanted).max() + 1e-3, name
