"""Saves checkpoints as a run on eight devices does, batch=2 fsdp=4: steps 10 and 20 of 30.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python save_on_eight.py <root of run folders>
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sharder.config import Config, MeshConfig
from sharder.parallel.mesh import FSDP, make_mesh
from sharder.run_folder import claim
from sharder.training.checkpoint import Checkpoints
from sharder.training.state import TrainState

MESH = MeshConfig(2, 4)


def state() -> TrainState:
    mesh = make_mesh(MESH)

    def array(shape: tuple[int, ...], dtype: Any, *split: str | None) -> jax.Array:
        return jax.device_put(jnp.full(shape, 0.5, dtype), NamedSharding(mesh, P(*split)))

    kernel = array((3, 16, 8), jnp.bfloat16, None, FSDP)
    return TrainState(
        step=array((), jnp.int32),
        trainable={"gemma/layers/kernel": kernel, "gemma/table": array((264, 16), jnp.float32, FSDP)},
        frozen={"vision/bias": array((7,), jnp.float32)},
        optimizer=(array((), jnp.int32), kernel),
        ema=None,
    )


def main(root: str) -> None:
    config = Config()
    config.run.root, config.run.id, config.mesh, config.train.steps = root, "eight", MESH, 30
    config.checkpoint.keep = 5
    folder = claim(config, [])
    with Checkpoints(folder.path / "checkpoints", config.checkpoint) as checkpoints:
        for step in (10, 20):
            checkpoints.save(state(), step, {"step": step, "config": dataclasses.asdict(config)})
    folder.release()


if __name__ == "__main__":
    main(sys.argv[1])
