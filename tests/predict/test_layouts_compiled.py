"""What XLA makes of the layouts: a train step of full pi0, compiled for H100s that are not here.

XLA unrolls and pipelines loops as it likes (a gather of 18 layers is one of 17 turns and one in front), so totals are
asserted, tensor by tensor, and not how often a loop turns.
"""

import math
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from plan_extra import needs_plan_extra

from sharder.measure.hlo import Module, parse
from sharder.parallel.layout import Slicing
from sharder.predict.communication import ACTIVATIONS, EMBEDDING, GRADIENTS, LAYER_WEIGHTS, Row

SCRIPT = Path(__file__).parent / "compiled_layout.py"
BF16 = 2  # bytes
pytestmark = [
    pytest.mark.compile,
    pytest.mark.slow,
    needs_plan_extra,
]


@dataclass(frozen=True)
class Compiled:
    """As compiled_layout.py wrote it down."""

    text: str
    rows: list[Row]
    ideal: dict[str, int]
    memory: dict[str, int]
    state_bytes: int  # of one device that holds everything
    device_bytes: int  # state and batch, of one device here
    misplaced: int
    weights: dict[str, tuple[tuple[int, ...], Slicing, bool]]  # shape, how it is held, is it trained

    @cached_property
    def module(self) -> Module:
        return parse(self.text)

    @cached_property
    def split_layer_weights(self) -> dict[str, int]:
        """Path to how many numbers, all layers together."""
        return {
            path: math.prod(shape)
            for path, (shape, slicing, _) in self.weights.items()
            if slicing.stacked and slicing.dim is not None
        }

    @cached_property
    def arrays(self) -> set[tuple[int, ...]]:
        """The dims of everything anywhere in the program, sorted, without those of 1."""
        computations = self.module.computations.values()
        shapes = (shape for one in computations for instruction in one.instructions for shape in instruction.shapes)
        return {tuple(sorted(size for size in shape.dims if size != 1)) for shape in shapes}

    def bf16_bytes(self, what: Iterable[str]) -> dict[str, int]:
        return {paths: sum(BF16 * self.split_layer_weights[path] for path in paths.split(" | ")) for paths in what}


Compile = Callable[..., Compiled]


@pytest.fixture(scope="module")
def compile_layout(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Each program once, in a process of its own: jax decides once about the GPU plugin."""
    made: dict[tuple[str, ...], Compiled] = {}

    def compile_layout(layout: str, mesh: str = "fsdp4", hosts: int = 1) -> Compiled:
        key = (layout, mesh, str(hosts))
        if key not in made:
            folder = tmp_path_factory.mktemp("-".join(key))
            environment: dict[str, Any] = {**os.environ, "JAX_PLATFORMS": "cpu"}
            environment.pop("XLA_FLAGS", None)
            child = [sys.executable, str(SCRIPT), *key, str(folder)]
            done = subprocess.run(child, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            facts = pickle.loads((folder / "facts.pickle").read_bytes())
            made[key] = Compiled((folder / "program.hlo").read_text(), **facts)
        return made[key]

    return compile_layout


def in_loops(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.collective.in_loop]


def bytes_by_weight(rows: list[Row]) -> dict[str, int]:
    """`what` (weights of the same dims share one) to payload bytes."""
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row.what] += row.payload_bytes
    return dict(totals)


def payload(rows: list[Row], *kinds: str) -> int:
    return sum(row.payload_bytes for row in rows if not kinds or row.kind in kinds)


def test_gather_moves_no_activation_in_any_loop(compile_layout: Compile) -> None:
    rows = in_loops(compile_layout("gather").rows)
    assert payload(rows) > 14e9  # of 16.3 in all; the rest is in the turns that XLA peels off
    assert {(row.kind, row.tensor) for row in rows} == {("all-gather", LAYER_WEIGHTS), ("reduce-scatter", GRADIENTS)}


def assert_each_layer_weight_once(step: Compiled, moved: list[Row]) -> None:
    """Every split weight of the layers, or its gradient, in bfloat16, while something else runs."""
    found = bytes_by_weight(moved)
    assert found == step.bf16_bytes(found)
    assert {path for what in found for path in what.split(" | ")} == set(step.split_layer_weights)
    for row in moved:
        assert row.dtype == "bf16"
        assert row.is_async and row.work_between, f"{row.what} is waited for where it is started"


@pytest.mark.parametrize("backward", [False, True])
def test_gather_gathers_every_layer_weight_once_in_each_direction(compile_layout: Compile, backward: bool) -> None:
    """In bfloat16, while something else runs. The backward pass gathers again rather than keep what it gathered."""
    step = compile_layout("gather")
    gathers = [row for row in step.rows if row.kind == "all-gather" and row.tensor == LAYER_WEIGHTS]
    gathers = [row for row in gathers if ("transpose(jvp(" in row.collective.op_name) == backward]

    assert_each_layer_weight_once(step, gathers)


def test_gather_scatters_every_gradient_once(compile_layout: Compile) -> None:
    """Those of the layers in bfloat16, while something else runs."""
    step = compile_layout("gather")
    scattered = [row for row in step.rows if row.kind == "reduce-scatter" and row.tensor == GRADIENTS]
    of_layers = [row for row in scattered if row.what.split(" | ")[0] in step.split_layer_weights]

    assert_each_layer_weight_once(step, of_layers)


def test_gather_moves_what_the_shapes_say(compile_layout: Compile) -> None:
    """Two gathers and one scatter of 2.7 billion bfloat16 numbers, the few tensors outside the layers, no table."""
    step = compile_layout("gather")
    assert 16.2e9 < sum(step.ideal.values()) < 16.4e9
    assert payload(step.rows) == pytest.approx(sum(step.ideal.values()), rel=0.05)
    for kind, ideal in step.ideal.items():
        assert payload(step.rows, kind) == pytest.approx(ideal, rel=0.05)


@pytest.mark.parametrize("layout", ["gather", "auto"])
def test_a_device_holds_a_quarter_of_the_state_and_gives_it_back_in_place(compile_layout: Compile, layout: str) -> None:
    step = compile_layout(layout)
    assert step.memory["arguments"] == pytest.approx(step.device_bytes, rel=1e-3)
    assert step.memory["arguments"] == pytest.approx(step.state_bytes / 4, rel=0.05)
    assert step.memory["outputs"] == pytest.approx(step.state_bytes / 4, rel=0.05)
    assert step.memory["in_place"] == pytest.approx(step.memory["outputs"], rel=1e-4)
    assert step.misplaced == 0


@pytest.mark.parametrize("layout", ["gather", "auto"])
def test_no_device_ever_holds_a_whole_gradient(compile_layout: Compile, layout: str) -> None:
    """Of a stack of layers, or of the token table: no array of those dims is anywhere in the program."""
    step = compile_layout(layout)
    for path, (shape, slicing, is_trained) in step.weights.items():
        if is_trained and slicing.dim is not None and (slicing.stacked or path == "gemma/table"):
            assert tuple(sorted(size for size in shape if size != 1)) not in step.arrays, path
            parts = [size // 4 if dim == slicing.dim else size for dim, size in enumerate(shape)]
            assert tuple(sorted(size for size in parts if size != 1)) in step.arrays, path


def test_auto_moves_activations_where_they_are_smaller_than_weights(compile_layout: Compile) -> None:
    """At 4 samples a GPU: those of the MLPs, and the weights of attention; in all far less than gather does."""
    rows = in_loops(compile_layout("auto").rows)
    moved = {tensor: payload([row for row in rows if row.tensor == tensor]) for tensor in (ACTIVATIONS, LAYER_WEIGHTS)}
    assert moved[ACTIVATIONS] > moved[LAYER_WEIGHTS] > 0.2 * payload(rows)
    assert payload(rows) < 0.65 * payload(in_loops(compile_layout("gather").rows))


def test_groups_gather_within_a_host_and_sum_slices_between_hosts(compile_layout: Compile) -> None:
    """Two hosts of four: only a quarter of the gradients crosses from one host to the other."""
    step = compile_layout("gather", "hsdp2x4", 2)
    for row in step.rows:
        if row.kind in ("all-gather", "reduce-scatter", "all-to-all") and row.payload_bytes > 1000:
            assert set(row.collective.groups) == {(0, 1, 2, 3), (4, 5, 6, 7)}, row.what
    summed = [row for row in step.rows if row.kind == "all-reduce" and row.what != "packed"]
    assert {row.tensor for row in summed} == {GRADIENTS, EMBEDDING}
    for row in summed:
        assert set(row.collective.groups) == {(0, 4), (1, 5), (2, 6), (3, 7)}, row.what
    assert {row.tensor for row in in_loops(step.rows)} == {LAYER_WEIGHTS, GRADIENTS}
    for kind, ideal in step.ideal.items():
        assert payload(step.rows, kind) == pytest.approx(ideal, rel=0.05)
    assert step.memory["arguments"] == pytest.approx(step.state_bytes / 4, rel=0.05)
