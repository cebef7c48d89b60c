"""Who sees whom, as structure rather than as a T x S array.

B batch   T queries   S keys
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

MASKED = -2.0e38  # finite: a row that is masked whole must not become NaN


@dataclass(frozen=True)
class BlockMask:
    """Tokens lie in blocks; a query sees the keys of its own block and of lower ones that are valid. pi0 has three:

                      keys: prefix (0)   state (1)   actions (2)
        prefix  query           x
        state   query           x            x
        actions query           x            x            x

    Padding is never seen. A padded query's output is read by nobody, so its row is left as it falls.
    """

    query_block: np.ndarray  # [T] int, known while tracing, so that whole blocks can be skipped
    key_block: np.ndarray  # [S] int
    key_valid: jax.Array | None = None  # [B, S] bool; None: all are
    valid_first: int = 0  # of so many keys in front the valid ones are known to come first

    def dense(self) -> jax.Array:
        """[B or 1, T, S] bool."""
        reachable_1TS = jnp.asarray(self.key_block[None, :] <= self.query_block[:, None])[None]
        return reachable_1TS if self.key_valid is None else reachable_1TS & self.key_valid[:, None, :]
