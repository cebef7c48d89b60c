"""A checkpoint's seal: the size and checksum of each of its files, written when all of it is on disk.

    checkpoints/<step>/manifest.json    {"files": {"trainable/d/0a1b...": [size in bytes, crc32], ...}}
    checkpoints/<step>.damaged-<n>/     what was found damaged or unfinished, moved out of the way

A step without a manifest is unfinished: whoever wrote it was stopped between the arrays and the seal.
"""

from __future__ import annotations

import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sharder.errors import Fault
from sharder.run_folder import MANIFEST, write_atomically

CHUNK = 2**22  # bytes read at once
THREADS = 4


def seal(step: Path) -> None:
    """Reads every file of a finished checkpoint once, and writes its manifest."""
    write_atomically(step / MANIFEST, json.dumps({"files": _listing(step)}) + "\n")


def damage(step: Path) -> str | None:
    """What is wrong with the checkpoint in folder `step`; None when every file is as it was written.

    A disk that cannot be read just now is no damage but a Fault.
    """
    try:
        return _damage(step)
    except OSError as error:
        raise Fault(
            f"checkpoint {step}: {error.filename or step} cannot be read ({error.strerror}); try again"
        ) from error


def _damage(step: Path) -> str | None:
    try:
        text = (step / MANIFEST).read_text()
    except FileNotFoundError:
        return "it has no manifest.json: saving it was not finished"
    try:
        told = {str(name): (int(size), int(checksum)) for name, (size, checksum) in json.loads(text)["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its manifest.json is not one ({error})"
    if not told:
        return "its manifest.json lists no file"
    there = {str(path.relative_to(step)): path.stat().st_size for path in _files(step)}
    for name, (size, _) in told.items():
        if name not in there:
            return f"{name} is missing"
        if there[name] != size:
            return f"{name} has {there[name]:,} bytes, {size:,} were written"
    try:
        found = _listing(step)
    except FileNotFoundError as error:
        return f"{os.path.relpath(str(error.filename), step)} is missing"
    for name, (_, checksum) in told.items():
        if name not in found or found[name][1] != checksum:
            return f"{name} is not what was written (its checksum differs)"
    return None


def set_aside(step: Path) -> Path:
    """Moves a damaged checkpoint out of the way of those that will be saved; nothing is deleted."""
    taken = {path.name for path in step.parent.iterdir()}
    name = next(name for n in range(1, len(taken) + 2) if (name := f"{step.name}.damaged-{n}") not in taken)
    return step.rename(step.with_name(name))


def _listing(step: Path) -> dict[str, list[int]]:
    """{path in the checkpoint: [bytes, crc32]}."""
    files = _files(step)
    with ThreadPoolExecutor(THREADS) as pool:
        return {str(path.relative_to(step)): found for path, found in zip(files, pool.map(_read, files), strict=True)}


def _files(step: Path) -> list[Path]:
    return sorted(path for path in step.rglob("*") if path.is_file() and path.name != MANIFEST)


def _read(path: Path) -> list[int]:
    size, checksum = 0, 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            size, checksum = size + len(chunk), zlib.crc32(chunk, checksum)
    return [size, checksum]
