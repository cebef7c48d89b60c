"""Writing h264 video."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np


def write_video(
    path: str | Path,
    frames: np.ndarray,
    *,
    fps: int = 10,
    quantizer: int = 18,
    chroma: str = "yuv420p",
    group: int = 12,
) -> None:
    """frames uint8 [T, height, width, 3] RGB, even sides.

    `quantizer` is x264's, the same for every frame, lower is better: a rate factor would spend less on the first frames
    of so short a video. `group` is the number of frames from one key frame to the next: what random access must decode
    at most, since no frame refers to a later one. `chroma` yuv420p plays everywhere; yuv444p keeps colour at full
    resolution, which a picture of 64 pixels cannot spare.
    """
    height, width = frames.shape[1:3]
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, chroma
        stream.options = {"qp": str(quantizer), "preset": "veryfast"}
        coder = stream.codec_context
        coder.gop_size, coder.max_b_frames, coder.thread_count = group, 0, 1
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
