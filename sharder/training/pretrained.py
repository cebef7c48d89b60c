"""Weights to start from: a checkpoint of ours, openpi's parameters, or PaliGemma's published npz.

Whatever the file lacks (the action expert in PaliGemma's, LoRA corrections in a base model's) is drawn at random;
what it has must fit in name and shape.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from sharder.config import Config
from sharder.data.dataset import Dataset
from sharder.data.norm_stats import read as read_stats
from sharder.data.normalize import EPSILON, Normalization
from sharder.errors import UserError
from sharder.model.openpi_names import from_openpi, rules
from sharder.model.pi0 import abstract_weights, init_weights
from sharder.model.weight import Weights
from sharder.run_folder import ABOUT
from sharder.training.checkpoint import flat
from sharder.training.meaning import saved_normalization
from sharder.training.restore import read_about
from sharder.training.state import run_once

log = logging.getLogger(__name__)

MOVED = 0.1  # of a std, or of a ratio of stds: what is more is worth a warning

KINDS = "a run folder or checkpoint of ours, openpi's params folder, or PaliGemma's .npz"


def read_weights(path: Path, config: Config) -> tuple[Weights, str]:
    """The weights at `path` in the config's dtype, and what to say about them. UserError when they do not fit."""
    if path.is_file() and path.suffix == ".npz":
        found, kind = _from_npz(path, config), "PaliGemma's weights"
    elif (ours := _our_checkpoint(path)) is not None:
        found, kind = _from_ours(ours), "weights of a checkpoint"
    elif (theirs := _openpi_params(path)) is not None:
        found, kind = _from_openpi_tree(theirs, config), "openpi's weights"
    else:
        raise UserError(f"model.weights: {path} is neither {KINDS}; give one of these, or null for random weights")
    return _completed(found, path, config, kind)


def warn_of_other_statistics(path: Path, data: Dataset) -> None:
    """Weights act well only on values scaled as in their own training: other statistics are worth a line."""
    theirs = _statistics_beside(path, data)
    if theirs is None:
        return
    for field, names in (("state", data.recording.state_names), ("actions", data.recording.action_names)):
        mine, other = getattr(data.normalization, field), getattr(theirs, field)
        dims = min(mine.dims, other.dims)
        moved = np.abs(mine.mean[:dims] - other.mean[:dims]) > MOVED * (other.std[:dims] + EPSILON)
        scaled = np.abs(np.log((mine.std[:dims] + EPSILON) / (other.std[:dims] + EPSILON))) > np.log(1 + MOVED)
        if (moved | scaled).any():
            log.warning(
                f"model.weights: {field} of this recording is distributed otherwise than in the training of {path}: "
                f"{', '.join(names[dim] for dim in np.flatnonzero(moved | scaled))}; to scale values as there, set "
                "data.normalization_file to its norm_stats.json"
            )


def _statistics_beside(path: Path, data: Dataset) -> Normalization | None:
    """What the weights at `path` were trained with, where that is told."""
    ours = _our_checkpoint(path)
    if ours is not None:
        return saved_normalization(read_about(ours.parent, int(ours.name))) if ours.name.isdecimal() else None
    files = sorted(folder for root in (path, path.parent) for folder in root.glob("assets/*/norm_stats.json"))
    recording = data.recording
    return read_stats(files[0], recording.state_dim, recording.action_dim, "mean_std") if len(files) == 1 else None


def _completed(found: Weights, path: Path, config: Config, kind: str) -> tuple[Weights, str]:
    wanted = abstract_weights(config.model)
    for name, value in found.items():
        if name in wanted and value.shape != wanted[name].shape:
            raise UserError(
                f"model.weights: {path} has {name} of shape {list(value.shape)}, model={config.model.name} needs "
                f"{list(wanted[name].shape)}; choose the model these weights are of"
            )
    missing = sorted(wanted.keys() - found.keys())
    if len(missing) == len(wanted):
        raise UserError(f"model.weights: {path} has no weight of model={config.model.name}; choose the model it is of")
    weights = {name: jnp.asarray(found[name], wanted[name].dtype) for name in wanted if name in found}
    if missing:
        drawn = run_once(lambda: init_weights(config.model, jax.random.key(config.train.seed)))
        weights |= {name: drawn[name] for name in missing}
    heads = sorted({"/".join(name.split("/")[:3]) for name in missing})
    rest = f"; at random, since it lacks them: {', '.join(heads)}" if missing else ""
    return {name: weights[name] for name in wanted}, f"{kind} from {path}{rest}"


def _our_checkpoint(path: Path) -> Path | None:
    """The folder of one checkpoint of ours, given it, a run folder, or its checkpoints folder."""
    if (path / ABOUT).parent.is_dir():
        return path
    for folder in (path / "checkpoints", path):
        steps = [entry for entry in folder.iterdir() if (entry / ABOUT).parent.is_dir()] if folder.is_dir() else []
        if steps:
            return max(steps, key=lambda entry: int(entry.name) if entry.name.isdecimal() else -1)
    return None


def _from_ours(path: Path) -> Weights:
    acting = "ema" if (path / "ema").is_dir() else "trainable"
    return {
        name: value
        for item in (acting, "frozen")
        if (path / item).is_dir()
        for name, value in flat(_restore(path / item)).items()
    }


def _openpi_params(path: Path) -> Path | None:
    for folder in (path / "params", path):
        if any((folder / name).exists() for name in ("_METADATA", "manifest.ocdbt")):
            return folder
    return None


def _restore(path: Path) -> Any:
    """All arrays of an Orbax tree, in host memory, whatever devices wrote it."""
    with ocp.PyTreeCheckpointer() as reader:
        tree = reader.metadata(path.absolute()).item_metadata
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree.tree)
        return reader.restore(path.absolute(), restore_args=as_numpy)


def _from_openpi_tree(path: Path, config: Config) -> Weights:
    tree = _restore(path)
    named = flat(tree.get("params", tree))
    return _by_rules({name.removesuffix("/value"): value for name, value in named.items()}, config)


def _from_npz(path: Path, config: Config) -> Weights:
    try:
        with np.load(path) as arrays:
            theirs = {name.removeprefix("params/"): arrays[name] for name in arrays.files}
    except (OSError, ValueError) as error:
        raise UserError(f"model.weights: {path} cannot be read ({error}); allowed: {KINDS}") from error
    return _by_rules({f"PaliGemma/{name}": value for name, value in theirs.items()}, config)


def _by_rules(theirs: dict[str, Any], config: Config) -> Weights:
    """Ours, from those of openpi's leaves that are there."""
    return from_openpi(config.model, theirs, [rule for rule in rules(config.model) if rule.theirs in theirs])
