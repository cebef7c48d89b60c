"""Where a run starts: from random weights, from given ones, or where it or another run stopped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from sharder.config import Config
from sharder.model.pi0 import init_weights
from sharder.run_folder import checkpoint_steps, parse_resume
from sharder.training.checkpoint import Checkpoints, read_about, read_state
from sharder.training.meaning import check_meaning, meaning
from sharder.training.pretrained import read_weights
from sharder.training.state import TrainState, state_from_weights


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
        make = jax.jit(lambda key: state_from_weights(init_weights(config.model, key), config), out_shardings=shardings)
        return Start(make(jax.random.key(config.train.seed)), 0, "random weights")
    weights, said = read_weights(Path(config.model.weights), config)
    make = jax.jit(lambda weights: state_from_weights(weights, config), out_shardings=shardings)
    return Start(make(weights), 0, said)


def _where(config: Config, checkpoints: Checkpoints) -> tuple[Path, int] | None:
    """(folder of checkpoints, step) to resume from."""
    if checkpoints.newest is not None:
        return checkpoints.folder, checkpoints.newest
    resume: Any = parse_resume(config.resume)
    if resume.folder is None:
        return None
    return resume.folder / "checkpoints", resume.step or checkpoint_steps(resume.folder)[-1]
