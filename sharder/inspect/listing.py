"""A run folder in a page: the run, its checkpoints, what else lies there, its attempts, and one step's arrays."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sharder.config import Config
from sharder.errors import UserError
from sharder.inspect.arrays import Array, read_arrays
from sharder.inspect.attempts import read_attempts
from sharder.inspect.checkpoints import Checkpoint, read_checkpoints, read_leftovers
from sharder.run_folder import (
    ABOUT,
    CONFIG,
    ENVIRONMENT,
    Resume,
    check_resume,
    checkpoint_steps,
    completed_step,
    load_config,
    saved_config,
)
from sharder.table import Table

VERIFIED = "the size and checksum of each file were held against its step's manifest.json"
ATTEMPTS_SHOWN = 20  # the newest


def check_run(resume: Resume) -> None:
    """Refuses what is no run folder, and a step that it does not have."""
    folder = resume.folder
    if folder is None:
        raise UserError(
            f"resume: found {resume.kind}, allowed: <run folder>[@step]; name a run, as in "
            "resume=outputs/train/<run id>"
        )
    if resume.step is not None:
        check_resume(resume, folder)
    elif not (folder / CONFIG).is_file() and not (folder / "checkpoints").is_dir():
        raise UserError(
            f"resume: found {str(folder)!r}, which holds neither {CONFIG} nor checkpoints; allowed: "
            "<run folder>[@step]; name a run, as in resume=outputs/train/<run id>"
        )


def listing(resume: Resume) -> Iterator[Table]:
    """What there is to say of a run, or with a step of that one and its arrays."""
    folder, step = resume.folder, resume.step
    assert folder is not None
    config, checkpoints = _config(resume), read_checkpoints(folder, step)
    lines = {
        "folder": str(folder),
        "run": "unknown" if isinstance(config, str) else f"{config.run.name}, id {config.run.id}",
        "state": _state(folder, config),
        "config": config if isinstance(config, str) else _told(config),
        "last run by": _environment(folder),
    }
    yield Table("\n".join(f"{name:<13}{text}" for name, text in lines.items()))
    yield _checkpoints(checkpoints)
    if step is None:
        yield from _leftovers(folder)
        yield from _attempts(folder)
        return
    for checkpoint in checkpoints:
        yield from _items(folder / "checkpoints" / str(step), checkpoint.items)


def _config(resume: Resume) -> Config | str:
    """The run's, or a step's own; or why it cannot be told. A folder of checkpoints alone has the newest one's."""
    assert resume.folder is not None
    try:
        if resume.step is None and (resume.folder / CONFIG).is_file():
            return load_config(resume.folder)
        return saved_config(resume)
    except UserError as error:
        return f"unknown: {error}"


def _told(config: Config) -> str:
    data = config.data.kind if config.data.root is None else f"{config.data.kind} {config.data.root}"
    mesh = f"batch={config.mesh.batch} fsdp={config.mesh.fsdp}"
    return (
        f"model {config.model.name}, data {data}, mesh {mesh}, layout {config.layout.name}, "
        f"batch size {config.train.batch_size}, {config.train.steps} steps"
    )


def _state(folder: Path, config: Config | str) -> str:
    complete, steps = completed_step(folder), checkpoint_steps(folder)
    wanted = None if isinstance(config, str) else config.train.steps
    if complete is not None and wanted in (None, complete):
        return f"complete at step {complete}"
    saved = f"the newest checkpoint is step {steps[-1]}" if steps else "there is no checkpoint"
    before = "" if complete is None else f"; it was complete at step {complete}, before train.steps was changed"
    return saved + ("" if wanted is None else f" of {wanted}") + before


def _environment(folder: Path) -> str:
    """Who ran the newest attempt."""
    path = folder / ENVIRONMENT
    try:
        told = json.loads(path.read_text())
        versions = ", ".join(f"{name} {told['versions'][name]}" for name in ("jax", "jaxlib", "orbax-checkpoint"))
        return (
            f"sharder {told['sharder']} ({told['git_commit'] or 'no git commit'}), {versions}, "
            f"python {told['python']}; "
            f"{told['device_count']} x {told['device_kind']} on {told['host']}, processes: {told['process_count']}, "
            f"started {told['started']}"
        )
    except FileNotFoundError:
        return f"unknown: there is no {path.name}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"unknown: {path.name} cannot be read ({type(error).__name__}: {error})"


def _checkpoints(checkpoints: list[Checkpoint]) -> Table:
    if not checkpoints:
        return Table("\ncheckpoints: none")
    rows = [
        (
            f"{one.step}", one.state, human_bytes(one.bytes), f"{one.files}", _when(one.written_s), ", ".join(one.items)
        )
        for one in checkpoints
    ]  # fmt: skip
    head = ("step", "state", "on disk", "files", "written", "items")
    return Table(f"\ncheckpoints: {VERIFIED}", head, rows, numbers=("step", "on disk", "files"))


def _leftovers(folder: Path) -> Iterator[Table]:
    rows = [(one.name, one.what, human_bytes(one.bytes), f"{one.files}") for one in read_leftovers(folder)]
    if rows:
        head = ("folder", "what", "on disk", "files")
        yield Table("\nbeside them, read by no run:", head, rows, numbers=("on disk", "files"))


def _attempts(folder: Path) -> Iterator[Table]:
    attempts = read_attempts(folder)
    rows = [
        (
            f"{number}", _when(one.started_s), "" if one.workers is None else f"{one.workers}",
            "the beginning" if one.saved is None else f"step {one.saved}", one.end,
        )
        for number, one in enumerate(attempts, 1)
    ][-ATTEMPTS_SHOWN:]  # fmt: skip
    if rows:
        newest = f", the newest {len(rows)}" if len(rows) < len(attempts) else ""
        head = ("attempt", "started", "workers", "from", "ended")
        yield Table(
            f"\nattempts by the supervisor: {len(attempts)}{newest}", head, rows, numbers=("attempt", "workers")
        )


def _items(path: Path, names: Sequence[str]) -> Iterator[Table]:
    """The arrays of each item, and the total of all that can be listed."""
    arrays: list[Array] = []
    for name in names:
        if name == ABOUT.parent.name:
            yield Table(f"\n{name}: JSON, no arrays")
            continue
        try:
            found = read_arrays(path / name)
        except UserError as error:
            yield Table(f"\n{name}: {error}")
            continue
        arrays += found
        yield _arrays(name, found)
    yield Table(f"\nall items: {len(arrays)} arrays, {sum(array.bytes for array in arrays):,} bytes")


def _arrays(name: str, arrays: list[Array]) -> Table:
    total = sum(array.bytes for array in arrays)
    rows = [(array.path, str(list(array.shape)), array.dtype, f"{array.bytes:,}") for array in arrays]
    head = ("path", "shape", "dtype", "bytes")
    return Table(f"\n{name}: {len(arrays)} arrays, {total:,} bytes", head, rows, numbers=("bytes",))


def human_bytes(count: float) -> str:
    """Three digits and a decimal unit, as disks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _when(unix_s: float | None) -> str:
    return "unknown" if unix_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
