"""A camera recorded as encoded images (PNG, JPEG) in the parquet files. They are copied, still encoded, into one file:
parquet has no quick way to a single row.

    N rows

    <camera>.images      the encoded images one after the other
    <camera>.start.npy   int64 [N]   where each row's begins
    <camera>.size.npy    int64 [N]   bytes
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sharder.data.files import mapped, read_columns, reading
from sharder.data.frame_table import DataFile, episode_rows, numbers
from sharder.data.video import VideoError
from sharder.errors import UserError


class ImageCamera:
    def __init__(self, folder: Path, name: str):
        self._images = np.memmap(folder / f"{name}.images", np.uint8, mode="r")
        self._start = mapped(folder / f"{name}.start.npy")
        self._size = mapped(folder / f"{name}.size.npy")

    def image(self, row: int) -> np.ndarray:
        encoded = self._images[self._start[row] : self._start[row] + self._size[row]].tobytes()
        try:
            with Image.open(io.BytesIO(encoded)) as image:
                return np.asarray(image.convert("RGB"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise VideoError(f"its image of {len(encoded)} bytes does not decode ({error})") from None


def write_image_camera(
    folder: Path, name: str, key: str, root: Path, files: Sequence[DataFile], rows: int
) -> np.ndarray:
    """Copies the images of the camera of that key; returns a checksum of each row's."""
    start, size, crc = np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros(rows, np.uint32)
    end = 0
    with (folder / f"{name}.images").open("wb") as copy:
        for file in files:
            table = read_columns(file.path, ["episode_index", "frame_index", key])
            with reading(file.path, "parquet"):
                episode_index, frame_index = (numbers(table, c, file.path) for c in ("episode_index", "frame_index"))
            for episode, first, rows_in_file in episode_rows(file, episode_index, frame_index):
                for frame, row_in_file in enumerate(rows_in_file):
                    where = f"{file.path}: {key!r} of episode {episode.number}, frame {frame}"
                    encoded = encoded_image(table[key][int(row_in_file)].as_py(), root, where)
                    row = first + frame
                    start[row], size[row], crc[row] = end, len(encoded), zlib.crc32(encoded)
                    copy.write(encoded)
                    end += len(encoded)
    np.save(folder / f"{name}.start.npy", start)
    np.save(folder / f"{name}.size.npy", size)
    return crc


def encoded_image(value: Any, root: Path, where: str) -> bytes:
    encoded = value.get("bytes") if isinstance(value, dict) else value
    if isinstance(encoded, bytes) and encoded:
        return encoded
    path = value.get("path") if isinstance(value, dict) else None
    if isinstance(path, str) and path:
        with reading(root / path, "an image"):
            return (root / path).read_bytes()
    raise UserError(f"{where} holds no image (neither bytes nor a path); copy the recording again")
