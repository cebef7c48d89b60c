"""Checkpoints by Orbax: asynchronous, committed by a rename, each complete in itself.

    checkpoints/<step>/trainable, frozen, optimizer, ema   nested arrays
    checkpoints/<step>/about                               JSON: the config, normalization, data fingerprint, versions

Reading them is restore.py's.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.options import MultiprocessingOptions

from sharder.config import CheckpointConfig
from sharder.errors import Fault, Stopped, UserError
from sharder.model.weight import Weights
from sharder.run_folder import checkpoint_steps, sealed_steps
from sharder.training.manifest import damage, seal, set_aside
from sharder.training.state import TrainState

log = logging.getLogger(__name__)

CLOSE_S = 30.0  # for a save under way to end when something else went wrong: it may wait for a process that is gone
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


def items_of(state: TrainState) -> dict[str, Any]:
    """What is saved of a state, by item; an empty item is left out. The optimizer's leaves are numbered."""
    items = {
        "trainable": nest(state.trainable),
        "frozen": nest(state.frozen),
        "optimizer": {f"{i:04d}": leaf for i, leaf in enumerate(jax.tree.leaves(state.optimizer))},
        "ema": nest(state.ema or {}),
    }
    return {name: tree for name, tree in items.items() if tree}


class Checkpoints:
    """The checkpoints of one run folder. Seconds are added up: `stalled_s` training stood still, `saving_s` in all.

    A save that fails is a Fault, and this process has to end: Orbax's threads of that save go on writing for a while,
    and would write into the next one. The next start clears away what they left.
    """

    def __init__(self, folder: Path, config: CheckpointConfig):
        self.folder, self.config = folder.absolute(), config
        self.saves, self.stalled_s, self.saving_s = 0, 0.0, 0.0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Fault(f"{self.folder}: checkpoints cannot be kept there ({error.strerror}); mend it") from error
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None,  # see _prune
            cleanup_tmp_directories=True,
            create=False,
            multiprocessing_options=_together(),
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options)
        self._saving: _Saving | None = None

    def newest_whole(self) -> int | None:
        """The newest step whose files are all as they were written; None when none was ever finished. For process 0:
        what is damaged or unfinished is named, and moved out of the way, unless nothing whole would be left."""
        steps = checkpoint_steps(self.folder.parent)
        wrong: dict[int, str] = {}
        for step in reversed(steps):
            found = damage(self.folder / str(step))
            if found is None:
                break
            wrong[step] = found
        if len(wrong) == len(steps) and (sealed := set(sealed_steps(self.folder.parent))):
            step = max(sealed)
            raise UserError(
                f"{self.folder}: none of its {len(steps)} checkpoints is whole (step {step}: {wrong[step]}); restore "
                "one from a copy, or start anew with another run.id"
            )
        for step, found in wrong.items():
            path = self.folder / str(step)
            log.warning(f"checkpoint {path}: skipped, {found}; kept as {set_aside(path).name}")
        return max((step for step in steps if step not in wrong), default=None)

    def look_again(self) -> None:
        """After `newest_whole` of process 0 moved something: every process forgets what is gone."""
        self._manager.reload()

    def save(self, state: TrainState, step: int, about: dict[str, Any]) -> None:
        """Returns once the arrays are copied to the host; all else goes on beside training.

        One save at a time, so that a machine never holds more than two copies of its part of the state: this one, and
        what Orbax has taken from it to write.
        """
        began = time.monotonic()
        self.wait()
        copied = time.monotonic()
        items = jax.block_until_ready(jax.tree.map(_on_host, items_of(state)))
        self.saves, self.stalled_s = self.saves + 1, self.stalled_s + time.monotonic() - began

        def write() -> None:
            arrays = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
            self._manager.save(step, args=ocp.args.Composite(about=ocp.args.JsonSave(about), **arrays), force=True)
            self._manager.wait_until_finished()
            if jax.process_index() == 0:
                seal(self.folder / str(step))
                self._prune()

        self._saving = _Saving(write, copied)

    def _prune(self) -> None:
        """Only what is older than enough others that were saved to their end: an unfinished one replaces nothing."""
        old = sealed_steps(self.folder.parent)[: -self.config.keep]
        for step in old:
            if not (self.config.keep_every and step % self.config.keep_every == 0):
                shutil.rmtree(self.folder / str(step))

    def check(self) -> None:
        """Raises what went wrong with a save that goes on beside training, as soon as that is known."""
        if self._saving is not None and self._saving.ended:
            self.wait()

    def wait(self) -> None:
        """Returns when the last save is on disk, and sealed."""
        saving, self._saving = self._saving, None
        if saving is not None:
            with self._told():
                self.saving_s += saving.wait()

    def close(self) -> None:
        self.wait()
        self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None or issubclass(kind, Stopped):  # whoever stops has said that all is saved
            self.close()
            return

        def close() -> None:
            with contextlib.suppress(Exception):  # what ended the run is what is said
                self.close()

        closing = threading.Thread(target=close, name="close checkpoints", daemon=True)
        closing.start()
        closing.join(CLOSE_S)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """A save that failed, whenever that comes out, is said in one line: the disk's fault, so worth another try."""
        try:
            yield
        except (OSError, ValueError) as error:  # TensorStore's own failures to write are ValueErrors
            full = any(word in str(error) for word in NO_ROOM)
            safe = max(sealed_steps(self.folder.parent), default=None)
            raise Fault(
                f"{self.folder}: {self._no_room() if full else f'saving failed ({first_line(error)})'}; "
                f"{'no step is' if safe is None else f'step {safe} is'} saved; "
                f"{'free some' if full else 'mend that'} and run the same run.id again"
            ) from error

    def _no_room(self) -> str:
        with contextlib.suppress(OSError):
            return f"no room to save, {shutil.disk_usage(self.folder).free / 1e9:.3g} GB are free"
        return "no room to save"

    def check_room(self, bytes_each: int, steps: int) -> None:
        """Refuses at the start what would fail late: the disk must hold all that retention asks for, and one more."""
        stored = len(checkpoint_steps(self.folder.parent))
        kept = self.config.keep + (steps // self.config.keep_every if self.config.keep_every else 0)
        wanted = max(0, min(kept, -(-steps // self.config.every_steps)) + 1 - stored)
        free = shutil.disk_usage(self.folder).free
        if wanted * bytes_each > free:
            # A run that is under way has fitted before: room may come back, and whoever watches over it tries again.
            raise (Fault if stored else UserError)(
                f"checkpoint.keep: {wanted} more checkpoints of {bytes_each / 1e9:.3g} GB need "
                f"{wanted * bytes_each / 1e9:.3g} GB, {self.folder} has {free / 1e9:.3g} GB free; "
                "keep fewer, set checkpoint.keep_every=null, or choose another run.root"
            )


class _Saving:
    """One save, beside training. Seconds count from `began`."""

    def __init__(self, write: Callable[[], None], began: float):
        self._write, self._began = write, began
        self._seconds: Future[float] = Future()
        threading.Thread(target=self._run, name="save", daemon=True).start()

    @property
    def ended(self) -> bool:
        return self._seconds.done()

    def wait(self) -> float:
        """How long it took in all; raises what went wrong."""
        return self._seconds.result()

    def _run(self) -> None:
        try:
            self._write()
            self._seconds.set_result(time.monotonic() - self._began)
        except BaseException as error:
            self._seconds.set_exception(error)


def _on_host(array: jax.Array) -> jax.Array:
    """A copy in host memory, each device's part by itself: the next step overwrites the array."""
    return jax.device_put(array, array.sharding.with_memory_kind("pinned_host"))


def _together() -> MultiprocessingOptions:
    """Processes wait for each other on the host, with a time limit: Orbax's default waits on the devices for ever."""
    count = jax.process_count()
    return MultiprocessingOptions(active_processes=set(range(count)) if count > 1 else None)


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
