"""The user's cache folder, and folders in it that are either whole or absent.

A folder is built under a temporary name, sealed with the size and checksum of every file, and renamed into place. So a
reader never sees half of one, two builders at once do no harm, and a damaged one is noticed and built again.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

from sharder.errors import UserError

SEAL = "contents.json"
CHECKSUM_LIMIT_BYTES = 1 << 30  # larger files are checked by size alone, so that opening stays quick
PUBLISH_ATTEMPTS = 20


def cache_dir() -> Path:
    """$XDG_CACHE_HOME/sharder, else ~/.cache/sharder. May not exist yet."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "sharder"


def cached_folder(parent: Path, name: str, build: Callable[[Path], None]) -> Path:
    """The folder `parent/name`, built by `build(empty folder)` unless a whole one is already there."""
    final = parent / name
    if is_whole(final):
        return final
    try:
        parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".building-", dir=parent))
    except OSError as error:
        raise UserError(
            f"the cache folder {parent} cannot be written ({error.strerror}); set XDG_CACHE_HOME to one that can"
        ) from None
    try:
        build(temporary)
        seal(temporary)
        publish(temporary, final)
    except OSError as error:
        raise UserError(
            f"writing to the cache folder {parent} failed ({error.strerror or error}); "
            "free some space there or set XDG_CACHE_HOME to another folder"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def seal(folder: Path) -> None:
    contents = {path.name: [path.stat().st_size, checksum(path)] for path in sorted(folder.iterdir())}
    (folder / SEAL).write_text(json.dumps(contents))


def is_whole(folder: Path) -> bool:
    try:
        contents = json.loads((folder / SEAL).read_text())
        return all(
            [(folder / name).stat().st_size, checksum(folder / name)] == sealed for name, sealed in contents.items()
        )
    except (OSError, ValueError, AttributeError):
        return False


def publish(temporary: Path, final: Path) -> None:
    """Rename `temporary` to `final`. What lies there already is kept if it is whole and moved out of the way if not."""
    for attempt in range(PUBLISH_ATTEMPTS):
        try:
            temporary.rename(final)
            return
        except OSError:
            if attempt == PUBLISH_ATTEMPTS - 1:
                raise
        if is_whole(final):
            return  # another process was quicker
        discarded = temporary.with_name(f"{temporary.name}-discarded-{attempt}")
        try:
            final.rename(discarded)
        except FileNotFoundError:
            continue
        if discarded.is_dir():
            shutil.rmtree(discarded, ignore_errors=True)
        else:
            discarded.unlink(missing_ok=True)


def checksum(path: Path) -> int:
    if path.stat().st_size > CHECKSUM_LIMIT_BYTES:
        return 0
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value
