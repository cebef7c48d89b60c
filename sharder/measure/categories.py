"""What an instruction is for, read from where the program says it stands: its path of named scopes.

    jit(train_step)/transpose(jvp(vision))/layers/while/body/closed_call/checkpoint/rematted_computation/mlp/dot_general
                    ^ backward   ^ scope   ^ scope                                  ^ again              ^ innermost

The innermost scope that is known says which block it is, but all of the vision encoder is vision, its block being the
part. A name within jit(...) is that of a Python function, no scope. Of instructions that XLA merged into one it prints
all paths, with ";" between them: the first counts.

    forward        what the loss needs, computed once
    backward       its gradient
    recomputation  computed again for the gradient: under jax.checkpoint, in the scope "recomputation" (attn=flash), or
                   by XLA, which marks the instruction's name
    outside        neither: the optimizer, keys of random numbers
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sharder.measure.collectives import KINDS

Pass = Literal["forward", "backward", "recomputation", "outside"]
PASSES: tuple[Pass, ...] = ("forward", "backward", "recomputation", "outside")

VISION, ATTENTION, PROJECTIONS, MLP, NORMS = "vision", "attention", "attention projections", "MLP", "norms"
EMBEDDING, ACTION_HEAD, LAYER_LOOP = "embedding", "action head", "layer loop"
AUGMENTATION, OPTIMIZER, COLLECTIVES, TRANSFERS = "augmentation", "optimizer", "collectives", "transfers"
OTHER, UNKNOWN = "other", "unknown"
CATEGORIES = (
    VISION,
    ATTENTION,  # rotation, scores, mask, softmax, weighing the values
    PROJECTIONS,  # to queries, keys and values, and out of attention
    MLP,
    NORMS,
    EMBEDDING,  # the prompt's rows of the table
    ACTION_HEAD,  # state, noisy actions and flow time in, velocities out
    LAYER_LOOP,  # in a scan over layers, but in none of their blocks: slices of what is stacked, sums of residuals
    AUGMENTATION,
    OPTIMIZER,
    COLLECTIVES,  # by kind; and the casts, copies and sums on the device that belong to them
    TRANSFERS,  # between host and device
    OTHER,
    UNKNOWN,  # no instruction of the programs that the caller knows
)
MODEL = {VISION, ATTENTION, PROJECTIONS, MLP, NORMS, EMBEDDING, ACTION_HEAD, LAYER_LOOP, AUGMENTATION}

AROUND_COLLECTIVES = "around them"
UNSCOPED = "no scope"
SCOPES: dict[str, tuple[str, str]] = {  # named scope: category, part
    "vision": (VISION, "patches and head"),
    "attention": (ATTENTION, ""),
    "attention_projections": (PROJECTIONS, ""),
    "mlp": (MLP, ""),
    "norm": (NORMS, ""),
    "embedding": (EMBEDDING, ""),
    "action_head": (ACTION_HEAD, ""),
    "layers": (LAYER_LOOP, ""),
    "augmentation": (AUGMENTATION, ""),
    "optimizer": (OPTIMIZER, ""),
    "gradient_norm": (OPTIMIZER, "norm of the gradients"),
    "gather_weights": (COLLECTIVES, AROUND_COLLECTIVES),
    "reduce_gradients": (COLLECTIVES, AROUND_COLLECTIVES),
    "noise": (OTHER, "random numbers"),
    "loss": (OTHER, "loss"),
}
RECOMPUTATION = "recomputation"  # a scope that says the pass and no category
BACKWARD_SCOPES = {"reduce_gradients", "table_gradient"}  # of gradients, though differentiation did not make them

FUNCTION = re.compile(r"\bp?jit\([^()]*\)")
SEPARATOR = re.compile(r"[/()]+")
TRANSFER_OPCODES = {"copy-start", "copy-done", "infeed", "outfeed", "send", "send-done", "recv", "recv-done"}
TRANSFER_EVENT = re.compile(r"memcpy|memset|transfer", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Place:
    """A cell of the table."""

    category: str  # one of CATEGORIES
    part: str  # of it: which block of the vision encoder, which kind of collective; empty where there is but one
    in_pass: Pass


def says_where(op_name: str) -> bool:
    """Is it a path? Not where XLA left none, wrote a name of its own, or the path of an argument: x['a/b']."""
    if not op_name or "[" in op_name or "'" in op_name:
        return False
    return "/" in op_name or "(" in op_name or op_name in SCOPES


def place_of(op_name: str, instruction: str = "") -> Place:
    """`instruction`: its name."""
    scopes = scopes_of(op_name)
    category, part = SCOPES[scopes[-1]] if scopes else (OTHER, UNSCOPED)
    if "vision" in scopes and category not in (COLLECTIVES, ACTION_HEAD):  # XLA joins paths of what it merges
        category, part = VISION, part if category == VISION else category
    return Place(category, part, _pass_of(op_name, instruction, category))


def collective_place(kind: str, op_name: str) -> Place:
    """`kind`: one of collectives.KINDS, or empty for one that only an event's name told of."""
    assert not kind or kind in KINDS
    return Place(COLLECTIVES, kind or "of a kind not known", place_of(op_name).in_pass)


def scopes_of(op_name: str) -> tuple[str, ...]:
    """The known scopes around it, outermost first."""
    return tuple(word for word in _words(op_name) if word in SCOPES) if says_where(op_name) else ()


def _words(op_name: str) -> list[str]:
    return SEPARATOR.split(FUNCTION.sub("", _first_path(op_name)))


def _first_path(op_name: str) -> str:
    return op_name.split(";", 1)[0]


def _pass_of(op_name: str, instruction: str, category: str) -> Pass:
    path, words = _first_path(op_name), _words(op_name)
    if "rematted_computation" in path or RECOMPUTATION in words or ".remat" in instruction:
        return "recomputation"
    if "transpose(" in path or BACKWARD_SCOPES.intersection(words):
        return "backward"
    # What does not depend on the loop around it XLA or JAX moves out of it, and jax.grad's marks are lost.
    return "forward" if "jvp(" in path or category in MODEL else "outside"
