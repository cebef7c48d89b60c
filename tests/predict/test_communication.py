"""What a program moves, by tensor: on a micro pi0, compiled for 4 simulated devices, and on a text written by hand."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jax.sharding import AbstractMesh

from sharder.config import Config
from sharder.measure.hlo import parse
from sharder.parallel.mesh import BATCH, FSDP
from sharder.predict.communication import Row, ideal_bytes, of, table, totals
from sharder.training.program import Program, make_program

MICRO = Path(__file__).parent.parent / "training" / "micro.py"


def micro_config(batch: int, fsdp: int, reduction: str = "transport") -> Config:
    spec = importlib.util.spec_from_file_location("micro", MICRO)
    assert spec is not None and spec.loader is not None
    micro = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(micro)
    config: Config = micro.micro_config(Path("/nowhere"))
    config.model.vision.depth = 2
    config.mesh.batch, config.mesh.fsdp, config.remat.name = batch, fsdp, "full"
    config.layout.reduction, config.layout.min_shard_bytes = reduction, 512
    return config


def program(batch: int = 1, fsdp: int = 4, accumulation: int = 1) -> Program:
    """Of devices that are nowhere."""
    config = micro_config(batch, fsdp)
    config.train.accumulation = accumulation
    return make_program(config, AbstractMesh((batch, fsdp), (BATCH, FSDP)), ("base_0_rgb",))  # type: ignore[arg-type]


def module_of(*lines: str) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"HloModule m, num_partitions=4\n\nENTRY %main (p: f32[]) -> f32[] {{\n{body}\n}}\n"


def rows_of(*lines: str) -> list[Row]:
    return of(program(), parse(module_of(*lines)))


GROUPS = "replica_groups={{0,1,2,3}}"


def test_a_gathered_tensor_is_a_weight_by_its_dims_in_any_order() -> None:
    (row,) = rows_of(
        "%w = bf16[16,8]{1,0} parameter(0)",
        f"%g = bf16[16,32]{{1,0}} all-gather(%w), dimensions={{1}}, {GROUPS}",
    )
    assert (row.kind, row.tensor, row.dtype, row.dims) == ("all-gather", "layer weights", "bf16", (16, 32))
    assert "gemma/layers/language/mlp/down" in row.what and "gemma/layers/language/mlp/up" in row.what
    assert (row.payload_bytes, row.sent_bytes, row.is_async) == (16 * 32 * 2, 16 * 32 * 2 * 3 / 4, False)


def test_what_is_summed_is_a_gradient_and_the_small_ones_travel_packed() -> None:
    small = sum(weight.size for path, weight in program().state.trainable.items() if program().layout[path].together)
    rows = rows_of(
        "%d = f32[8,8,3,16]{3,2,1,0} parameter(0)",
        f"%r = f32[8,8,3,4]{{3,2,1,0}} reduce-scatter(%d), dimensions={{3}}, {GROUPS}, to_apply=%add",
        f"%s = f32[{small}]{{0}} parameter(1)",
        f"%a = f32[{small}]{{0}} all-reduce(%s), {GROUPS}, to_apply=%add",
    )
    assert [(row.tensor, row.what) for row in rows] == [("gradients", "vision/patch_kernel"), ("gradients", "packed")]
    assert rows[0].dims == (8, 8, 3, 16)  # before it is scattered
    assert rows[1].sent_bytes == small * 4 * 2 * 3 / 4  # reduced, and gathered again


def test_what_is_no_weight_is_an_activation_a_row_of_the_table_or_a_few_numbers() -> None:
    rows = rows_of(
        "%x = bf16[2,97,16]{2,1,0} parameter(0)",
        f"%a = bf16[8,97,16]{{2,1,0}} all-gather(%x), dimensions={{0}}, {GROUPS}",
        "%t = s32[2,24]{1,0} parameter(1)",
        f"%b = s32[8,24]{{1,0}} all-gather(%t), dimensions={{0}}, {GROUPS}",
        "%n = f32[1]{0} parameter(2)",
        f"%c = f32[4]{{0}} all-gather(%n), dimensions={{0}}, {GROUPS}",
        "%d = f32[264,16]{1,0} parameter(3)",
        f"%e = f32[264,16]{{1,0}} all-reduce(%d), {GROUPS}, to_apply=%add",
    )
    assert [row.tensor for row in rows] == ["activations", "embedding", "other", "embedding"]
    assert [row.what for row in rows] == ["activations", "rows", "other", "gemma/table"]


def test_several_tensors_of_one_collective_are_a_row_each() -> None:
    rows = rows_of(
        "%w = f32[4,32]{1,0} parameter(0)",
        "%x = f32[2,97,16]{2,1,0} parameter(1)",
        f"%g = (f32[16,32]{{1,0}}, f32[8,97,16]{{2,1,0}}) all-gather(%w, %x), dimensions={{0}}, {GROUPS}",
    )
    weight, activation = totals(rows)[::-1]
    assert (weight.tensor, weight.payload_bytes, weight.count) == ("layer weights", 16 * 32 * 4, 1)
    assert (activation.tensor, activation.payload_bytes, activation.count) == ("activations", 8 * 97 * 16 * 4, 1)


def test_the_table_says_what_hides_behind_work() -> None:
    rows = rows_of(
        "%w = bf16[1024,64]{1,0} parameter(0)",
        "%s = (bf16[1024,64]{1,0}, bf16[4096,64]{1,0}) all-gather-start(%w), dimensions={0}, " + GROUPS,
        "%y = bf16[1024,64]{1,0} negate(%w)",
        "%g = bf16[4096,64]{1,0} all-gather-done(%s)",
        f"%h = bf16[12288,64]{{1,0}} all-gather(%g), dimensions={{0}}, {GROUPS}",
    )
    assert [(total.count, total.hidden_share) for total in totals(rows)] == [(2, 0.25)]
    assert table({"auto": rows}).splitlines()[2] == "| auto | all-gather | activations | 0.002 | 0.002 | 2 | 25% |"


def test_the_ideal_is_two_gathers_of_each_layer_weight_a_microbatch_and_one_scatter() -> None:
    once, thrice = ideal_bytes(program()), ideal_bytes(program(accumulation=3))
    layers = 0
    for path, weight in program().state.weights.items():
        slicing = program().layout[path]
        if slicing.stacked and slicing.dim is not None:
            layers += weight.size * 4
    assert thrice["all-gather"] - once["all-gather"] == 2 * 2 * layers
    assert {kind: once[kind] for kind in ("reduce-scatter", "all-reduce")} == {
        kind: thrice[kind] for kind in ("reduce-scatter", "all-reduce")
    }
    assert once["all-to-all"] == 2 * 2 * 24 * 16 * 4  # rows and their gradients: examples, tokens, width, float32


def test_frozen_weights_are_gathered_and_never_summed() -> None:
    config = micro_config(1, 4)
    config.model.freeze = ["vision", "gemma/layers/language"]
    mesh = AbstractMesh((1, 4), (BATCH, FSDP))
    frozen, trained = (ideal_bytes(make_program(c, mesh, ("base_0_rgb",))) for c in (config, micro_config(1, 4)))  # type: ignore[arg-type]
    assert frozen["all-gather"] == trained["all-gather"]
    assert frozen["reduce-scatter"] < trained["reduce-scatter"]
    assert frozen["all-reduce"] < trained["all-reduce"]


def test_one_device_and_plain_data_parallelism_gather_nothing() -> None:
    assert ideal_bytes(program(1, 1)) == {}
    state = program(4, 1).state
    assert ideal_bytes(program(4, 1)) == {"all-reduce": sum(weight.size * 4 for weight in state.trainable.values())}


COMPILES = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from collections import Counter
from test_communication import micro_config
from sharder.measure.hlo import parse
from sharder.parallel.mesh import make_mesh
from sharder.predict.communication import ideal_bytes, of
from sharder.training.program import make_program

config = micro_config(2, 2, sys.argv[1])
program = make_program(config, make_mesh(config.mesh), ("base_0_rgb",))
found = Counter()
for row in of(program, parse(program.compile(more={{"xla_backend_optimization_level": 0}}).as_text())):
    found[row.tensor if row.tensor in ("other", "activations") else row.kind] += row.payload_bytes
print(json.dumps([found, ideal_bytes(program)]))
"""


@pytest.mark.parametrize("reduction", ["transport", "fixed_order"])
def test_a_compiled_step_moves_what_the_shapes_say_to_the_byte(reduction: str) -> None:
    """Two groups of two; but for loss and norm, which are a few numbers."""
    flags = "--xla_force_host_platform_device_count=4"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "2"}
    child = [sys.executable, "-c", COMPILES, reduction]
    done = subprocess.run(child, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, ideal = json.loads(done.stdout)
    assert 0 < found.pop("other") < 100
    assert found == ideal
