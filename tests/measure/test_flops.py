"""The count from shapes: by hand for a layer, and against the dots of a compiled program that has no dead work.

The count over the jaxpr is compared with it in test_jaxpr_flops.py.

B batch   T queries   S keys   N query heads   K key/value heads   G = N / K   H head dim
"""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from traced_models import data, loss_of, model_config, weights

from sharder.config import ModelConfig
from sharder.measure.flops import parameters, step_flops, tokens
from sharder.measure.hlo import parse
from sharder.measure.products import Count, Flops
from sharder.model.attention import MASKED, BlockMask
from sharder.model.execution import Execution
from sharder.model.gemma import Layer, Streams, add, rotate
from sharder.model.tiles import scored


def counted(config: ModelConfig, count: Count = "loss", remat: str = "none", batch_size: int = 1) -> Flops:
    return step_flops(config, *weights(config), batch_size, 3, remat, count)


def with_layers(name: str, layers: int) -> ModelConfig:
    config = model_config(name)
    config.language.depth = config.action.depth = layers
    return config


# By hand: pi0 at full size, one sample, 3 cameras of 16 x 16 patches, a prompt of 48, a state, 50 actions.
PREFIX, SUFFIX = 3 * 256 + 48, 1 + 50


def test_one_gemma_layer_by_hand() -> None:
    """What three layers cost more than two: a layer in the middle, all of which is read."""
    two, three = (counted(with_layers("pi0", layers), remat="full") for layers in (2, 3))

    def layer(*key: Any) -> int:
        return three.of(*key) - two.of(*key)

    # q and out are 2048 x (8 heads x 256), k and v 2048 x 256; gate, up and down 2048 x 16384.
    language_projections = 816 * 2 * (2048 * 2048 + 2048 * 256 + 2048 * 256 + 2048 * 2048)
    assert language_projections == 15_401_484_288
    assert layer("language", "projections", "forward") == language_projections
    assert layer("language", "mlp", "forward") == 816 * 2 * 3 * 2048 * 16384 == 164_282_499_072
    assert layer("action", "projections", "forward") == 51 * 2 * 2 * (1024 * 2048 + 1024 * 256) == 481_296_384
    assert layer("action", "mlp", "forward") == 51 * 2 * 3 * 1024 * 4096 == 1_283_457_024
    # The prefix sees itself; the state the prefix and itself; an action all. q x k and shares x v, 8 x 256 channels.
    assert layer("language", "scores", "forward") == 2 * 2 * (816 * 816) * 2048 == 5_454_692_352
    assert layer("action", "scores", "forward") == 2 * 2 * (1 * 817 + 50 * 867) * 2048 == 361_816_064

    for component in ("language", "action"):
        for part in ("projections", "mlp"):
            forward = layer(component, part, "forward")
            assert layer(component, part, "backward_activations") == forward
            assert layer(component, part, "backward_weights") == forward
        assert layer(component, "scores", "backward_activations") == 2 * layer(component, "scores", "forward")
        assert layer(component, "scores", "backward_weights") == 0
        # Nobody reads what the down projection gave, so a third of the MLP is not computed again.
        assert layer(component, "mlp", "recomputation") == 2 * layer(component, "mlp", "forward") // 3
        assert layer(component, "projections", "recomputation") == layer(component, "projections", "forward")


def test_of_the_last_layers_prefix_only_keys_and_values_are_read() -> None:
    last = counted(with_layers("pi0", 1))
    assert last.of("language", "projections", "forward") == 816 * 2 * 2 * 2048 * 256
    assert last.of("language", "mlp") == last.of("language", "scores") == 0
    assert last.of("action", "mlp", "forward") == 51 * 2 * 3 * 1024 * 4096


def test_the_program_multiplies_more_than_the_loss_needs() -> None:
    """Scores nobody may see, and the last layer of the prefix."""
    loss, program = counted(model_config("pi0")), counted(model_config("pi0"), "program")
    hidden = 18 * 4 * 2048 * (816 * 51) + 18 * 4 * 2048 * 50  # prefix queries with the suffix; the state with actions
    out_and_q = 816 * 2 * 2 * 2048 * 2048
    last = out_and_q + 816 * 2 * 3 * 2048 * 16384 + 4 * 2048 * 816 * 816
    assert program.model - loss.model == 3 * (hidden + last)
    for component in ("vision", "action_head"):
        assert program.of(component) == loss.of(component)


def test_attention_in_tiles_multiplies_less_and_computes_scores_again() -> None:
    """attn=flash: no prefix query meets the suffix; left are the state with the actions, and the last layer."""
    config = model_config("pi0")
    loss = step_flops(config, *weights(config), 1, 3, "none", "loss", scored)
    program = step_flops(config, *weights(config), 1, 3, "none", "program", scored)
    assert loss.model == counted(config).model
    hidden = 18 * 4 * 2048 * 50
    last = 816 * 2 * 2 * 2048 * 2048 + 816 * 2 * 3 * 2048 * 16384 + 4 * 2048 * 816 * 816
    assert program.model - loss.model == 3 * (hidden + last)
    again = 2 * (816 * 816 + 51 * 867) * 2048  # queries x keys of a layer
    assert program.of("language", in_pass="recomputation") + program.of("action", in_pass="recomputation") == 18 * again
    assert program.of("vision", in_pass="recomputation") == 27 * 2 * 3 * 256 * 256 * 1152


def test_pi0_at_full_size() -> None:
    """Batch 4. The compiled program of the published system was found to have 48.45e12, or 59.80e12 with full remat."""
    config = model_config("pi0")
    assert counted(config, batch_size=4).model == 46_174_200_201_216
    assert counted(config, "program", batch_size=4).total == 48_449_055_817_728
    assert counted(config, "program", "full", batch_size=4).total == 59_784_100_577_280
    assert tokens(config, 4, 3) == 4 * 867
    assert parameters(*weights(config)) == 3_238_048_528


@pytest.mark.parametrize("attn", ["naive", "flash"])
def test_layers_written_out_multiply_less_than_a_hundredth_more_than_the_loss_needs(attn: str) -> None:
    """Without remat. What is left are scores that are masked afterwards; attn=flash computes scores again, too."""
    config, in_tiles = model_config("pi0"), scored if attn == "flash" else None
    program = step_flops(config, *weights(config), 4, 3, "none", "program", in_tiles, unrolled=True)
    assert 1 < program.total / counted(config, batch_size=4).model < 1.03
    assert program.model / counted(config, batch_size=4).model < 1.01


def test_pi05_has_no_state_token() -> None:
    assert tokens(model_config("pi05"), 1, 3) == 3 * 256 + 200 + 50
    assert counted(with_layers("pi05", 1)).of("action", "scores", "forward") == 2 * 2 * 50 * (968 + 50) * 2048


def test_a_vision_layer_by_hand() -> None:
    config = model_config("pi0")
    config.vision.depth = 1
    flops, T = counted(config), 3 * 256
    assert flops.of("vision", "embedding") == 2 * (T * 2 * 14 * 14 * 3 * 1152)  # images have no gradient
    assert flops.of("vision", "projections") == 3 * (T * 2 * 4 * 1152 * 1152)
    assert flops.of("vision", "scores") == 3 * (2 * 2 * T * 256 * 1152)  # each camera sees itself
    assert flops.of("vision", "mlp") == 3 * (T * 2 * 2 * 1152 * 4304)
    assert flops.of("vision", "head") == 3 * (T * 2 * 1152 * 2048)


def test_frozen_weights_have_no_gradient_but_pass_it_on() -> None:
    config = model_config("pi0")
    config.freeze = ["gemma/layers/"]
    whole, frozen = counted(model_config("pi0")), counted(config)
    for component in ("language", "action"):
        assert frozen.of(component, in_pass="backward_weights") == 0
        for in_pass in ("forward", "backward_activations"):
            assert frozen.of(component, in_pass=in_pass) == whole.of(component, in_pass=in_pass)


def test_what_lies_before_the_first_trained_weight_has_no_backward_pass() -> None:
    """The action expert alone is trained: the prefix depends on nothing that moves, though its keys are read."""
    config = model_config("pi0")
    config.freeze = ["vision/", "gemma/table", "gemma/layers/language"]
    flops, program = counted(config, remat="full"), counted(config, "program", "full")
    for component in ("vision", "language"):
        assert (
            flops.of(component, in_pass="backward_activations") == flops.of(component, in_pass="backward_weights") == 0
        )
    assert flops.of("vision", in_pass="recomputation") == 0
    assert flops.of("language", in_pass="recomputation") == 18 * (816 * 2 * 2 * 2048 * 256)  # keys and values
    # One loop runs both experts, so as traced the prefix's gradients are computed all the same.
    assert program.of("language", "mlp", "backward_activations") == program.of("language", "mlp", "forward")


ALL_BEFORE_ATTENTION_OUT = (
    *("vision/", "gemma/table", "gemma/layers/language", "gemma/final_norm", "action_in", "action_time", "state_in"),
    *(f"gemma/layers/action/{part}" for part in ("norm", "attention/q", "attention/k", "attention/v", "mlp")),
)


def test_a_gradient_goes_back_to_the_first_trained_weight_and_no_further() -> None:
    config = with_layers("pi0", 1)
    config.freeze = list(ALL_BEFORE_ATTENTION_OUT)  # what is left: attention/out of the one layer, and action_out
    flops, out = counted(config), 51 * 2 * 2048 * 1024
    assert flops.of("action", "projections", "backward_weights") == out
    assert flops.of("action", "projections", "backward_activations") == 0
    assert flops.of("action", "scores", "backward_activations") == 0
    assert flops.of("action", "mlp", "backward_activations") == flops.of("action", "mlp", "forward")


def test_a_trained_flow_time_moves_what_it_modulates() -> None:
    """pi0.5 with time_in and time_out trained alone: they scale and shift what enters the first projections."""
    config = with_layers("pi05", 1)
    config.freeze = [part for part in ALL_BEFORE_ATTENTION_OUT if part not in ("action_time", "state_in")]
    config.freeze += ["gemma/layers/action/attention/out", "action_out"]
    flops = counted(config)
    for part in ("modulation", "projections", "mlp"):
        assert flops.of("action", part, "backward_activations") == flops.of("action", part, "forward")
        assert flops.of("action", part, "backward_weights") == 0
    assert flops.of("action_head", "embedding", "backward_weights") == 2 * 2 * 1024 * 1024
    assert flops.of("action_head", "embedding", "backward_activations") == 2 * 1024 * 1024  # of time_out


def test_lora_beside_a_frozen_matrix() -> None:
    config = model_config("pi0_lora")
    flops = counted(config)
    matrices, lora = 816 * 2 * 3 * 2048 * 16384, 816 * 2 * 16 * 3 * (2048 + 16384)  # rank 16
    assert flops.of("language", "mlp", "forward") == 17 * (matrices + lora)  # of 18 layers, the last's is not read
    assert flops.of("language", "mlp", "backward_activations") == 17 * (matrices + lora)
    assert flops.of("language", "mlp", "backward_weights") == 17 * lora


def test_flops_are_those_of_the_examples() -> None:
    config = model_config("pi05_micro")
    assert counted(config, batch_size=6).total == 6 * counted(config).total


def test_a_remat_that_is_not_known_is_an_error() -> None:
    with pytest.raises(ValueError, match="remat: what 'auto' computes again is not known; known: none, dots"):
        counted(model_config("pi0_micro"), remat="auto")


# Against a compiled program in which nothing is computed that nobody reads: layers one after another instead of in a
# loop, and every block of scores on its own instead of masked. Then XLA drops the dead work, and all dots are needed.


def layer_in_blocks(
    layer: Layer,
    x: Streams,
    positions_BT: Any,
    mask: BlockMask,
    condition: Any,
    cached: None,
    execution: Execution,
    is_last: bool,
) -> tuple[Streams, None]:
    """The same function as Layer's own, with the queries, keys and values of every block apart."""
    P = x.language.shape[1]
    experts = {"language": (layer.language, x.language, slice(P)), "action": (layer.action, x.action, slice(P, None))}
    q, k, v, gates, blocks = {}, {}, {}, {}, {}
    for name, (expert, part, span) in experts.items():
        normed, gates[name] = expert.norm_attention(part, condition)
        projected_q, projected_k, projected_v = (expert.attention.project(name, normed) for name in "qkv")
        rotated_q = rotate(projected_q, positions_BT[:, span]) * projected_q.shape[-1] ** -0.5
        rotated_k = rotate(projected_k, positions_BT[:, span])
        blocks[name] = np.unique(mask.query_block[span])
        for block in blocks[name]:
            (rows,) = np.nonzero(mask.query_block[span] == block)
            rows = slice(rows[0], rows[-1] + 1)
            q[block], k[block], v[block] = rotated_q[:, rows], rotated_k[:, rows], projected_v[:, rows]
    attended = {block: attend(block, q[block], k, v, mask) for block in q}
    outputs = {}
    for name, (expert, part, _) in experts.items():
        merged = expert.attention.merge(jnp.concatenate([attended[block] for block in blocks[name]], axis=1))
        part = add(part, merged, gates[name])
        normed, gate = expert.norm_mlp(part, condition)
        outputs[name] = add(part, expert.mlp(normed), gate)
    return Streams(**outputs), None


def attend(block: int, q_BTNH: jax.Array, k: Any, v: Any, mask: BlockMask) -> jax.Array:
    B, T, N, H = q_BTNH.shape
    seen = [key_block for key_block in k if key_block <= block]
    q_BTKGH = q_BTNH.reshape(B, T, k[block].shape[2], -1, H)
    scores = [jnp.einsum("BTKGH,BSKH->BKGTS", q_BTKGH, k[key_block]) for key_block in seen]
    valid = jnp.concatenate([mask.key_valid[:, mask.key_block == key_block] for key_block in seen], axis=1)
    shares = jax.nn.softmax(jnp.where(valid[:, None, None, None], jnp.concatenate(scores, -1), MASKED), -1)
    ends = np.cumsum([part.shape[-1] for part in scores])[:-1]
    weighed = [
        jnp.einsum("BKGTS,BSKH->BTKGH", part, v[key_block])
        for part, key_block in zip(jnp.split(shares, ends, -1), seen, strict=True)
    ]
    return sum(weighed).reshape(B, T, N, H)


def dots(text: str) -> int:
    """FLOPs of a compiled program's dots."""
    total = 0
    for visit in parse(text).visits():
        for dot in visit.computation.instructions:
            if dot.opcode == "dot":
                left = visit.computation.by_name[dot.operands[0]].shapes[0].dims
                terms = math.prod(left[int(dim)] for dim in re.findall(r"\d+", dot.attributes["lhs_contracting_dims"]))
                total += visit.times * 2 * dot.shapes[0].elements * terms
    return total


COMPILED_FAST = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}  # the dots are the same


def drawn(shapes: Any) -> Any:
    """Arrays of these shapes: token ids from 0 to 9, cameras and prompt valid, the rest standard normal."""
    random = np.random.default_rng(0)

    def draw(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        if leaf.dtype == jnp.bool_:
            return np.ones(leaf.shape, bool)
        if leaf.dtype == jnp.int32:
            return random.integers(0, 9, leaf.shape, np.int32)
        return random.standard_normal(leaf.shape, np.float32)

    return jax.tree.map(draw, shapes)


@pytest.mark.parametrize(
    ("model", "freeze"), [("pi0_micro", []), ("pi05_micro", ["vision/", "gemma/table", "gemma/layers/language"])]
)
def test_a_program_without_dead_work_multiplies_what_the_loss_needs(
    model: str, freeze: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = model_config(model)
    config.freeze = freeze
    arguments = (*drawn(weights(config)), drawn(data(config, cameras=1)))
    loss_as_trained = jax.jit(loss_of(config, Execution()), compiler_options=COMPILED_FAST)(*arguments)

    monkeypatch.setattr(Layer, "__call__", layer_in_blocks)
    lowered = jax.jit(jax.value_and_grad(loss_of(config, Execution(unroll=True)))).lower(*arguments)
    compiled = lowered.compile(compiler_options=COMPILED_FAST)
    needed = step_flops(config, *weights(config), batch_size=2, cameras=1).model
    assert dots(compiled.as_text()) == pytest.approx(needed, rel=0.01)
    np.testing.assert_allclose(compiled(*arguments)[0], loss_as_trained, rtol=1e-5)
