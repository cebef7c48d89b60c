"""A run small enough for a test: a micro pi0 on a dozen demonstrations of the planar arm."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sharder.config import AugmentConfig, Config, ExpertConfig, ModelConfig, OptimizerConfig, VisionConfig
from sharder.model.execution import Execution
from sharder.parallel.mesh import make_mesh
from sharder.training.program import abstract_batch, placed_state
from sharder.training.state import TrainState, init_state, run_once
from sharder.training.step import Batch, make_train_step

CAMERAS = ("base_0_rgb", "left_wrist_0_rgb")


def micro_config(tmp_path: Path, **train: Any) -> Config:
    """`train` sets keys of the train section."""
    config = Config()
    config.run.root, config.run.id = str(tmp_path), "run"
    config.model = ModelConfig(
        name="micro",
        vision=VisionConfig(16, 1, 32, 2, 8),
        language=ExpertConfig(16, 2, 32, 2, 1, 8),
        action=ExpertConfig(16, 2, 32, 2, 1, 8),
        vocabulary=264,
        image_size=16,
        action_dim=4,
        horizon=4,
        prompt_tokens=24,
        compute_dtype="float32",
    )
    config.data.planar_arm.episodes, config.data.planar_arm.image_size = 6, 16
    config.data.workers = 0
    config.data.augment = AugmentConfig()
    config.optimizer = OptimizerConfig(3e-3, 1e-3, warmup_steps=2, decay_steps=100, ema_decay=0.9)
    config.tracking.mode = "off"
    config.evaluation = dataclasses.replace(config.evaluation, at_start=False, at_end=False)
    config.checkpoint.every_steps = 1000
    defaults = {"steps": 6, "batch_size": 8, "log_every": 1, "seed": 0}
    config.train = dataclasses.replace(config.train, **(defaults | train))
    return config


def initial_state(config: Config) -> TrainState:
    return run_once(lambda: init_state(config))


def random_batch(config: Config, seed: int = 0, cameras: tuple[str, ...] = CAMERAS) -> Batch:
    """A batch of the right shapes, without a recording."""
    random = np.random.default_rng(seed)

    def draw(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        if leaf.dtype == np.uint8:
            return random.integers(0, 256, leaf.shape, np.uint8)
        if leaf.dtype == np.bool_:
            return np.ones(leaf.shape, bool)
        if leaf.dtype == np.int32:
            return random.integers(0, 250, leaf.shape, np.int32)
        return random.standard_normal(leaf.shape, np.float32)

    return jax.tree.map(draw, abstract_batch(config, cameras))


def target(config: Config) -> TrainState:
    """The abstract state, placed."""
    return placed_state(config, make_mesh(config.mesh))[0]


def train_step(config: Config, execution: Execution | None = None) -> Any:
    mesh = make_mesh(config.mesh)
    return make_train_step(config, execution or Execution(), mesh, placed_state(config, mesh)[1])


def assert_same_state(one: TrainState, other: TrainState) -> None:
    """To the bit, leaf by leaf."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for (path, a), (_, b) in zip(
        jax.tree_util.tree_leaves_with_path(one), jax.tree_util.tree_leaves_with_path(other), strict=True
    ):
        np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))
