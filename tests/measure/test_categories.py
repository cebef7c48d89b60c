"""Which block and pass an instruction belongs to, by the path it has and, where XLA left none, by its neighbours."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharder.measure.categories import (
    CATEGORIES,
    OTHER,
    SCOPES,
    Place,
    collective_place,
    place_of,
    says_where,
    scopes_of,
)
from sharder.measure.costs import CPU, Costs
from sharder.measure.hlo import Module, parse
from sharder.measure.places import Places
from sharder.model.block_mask import BlockMask
from sharder.model.flash import tiled
from sharder.model.tiles import runs

COMPILED_MICRO = Path(__file__).parent / "compiled_micro.py"
STEP = "jit(train_step)"
BODY = "while/body/closed_call"


@pytest.mark.parametrize(
    ("op_name", "category", "part", "in_pass"),
    [
        (f"{STEP}/jvp(layers)/{BODY}/mlp/dot_general", "MLP", "", "forward"),
        (f"{STEP}/transpose(jvp(layers))/{BODY}/mlp/dot_general", "MLP", "", "backward"),
        (f"{STEP}/transpose(jvp(layers))/{BODY}/checkpoint/norm/mul", "norms", "", "backward"),
        (
            f"{STEP}/transpose(jvp(layers))/{BODY}/checkpoint/rematted_computation/attention/exp",
            "attention",
            "",
            "recomputation",
        ),
        (f"{STEP}/transpose(jvp(layers))/{BODY}/attention/{BODY}/recomputation/exp", "attention", "", "recomputation"),
        (
            f"{STEP}/transpose(jvp(vision))/layers/{BODY}/attention/recomputation/e",
            "vision",
            "attention",
            "recomputation",
        ),
        (f"{STEP}/jvp(layers)/{BODY}/attention/vmap(BNTS,BSNH->BTNH)/dot_general", "attention", "", "forward"),
        (f"{STEP}/jvp(layers)/{BODY}/attention_projections/BTD,DNH->BTNH/dot", "attention projections", "", "forward"),
        (f"{STEP}/jvp(vision)/dot_general", "vision", "patches and head", "forward"),
        (f"{STEP}/jvp(vision)/layers/{BODY}/attention/exp", "vision", "attention", "forward"),
        (f"{STEP}/transpose(jvp(vision))/layers/while/body/dynamic_slice", "vision", "layer loop", "backward"),
        (f"{STEP}/jvp(layers)/{BODY}/add", "layer loop", "", "forward"),
        (f"{STEP}/jvp(action_head)/jit(silu)/mul", "action head", "", "forward"),
        (f"{STEP}/jvp(embedding)/jit(_take)/gather", "embedding", "", "forward"),
        (f"{STEP}/transpose(jvp(embedding))/jit(_take)/scatter-add", "embedding", "", "backward"),
        (f"{STEP}/jvp(augmentation)/vmap(jit(clip))/max", "augmentation", "", "forward"),
        (f"{STEP}/optimizer/jit(_where)/select_n", "optimizer", "", "outside"),
        (f"{STEP}/attention/sin", "attention", "", "forward"),  # moved out of the loop, and out of jvp
        (f"{STEP}/shard_map/reduce_gradients/reduce_sum", "collectives", "around them", "backward"),
        (f"{STEP}/noise/vmap(jit(_normal))/erf_inv", "other", "random numbers", "outside"),
        (f"{STEP}/jvp(noise)/vmap(jit(_normal))/erf_inv", "other", "random numbers", "forward"),
        (f"{STEP}/square", "other", "no scope", "outside"),
        # A function that is called like a scope is none, merged instructions go by the first path.
        (f"{STEP}/jit(norm)/mul", "other", "no scope", "outside"),
        (f"{STEP}/transpose(jvp(mlp))/mul;{STEP}/optimizer/add", "MLP", "", "backward"),
    ],
)
def test_a_path_says_which_block_and_pass(op_name: str, category: str, part: str, in_pass: str) -> None:
    assert says_where(op_name)
    assert place_of(op_name) == Place(category, part, in_pass)  # type: ignore[arg-type]


@pytest.mark.parametrize("op_name", ["", "state.trainable['vision/layers/mlp/up']", "batch[\\'images\\']", "mul.3"])
def test_what_says_nothing(op_name: str) -> None:
    assert not says_where(op_name)
    assert scopes_of(op_name) == ()


def test_what_xla_computes_again_by_itself_is_recomputation() -> None:
    assert place_of(f"{STEP}/jvp(mlp)/tanh", "tanh.3.remat2").in_pass == "recomputation"


def test_a_collective_goes_by_its_kind_and_the_pass_it_serves() -> None:
    again = f"{STEP}/shard_map/transpose(jvp(layers))/{BODY}/checkpoint/rematted_computation/gather_weights/all_gather"
    assert collective_place("all-gather", again) == Place("collectives", "all-gather", "recomputation")
    assert collective_place("", "").part == "of a kind not known"


def test_every_scope_has_a_category() -> None:
    assert {category for category, _ in SCOPES.values()} <= set(CATEGORIES)


# A product that XLA rewrote without its path, between softmax's shares and a smaller array of another block.
NAMELESS = """\
HloModule jit_step

%inside (p: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8]{1,0} parameter(0)
  ROOT %moved = f32[8,8]{0,1} copy(%p)
}

%condition (c: (f32[8,8])) -> pred[] {
  %c = (f32[8,8]{1,0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

%body (b: (f32[8,8])) -> (f32[8,8]) {
  %b = (f32[8,8]{1,0}) parameter(0)
  %carried = f32[8,8]{1,0} get-tuple-element(%b), index=0
  %kept = f32[8,8]{1,0} copy(%carried)
  ROOT %next = (f32[8,8]{1,0}) tuple(%kept)
}

ENTRY %e (x: f32[8,2], w: f32[8,8]) -> (f32[8,8]) {
  %x = f32[8,2]{1,0} parameter(0)
  %w = f32[8,8]{1,0} parameter(1), metadata={op_name="state.weights['mlp/up']"}
  %small = f32[8,2]{1,0} negate(%x), metadata={op_name="jit(step)/jvp(mlp)/neg"}
  %shares = f32[8,8]{1,0} exponential(%w), metadata={op_name="jit(step)/jvp(attention)/exp"}
  %product = f32[8,2]{1,0} dot(%shares, %small), lhs_contracting_dims={1}
  %turned = f32[8,2]{0,1} copy(%product)
  %weight = f32[8,8]{0,1} copy(%w)
  %used = f32[8,8]{0,1} sine(%weight), metadata={op_name="jit(step)/transpose(jvp(norm))/sin"}
  %wrapped = f32[8,8]{0,1} fusion(%used), kind=kLoop, calls=%inside
  %zeros = f32[8,8]{1,0} copy(%w2)
  %w2 = f32[8,8]{1,0} parameter(2)
  %start = (f32[8,8]{1,0}) tuple(%zeros)
  %loop = (f32[8,8]{1,0}) while(%start), condition=%condition, body=%body, metadata={op_name="jit(step)/jvp(layers)/while"}
  %alone = f32[8,8]{0,1} copy(%w2)
  ROOT %end = (f32[8,8]{1,0}) tuple(%alone)
}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("name", "category", "in_pass"),
    [
        ("product", "attention", "forward"),  # its largest operand
        ("turned", "attention", "forward"),  # through what has no path either
        ("weight", "norms", "backward"),  # an argument says nothing, so its reader does
        ("moved", "norms", "backward"),  # in a fusion: what that reads
        ("zeros", "layer loop", "forward"),  # goes into a loop
        ("kept", "layer loop", "forward"),  # in a loop, and nothing near it says more
        ("alone", "other", "outside"),
    ],
)
def test_an_instruction_without_a_path_belongs_with_its_neighbours(name: str, category: str, in_pass: str) -> None:
    module = parse(NAMELESS)
    place = Places(module).of(module.home[name].by_name[name])
    assert (place.category, place.in_pass) == (category, in_pass)


def test_attention_in_tiles_is_attention_in_every_pass() -> None:
    """40 queries and keys in three tiles of 16: a loop within a loop, and a gradient of its own."""
    mask = BlockMask(np.zeros(40, int), np.zeros(40, int), jnp.ones((1, 40), bool))

    def loss(q: jax.Array) -> jax.Array:
        with jax.named_scope("layers"), jax.named_scope("attention"):
            return tiled(q, q, q, mask, runs(mask.query_block, mask.key_block, longest=16)).sum()

    module = parse(jax.jit(jax.grad(loss)).lower(jnp.ones((1, 40, 1, 4))).compile().as_text())
    paths = [instruction.op_name for visit in module.visits() for instruction in visit.computation.instructions]
    found = {place_of(path) for path in paths if path.endswith("dot_general")}
    assert found == {Place("attention", "", in_pass) for in_pass in ("forward", "backward", "recomputation")}


def compiled_micro(folder: Path, remat: str, layout: str, devices: int) -> Module:
    path = folder / "step.hlo"
    command = [sys.executable, str(COMPILED_MICRO), remat, layout, str(devices), str(path)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return parse(path.read_text())


def shares(module: Module) -> Counter[Place]:
    """Of the modelled cost of a step."""
    costs, places = Costs(module), Places(module)
    found: Counter[Place] = Counter()
    for instruction in module.entry.instructions:
        for part, cost in costs.parts(instruction.name):
            found[places.of(part)] += CPU.of(cost)  # type: ignore[assignment]
    whole = sum(found.values())
    return Counter({place: share / whole for place, share in found.items()})  # type: ignore[misc]


@pytest.mark.parametrize(
    ("remat", "layout", "devices", "most_other"),
    [
        pytest.param("full", "gather", 2, 0.12, id="gather"),  # a tenth of so small a model: small gradients, packed
        pytest.param("none", "auto", 1, 0.03, id="none", marks=pytest.mark.slow),
        pytest.param("dots_no_batch", "auto", 2, 0.03, id="auto", marks=pytest.mark.slow),
    ],
)
def test_the_train_step_of_pi0_falls_into_categories(
    tmp_path: Path, remat: str, layout: str, devices: int, most_other: float
) -> None:
    module = compiled_micro(tmp_path, remat, layout, devices)
    for computation in module.times:
        for instruction in module.computations[computation].instructions:
            if scopes_of(instruction.op_name):
                place = place_of(instruction.op_name)
                assert place.part != "no scope", instruction.op_name
    found = shares(module)
    by_category: Counter[str] = Counter()
    for place, share in found.items():
        by_category[place.category] += share  # type: ignore[assignment]
    assert by_category[OTHER] < most_other
    blocks = {"attention", "attention projections", "MLP", "norms"}
    for category in (*blocks, "vision", "action head", "embedding", "augmentation", "layer loop", "optimizer"):
        assert by_category[category] > 0, category
    parts = {place.part for place in found if place.category == "vision"}
    assert parts == blocks | {"patches and head", "layer loop"}
    for block in blocks:
        passes = {place.in_pass for place in found if place.category == block}
        again = {"recomputation"} if remat != "none" and block != "attention projections" else set()
        assert passes - {"recomputation"} == {"forward", "backward"}
        assert again <= passes
        assert remat != "none" or "recomputation" not in passes
