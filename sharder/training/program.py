"""The train step as a program: its inputs by shape and place, lowered for whatever devices its mesh has.

The same function serves training here and compiling for hardware that is not: only the mesh's devices differ.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from sharder.config import Config
from sharder.model.execution import Execution
from sharder.parallel.compile_cache import every_process_writes
from sharder.parallel.layout import Layout, make_layout, placed, placements
from sharder.parallel.mesh import FSDP, batch_split
from sharder.training.state import TrainState, abstract_state
from sharder.training.step import Batch, make_train_step


@dataclass(frozen=True)
class Program:
    """`state` and `batch` are abstract: shapes, dtypes and shardings."""

    config: Config
    mesh: Mesh
    layout: Layout
    execution: Execution
    state: TrainState
    batch: Batch

    def lower(self) -> jax.stages.Lowered:
        """The state is donated, and comes back placed as it went in; with layout published, as XLA likes."""
        step = make_train_step(self.config, self.execution, self.mesh, self.layout)
        outputs = None if self.config.layout.name == "published" else (self.places, None)
        return jax.jit(step, donate_argnums=0, out_shardings=outputs).lower(self.state, self.batch)

    @property
    def places(self) -> TrainState:
        return jax.tree.map(lambda leaf: leaf.sharding, self.state)

    def put_back(self) -> Callable[[TrainState], TrainState]:
        """What a step's new state goes through before the next step: nothing, unless XLA chose where it lies."""
        if self.config.layout.name != "published":
            return lambda state: state
        return jax.jit(lambda state: state, out_shardings=self.places)

    def compile(
        self, lowered: jax.stages.Lowered | None = None, more: Mapping[str, Any] | None = None
    ) -> jax.stages.Compiled:
        """`more`: compiler options beside those of the layout."""
        options = compiler_options(self.config, self.mesh) | dict(more or {})
        lowered = lowered or self.lower()
        with every_process_writes(self.mesh):
            return lowered.compile(compiler_options=options)


def compiler_options(config: Config, mesh: Mesh, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What the layout needs of XLA beyond its defaults. A flag that the user has put in XLA_FLAGS stays as it is."""
    if config.layout.name != "gather" or mesh.shape[FSDP] == 1 or mesh.devices.flat[0].platform != "gpu":
        return {}
    # Start the next layer's gather in this turn of the loop. Without it each gather of a layer is waited for in the
    # turn that starts it, with only that layer's own work to hide behind. The flag changed its name in jax 0.11.1.
    options: dict[str, Any]
    if jax.__version_info__ < (0, 11, 1):
        options = {"xla_gpu_enable_pipelined_all_gather": True}
    else:
        options = {"xla_gpu_pipeline_all_gather": "COLLECTIVE_PIPELINING_MODE_ON"}
    set_by_user = {flag.split("=")[0].lstrip("-") for flag in environ.get("XLA_FLAGS", "").split()}
    return {name: value for name, value in options.items() if name not in set_by_user}


def make_program(config: Config, mesh: Mesh, cameras: tuple[str, ...]) -> Program:
    state, layout = placed_state(config, mesh)
    batch = placed(abstract_batch(config, cameras), batch_split(mesh))
    return Program(config, mesh, layout, Execution(config.attn.name, config.remat.name), state, batch)


def placed_state(config: Config, mesh: Mesh) -> tuple[TrainState, Layout]:
    """The abstract state, every leaf with its place, and the table of who holds what."""
    state = abstract_state(config)
    layout = make_layout(state.weights, config.layout, mesh)
    return placed(state, placements(state, layout, mesh)), layout


def abstract_batch(config: Config, cameras: tuple[str, ...]) -> Batch:
    """The global batch as the train step takes it: see data/pipeline.py."""
    B, model = config.train.batch_size, config.model
    shape = jax.ShapeDtypeStruct
    return {
        "images": {camera: shape((B, model.image_size, model.image_size, 3), np.uint8) for camera in cameras},
        "image_masks": {camera: shape((B,), np.bool_) for camera in cameras},
        "tokens": shape((B, model.prompt_tokens), np.int32),
        "token_mask": shape((B, model.prompt_tokens), np.bool_),
        "state": shape((B, model.action_dim), np.float32),
        "actions": shape((B, model.horizon, model.action_dim), np.float32),
    }


def on_devices(batch: Batch, target: Batch) -> Batch:
    """This process's part of the global batch, placed; what the step does not take (the example ids) stays here."""
    kept = {name: batch[name] for name in target}
    return jax.tree.map(lambda x, t: jax.make_array_from_process_local_data(t.sharding, x, t.shape), kept, target)
