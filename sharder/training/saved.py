"""What acts in a checkpoint: its weights, its normalization and the cameras they were trained with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sharder.config import Config
from sharder.data.normalize import Normalization
from sharder.model.weight import Weights
from sharder.parallel.mesh import make_mesh
from sharder.run_folder import parse_resume
from sharder.training.meaning import saved_normalization
from sharder.training.program import placed_state
from sharder.training.restore import read_about, read_best_weights, whole_step


@dataclass(frozen=True)
class SavedPolicy:
    path: Path  # <run.root>/<run.name>/<run.id>/checkpoints/<step>
    weights: Weights  # the averaged ones where there are any
    normalization: Normalization
    cameras: tuple[str, ...]

    @property
    def step(self) -> int:
        return int(self.path.name)

    @property
    def run_name(self) -> str:
        """What `run.name` was."""
        return self.path.parents[2].name


def read_policy(config: Config) -> SavedPolicy:
    """The one that `config.resume` names, placed on the mesh of `config`."""
    resume = parse_resume(config.resume)
    checkpoints, step = resume.checkpoint()
    step = whole_step(checkpoints, step, chosen=resume.step is not None)
    saved = read_about(checkpoints, step)
    target, _ = placed_state(config, make_mesh(config.mesh))
    weights = read_best_weights(checkpoints, step, target)
    return SavedPolicy(checkpoints / str(step), weights, saved_normalization(saved), tuple(saved["cameras"]))
