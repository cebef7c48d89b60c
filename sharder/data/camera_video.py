"""A camera recorded as video: which frame of which file belongs to each row.

N rows   F files   P packets (frames) of all the files, file after file

<camera>.frame.npy   int64 [N]     frame of each row, 0 <= frame < P
<camera>.first.npy   int64 [F+1]   where each file's frames begin
<camera>.pts.npy     int64 [P]     and seek, key: see VideoIndex
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from sharder.data.episodes import Episode
from sharder.data.files import mapped
from sharder.data.video import DecoderPool, Frame
from sharder.data.video_index import index_video, place_episodes

READERS = 4  # threads; reading packets releases the interpreter


class VideoCamera:
    def __init__(self, folder: Path, name: str, files: Sequence[str], pool: DecoderPool):
        self._files = [Path(file) for file in files]
        self._pool = pool
        self._frame, self._first, self._pts, self._seek, self._key = (
            mapped(folder / f"{name}.{array}.npy") for array in ("frame", "first", "pts", "seek", "key")
        )

    def image(self, row: int) -> np.ndarray:
        at = self._frame[row]
        file = int(np.searchsorted(self._first, at, side="right")) - 1
        frame = Frame(int(at - self._first[file]), int(self._pts[at]), int(self._key[at]), int(self._seek[at]))
        return self._pool.read(self._files[file], frame)


def write_video_camera(
    folder: Path,
    name: str,
    key: str,
    all_episodes: Sequence[Episode],
    selected: Mapping[int, slice],
    timestamps: np.ndarray,
    fps: float,
) -> tuple[list[str], np.ndarray]:
    """Writes the arrays for the camera of that key; returns its files and a checksum of each row's encoded frame.

    `selected`: rows of each selected episode.
    """
    in_file: dict[Path, list[Episode]] = {}
    for episode in all_episodes:
        in_file.setdefault(episode.clips[key].file, []).append(episode)
    files = [file for file, episodes in in_file.items() if any(e.number in selected for e in episodes)]
    frame_of = np.zeros(len(timestamps), np.int64)
    crc_of = np.zeros(len(timestamps), np.uint32)
    with ThreadPoolExecutor(READERS) as threads:
        indexes = list(threads.map(index_video, files))
    first = np.cumsum([0, *(len(index) for index in indexes)])
    for file, index, first_of_file in zip(files, indexes, first, strict=False):
        wanted = [(e, timestamps[selected[e.number]]) for e in in_file[file] if e.number in selected]
        for (episode, _), frames in zip(wanted, place_episodes(key, index, in_file[file], wanted, fps), strict=True):
            frame_of[selected[episode.number]] = first_of_file + frames
            crc_of[selected[episode.number]] = index.crc[frames]
    np.save(folder / f"{name}.frame.npy", frame_of)
    np.save(folder / f"{name}.first.npy", first)
    for array in ("pts", "seek", "key"):
        np.save(folder / f"{name}.{array}.npy", np.concatenate([getattr(index, array) for index in indexes]))
    return [str(file) for file in files], crc_of
