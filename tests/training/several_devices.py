"""Trains the micro model for three steps on one device and on several, one case after another; prints JSON by case.

XLA_FLAGS=--xla_force_host_platform_device_count=4 python several_devices.py <quick | slow | memory>

Every layer's weights are split, however small, and the depths (vision 2, language 3) and the microbatches (4) are
different numbers, so that a loop of the compiled program is known by how often it runs.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from micro import CAMERAS, micro_config, random_batch

from sharder.config import AugmentConfig, Config, LayoutConfig, MeshConfig
from sharder.measure.collectives import collectives
from sharder.measure.hlo import parse
from sharder.parallel.mesh import make_mesh
from sharder.training.program import Program, make_program, on_devices
from sharder.training.state import TrainState, init_state, run_once

STEPS = 3
ONE = MeshConfig(1, 1)


@dataclass
class Case:
    mesh: MeshConfig
    layout: str = "gather"
    reduction: str = "auto"
    remat: str = "none"
    accumulation: int = 1
    compute_dtype: str = "float32"
    lora: bool = False
    attn: str = "naive"
    unroll: bool = False
    like: str | None = "one device"  # the case, run before, whose weights it should end with

    def config(self, batch_size: int = 32) -> Config:
        config = micro_config(Path("unused"), batch_size=batch_size, accumulation=self.accumulation)
        config.mesh, config.layout = self.mesh, LayoutConfig(self.layout, self.reduction, min_shard_bytes=64)
        config.remat.name, config.model.compute_dtype = self.remat, self.compute_dtype
        config.attn.name, config.work.unroll = self.attn, self.unroll
        model = config.model
        model.vision.depth, model.language.depth, model.action.depth = 2, 3, 3
        if self.lora:
            model.freeze, model.language.lora_rank, model.action.lora_rank = ["gemma/layers/language"], 4, 4
        config.data.augment = AugmentConfig(1.0, 0.0, 0.3, 0.0, 0.0)
        # AdamW turns rounding in a tiny gradient into a share of the learning rate.
        config.optimizer = dataclasses.replace(config.optimizer, learning_rate=5e-4, final_learning_rate=1e-4)
        return config


FSDP4, DP4, HSDP2X2 = MeshConfig(1, 4), MeshConfig(4, 1), MeshConfig(2, 2)
QUICK = {
    "one device": Case(ONE, like=None),
    "gather": Case(FSDP4),
    "gather hsdp2x2": Case(HSDP2X2),
    "accumulation 4": Case(FSDP4, accumulation=4, like="gather"),
    "one device lora": Case(ONE, lora=True, like=None),
    "lora accumulation 4": Case(FSDP4, lora=True, accumulation=4, like="one device lora"),
}
SLOW = {
    "one device": Case(ONE, like=None),
    "gather": Case(FSDP4),
    "gather dp4": Case(DP4),
    "auto": Case(FSDP4, "auto"),
    "published": Case(FSDP4, "published"),
    "transport": Case(FSDP4, reduction="transport", like="gather"),
    "transport hsdp2x2": Case(HSDP2X2, reduction="transport"),
    "full": Case(FSDP4, remat="full", like="gather"),
    "dots": Case(FSDP4, remat="dots", like="gather"),
    "unrolled": Case(FSDP4, unroll=True, like="gather"),
    "unrolled accumulation 2": Case(FSDP4, unroll=True, remat="dots", accumulation=2, like="gather"),
    "unrolled auto": Case(FSDP4, "auto", unroll=True),
    "flash": Case(FSDP4, attn="flash", remat="dots_no_batch", like="gather"),
    "accumulation 2": Case(FSDP4, accumulation=2, like="gather"),
    "accumulation 4 hsdp2x2": Case(HSDP2X2, accumulation=4, remat="full"),
    "one device bfloat16": Case(ONE, compute_dtype="bfloat16", like=None),
    "bfloat16": Case(FSDP4, compute_dtype="bfloat16", like="one device bfloat16"),
    "one device lora": Case(ONE, lora=True, like=None),
    "lora": Case(FSDP4, lora=True, like="one device lora"),
}
MEMORY = {f"accumulation {parts}": Case(FSDP4, accumulation=parts) for parts in (1, 2, 4)}


@dataclass
class Found:
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    off: dict[str, float] = field(default_factory=dict)  # furthest of each weight from the case it should be like
    misplaced: list[str] = field(default_factory=list)  # leaves of the new state that lie elsewhere than the old
    frozen: dict[str, list[Any]] = field(default_factory=dict)  # path -> [has moved, share of it on a device]
    warnings: list[str] = field(default_factory=list)
    share: float = 0.0  # of the state, on one device
    moves: list[dict[str, Any]] = field(default_factory=list)  # collectives of the compiled program
    layer_weights: dict[str, list[int]] = field(default_factory=dict)  # split ones -> dims of one layer's, whole


@cache
def in_haste() -> dict[str, Any]:
    """Little effort in the compiler's last stage, which knows no collectives; older ones have a faster one as well."""
    options: dict[str, Any] = {"xla_backend_optimization_level": 0}
    try:
        faster = options | {"xla_cpu_use_fusion_emitters": False}
        jax.jit(lambda x: x + 1).lower(0).compile(compiler_options=faster)
    except jax.errors.JaxRuntimeError:
        return options
    return faster


def compiled(case: Case, batch_size: int = 32) -> tuple[Program, jax.stages.Compiled]:
    config = case.config(batch_size)
    program = make_program(config, make_mesh(config.mesh, jax.devices()[: config.mesh.size]), CAMERAS)
    return program, program.lower().compile(compiler_options=in_haste())


def train(case: Case, ends: dict[str, TrainState]) -> tuple[Found, TrainState]:
    program, step = compiled(case)
    put_back, places = program.put_back(), program.places
    start = first_state(case.lora)
    state = jax.device_put(start, places)
    found = Found(moves=moves(step), layer_weights=layer_weights(program))
    for number in range(STEPS):
        state, metrics = step(state, on_devices(random_batch(program.config, number), program.batch))
        state = put_back(state)
        found.losses.append(float(metrics["loss"]))
        found.grad_norms.append(float(metrics["grad_norm"]))
    end = jax.device_get(state)
    if case.like is not None:
        wanted = ends[case.like].trainable
        found.off = {path: float(np.abs(end.trainable[path] - wanted[path]).max()) for path in wanted}
    for (path, leaf), place in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(places), strict=True):
        if not leaf.sharding.is_equivalent_to(place, leaf.ndim):
            found.misplaced.append(jax.tree_util.keystr(path))
    found.frozen = {
        path: [bool((end.frozen[path] != start.frozen[path]).any()), share(x)] for path, x in state.frozen.items()
    }
    found.share = share(state)
    return found, end


@cache
def first_state(lora: bool) -> TrainState:
    """On the host; how it will be placed changes none of it."""
    config = Case(ONE, lora=lora).config()
    return jax.device_get(run_once(lambda: init_state(config)))


def share(tree: Any) -> float:
    leaves = jax.tree.leaves(tree)
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves) / sum(leaf.nbytes for leaf in leaves)


def moves(step: jax.stages.Compiled) -> list[dict[str, Any]]:
    return [
        {
            "kind": one.kind,
            "loops": [loop.trip_count for loop in one.in_loop],
            "from": one.op_name,
            "dims": [list(shape.dims) for shape in one.results],
            "bytes": one.payload_bytes,
        }
        for one in collectives(parse(step.as_text()))
    ]


def layer_weights(program: Program) -> dict[str, list[int]]:
    split = {path: slicing for path, slicing in program.layout.items() if slicing.stacked and slicing.dim is not None}
    return {path: list(program.state.weights[path].shape[1:]) for path in split}


def main(which: str) -> dict[str, Any]:
    if which == "memory":
        return {
            name: compiled(case, batch_size=64)[1].memory_analysis().temp_size_in_bytes for name, case in MEMORY.items()
        }
    found: dict[str, Any] = {}
    ends: dict[str, TrainState] = {}
    for name, case in {"quick": QUICK, "slow": SLOW}[which].items():
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            one, ends[name] = train(case, ends)
        one.warnings = [str(warning.message) for warning in warned]
        found[name] = dataclasses.asdict(one)
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
