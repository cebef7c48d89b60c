"""FLOPs of a train step, from shapes alone: what the loss needs, and what the program multiplies.

The argument: each token through the weights that it really meets, each query with the keys that it may see;
products.py says what one product costs. A step of a model that is trained whole costs three times its forward pass,
less what the first matrices save, whose inputs need no gradient. Rows of the token table are looked up, not multiplied.
Norms, softmax, activations, augmentation and the optimizer multiply no matrices.

Two counts, and what differs between them:

    loss      what the loss and its gradient need, however they are computed: the numerator of MFU
    program   what our program multiplies, as traced. It has scores that are masked afterwards (a prefix query with a
              suffix key, the state's with an action's); of attn=flash only some, see model/tiles.py. One loop runs all
              layers, and to it they are all alike: so unless layers are written out (work=unrolled), it has in the
              last layer the prefix's queries, attention, output projection and MLP, which nobody reads; and where
              weights are frozen, gradients of activations in every layer and both streams as soon as one needs any

Padding of the prompt counts: a padded token goes through the model as all others do. `cameras` are for the caller to
count: those that the data have for the loss, and for the program those that it runs masked as well.
Recomputation is a pass of its own, never part of the model's FLOPs; attn=flash computes the scores again in any
backward pass. The number of devices, accumulation and the layout change nothing: these are the FLOPs of the global
batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sharder.config import ModelConfig
from sharder.measure.products import Component, Count, Flops, Ledger, Part, Shapes

# Attention in tiles: blocks of queries [T] and of keys [S], as in a BlockMask -> how many keys each query meets, [T].
Scored = Callable[[np.ndarray, np.ndarray], np.ndarray]


def step_flops(
    config: ModelConfig,
    trainable: Shapes,
    frozen: Shapes,
    batch_size: int,
    cameras: int,
    remat: str = "none",
    count: Count = "loss",
    scored: Scored | None = None,
    unrolled: bool = False,
) -> Flops:
    """`trainable` and `frozen` are the weights by path, `batch_size` is global, `remat` as in config.remat.name.

    `scored`: of attn=flash, model.tiles.scored. None: all scores are one product, and kept unless `remat` drops them.
    `unrolled`: layers are written out, the last for what is read alone.
    """
    ledger, as_traced = Ledger(trainable, frozen, remat), count == "program"
    model = _Model(config, batch_size, cameras, ledger, as_traced, in_loop=as_traced and not unrolled, scored=scored)
    model.walk()
    return Flops({key: flops for key, flops in model.ledger.flops.items() if flops}, count)


def parameters(*weights: Shapes) -> int:
    """How many numbers, trained or not."""
    return sum(math.prod(weight.shape) for part in weights for weight in part.values())


def tokens(config: ModelConfig, batch_size: int, cameras: int) -> int:
    """All tokens of the batch, padding included: of cameras and prompt, the state (pi0) and the actions."""
    return batch_size * (_prefix(config, cameras) + _suffix(config))


def _camera(config: ModelConfig) -> int:
    return (config.image_size // config.vision.patch) ** 2


def _prefix(config: ModelConfig, cameras: int) -> int:
    return cameras * _camera(config) + config.prompt_tokens


def _suffix(config: ModelConfig) -> int:
    return config.horizon + (0 if config.variant == "pi05" else 1)  # pi0.5 tells the state in the prompt


@dataclass
class _Stream:
    """Tokens on their way through layers whose weights lie at `path`. grad: depends on anything trained."""

    component: Component
    path: str
    tokens: int  # of the batch
    mlp_inputs: tuple[str, ...]
    grad: bool  # what enters the next layer
    condition_grad: bool | None = None  # what scales, shifts and gates it (pi0.5); None: nothing does
    is_read: bool = True  # does anyone read what leaves the next layer?


class _Block(NamedTuple):
    """Scores between the queries of one stream and the keys of another; in tiles, `keys` stands for those of all."""

    queries: _Stream
    keys: _Stream
    pairs: int  # of the batch


class _Projected(NamedTuple):
    """Of one stream in one layer: which of these depend on anything trained, so that their gradients are needed."""

    normed: bool
    q: bool
    k: bool
    v: bool


@dataclass(frozen=True)
class _Model:
    """Goes through the model in the order of its forward pass."""

    config: ModelConfig
    batch_size: int
    cameras: int
    ledger: Ledger
    as_traced: bool
    in_loop: bool
    scored: Scored | None

    def walk(self) -> None:
        trains = self.ledger.trains
        prefix_grad = self.vision() or trains("gemma/table")
        suffix_grad, condition_grad = self.embed_suffix()
        suffix_grad = self.experts(prefix_grad, suffix_grad, condition_grad)
        if condition_grad is not None:
            path = "gemma/final_norm/action/modulation"
            self.ledger.weight("action", "modulation", path, self.batch_size, input_grad=condition_grad)
        suffix_grad = suffix_grad or bool(condition_grad) or trains("gemma/final_norm/action/")
        actions = self.batch_size * self.config.horizon
        self.ledger.weight("action_head", "head", "action_out", actions, input_grad=suffix_grad)

    def vision(self) -> bool:
        """Do the tokens that leave need a gradient?"""
        images, T, trains = self.batch_size * self.cameras, _camera(self.config), self.ledger.trains
        if images == 0:
            return False
        self.ledger.weight("vision", "embedding", "vision/patch_kernel", images * T, input_grad=False)
        grad = trains("vision/patch_kernel", "vision/patch_bias", "vision/position")
        stream = _Stream("vision", "vision/layers/", images * T, ("up",), grad)
        one_block = np.zeros(T, int)
        pairs = int(self.scored(one_block, one_block).sum()) if self.as_traced and self.scored else T * T
        self.enter_loop("vision/layers/", (stream,))
        for _ in range(self.config.vision.depth):
            self.layer((stream,), (_Block(stream, stream, images * pairs),), self.config.vision.width)
        grad = stream.grad or trains("vision/norm/")
        self.ledger.weight("vision", "head", "vision/head", images * T, input_grad=grad)
        return grad or trains("vision/head/")

    def embed_suffix(self) -> tuple[bool, bool | None]:
        """Do the suffix's tokens need a gradient, and does the condition (None: there is none)?"""
        examples, actions = self.batch_size, self.batch_size * self.config.horizon

        def dense(name: str, tokens: int, input_grad: bool) -> bool:
            self.ledger.weight("action_head", "embedding", name, tokens, input_grad=input_grad)
            return input_grad or self.ledger.trains(f"{name}/")

        grad = dense("action_in", actions, False)
        if self.config.variant == "pi05":
            return grad, dense("time_out", examples, dense("time_in", examples, False))
        grad = dense("action_time_out", actions, dense("action_time_in", actions, grad))
        return dense("state_in", examples, False) or grad, None

    def experts(self, prefix_grad: bool, suffix_grad: bool, condition_grad: bool | None) -> bool:
        """Does the suffix that leaves the last layer need a gradient?"""
        config, B = self.config, self.batch_size
        P, A, H = _prefix(config, self.cameras), _suffix(config), config.horizon
        gated, channels = ("gate", "up"), config.language.heads * config.language.head_dim
        prefix = _Stream("language", "gemma/layers/language/", B * P, gated, prefix_grad)
        suffix = _Stream("action", "gemma/layers/action/", B * A, gated, suffix_grad, condition_grad)
        blocks = [_Block(prefix, prefix, B * P * P), _Block(suffix, prefix, B * A * P)]
        token_blocks = np.repeat([0, 1, 2], [P, A - H, H])
        if self.as_traced and self.scored:
            pairs = self.scored(token_blocks, token_blocks)
            blocks = [
                _Block(prefix, prefix, B * int(pairs[:P].sum())),
                _Block(suffix, suffix, B * int(pairs[P:].sum())),
            ]
        elif self.as_traced:
            blocks += [_Block(suffix, suffix, B * A * A), _Block(prefix, suffix, B * P * A)]
        else:
            blocks += [_Block(suffix, suffix, B * (A * A - (A - H) * H))]  # the state sees no action
        self.enter_loop("gemma/layers/", (prefix, suffix))
        for layers_left in reversed(range(config.language.depth)):
            prefix.is_read = layers_left > 0 or self.in_loop
            if not prefix.is_read and self.as_traced and self.scored:
                to_prefix = int(self.scored(token_blocks[P:], token_blocks).sum()) - A * A
                blocks = [_Block(suffix, prefix, B * to_prefix), _Block(suffix, suffix, B * A * A)]
            self.layer((prefix, suffix), blocks, channels)
        return suffix.grad

    def enter_loop(self, path: str, streams: Sequence[_Stream]) -> None:
        """To a loop, what needs a gradient after any layer needs one before all of them."""
        if self.in_loop:
            grad = self.ledger.trains(path) or any(stream.grad or stream.condition_grad for stream in streams)
            for stream in streams:
                stream.grad = grad

    def layer(self, streams: Sequence[_Stream], blocks: Sequence[_Block], channels: int) -> None:
        """`channels`: of all query heads."""
        trains, trains_product = self.ledger.trains, self.ledger.trains_product
        blocks = [block for block in blocks if block.queries.is_read]
        projected = {stream.path: self.projected(stream) for stream in streams}
        attended = dict.fromkeys(projected, False)
        for queries, keys, _ in blocks:
            attended[queries.path] |= projected[queries.path].q or projected[keys.path].k or projected[keys.path].v
        out_trained = {path: trains_product(f"{path}attention/out") for path in projected}
        mlp_in = {path: attended[path] or out_trained[path] or trains(f"{path}norm_mlp/") for path in projected}
        # A layer's backward pass begins in its MLP and reads all that led there: queries, and the keys they see.
        again = {path: mlp_in[path] or trains(f"{path}mlp/") for path in projected}

        for stream in streams:
            path, normed = stream.path, projected[stream.path].normed
            seen_again = any(again[block.queries.path] for block in blocks if block.keys is stream)
            for name in "kv":
                self.matrix(stream, "projections", f"attention/{name}", normed, seen_again)
            if stream.is_read:
                self.matrix(stream, "projections", "attention/q", normed, again[path])
                self.matrix(stream, "projections", "attention/out", attended[path], again[path])
                stream.grad = self.mlp(stream, mlp_in[path], again[path])
        for queries, keys, pairs in blocks:
            q, (_, _, k, v) = projected[queries.path].q, projected[keys.path]
            # As traced all queries are in one product: if one stream's result is read again, both streams' are.
            read = any(out_trained.values()) if self.as_traced else out_trained[queries.path]
            self.ledger.scores(
                *(queries.component, pairs * channels, q, k, v),
                again=again[queries.path],
                result_read=read,
                in_tiles=self.scored is not None,
            )

    def projected(self, stream: _Stream) -> _Projected:
        path = stream.path
        normed = stream.grad or bool(stream.condition_grad) or self.ledger.trains(f"{path}norm_attention/")
        return _Projected(normed, *(normed or self.ledger.trains_product(f"{path}attention/{name}") for name in "qkv"))

    def mlp(self, stream: _Stream, mlp_in: bool, again: bool) -> bool:
        """And the modulation of both norms. Does what leaves the layer need a gradient?"""
        path, modulated = stream.path, stream.condition_grad is not None
        for name in stream.mlp_inputs:
            self.matrix(stream, "mlp", f"mlp/{name}", mlp_in, again)
        hidden = mlp_in or any(self.ledger.trains_product(f"{path}mlp/{name}") for name in stream.mlp_inputs)
        # The gate's gradient reads the MLP's output; without a gate nobody does.
        gate_grad = modulated and (bool(stream.condition_grad) or self.ledger.trains(f"{path}norm_mlp/"))
        self.matrix(stream, "mlp", "mlp/down", hidden, again and gate_grad)
        for norm in ("norm_attention", "norm_mlp") if modulated else ():
            grad, tokens = bool(stream.condition_grad), self.batch_size
            where = f"{path}{norm}/modulation"
            self.ledger.weight("action", "modulation", where, tokens, input_grad=grad, again=again)
        return hidden or self.ledger.trains_product(f"{path}mlp/down")

    def matrix(self, stream: _Stream, part: Part, name: str, input_grad: bool, again: bool) -> None:
        path = f"{stream.path}{name}"
        self.ledger.weight(stream.component, part, path, stream.tokens, input_grad=input_grad, again=again)
