"""Makes the folder of decoded frames (decoded_frames.py), or says why frames are decoded on demand.

    <user cache>/decoded/
      <name>/               whole
      <name>.lock           locked by the one process that makes it; the others wait, and then find it made
      .unfinished-<name>/   room for all frames, taken at once, and finished.txt: "first past-last" of the rows that
                            are in it; a line is written when their pixels are on the disk
      .room.lock            locked while room is counted and taken

Rows are decoded in pieces of whole episodes, in the order of the recording, so a video is read from its start to its
end without a seek. Killed at any moment, the next run goes on with the pieces that are missing.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sharder.config import DataConfig
from sharder.data.cache import cache_dir
from sharder.data.decoded_frames import CONTENTS, Contents, Damaged, DecodedFrames, camera_arrays, contents_of
from sharder.data.decoding_progress import DecodingProgress
from sharder.data.frame_table import new_array
from sharder.data.pipeline import Loader
from sharder.data.transforms import resize_with_pad
from sharder.errors import UserError

FINISHED = "finished.txt"
PIECE_ROWS = 128  # shorter episodes share a piece, so that few files are synced
LONGEST_PIECE_ROWS = 1024  # longer episodes are cut, so that little is lost when killed
AUTO_SHARE = 0.5  # of the disk's free bytes that data.frames=auto takes at most: checkpoints need room too
Piece = tuple[int, int]  # first and past-last row

log = logging.getLogger(__name__)


class NoRoom(Exception):
    """Says bytes needed, allowed and free, and what to do."""


def decoded_frames(recording: Any, image_size: int, data: DataConfig) -> DecodedFrames | None:
    """The recording's frames at that size, decoded now unless they are there; None: decode on demand."""
    if data.frames == "on_demand" or data.kind == "fixed" or not recording.cameras:
        return None
    contents = contents_of(recording, image_size)
    folder = cache_dir() / "decoded" / contents.name
    try:
        frames = _opened(folder, contents) or _made(folder, contents, recording, data)
    except NoRoom as error:
        reason = str(error)
    except OSError as error:
        reason = (
            f"{folder.parent} cannot be written ({error.strerror or error}); free some space there or set "
            "XDG_CACHE_HOME to another folder"
        )
    else:
        log.info(f"frames: {contents}, decoded once: {folder}")
        return frames
    if data.frames == "decoded":
        raise UserError(f"data.frames=decoded: {reason}, or set data.frames=on_demand")
    log.warning(f"frames: decoded on demand in every epoch, which is slower: {reason}")
    return None


def _opened(folder: Path, contents: Contents) -> DecodedFrames | None:
    """None when they are not there, or damaged."""
    try:
        return DecodedFrames(folder, contents)
    except Damaged:
        return None


def _made(folder: Path, contents: Contents, recording: Any, data: DataConfig) -> DecodedFrames:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_name(f"{folder.name}.lock"), f"frames: another process decodes them, waiting: {folder}"):
        _remove_if_damaged(folder, contents)
        if not folder.exists():  # nobody made it while this process waited
            unfinished = folder.with_name(f".unfinished-{folder.name}")
            _take_room(unfinished, contents, data)
            _decode_missing(unfinished, contents, recording, data.workers)
            _publish(unfinished, folder, contents)
        return DecodedFrames(folder, contents)


@contextmanager
def _alone(lock: Path, waiting: str | None = None) -> Iterator[None]:
    """One process at a time; the system lets go when it ends, however it ends."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                log.info(waiting)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_if_damaged(folder: Path, contents: Contents) -> None:
    if not folder.exists():
        return
    try:
        DecodedFrames(folder, contents)
    except Damaged as damage:
        log.warning(f"frames: removing {folder}, which is damaged: {damage}; they are decoded again")
        shutil.rmtree(folder)


def _take_room(unfinished: Path, contents: Contents, data: DataConfig) -> None:
    """Leaves `unfinished` with files of the full size, and the pieces in them that are finished already."""
    try:
        if not (unfinished / FINISHED).exists():
            raise Damaged("its files were not all there yet")
        camera_arrays(unfinished, contents)
    except Damaged:
        shutil.rmtree(unfinished, ignore_errors=True)
    else:
        return
    with _alone(unfinished.with_name(".room.lock")):
        _check_room(unfinished.parent, contents, data)
        unfinished.mkdir()
        try:
            for camera in contents.cameras:
                new_array(unfinished / f"{camera}.npy", contents.shape, np.uint8)
        except OSError:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        (unfinished / FINISHED).touch()


def _check_room(parent: Path, contents: Contents, data: DataConfig) -> None:
    others = sum(_taken(file) for file in parent.glob("*/*"))
    allowed, free = round(data.decoded_gib * 2**30), shutil.disk_usage(parent).free
    usable = free if data.frames == "decoded" else AUTO_SHARE * free
    if contents.bytes > min(allowed - others, usable):
        of_free = "" if data.frames == "decoded" else f", of which data.frames=auto takes up to {AUTO_SHARE:.0%}"
        raise NoRoom(
            f"{contents} need {_gb(contents.bytes)}; data.decoded_gib={data.decoded_gib:g} allows {_gb(allowed)}, "
            f"{_gb(others)} of it taken by other recordings in {parent}; the disk has {_gb(free)} free{of_free}; "
            "raise data.decoded_gib, remove folders there, or set XDG_CACHE_HOME to a larger disk"
        )


def _taken(file: Path) -> int:
    """Bytes on the disk."""
    try:
        return file.stat().st_blocks * 512
    except FileNotFoundError:  # others work here too
        return 0


def _gb(count: int) -> str:
    return f"{count / 1e9:.3g} GB"


def _decode_missing(unfinished: Path, contents: Contents, recording: Any, workers: int) -> None:
    done = _whole_lines(unfinished / FINISHED)
    missing = [(first, past) for first, past in pieces_of(recording) if f"{first} {past}" not in done]
    there = contents.rows - sum(past - first for first, past in missing)
    resumed = f"; {there:,} are there from before" if there else ""
    size = f"{_gb(contents.bytes)}, once for all runs"
    log.info(f"frames: decoding {contents} ({size}) by data.workers={workers}{resumed}")
    began = time.monotonic()
    loader = Loader(
        PieceDecoder(unfinished, contents, recording, missing),
        first_step=0,
        last_step=len(missing),
        workers=workers,
        prefetch=4 * max(1, workers),  # pieces differ in length: nobody waits for the next one
    )
    cameras = len(contents.cameras)
    progress = DecodingProgress(contents.frames, there * cameras)
    with loader, progress:
        for (first, past), _ in zip(missing, loader, strict=True):
            progress.advance((past - first) * cameras)
    log.info(f"frames: decoded in {time.monotonic() - began:.1f} s")


def _whole_lines(file: Path) -> set[str]:
    """A line that was cut off is dropped from the file too: the next one must not be joined to it."""
    text = file.read_bytes()
    text = text[: text.rfind(b"\n") + 1]
    os.truncate(file, len(text))
    return set(text.decode(errors="replace").splitlines())


def pieces_of(recording: Any) -> list[Piece]:
    """All rows, in order: whole episodes, but for long ones."""
    pieces, first, past = [], 0, 0
    while past < len(recording):
        past = min(recording.episode_bounds(past)[1], past + LONGEST_PIECE_ROWS)
        if past - first >= PIECE_ROWS or past == len(recording):
            pieces.append((first, past))
            first = past
    return pieces


class PieceDecoder:
    """What the loader's workers run: piece after piece onto the disk."""

    def __init__(self, folder: Path, contents: Contents, recording: Any, pieces: list[Piece]):
        self._folder, self._contents, self._recording, self._pieces = folder, contents, recording, pieces
        self._data_at = {camera: array.offset for camera, array in camera_arrays(folder, contents).items()}

    def batch(self, number: int) -> dict[str, Any]:
        """Puts piece `number` on the disk, and then a line that says so: one write, which others' cannot split."""
        first, past = self._pieces[number]
        size = self._contents.image_size
        for camera in self._contents.cameras:
            with (self._folder / f"{camera}.npy").open("r+b") as file:
                file.seek(self._data_at[camera] + first * size * size * 3)
                for row in range(first, past):
                    file.write(np.ascontiguousarray(self._frame(row, camera)).data)
                file.flush()
                os.fdatasync(file.fileno())
        with (self._folder / FINISHED).open("ab", buffering=0) as finished:
            finished.write(f"{first} {past}\n".encode())
            os.fdatasync(finished.fileno())
        return {}

    def _frame(self, row: int, camera: str) -> np.ndarray:
        try:
            return resize_with_pad(self._recording.image(row, camera), self._contents.image_size)
        except UserError:
            raise
        except Exception as error:  # an OSError above is one of writing
            raise RuntimeError(f"row {row} of the recording: {type(error).__name__}: {error}") from error


def _publish(unfinished: Path, folder: Path, contents: Contents) -> None:
    with (unfinished / CONTENTS).open("w") as file:
        file.write(json.dumps(dataclasses.asdict(contents), indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(folder)
    (folder / FINISHED).unlink()
