"""Our weights under openpi's names and shapes, both ways.

openpi stacks keys on values and gate on up in one array, and puts heads before the width; we keep one array a matrix
product, contracted dim first, so that no layer copies or transposes its weights. A rule says how to get from ours to
theirs: permute each of our arrays, then stack them on a new dim. Read backwards it converts a checkpoint.

Shapes are written for one layer.
    D width   N query heads   K key/value heads   H head dim   F mlp width   R rank   T tokens
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from sharder.config import ModelConfig
from sharder.model.weight import Weights


@dataclass(frozen=True)
class Rule:
    theirs: str
    ours: tuple[str, ...]  # stacked in this order
    permute: tuple[int, ...] = ()  # of each of ours; empty: as it is
    stack: int | None = None  # the new dim; None: one array, not stacked


def _vision() -> list[Rule]:
    root, block = "PaliGemma/img", "PaliGemma/img/Transformer/encoderblock"
    attention = f"{block}/MultiHeadDotProductAttention_0"
    pairs = {
        f"{root}/embedding/kernel": "patch_kernel",
        f"{root}/embedding/bias": "patch_bias",
        f"{root}/Transformer/encoder_norm": "norm",
        f"{root}/head": "head",
        f"{block}/LayerNorm_0": "layers/norm_attention",
        f"{block}/LayerNorm_1": "layers/norm_mlp",
        f"{block}/MlpBlock_0/Dense_0": "layers/mlp/up",
        f"{block}/MlpBlock_0/Dense_1": "layers/mlp/down",
        f"{attention}/query": "layers/attention/q",
        f"{attention}/key": "layers/attention/k",
        f"{attention}/value": "layers/attention/v",
        f"{attention}/out": "layers/attention/out",
    }
    rules = [Rule(f"{root}/pos_embedding", ("vision/position",), stack=0)]
    for theirs, ours in pairs.items():
        leaves = ("",) if ours.startswith("patch") else ("/scale", "/bias") if "norm" in ours else ("/kernel", "/bias")
        rules += [Rule(theirs + leaf, (f"vision/{ours}{leaf}",)) for leaf in leaves]
    return rules


def _expert(name: str, suffix: str, lora: bool, adaptive: bool) -> list[Rule]:
    root, ours = "PaliGemma/llm/layers", f"gemma/layers/{name}"
    attention, mlp = f"{ours}/attention", f"{ours}/mlp"
    heads_first = (0, 2, 1, 3)  # ours [L, D, N, H] -> theirs [L, N, D, H]
    rules = [
        Rule(f"{root}/attn/q_einsum{suffix}/w", (f"{attention}/q",), heads_first),
        Rule(f"{root}/attn/kv_einsum{suffix}/w", (f"{attention}/k", f"{attention}/v"), heads_first, stack=1),
        Rule(f"{root}/attn/attn_vec_einsum{suffix}/w", (f"{attention}/out",)),
        Rule(f"{root}/mlp{suffix}/gating_einsum", (f"{mlp}/gate", f"{mlp}/up"), stack=1),
        Rule(f"{root}/mlp{suffix}/linear", (f"{mlp}/down",)),
    ]
    norms = {
        f"{root}/pre_attention_norm{suffix}": f"{ours}/norm_attention",
        f"{root}/pre_ffw_norm{suffix}": f"{ours}/norm_mlp",
        f"PaliGemma/llm/final_norm{suffix}": f"gemma/final_norm/{name}",
    }
    leaves = {"/Dense_0/kernel": "/modulation/kernel", "/Dense_0/bias": "/modulation/bias"} if adaptive else {}
    for theirs, mine in norms.items():
        rules += [Rule(theirs + a, (mine + b,)) for a, b in (leaves or {"/scale": "/scale"}).items()]
    if lora:
        for part in ("a", "b"):
            low = f"{attention}/lora"
            gating = (f"{mlp}/lora/gate/{part}", f"{mlp}/lora/up/{part}")
            rules += [
                Rule(f"{root}/attn/q_einsum{suffix}/lora_{part}", (f"{low}/q/{part}",)),
                Rule(f"{root}/attn/kv_einsum{suffix}/lora_{part}", (f"{low}/k/{part}", f"{low}/v/{part}"), stack=1),
                Rule(f"{root}/attn/attn_vec_einsum{suffix}/lora_{part}", (f"{low}/out/{part}",)),
                Rule(f"{root}/mlp{suffix}/gating_einsum_lora_{part}", gating, stack=1),
                Rule(f"{root}/mlp{suffix}/linear_lora_{part}", (f"{mlp}/lora/down/{part}",)),
            ]
    return rules


def rules(config: ModelConfig) -> list[Rule]:
    """One rule for each of openpi's leaves of this variant."""
    pi05 = config.variant == "pi05"
    dense = {"action_in_proj": "action_in", "action_out_proj": "action_out"}
    if pi05:
        dense |= {"time_mlp_in": "time_in", "time_mlp_out": "time_out"}
    else:
        dense |= {
            "state_proj": "state_in",
            "action_time_mlp_in": "action_time_in",
            "action_time_mlp_out": "action_time_out",
        }
    return [
        *_vision(),
        Rule("PaliGemma/llm/embedder/input_embedding", ("gemma/table",)),
        *_expert("language", "", config.language.lora_rank > 0, adaptive=False),
        *_expert("action", "_1", config.action.lora_rank > 0, adaptive=pi05),
        *(Rule(f"{a}/{leaf}", (f"{b}/{leaf}",)) for a, b in dense.items() for leaf in ("kernel", "bias")),
    ]


def to_openpi(config: ModelConfig, weights: Weights) -> Weights:
    """Every one of our weights under openpi's names and shapes. Raises KeyError for a weight that is missing."""
    theirs = {}
    for rule in rules(config):
        parts = [jnp.transpose(weights[path], rule.permute) if rule.permute else weights[path] for path in rule.ours]
        theirs[rule.theirs] = parts[0] if rule.stack is None else jnp.stack(parts, axis=rule.stack)
    return theirs


def from_openpi(config: ModelConfig, theirs: Weights, only: list[Rule] | None = None) -> Weights:
    """The inverse of `to_openpi`; of a checkpoint that lacks some leaves, `only` the rules that apply."""
    weights = {}
    for rule in rules(config) if only is None else only:
        array = jnp.asarray(theirs[rule.theirs])
        parts = [array] if rule.stack is None else [jnp.take(array, i, axis=rule.stack) for i in range(len(rule.ours))]
        for path, part in zip(rule.ours, parts, strict=True):
            inverse = tuple(sorted(range(len(rule.permute)), key=rule.permute.__getitem__))
            weights[path] = jnp.transpose(part, inverse) if rule.permute else part
    return weights


def abstract_openpi(config: ModelConfig, weights: Weights) -> Weights:
    """openpi's names, shapes and dtypes of our (abstract) weights, no memory."""
    return jax.eval_shape(lambda w: to_openpi(config, w), weights)
