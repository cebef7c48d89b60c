"""What a matrix product costs in each pass, and a ledger of them.

Only matrix products are counted, a multiplication and an addition each. A weight of n elements that t tokens meet costs
2 n t forward. Backward it costs as much again if its input depends on anything trained, whose gradient then passes
through, and as much again if it is trained itself. A query of N heads of H channels that sees s keys costs 2 N H s for
its scores and as much to weigh the values; each operand of these two that depends on anything trained costs as much
again backward.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

Component = Literal["vision", "language", "action", "action_head"]
Part = Literal["embedding", "projections", "scores", "mlp", "modulation", "head"]
Pass = Literal["forward", "backward_activations", "backward_weights", "recomputation"]
Count = Literal["loss", "program"]  # of what the loss needs, or of what our program multiplies: see flops.py
REMATS = ("none", "dots", "dots_no_batch", "full")


class Shaped(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


Shapes = Mapping[str, Shaped]  # a model's weights by path; only their shapes are read


class Key(NamedTuple):
    """`action` is the action expert, `action_head` the layers between it and actions, state and flow time.

    embedding    vision: patches; action_head: state, noisy actions and flow time
    projections  to queries, keys and values, and out of attention, with their LoRA
    scores       queries x keys and softmax's shares x values, under the component of the queries
    modulation   pi0.5: scale, shift and gate of the action expert's norms
    head         vision: to the language model's width; action_head: to velocities
    """

    component: Component
    part: Part
    in_pass: Pass


@dataclass(frozen=True)
class Flops:
    """Of one step, over all devices."""

    by_key: Mapping[Key, int]
    count: Count

    def of(self, component: Component | None = None, part: Part | None = None, in_pass: Pass | None = None) -> int:
        """Those of what is named; None: of any."""
        wanted = (component, part, in_pass)
        return sum(
            flops
            for key, flops in self.by_key.items()
            if all(want in (None, have) for want, have in zip(wanted, key, strict=True))
        )

    @property
    def total(self) -> int:
        return self.of()

    @property
    def recomputation(self) -> int:
        return self.of(in_pass="recomputation")

    @property
    def model(self) -> int:
        """Forward and backward."""
        return self.total - self.recomputation


@dataclass
class Ledger:
    """`remat` as in config.remat.name. `again` says of a value that the backward pass reads it: full computes it again.

    Only what lies inside the layers is ever computed again: outside them nothing is `again`.
    """

    trainable: Shapes
    frozen: Shapes
    remat: str
    flops: Counter[Key] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.remat not in REMATS:
            raise ValueError(f"remat: what {self.remat!r} computes again is not known; known: {', '.join(REMATS)}")

    def trains(self, *prefixes: str) -> bool:
        """Is any weight trained whose path begins so?"""
        return any(path.startswith(prefixes) for path in self.trainable)

    def trains_product(self, path: str) -> bool:
        """Is the weight at `path` trained, or the LoRA beside it?"""
        return self.trains(path, _lora(path))

    def weight(
        self, component: Component, part: Part, path: str, tokens: int, *, input_grad: bool, again: bool = False
    ) -> None:
        """`tokens` through the weight at `path`, or `path`/kernel, and through the LoRA beside it, if it has one."""
        matrix = path if path in self.trainable or path in self.frozen else f"{path}/kernel"
        full = self.remat == "full"
        self._product(component, part, matrix, tokens * self._elements(matrix), input_grad, full and again)
        a, b = (f"{_lora(path)}/{half}" for half in "ab")
        if a not in self.trainable and a not in self.frozen:
            return
        elements = self._elements(b)
        if path.endswith("/out"):
            elements //= self._shape(b)[1]  # summed over heads before it is multiplied
        read = again or b in self.trainable  # whose gradient reads what a gave
        self._product(component, part, a, tokens * self._elements(a), input_grad, full and read)
        low_grad = input_grad or a in self.trainable
        self._product(component, part, b, tokens * elements, low_grad, full and again)

    def scores(
        self,
        component: Component,
        multiplications: int,
        q: bool,
        k: bool,
        v: bool,
        *,
        again: bool,
        result_read: bool,
        in_tiles: bool,
    ) -> None:
        """queries x keys, then shares x values. q, k, v: do they need gradients?

        `again` and `result_read`: does the backward pass read the result where nothing is kept, and where products of
        weights are? Both products have batch dims, so dots_no_batch keeps neither. `in_tiles`: as attn=flash has it,
        no remat keeps the scores, and all but full the result.
        """
        flops = 2 * multiplications
        shares = q or k
        self.flops[Key(component, "scores", "forward")] += 2 * flops
        self.flops[Key(component, "scores", "backward_activations")] += flops * (q + k + shares + v)
        if self.remat == "full":
            times = 2 * again
        elif self.remat == "dots_no_batch" and not in_tiles:
            times = (shares or v or result_read) + result_read
        else:
            times = 0
        times += in_tiles and (shares or v)
        self.flops[Key(component, "scores", "recomputation")] += flops * times

    def _product(
        self, component: Component, part: Part, matrix: str, multiplications: int, input_grad: bool, again: bool
    ) -> None:
        flops = 2 * multiplications
        times: dict[Pass, bool] = {
            "forward": True,
            "backward_activations": input_grad,
            "backward_weights": matrix in self.trainable,
            "recomputation": again,
        }
        for in_pass, counts in times.items():
            self.flops[Key(component, part, in_pass)] += counts * flops

    def _elements(self, path: str) -> int:
        """Of one layer."""
        shape = self._shape(path)
        return math.prod(shape[1:] if "/layers/" in path else shape)

    def _shape(self, path: str) -> tuple[int, ...]:
        return (self.trainable[path] if path in self.trainable else self.frozen[path]).shape


def _lora(path: str) -> str:
    """.../attention/q -> .../attention/lora/q"""
    group, _, name = path.rpartition("/")
    return f"{group}/lora/{name}"
