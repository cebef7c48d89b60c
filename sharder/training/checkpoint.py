"""Checkpoints by Orbax: asynchronous, committed by a rename, each complete in itself.

    checkpoints/<step>/trainable, frozen, optimizer, ema   nested arrays
    checkpoints/<step>/about                               JSON: the config, normalization, data fingerprint, versions

What acts (ema or trainable, and frozen) can be read without the rest: evaluation needs nothing but one such folder.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.options import MultiprocessingOptions

from sharder.config import CheckpointConfig
from sharder.errors import UserError
from sharder.model.weight import Weights
from sharder.run_folder import ABOUT, checkpoint_steps
from sharder.training.manifest import damage, seal, set_aside
from sharder.training.state import TrainState

log = logging.getLogger(__name__)

LOOK_S = 0.1  # between two looks whether a save is committed
NO_ROOM = ("RESOURCE_EXHAUSTED", "No space left", "quota")  # how a full disk is told of


def nest(weights: Weights) -> dict[str, Any]:
    """Slash-joined paths -> nested dicts, so that a checkpoint reads well with any tool."""
    tree: dict[str, Any] = {}
    for path, value in weights.items():
        *parents, leaf = path.split("/")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[leaf] = value
    return tree


def flat(tree: dict[str, Any], prefix: str = "") -> Weights:
    """The inverse of `nest`."""
    weights: Weights = {}
    for name, value in tree.items():
        weights |= flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: value}
    return weights


def _items(state: TrainState) -> dict[str, Any]:
    """What is saved of a state, by item; an empty item is left out. The optimizer's leaves are numbered."""
    items = {
        "trainable": nest(state.trainable),
        "frozen": nest(state.frozen),
        "optimizer": {f"{i:04d}": leaf for i, leaf in enumerate(jax.tree.leaves(state.optimizer))},
        "ema": nest(state.ema or {}),
    }
    return {name: tree for name, tree in items.items() if tree}


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, config: CheckpointConfig):
        self.folder, self.config = folder.absolute(), config
        self.folder.mkdir(parents=True, exist_ok=True)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=config.keep,
            keep_period=config.keep_every,
            cleanup_tmp_directories=True,
            create=False,
            multiprocessing_options=_together(),
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options)
        self._sealing: threading.Thread | None = None  # process 0's

    def newest_whole(self) -> int | None:
        """The newest step whose files are all as they were written. For process 0: what is damaged or unfinished is
        named, and moved out of the way."""
        for step in reversed(checkpoint_steps(self.folder.parent)):
            path = self.folder / str(step)
            wrong = damage(path)
            if wrong is None:
                return step
            log.warning(f"checkpoint {path}: skipped, {wrong}; kept as {set_aside(path).name}")
        return None

    def look_again(self) -> None:
        """After `newest_whole` of process 0 moved something: every process forgets what is gone."""
        self._manager.reload()

    def save(self, state: TrainState, step: int, about: dict[str, Any]) -> None:
        """Returns once the arrays are copied; writing goes on beside training, and then the manifest."""
        self.wait()
        items = {name: ocp.args.StandardSave(tree) for name, tree in _items(state).items()}
        with self._room():
            self._manager.save(step, args=ocp.args.Composite(about=ocp.args.JsonSave(about), **items), force=True)
        if jax.process_index() == 0:
            self._sealing = threading.Thread(target=self._seal, args=(step,), name="seal", daemon=True)
            self._sealing.start()

    def check(self) -> None:
        """Raises what went wrong with a save that goes on beside training, as soon as that is known."""
        with self._room():
            self._manager.check_for_errors()

    def wait(self) -> None:
        """Returns when the last save is on disk, and sealed."""
        with self._room():
            self._manager.wait_until_finished()
        if self._sealing is not None:
            self._sealing.join()
            self._sealing = None

    def _seal(self, step: int) -> None:
        """Waits for the rename that commits the step; when saving fails there is none, and nothing to seal."""
        path = self.folder / str(step)
        while not path.is_dir():
            if not self._manager.is_saving_in_progress():
                if path.is_dir():
                    break
                return
            time.sleep(LOOK_S)
        seal(path)

    def close(self) -> None:
        self.wait()
        self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.close()
            return
        with contextlib.suppress(Exception):  # what ended the run is what is said
            self.close()

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """A save that found no room, whenever Orbax tells of it, is said in one line."""
        try:
            yield
        except (OSError, ValueError) as error:
            if not any(word in str(error) for word in NO_ROOM):
                raise
            free, safe = shutil.disk_usage(self.folder).free / 1e9, self._manager.latest_step()
            raise UserError(
                f"{self.folder}: no room to save, {free:.3g} GB are free; "
                f"{'no step is' if safe is None else f'step {safe} is'} saved; free some and run the same run.id again"
            ) from error

    def check_room(self, bytes_each: int, steps: int) -> None:
        """Refuses at the start what would fail late: the disk must hold all that retention asks for, and one more."""
        stored = len(self._manager.all_steps())
        kept = self.config.keep + (steps // self.config.keep_every if self.config.keep_every else 0)
        wanted = max(0, min(kept, -(-steps // self.config.every_steps)) + 1 - stored)
        free = shutil.disk_usage(self.folder).free
        if wanted * bytes_each > free:
            raise UserError(
                f"checkpoint.keep: {wanted} more checkpoints of {bytes_each / 1e9:.3g} GB need "
                f"{wanted * bytes_each / 1e9:.3g} GB, {self.folder} has {free / 1e9:.3g} GB free; "
                "keep fewer, set checkpoint.keep_every=null, or choose another run.root"
            )


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


def _together() -> MultiprocessingOptions:
    """Processes wait for each other on the host, with a time limit: Orbax's default waits on the devices for ever."""
    count = jax.process_count()
    return MultiprocessingOptions(active_processes=set(range(count)) if count > 1 else None)


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
        f"checkpoint {path}: cannot be read ({str(error).splitlines()[0][:120]}); move the folder of step {step} away "
        "to go on from the step before it"
    )


def read_state(folder: Path, step: int, target: TrainState) -> TrainState:
    """The state saved at `step`, placed like `target`: any mesh reads any other's."""
    read = {name: _read(_step_folder(folder, step) / name, tree) for name, tree in _items(target).items()}
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
    path, items = _step_folder(folder, step), _items(target)
    wanted = ["trainable" if target.ema is None else "ema", *(["frozen"] if target.frozen else [])]
    return {k: v for name in wanted for k, v in flat(_read(path / name, items[name])).items()}
