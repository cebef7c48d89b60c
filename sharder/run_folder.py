"""A run's folder: its name, its config, its lock, its place to resume from.

    <run.root>/<run.name>/<run.id>/
      .hydra/config.yaml     the resolved config, rewritten by every attempt
      .hydra/overrides.yaml  what was typed
      lock                   held by the command and its worker as long as either lives
      environment.json metrics.jsonl checkpoints/<step>/ complete.json   written by the worker

The id is given, or made here once: workers are told the folder and never make one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sharder.config import Config
from sharder.errors import UserError

CONFIG = Path(".hydra/config.yaml")
OVERRIDES = Path(".hydra/overrides.yaml")
PLAN, PLAN_ENVIRONMENT = "plan.json", "plan-environment.json"  # written by predict/planned.py
ENVIRONMENT = "environment.json"  # where the run's numbers come from: provenance.py
ABOUT = Path("about/metadata")  # in a checkpoint: JSON, written by training/checkpoint.py
MANIFEST = "manifest.json"  # in a checkpoint: written last, by training/manifest.py
COMPLETE = "complete.json"  # written when the last step is saved and evaluated
CLAIMED = {".hydra", "lock", "checkpoints"}  # what a folder holds before its run has done anything
ORPHANS_S = 30.0  # for the workers of a command that was killed to end, before its folder counts as taken
LONGEST_ID = 120  # characters; file systems allow 255 bytes a name
NOT_IN_ID = ("run.", "resume")  # overrides that say where a run goes or starts from, not what it is


@dataclass(frozen=True)
class Resume:
    kind: str  # auto | never | folder
    folder: Path | None = None  # absolute
    step: int | None = None  # None: the newest

    def checkpoint(self) -> tuple[Path, int]:
        """(folder of checkpoints, step) of a named run."""
        assert self.folder is not None
        return self.folder / "checkpoints", checkpoint_steps(self.folder)[-1] if self.step is None else self.step


@dataclass(frozen=True)
class RunFolder:
    path: Path
    lock: int  # open file: the folder is ours until every copy of it is closed
    before: dict[Path, str] | None  # what an earlier attempt's config files said; None: the folder is new
    steps_before: Sequence[int] = ()  # and its checkpoints
    passing: bool = False  # holds nothing but the config of one process of a run whose folder another one claims

    def undo(self) -> None:
        """As if this attempt had never been: for one that was refused. A folder that anything ran in stays."""
        if self.passing:
            return
        holds = {entry.name for entry in self.path.iterdir()}
        if self.before is None and holds <= CLAIMED and not checkpoint_steps(self.path):
            shutil.rmtree(self.path, ignore_errors=True)
        if checkpoint_steps(self.path) != self.steps_before:
            return
        for name, text in (self.before or {}).items():
            write_atomically(self.path / name, text)

    def release(self) -> None:
        os.close(self.lock)
        if self.passing:
            shutil.rmtree(self.path, ignore_errors=True)


def parse_resume(text: str) -> Resume:
    """`auto`, `never`, a run folder, `<run folder>@<step>`, or the folder of one checkpoint."""
    if text in ("auto", "never"):
        return Resume(text)
    name, at, step = text.rpartition("@") if re.search(r"@[^/]*$", text) else (text, "", "")
    if at and not step.isdecimal():
        raise UserError(f"resume: found {text!r}, allowed after @: the number of a step; write resume={name}@<step>")
    folder = Path(name or ".").absolute()  # Orbax takes no other
    if not at and folder.name.isdecimal() and folder.parent.name == "checkpoints":
        return Resume("folder", folder.parent.parent, int(folder.name))
    return Resume("folder", folder, int(step) if at else None)


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint folder, in order. Orbax names unfinished ones otherwise."""
    checkpoints = folder / "checkpoints"
    if not checkpoints.is_dir():
        return []
    names = [entry.name for entry in checkpoints.iterdir() if entry.name.isdecimal() and entry.is_dir()]
    return sorted(int(name) for name in names if name == str(int(name)))


def sealed_steps(folder: Path) -> list[int]:
    """Those that were saved to their end."""
    return [step for step in checkpoint_steps(folder) if (folder / "checkpoints" / str(step) / MANIFEST).exists()]


def completed_step(folder: Path) -> int | None:
    """The step the run was complete at, if it ever was: trusted over any exit code."""
    try:
        return int(json.loads((folder / COMPLETE).read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def mark_complete(folder: Path, step: int) -> None:
    write_atomically(folder / COMPLETE, json.dumps({"step": step}) + "\n")


def check_resume(resume: Resume, folder: Path) -> None:
    """Refuses what cannot be resumed, before anything is written. `folder` is the run's own."""
    if resume.kind == "never" and checkpoint_steps(folder):
        raise UserError(
            f"resume: found never, but {folder} has checkpoints; resume=auto continues them, another run.id starts anew"
        )
    if resume.folder is None or (checkpoint_steps(folder) and resume.folder != folder.absolute()):
        return  # a run goes on from its own checkpoints, whatever became of those it once started from
    steps = checkpoint_steps(resume.folder)
    if not steps:
        raise UserError(
            f"resume: found {str(resume.folder)!r}, which has no checkpoints/<step>; allowed: auto, never, or "
            "<run folder>[@step] of a run that has saved"
        )
    if resume.step is not None and resume.step not in steps:
        raise UserError(
            f"resume: found step {resume.step} of {resume.folder}, allowed: {', '.join(map(str, steps[-10:]))}; "
            "write <run folder>@<step>"
        )


def new_id() -> str:
    """Unique without asking anyone: two runs in one second differ in the random part."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"


def sweep_id(overrides: Sequence[str], given: str | None) -> str:
    """A sweep job's id: its overrides in order of their keys, so that the same point finds its folder again."""
    told = sorted(override for override in overrides if not override.lstrip("+~").startswith(NOT_IN_ID))
    text = ",".join(([given] if given else []) + [re.sub(r"[^\w.,=+@-]+", "_", override) for override in told])
    text = text.lstrip(".") or "default"
    if len(text) <= LONGEST_ID:
        return text
    digest = hashlib.sha256(",".join(told).encode()).hexdigest()[:12]
    return f"{text[: LONGEST_ID - 13]}-{digest}"


def folder_of(config: Config) -> Path:
    assert config.run.id is not None
    return Path(config.run.root) / config.run.name / config.run.id


def check_root(folder: Path, config: Config) -> None:
    """Refuses a place that cannot be written, before a sweep starts its first point."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if os.path.lexists(parent))
    if not existing.is_dir():
        raise _unwritable(config, folder, f"{existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise _unwritable(config, folder, f"{existing} is not writable")


def _unwritable(config: Config, folder: Path, reason: str) -> UserError:
    return UserError(
        f"run.root: found {config.run.root!r}, where {folder} cannot be written ({reason}); "
        "allowed: a folder you may write to, with room; set run.root=<folder>"
    )


def claim(config: Config, overrides: Sequence[str]) -> RunFolder:
    """The run's folder, made if need be, locked, with this attempt's config in it."""
    folder = folder_of(config)
    try:
        claimed = None if folder.is_dir() else _create(folder, config, overrides)
        if claimed is None:  # there before, or made by another run just now
            lock = _lock(folder)
            before = {name: (folder / name).read_text() for name in (CONFIG, OVERRIDES) if (folder / name).is_file()}
            claimed = RunFolder(folder, lock, before, checkpoint_steps(folder))
            _write(folder, config, overrides)
    except OSError as error:
        raise _unwritable(config, folder, error.strerror or str(error)) from error
    return claimed


def follow(config: Config, overrides: Sequence[str]) -> RunFolder:
    """A folder for the config of a process other than the first of its run; gone when the process is."""
    folder = Path(tempfile.mkdtemp(prefix="sharder-"))
    _write(folder, config, overrides)
    return RunFolder(folder, _lock(folder), before=None, passing=True)


def _create(folder: Path, config: Config, overrides: Sequence[str]) -> RunFolder | None:
    """Makes the folder whole under another name, then renames it: nobody sees half of one. None: it exists."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        unfinished.chmod(0o777 & ~_umask())
        lock = _lock(unfinished)
        _write(unfinished, config, overrides)
        try:
            unfinished.rename(folder)
        except OSError:
            os.close(lock)
            if folder.is_dir():
                return None
            raise
        return RunFolder(folder, lock, before=None)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write(folder: Path, config: Config, overrides: Sequence[str]) -> None:
    write_atomically(folder / CONFIG, OmegaConf.to_yaml(OmegaConf.structured(config)))
    write_atomically(folder / OVERRIDES, OmegaConf.to_yaml(OmegaConf.create(list(overrides))))


def _lock(folder: Path) -> int:
    """An open, locked file. The system unlocks it when its last holder ends, however it ends."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    until = time.monotonic() + ORPHANS_S
    while not _locked(lock):
        holder = os.pread(lock, 100, 0).decode(errors="replace").strip() or "unknown"
        if _ended(holder) and time.monotonic() < until:  # its workers are about to end too
            time.sleep(0.1)
            continue
        os.close(lock)
        raise UserError(
            f"run.id: found {folder.name!r}, but process {holder} is running in {folder}; "
            "wait for it, end it, or set another run.id"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()} on {platform.node()}\n".encode(), 0)
    return lock


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _ended(holder: str) -> bool:
    """Whether the command that wrote this into the lock is gone, as far as can be known here."""
    pid, _, node = holder.partition(" on ")
    if node != platform.node() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_atomically(path: Path, text: str) -> None:
    """The file holds the old text or the new one, whatever happens in between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _unfinished(path) as unfinished:
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)


@contextlib.contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield unfinished
    finally:
        unfinished.unlink(missing_ok=True)


def load_config(path: Path) -> Config:
    """The typed config of a run folder, or of one config.yaml, held against the schema of this version."""
    file = path / CONFIG if path.is_dir() else path
    try:
        return _typed(OmegaConf.load(file), file)
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); allowed: the folder of a run") from error
    except YAMLError as error:
        raise UserError(f"{file}: is not YAML ({error}); run the same run.id again to rewrite it") from error


def saved_config(resume: Resume) -> Config:
    """The config a checkpoint was saved with, from the checkpoint alone: its run folder may have changed since."""
    assert resume.folder is not None
    check_resume(resume, resume.folder)
    checkpoints, newest = resume.checkpoint()
    for step in reversed([step for step in checkpoint_steps(resume.folder) if step <= newest]):
        about = checkpoints / str(step) / ABOUT
        try:
            return _typed(json.loads(about.read_text())["config"], about)
        except (OSError, ValueError, KeyError) as error:
            wrong = f"resume: {about} cannot be read ({error}); choose another step or run folder"
        if resume.step is not None:
            break
    raise UserError(wrong)


def _typed(values: Any, file: Path) -> Config:
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), values))
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{file}: key {error.full_key} does not fit this version of sharder ({reason})") from error
    assert isinstance(config, Config)
    return config
