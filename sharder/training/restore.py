"""Reads checkpoints: for the devices at hand, whatever devices wrote them; what is damaged is named.

What acts (ema or trainable, and frozen) can be read without the rest: evaluation needs nothing but one such folder.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.options import MultiprocessingOptions

from sharder.errors import UserError
from sharder.model.weight import Weights
from sharder.run_folder import ABOUT, checkpoint_steps
from sharder.training.checkpoint import first_line, flat, items_of
from sharder.training.manifest import damage
from sharder.training.state import TrainState

log = logging.getLogger(__name__)


def whole_step(folder: Path, step: int, chosen: bool) -> int:
    """`step` of another run's checkpoints, or when that was not chosen the newest that is whole; nothing is moved."""
    wrong = damage(folder / str(step))
    if wrong is None:
        return step
    older = [other for other in checkpoint_steps(folder.parent) if other < step]
    if chosen or not older:
        raise UserError(f"resume: {folder / str(step)}: {wrong}; choose another step or run folder")
    log.warning(f"checkpoint {folder / str(step)}: skipped, {wrong}")
    return whole_step(folder, older[-1], chosen)


def _alone() -> MultiprocessingOptions:
    """Each process reads its own slices and waits for nobody; who is late is named by whoever called for the read."""
    index = jax.process_index()
    return MultiprocessingOptions(primary_host=index, active_processes={index} if jax.process_count() > 1 else None)


def _step_folder(folder: Path, step: int) -> Path:
    path = folder / str(step)
    if not (path / ABOUT).parent.is_dir():
        raise UserError(f"resume: {path} is not a complete checkpoint; choose another step or run folder")
    return path


def read_about(folder: Path, step: int) -> dict[str, Any]:
    """The JSON saved beside the arrays of `folder`/<step>."""
    file = _step_folder(folder, step) / ABOUT
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise _damaged(file, error) from error


def _read(path: Path, target: dict[str, Any]) -> Any:
    """Arrays of one item, placed like `target` (shapes, dtypes and shardings), whatever devices wrote them."""
    with ocp.StandardCheckpointer(multiprocessing_options=_alone()) as reader:
        try:
            saved = {name: tuple(array.shape) for name, array in flat(reader.metadata(path).item_metadata.tree).items()}
        except (ValueError, OSError, AttributeError) as error:
            raise _damaged(path, error) from error
        wanted = {name: tuple(array.shape) for name, array in flat(target).items()}
        for name in sorted(saved.keys() | wanted.keys()):
            if saved.get(name) != wanted.get(name):
                raise UserError(
                    f"checkpoint {path}: {name} has shape {saved.get(name)}, this model's has {wanted.get(name)}; "
                    "choose the model it was saved with"
                )
        try:
            return reader.restore(path, target)
        except (ValueError, OSError) as error:
            raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    step = next(part for part in reversed(path.parts) if part.isdecimal())
    return UserError(
        f"checkpoint {path}: cannot be read ({first_line(error)}); move the folder of step {step} away "
        "to go on from the step before it"
    )


def read_state(folder: Path, step: int, target: TrainState) -> TrainState:
    """The state saved at `step`, placed like `target`: any mesh reads any other's."""
    read = {name: _read(_step_folder(folder, step) / name, tree) for name, tree in items_of(target).items()}
    numbered = [leaf for _, leaf in sorted(read["optimizer"].items(), key=lambda item: int(item[0]))]
    return TrainState(
        step=jax.make_array_from_callback((), target.step.sharding, lambda _: np.asarray(step, np.int32)),
        trainable=flat(read["trainable"]),
        frozen=flat(read.get("frozen", {})),
        optimizer=jax.tree.unflatten(jax.tree.structure(target.optimizer), numbered),
        ema=None if target.ema is None else flat(read["ema"]),
    )


def read_best_weights(folder: Path, step: int, target: TrainState) -> Weights:
    """Only what acts: the averaged weights where there are any."""
    path, items = _step_folder(folder, step), items_of(target)
    wanted = ["trainable" if target.ema is None else "ema", *(["frozen"] if target.frozen else [])]
    return {k: v for name in wanted for k, v in flat(_read(path / name, items[name])).items()}
