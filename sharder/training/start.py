"""Where a run starts: from random weights, from given ones, or where it or another run stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import jax

from sharder.config import Config
from sharder.run_folder import parse_resume
from sharder.training.checkpoint import Checkpoints, read_about, read_state
from sharder.training.meaning import check_meaning, meaning
from sharder.training.pretrained import read_weights
from sharder.training.state import TrainState, init_state, state_from_weights

T = TypeVar("T")


@dataclass(frozen=True)
class Start:
    state: TrainState
    step: int
    said: str  # for the log


def starting_state(config: Config, checkpoints: Checkpoints, fingerprint: str, target: TrainState) -> Start:
    """The run's own newest checkpoint comes first: a restarted command goes on, whatever it first started from."""
    found = _where(config, checkpoints)
    if found is not None:
        folder, step = found
        check_meaning(read_about(folder, step)["meaning"], meaning(config, fingerprint), f"{folder}/{step}")
        return Start(read_state(folder, step, target), step, f"resumed at step {step} from {folder}")
    shardings = jax.tree.map(lambda x: x.sharding, target)
    if config.model.weights is None:
        state = run_once(lambda: init_state(config), shardings)
        return Start(state, 0, "random weights")
    weights, said = read_weights(Path(config.model.weights), config)
    return Start(run_once(lambda: state_from_weights(weights, config), shardings), 0, said)


def run_once(make: Callable[[], T], shardings: T) -> T:
    """`make()`, its arrays created where they belong; compiled without effort, in a fifth of the time, to run once."""
    return jax.jit(make, out_shardings=shardings, compiler_options={"xla_backend_optimization_level": 0})()


def _where(config: Config, checkpoints: Checkpoints) -> tuple[Path, int] | None:
    """(folder of checkpoints, step) to resume from."""
    if checkpoints.newest is not None:
        return checkpoints.folder, checkpoints.newest
    resume = parse_resume(config.resume)
    return None if resume.folder is None else resume.checkpoint()
