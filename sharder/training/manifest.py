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

from sharder.run_folder import write_atomically

MANIFEST = "manifest.json"
CHUNK = 2**22  # bytes read at once
THREADS = 4


def seal(step: Path) -> None:
    """Reads every file of a finished checkpoint once, and writes its manifest."""
    write_atomically(step / MANIFEST, json.dumps({"files": _listing(step)}) + "\n")


def damage(step: Path) -> str | None:
    """What is wrong with the checkpoint in folder `step`; None when every file is as it was written."""
    try:
        files = json.loads((step / MANIFEST).read_text())["files"]
        told = {name: (size, checksum) for name, (size, checksum) in files.items()}
    except FileNotFoundError:
        return "it has no manifest.json: saving it was not finished"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its manifest.json cannot be read ({error})"
    try:
        sizes = {name: (step / name).stat().st_size for name in told}
    except OSError as error:
        return f"{os.path.relpath(str(error.filename), step)} is missing"
    for name, (size, _) in told.items():
        if sizes[name] != size:
            return f"{name} has {sizes[name]:,} bytes, {size:,} were written"
    try:
        found = _listing(step)
    except OSError as error:
        return f"{error.filename} cannot be read ({error.strerror})"
    for name, (_, checksum) in told.items():
        if found[name][1] != checksum:
            return f"{name} is not what was written (its checksum differs)"
    return None


def set_aside(step: Path) -> Path:
    """Moves a damaged checkpoint out of the way of those that will be saved; nothing is deleted."""
    taken = {path.name for path in step.parent.iterdir()}
    name = next(name for n in range(1, len(taken) + 2) if (name := f"{step.name}.damaged-{n}") not in taken)
    return step.rename(step.with_name(name))


def _listing(step: Path) -> dict[str, list[int]]:
    """{path in the checkpoint: [bytes, crc32]}."""
    files = sorted(path for path in step.rglob("*") if path.is_file() and path.name != MANIFEST)
    with ThreadPoolExecutor(THREADS) as pool:
        return {str(path.relative_to(step)): found for path, found in zip(files, pool.map(_read, files), strict=True)}


def _read(path: Path) -> list[int]:
    size, checksum = 0, 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            size, checksum = size + len(chunk), zlib.crc32(chunk, checksum)
    return [size, checksum]
