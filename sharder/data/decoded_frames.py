"""Frames decoded once and kept on disk at the model's size. Reading one is a look into mapped memory.

    N  rows of the recording      size  model.image_size

    <user cache>/decoded/<name>/
      <camera>.npy    uint8 [N, size, size, 3]   what decoding on demand and `resize_with_pad` give, to the bit
      contents.json   what this is; the folder's name is its digest

Whoever opens them holds sizes, counts and versions against what is expected. Pixels are not read for that: it is to
cost nothing. frame_decoding.py makes the folder, under another name until it is whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import PIL

FORMAT = 1  # raise it when the files or `resize_with_pad` change
CONTENTS = "contents.json"


class Damaged(Exception):
    """A folder of decoded frames that is not what it should be."""


@dataclass(frozen=True)
class Contents:
    """All that the frames depend on. The fingerprint covers rows, their order and every encoded frame."""

    format: int
    fingerprint: str  # of the recording
    rows: int
    cameras: list[str]
    image_size: int  # pixels
    decoder: str  # versions of what decodes and resizes: others may round another way
    resizer: str

    @property
    def name(self) -> str:
        return hashlib.sha256(json.dumps(dataclasses.asdict(self)).encode()).hexdigest()[:32]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of one camera's frames."""
        return self.rows, self.image_size, self.image_size, 3

    @property
    def frames(self) -> int:
        return self.rows * len(self.cameras)

    @property
    def bytes(self) -> int:
        return self.frames * self.image_size**2 * 3

    def __str__(self) -> str:
        cameras = f"{len(self.cameras)} camera{'s' if len(self.cameras) > 1 else ''}"
        return f"{self.rows:,} frames of {cameras} at {self.image_size}x{self.image_size}"


def contents_of(recording: Any, image_size: int) -> Contents:
    return Contents(
        FORMAT,
        recording.fingerprint,
        len(recording),
        sorted(recording.cameras),
        image_size,
        f"PyAV {av.__version__}",
        f"Pillow {PIL.__version__}",
    )


class DecodedFrames:
    """Opened, or Damaged. Copies sent to other processes share the mapped memory."""

    def __init__(self, folder: Path, contents: Contents):
        self.folder, self.contents = folder, contents
        try:
            said = json.loads((folder / CONTENTS).read_text())
        except (OSError, ValueError) as error:
            raise Damaged(f"{CONTENTS} cannot be read ({getattr(error, 'strerror', None) or error})") from None
        if said != dataclasses.asdict(contents):
            raise Damaged(f"{CONTENTS} says something else than its folder's name")
        self._frames = {camera: np.asarray(array) for camera, array in camera_arrays(folder, contents).items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return DecodedFrames, (self.folder, self.contents)

    def image(self, row: int, camera: str) -> np.ndarray:
        """uint8 [size, size, 3], read-only."""
        return self._frames[camera][row]


def camera_arrays(folder: Path, contents: Contents) -> dict[str, np.memmap]:
    """Every camera's frames, uint8 [N, size, size, 3], mapped read-only; Damaged when a file is not as it should be."""
    arrays = {}
    for camera in contents.cameras:
        file = folder / f"{camera}.npy"
        try:
            array: np.memmap = np.load(file, mmap_mode="r")
            size = file.stat().st_size
        except (OSError, ValueError, EOFError) as error:
            raise Damaged(f"{file.name} cannot be read ({getattr(error, 'strerror', None) or error})") from None
        if array.shape != contents.shape or array.dtype != np.uint8:
            raise Damaged(f"{file.name} holds {array.dtype} {list(array.shape)}, not uint8 {list(contents.shape)}")
        if size != array.offset + array.nbytes:
            raise Damaged(f"{file.name} has {size:,} bytes, not {array.offset + array.nbytes:,}")
        arrays[camera] = array
    return arrays
