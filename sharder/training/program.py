"""The train step as a program: its inputs by shape and place, lowered for whatever devices its mesh has.

The same function serves training here and compiling for hardware that is not: only the mesh's devices differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from sharder.config import Config
from sharder.model.execution import Execution, make_execution
from sharder.parallel.compile_cache import every_process_writes
from sharder.parallel.layout import Layout, make_layout, placed, placements
from sharder.parallel.mesh import batch_split
from sharder.training.overlap import compiler_options, refused_option
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
        unread = not self.config.optimizer.updates  # the last step's gradients: this step's take their place
        return jax.jit(step, donate_argnums=0, out_shardings=outputs, keep_unused=unread).lower(self.state, self.batch)

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
        """`more`: compiler options beside those of the config. UserError: one of those is none."""
        options = compiler_options(self.config, self.mesh) | dict(more or {})
        lowered = lowered or self.lower()
        with every_process_writes(self.mesh):
            try:
                return lowered.compile(compiler_options=options)
            except jax.errors.JaxRuntimeError as error:
                raise refused_option(error) or error from None


def make_program(config: Config, mesh: Mesh, cameras: tuple[str, ...]) -> Program:
    state, layout = placed_state(config, mesh)
    batch = placed(abstract_batch(config, cameras), batch_split(mesh))
    return Program(config, mesh, layout, make_execution(config), state, batch)


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
