"""Attention in tiles: memory grows with the length and not with its square, forward and backward.

B batch   T queries   S keys   N query heads   K key/value heads   G = N / K   H head dim
Q queries of a tile   C keys of a tile

The scores of Q queries with C keys live for one turn of a loop. What softmax needs of other tiles is the largest score
and the sum of exponents (Milakov & Gimelshein 2018, arXiv 1805.02867); what the backward pass needs is their logarithm,
one number a query, from which it computes each tile's shares again (Dao et al. 2022, arXiv 2205.14135). Which tiles
there are says tiles.py.

It runs on every backend. Queries that see every valid key (all of the cameras and the prefix: nearly all scores) go
through a kernel instead where there is one, see fused.py. The others, of state and actions, see the end of the prefix
and what lies behind it: no kernel at hand takes that without a T x S array, and their scores are few. JAX's kernel for
TPUs (splash attention) would take all, but is left out as long as there is no TPU to test it on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from sharder.model.block_mask import MASKED, BlockMask
from sharder.model.fused import Fused
from sharder.model.tiles import SPARED_BY_KERNEL, Run, filled, runs

ATTENDED = "attended"  # the name of what a forward pass leaves to its backward pass: the output and the logarithms


def flash(
    q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, mask: BlockMask, fused: Fused | None = None
) -> jax.Array:
    """[B, T, N, H]. Queries are already scaled; scores and softmax are float32. `fused`: for runs that it takes."""
    if fused is None:
        return tiled(q_BTNH, k_BSKH, v_BSKH, mask, runs(mask.query_block, mask.key_block))
    outs = []
    for run in runs(mask.query_block, mask.key_block, spared=SPARED_BY_KERNEL):
        q = q_BTNH[:, run.first : run.first + run.queries]
        if run.all_seen and fused.takes(q, mask, run.keys):
            valid = None if mask.key_valid is None else mask.key_valid[:, : run.keys]
            outs.append(fused(q, k_BSKH[:, : run.keys], v_BSKH[:, : run.keys], valid))
        else:
            own = dataclasses.replace(mask, query_block=mask.query_block[run.first : run.first + run.queries])
            outs.append(tiled(q, k_BSKH, v_BSKH, own, (dataclasses.replace(run, first=0),)))
    return jnp.concatenate(outs, axis=1)


def tiled(q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, mask: BlockMask, cut: tuple[Run, ...]) -> jax.Array:
    """In tiles alone, with runs and tiles as given."""
    query_block, key_block = (jnp.asarray(block, jnp.int32) for block in (mask.query_block, mask.key_block))
    key_valid = jnp.ones(k_BSKH.shape[:2], bool) if mask.key_valid is None else mask.key_valid
    return _attend(q_BTNH, k_BSKH, v_BSKH, query_block, key_block, key_valid, cut)


@partial(jax.custom_vjp, nondiff_argnums=(6,))
def _attend(
    q_BTNH: Any, k_BSKH: Any, v_BSKH: Any, query_block: Any, key_block: Any, key_valid: Any, cut: tuple[Run, ...]
) -> jax.Array:
    return _forward(q_BTNH, k_BSKH, v_BSKH, query_block, key_block, key_valid, cut)[0]


@partial(jax.jit, static_argnums=6)  # to a remat policy one call, and not products whose results it might keep
def _forward(*arrays_and_cut: Any) -> tuple[jax.Array, jax.Array]:
    """The output [B, T, N, H], and each query's logarithm of its sum of exponents [B, K, T, G] float32."""
    *arrays, cut = arrays_and_cut
    outs, logs = zip(*(_Part.of(run, *arrays).forward() for run in cut), strict=True)
    return jnp.concatenate(outs, axis=1), jnp.concatenate(logs, axis=2)


def _forward_for_backward(*arrays_and_cut: Any) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    out_BTNH, log_BKTG = (checkpoint_name(x, ATTENDED) for x in _forward(*arrays_and_cut))
    return out_BTNH, (*arrays_and_cut[:-1], out_BTNH, log_BKTG)


def _backward(cut: tuple[Run, ...], saved: tuple[jax.Array, ...], d_out_BTNH: jax.Array) -> tuple[Any, ...]:
    *arrays, out_BTNH, log_BKTG = saved
    found = [_Part.of(run, *arrays).backward(out_BTNH, d_out_BTNH, log_BKTG) for run in cut]
    d_q_BTNH = jnp.concatenate([d_q for d_q, _, _ in found], axis=1)
    d_k_BSKH, d_v_BSKH = (
        reduce(jnp.add, [filled(part[of], x.shape[1]) for part in found]).astype(x.dtype)
        for of, x in ((1, arrays[1]), (2, arrays[2]))
    )
    return d_q_BTNH, d_k_BSKH, d_v_BSKH, None, None, None


_attend.defvjp(_forward_for_backward, _backward)


class _Softmax(NamedTuple):
    """Of Q queries over some of their keys, float32 and not yet divided by its sum."""

    weighed_BKQGH: jax.Array  # the values times their exponents, summed
    largest_BKQG: jax.Array  # score, to which the exponents are relative
    total_BKQG: jax.Array  # sum of exponents

    def joined(self, other: _Softmax) -> _Softmax:
        largest_BKQG = jnp.maximum(self.largest_BKQG, other.largest_BKQG)
        one_BKQG, other_BKQG = jnp.exp(self.largest_BKQG - largest_BKQG), jnp.exp(other.largest_BKQG - largest_BKQG)
        return _Softmax(
            self.weighed_BKQGH * one_BKQG[..., None] + other.weighed_BKQGH * other_BKQG[..., None],
            largest_BKQG,
            self.total_BKQG * one_BKQG + other.total_BKQG * other_BKQG,
        )


@dataclass(frozen=True)
class _Part:
    """One run's queries and keys, filled up to whole tiles. Its methods number tiles, of queries `i`, of keys `j`."""

    run: Run
    q_BTKGH: jax.Array
    k_BSKH: jax.Array
    v_BSKH: jax.Array
    query_block: jax.Array  # [1, T]
    key_block: jax.Array  # [1, S]
    key_valid: jax.Array  # [B, S] bool

    @classmethod
    def of(
        cls, run: Run, q_BTNH: Any, k_BSKH: Any, v_BSKH: Any, query_block: Any, key_block: Any, key_valid: Any
    ) -> _Part:
        S = run.key_tiles.length
        k_BSKH, v_BSKH, key_block, key_valid = (
            filled(x[:, : run.keys], S) for x in (k_BSKH, v_BSKH, key_block[None], key_valid)
        )
        q_BTKGH = _in_groups(_run_of(run, q_BTNH), k_BSKH.shape[2])
        return cls(run, q_BTKGH, k_BSKH, v_BSKH, _run_of(run, query_block[None]), key_block, key_valid)

    def forward(self) -> tuple[jax.Array, jax.Array]:
        """[B, T, N, H] in the dtype of the queries, [B, K, T, G]."""

        def of_queries(_: None, i: Any) -> tuple[None, tuple[jax.Array, jax.Array]]:
            q_BQKGH = self.queries(self.q_BTKGH, i)
            first, rest = self.softmax(q_BQKGH, i, 0), range(1, self.run.key_tiles.count)
            found, _ = _loop(lambda sofar, j: (sofar.joined(self.softmax(q_BQKGH, i, j)), None), first, rest)
            out_BKQGH = (found.weighed_BKQGH / found.total_BKQG[..., None]).astype(q_BQKGH.dtype)
            return None, (out_BKQGH, found.largest_BKQG + jnp.log(found.total_BKQG))

        _, (out_IBKQGH, log_IBKQG) = _loop(of_queries, None, range(self.run.query_tiles.count))  # I tiles
        out_BIQKGH, log_BKIQG = out_IBKQGH.transpose(1, 0, 3, 2, 4, 5), log_IBKQG.transpose(1, 2, 0, 3, 4)
        B, T, K, G, H = self.q_BTKGH.shape
        queries = self.run.queries
        return out_BIQKGH.reshape(B, T, K * G, H)[:, :queries], log_BKIQG.reshape(B, K, T, G)[:, :, :queries]

    def softmax(self, q_BQKGH: jax.Array, i: Any, j: Any) -> _Softmax:
        scores_BKQGC = jnp.where(self.visible(i, j), self.scores(q_BQKGH, j), MASKED)
        largest_BKQG = scores_BKQGC.max(-1)
        exponents_BKQGC = jnp.exp(scores_BKQGC - largest_BKQG[..., None])
        v_BCKH = self.keys(self.v_BSKH, j)
        weighed_BKQGH = _product("BKQGC,BCKH->BKQGH", exponents_BKQGC.astype(v_BCKH.dtype), v_BCKH)
        return _Softmax(weighed_BKQGH, largest_BKQG, exponents_BKQGC.sum(-1))

    def backward(
        self, out_BTNH: jax.Array, d_out_BTNH: jax.Array, log_BKTG: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Of queries [B, T, N, H] in their dtype, of keys and values [B, S, K, H] float32. All three of all tokens."""
        run, K = self.run, self.k_BSKH.shape[2]
        out_BTKGH, d_out_BTKGH = (_in_groups(_run_of(run, x), K) for x in (out_BTNH, d_out_BTNH))
        log_BTKG = _run_of(run, log_BKTG.swapaxes(1, 2))
        # How much a query's shares pull on one another: its output times the output's gradient.
        pull_BTKG = (out_BTKGH.astype(jnp.float32) * d_out_BTKGH.astype(jnp.float32)).sum(-1)

        def of_queries(d_kv: Any, i: Any) -> tuple[Any, jax.Array]:
            q_BQKGH, d_out_BQKGH = self.queries(self.q_BTKGH, i), self.queries(d_out_BTKGH, i)
            log_BKQG, pull_BKQG = (self.queries(x, i).swapaxes(1, 2) for x in (log_BTKG, pull_BTKG))

            def with_keys(d_all: Any, j: Any) -> tuple[Any, None]:
                d_q_BQKGH, d_k_BSKH, d_v_BSKH = d_all
                k_BCKH, v_BCKH = self.keys(self.k_BSKH, j), self.keys(self.v_BSKH, j)
                with jax.named_scope("recomputation"):
                    shares_BKQGC = jnp.exp(self.scores(q_BQKGH, j) - log_BKQG[..., None])
                    shares_BKQGC = jnp.where(self.visible(i, j), shares_BKQGC, 0.0)
                d_shares_BKQGC = _product("BQKGH,BCKH->BKQGC", d_out_BQKGH, v_BCKH)
                d_scores_BKQGC = (shares_BKQGC * (d_shares_BKQGC - pull_BKQG[..., None])).astype(q_BQKGH.dtype)
                d_q_BQKGH += _product("BKQGC,BCKH->BQKGH", d_scores_BKQGC, k_BCKH)
                d_k_BCKH = _product("BKQGC,BQKGH->BCKH", d_scores_BKQGC, q_BQKGH)
                d_v_BCKH = _product("BKQGC,BQKGH->BCKH", shares_BKQGC.astype(d_out_BQKGH.dtype), d_out_BQKGH)
                return (d_q_BQKGH, _added(d_k_BSKH, d_k_BCKH, j), _added(d_v_BSKH, d_v_BCKH, j)), None

            nothing = jnp.zeros(q_BQKGH.shape, jnp.float32)
            (d_q_BQKGH, *d_kv), _ = _loop(with_keys, (nothing, *d_kv), range(run.key_tiles.count))
            return tuple(d_kv), d_q_BQKGH.astype(q_BQKGH.dtype)

        nothing = jnp.zeros(self.k_BSKH.shape, jnp.float32)
        (d_k_BSKH, d_v_BSKH), d_q_IBQKGH = _loop(of_queries, (nothing, nothing), range(run.query_tiles.count))
        B, T, *_, H = self.q_BTKGH.shape
        d_q_BTNH = d_q_IBQKGH.swapaxes(0, 1).reshape(B, T, -1, H)
        return d_q_BTNH[:, : run.queries], d_k_BSKH[:, : run.keys], d_v_BSKH[:, : run.keys]

    def scores(self, q_BQKGH: jax.Array, j: Any) -> jax.Array:
        """[B, K, Q, G, C] float32, not yet masked."""
        return _product("BQKGH,BCKH->BKQGC", q_BQKGH, self.keys(self.k_BSKH, j))

    def visible(self, i: Any, j: Any) -> jax.Array:
        """[B, 1, Q or 1, 1, C] bool."""
        visible_B111C = self.keys(self.key_valid, j)[:, None, None, None]
        if self.run.all_seen:
            return visible_B111C
        reachable_1QC = self.keys(self.key_block, j)[:, None] <= self.queries(self.query_block, i)[..., None]
        return visible_B111C & reachable_1QC[:, None, :, None]

    def queries(self, x: jax.Array, i: Any) -> jax.Array:
        size = self.run.query_tiles.size
        return jax.lax.dynamic_slice_in_dim(x, i * size, size, axis=1)

    def keys(self, x: jax.Array, j: Any) -> jax.Array:
        size = self.run.key_tiles.size
        return jax.lax.dynamic_slice_in_dim(x, j * size, size, axis=1)


def _loop(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, turns: range) -> tuple[Any, Any]:
    """As lax.scan over `turns`; of one turn no loop is left, of none nothing."""
    if len(turns) > 1:
        return jax.lax.scan(step, carry, jnp.arange(turns.start, turns.stop))
    out = None
    for turn in turns:
        carry, out = step(carry, turn)
    return carry, jax.tree.map(lambda x: x[None], out)


def _run_of(run: Run, x: jax.Array) -> jax.Array:
    """Along dim 1."""
    return filled(x[:, run.first : run.first + run.queries], run.query_tiles.length)


def _in_groups(x_BTNH: jax.Array, kv_heads: int) -> jax.Array:
    """[B, T, K, G, H]"""
    B, T, N, H = x_BTNH.shape
    return x_BTNH.reshape(B, T, kv_heads, N // kv_heads, H)


def _added(x: jax.Array, tile: jax.Array, number: Any) -> jax.Array:
    """To the tile of that number along dim 1."""
    start, size = number * tile.shape[1], tile.shape[1]
    here = jax.lax.dynamic_slice_in_dim(x, start, size, axis=1)
    return jax.lax.dynamic_update_slice_in_dim(x, here + tile, start, axis=1)


def _product(dims: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(dims, a, b, preferred_element_type=jnp.float32)
