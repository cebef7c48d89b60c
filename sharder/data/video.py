"""Decoding single frames of video files, with a bounded number of files kept open."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np

WORTH_DECODING = 4  # frames: skipping this many by decoding costs no more than a seek


class VideoError(Exception):
    """A frame that does not decode; the caller knows which episode and camera that is."""


@dataclass(frozen=True)
class Frame:
    """Where a frame of a file is: see VideoIndex."""

    number: int  # in the order shown
    pts: int
    key: int  # number of the key frame at or before it
    seek: int  # decoding time of that key frame


class Decoder:
    """One open video file. Not for use by two threads at once."""

    def __init__(self, path: Path):
        self.path = path
        self._last = -1  # number of the frame decoded last
        try:
            self._open()
        except (av.FFmpegError, OSError, ValueError, IndexError) as error:
            raise VideoError(f"{path} cannot be opened ({error})") from None

    @property
    def codec(self) -> str:
        return self._stream.codec_context.name

    def read(self, frame: Frame) -> np.ndarray:
        """uint8 [h, w, 3] RGB."""
        try:
            if not frame.key - WORTH_DECODING <= self._last < frame.number:
                self._seek(frame.seek)
            picture = self._decode_up_to(frame)
            if picture is None:  # some files mislead a seek: go through all of it
                self.close()
                self._open()
                picture = self._decode_up_to(frame)
        except (av.FFmpegError, OSError, ValueError) as error:
            raise VideoError(f"{self.path}: frame {frame.number} does not decode as {self.codec} ({error})") from None
        if picture is None:
            raise VideoError(f"{self.path}: frame {frame.number} is not there when decoding as {self.codec}")
        self._last = frame.number
        return picture

    def _open(self) -> None:
        self._container = av.open(str(self.path))
        self._stream = self._container.streams.video[0]
        if not self._stream.codec_context:
            raise ValueError("this PyAV has no decoder for its codec")
        # Workers decode many files at once, so threads inside a decoder would only compete and cost memory.
        self._stream.codec_context.thread_count = 1
        self._frames: Iterator[av.VideoFrame] = self._container.decode(self._stream)
        self._last = -1

    def _seek(self, time: int) -> None:
        self._container.seek(time, stream=self._stream, backward=True)
        self._frames = self._container.decode(self._stream)

    def _decode_up_to(self, frame: Frame) -> np.ndarray | None:
        for decoded in self._frames:
            if decoded.pts == frame.pts:
                return decoded.to_ndarray(format="rgb24")
            if decoded.pts is not None and decoded.pts > frame.pts:
                return None
        return None

    def close(self) -> None:
        self._container.close()


class DecoderPool:
    """Decoders not in use, at most `limit`; the one unused longest is closed first.

    A decoder is taken out while it decodes, so threads never share one and need no lock while decoding.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._idle: deque[Decoder] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._idle)

    def read(self, path: Path, frame: Frame) -> np.ndarray:
        decoder = self._take(path)
        try:
            picture = decoder.read(frame)
        except BaseException:
            decoder.close()
            raise
        self._give_back(decoder)
        return picture

    def _take(self, path: Path) -> Decoder:
        with self._lock:
            for decoder in reversed(self._idle):
                if decoder.path == path:
                    self._idle.remove(decoder)
                    return decoder
        return Decoder(path)

    def _give_back(self, decoder: Decoder) -> None:
        closing = None
        with self._lock:
            self._idle.append(decoder)
            if len(self._idle) > self._limit:
                closing = self._idle.popleft()
        if closing is not None:
            closing.close()
