"""Where a run starts: from random weights, from given ones, or where it or another run stopped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import numpy as np

from sharder.config import Config
from sharder.data.dataset import Dataset
from sharder.errors import UserError
from sharder.parallel.agreement import Hosts
from sharder.run_folder import checkpoint_steps, parse_resume
from sharder.training.checkpoint import Checkpoints
from sharder.training.meaning import check_meaning, meaning
from sharder.training.pretrained import read_weights, warn_of_other_statistics
from sharder.training.restore import read_about, read_state, whole_step
from sharder.training.state import TrainState, init_state, run_once, state_from_weights


@dataclass(frozen=True)
class Start:
    state: TrainState
    step: int
    said: str  # for the log


def starting_state(data: Dataset, checkpoints: Checkpoints, target: TrainState, hosts: Hosts) -> Start:
    """The run's own newest checkpoint comes first: a restarted command goes on, whatever it first started from.

    Process 0 looks where that is and tells the others: file systems show different processes different things.
    """
    config = data.config
    where = json.dumps(_where(config, checkpoints)) if hosts.index == 0 else None
    found = json.loads(hosts.decide("where to start", where))
    checkpoints.look_again()
    if found is not None:
        folder, step = Path(found[0]), int(found[1])
        check_meaning(read_about(folder, step)["meaning"], meaning(data), f"{folder}/{step}")
        return Start(read_state(folder, step, target), step, f"resumed at step {step} from {folder}")
    shardings = jax.tree.map(lambda x: x.sharding, target)
    if config.model.weights is None:
        state = run_once(partial(init_state, config), shardings=shardings)
        return Start(state, 0, "random weights")
    weights, said = read_weights(Path(config.model.weights), config)
    warn_of_other_statistics(Path(config.model.weights), data)
    weights = {
        path: jax.make_array_from_callback(value.shape, shardings.weights[path], np.asarray(value).__getitem__)
        for path, value in weights.items()
    }
    return Start(run_once(partial(state_from_weights, config=config), weights, shardings=shardings), 0, said)


def _where(config: Config, checkpoints: Checkpoints) -> tuple[str, int] | None:
    """(folder of checkpoints, step) to resume from."""
    resume = parse_resume(config.resume)
    own, newest = checkpoints.folder, checkpoints.newest_whole()
    if newest is not None:
        of_own = resume.folder is not None and (resume.folder / "checkpoints").resolve() == own.resolve()
        if of_own and resume.step not in (None, newest):
            raise UserError(
                f"resume: found step {resume.step} of the run's own folder, which is at step {newest} already; "
                "allowed: auto, or another run.id to branch off from there"
            )
        return str(own), newest
    if resume.folder is None or not checkpoint_steps(resume.folder):
        return None
    wanted = resume.checkpoint()
    return str(wanted[0]), whole_step(*wanted, chosen=resume.step is not None)
