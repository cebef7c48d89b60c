"""What a train step moves: everything there is to save, and nothing that could be derived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax

from sharder.config import Config, ModelConfig
from sharder.errors import UserError
from sharder.model.pi0 import init_weights
from sharder.model.weight import Weights
from sharder.parallel.compile_cache import every_process_writes
from sharder.training.optimizer import make_optimizer

T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    step: jax.Array  # int32 []: steps done; the data position, every random draw and the schedule follow from it
    trainable: Weights
    frozen: Weights
    optimizer: optax.OptState
    ema: Weights | None  # average of `trainable`

    @property
    def weights(self) -> Weights:
        return self.trainable | self.frozen

    @property
    def best_weights(self) -> Weights:
        """What to act with: the average where there is one."""
        return (self.trainable if self.ema is None else self.ema) | self.frozen


def is_frozen(path: str, config: ModelConfig) -> bool:
    """LoRA corrections are always trained."""
    return "/lora/" not in path and any(path.startswith(prefix) for prefix in config.freeze)


def split_frozen(weights: Weights, config: ModelConfig) -> tuple[Weights, Weights]:
    """(trainable, frozen). A prefix in `model.freeze` that freezes nothing is a UserError, and so is freezing all."""
    for prefix in config.freeze:
        if not any(path.startswith(prefix) for path in weights):
            heads = sorted({path.split("/")[0] for path in weights})
            raise UserError(
                f"model.freeze: '{prefix}' begins no weight's path; paths begin with {', '.join(heads)} "
                "(for example gemma/layers/language)"
            )
    frozen = {path: value for path, value in weights.items() if is_frozen(path, config)}
    trainable = {path: value for path, value in weights.items() if path not in frozen}
    if not trainable:
        raise UserError("model.freeze: nothing is left to train; freeze fewer weights or set a lora_rank")
    return trainable, frozen


def state_from_weights(weights: Weights, config: Config) -> TrainState:
    trainable, frozen = split_frozen(weights, config.model)
    ema = None if config.optimizer.ema_decay is None else jax.tree.map(jnp.copy, trainable)
    return TrainState(
        jnp.zeros((), jnp.int32), trainable, frozen, make_optimizer(config.optimizer).init(trainable), ema
    )


def init_state(config: Config) -> TrainState:
    """Random weights: a pure function of the seed."""
    return state_from_weights(init_weights(config.model, jax.random.key(config.train.seed)), config)


def run_once(make: Callable[..., T], *arguments: Any, shardings: T | None = None) -> T:
    """`make(*arguments)`, its arrays created in place; compiled without effort, a fifth of the time, to run once."""
    options = {"xla_backend_optimization_level": 0}
    lowered = jax.jit(make, out_shardings=shardings, compiler_options=options).lower(*arguments)
    with every_process_writes():
        compiled = lowered.compile()
    made: T = compiled(*arguments)
    return made


def abstract_state(config: Config) -> TrainState:
    """Shapes and dtypes, no memory."""
    return jax.eval_shape(lambda: init_state(config))


def state_bytes(state: TrainState) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
