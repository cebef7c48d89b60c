"""Decoded and resized frames, kept up to a number of bytes, the least recently used dropped first.

A small set is so decoded once a process, not once an epoch; a large one passes through.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np


class FrameCache:
    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self.bytes = 0
        self._frames: OrderedDict[tuple[int, str], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, row: int, camera: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The frame, read-only; made outside the lock, so two threads may both make it and get the same values."""
        key = (row, camera)
        with self._lock:
            if key in self._frames:
                self._frames.move_to_end(key)
                return self._frames[key]
        # An array of its own: a view would keep a whole decoded picture alive that is not counted.
        frame = np.array(make())
        frame.flags.writeable = False
        with self._lock:
            if key not in self._frames:
                self._frames[key] = frame
                self.bytes += frame.nbytes
            while self.bytes > self.max_bytes:
                self.bytes -= self._frames.popitem(last=False)[1].nbytes
        return frame

    def __reduce__(self) -> tuple:
        """A pickled cache is an empty one: frames and locks stay in their process."""
        return FrameCache, (self.max_bytes,)
