"""Our tree and openpi's are the same weights under other names: leaf for leaf at full size, and both ways."""

import csv
import math

import golden_case
import jax
import numpy as np
import pytest

from sharder.config import ExpertConfig, ModelConfig
from sharder.model.openpi_names import abstract_openpi, from_openpi, rules, to_openpi
from sharder.model.pi0 import abstract_weights, init_weights
from sharder.model.weight import Weights

FULL_SIZE = {  # variant: (config, parameters)
    "pi0": (ModelConfig(action=ExpertConfig(1024, mlp_dim=4096)), 3_238_048_528),
    "pi05": (ModelConfig(variant="pi05", action=ExpertConfig(1024, mlp_dim=4096)), 3_353_433_872),
    "pi0_lora": (
        ModelConfig(
            language=ExpertConfig(lora_rank=16, lora_alpha=16.0),
            action=ExpertConfig(1024, mlp_dim=4096, lora_rank=32, lora_alpha=32.0),
        ),
        3_288_036_112,
    ),
}


def drawn(config: ModelConfig) -> Weights:
    quick = {"xla_backend_optimization_level": 0}
    return jax.jit(lambda: init_weights(config, jax.random.key(0)), compiler_options=quick)()


def openpi_leaves(variant: str) -> dict[str, tuple[tuple[int, ...], str]]:
    with open(golden_case.GOLDEN / "openpi_leaves.tsv") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["variant"] == variant]
    return {row["leaf"]: (tuple(map(int, row["shape"].split("x"))), row["dtype"]) for row in rows}


@pytest.mark.parametrize("variant", FULL_SIZE)
def test_full_size_tree_is_openpis_leaf_for_leaf(variant):
    config, parameters = FULL_SIZE[variant]
    abstract = abstract_openpi(config, abstract_weights(config))
    assert {leaf: (x.shape, str(x.dtype)) for leaf, x in abstract.items()} == openpi_leaves(variant)
    assert sum(math.prod(x.shape) for x in abstract_weights(config).values()) == parameters


@pytest.mark.parametrize("variant", golden_case.VARIANTS)
def test_every_weight_has_exactly_one_rule(variant):
    config = golden_case.config(variant)
    ours = [path for rule in rules(config) for path in rule.ours]
    assert len(ours) == len(set(ours))
    assert set(ours) == set(abstract_weights(config))


@pytest.mark.parametrize("variant", golden_case.VARIANTS)
def test_there_and_back_changes_nothing(variant):
    config = golden_case.config(variant)
    weights = drawn(config)
    back = from_openpi(config, to_openpi(config, weights))
    assert back.keys() == weights.keys()
    for path, value in weights.items():
        np.testing.assert_array_equal(back[path], value, err_msg=path)


def test_stacking_order_is_keys_first_and_gate_first():
    config = golden_case.config("pi0")
    weights = drawn(config)
    theirs = to_openpi(config, weights)
    kv = theirs["PaliGemma/llm/layers/attn/kv_einsum/w"]  # [L, 2, K, D, H]
    np.testing.assert_array_equal(kv[:, 0, 0], weights["gemma/layers/language/attention/k"][:, :, 0])
    gating = theirs["PaliGemma/llm/layers/mlp_1/gating_einsum"]  # [L, 2, D, F]
    np.testing.assert_array_equal(gating[:, 1], weights["gemma/layers/action/mlp/up"])


def test_a_missing_leaf_is_named():
    config = golden_case.config("pi0")
    theirs = to_openpi(config, drawn(config))
    del theirs["state_proj/kernel"]
    with pytest.raises(KeyError, match="state_proj/kernel"):
        from_openpi(config, theirs)
