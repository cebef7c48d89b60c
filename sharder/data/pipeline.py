"""Batches by step number, made ahead by processes or a thread.

    b  examples of this process, `past_last - first` of the global batch
    H, D, T  model.horizon, model.action_dim, model.prompt_tokens

images       {camera: uint8 [b, size, size, 3]}    only the cameras the recording has
image_masks  {camera: bool [b]}
tokens       int32 [b, T]           token_mask   bool [b, T]
state        float32 [b, D]         actions      float32 [b, H, D]       normalised, zero-padded
example      int64 [b]              rows of the recording

A batch is a pure function of its step: which examples is arithmetic (`order.py`), so any step is reached at once, the
only state is the step counter, and neither the number of workers nor what they did before changes a bit. No Grain:
it would import jax into every worker to do the same.
"""

from __future__ import annotations

import atexit
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from sharder.data.batch_process import BatchProcess, Source
from sharder.data.decoded_frames import DecodedFrames
from sharder.data.frame_cache import FrameCache
from sharder.data.order import batches_per_epoch, examples_at, step_position
from sharder.data.transforms import ExampleTransform
from sharder.errors import UserError

Batch = dict[str, Any]


class BatchSource:
    """Makes the batch of any step. `slice` is the part of the global batch that this process is to hold.

    `frames` are the recording's at the model's size; without them they are decoded, and kept up to `frame_cache_mib`.
    """

    def __init__(
        self,
        recording: Any,
        transform: ExampleTransform,
        *,
        seed: int,
        batch_size: int,
        slice: tuple[int, int] | None = None,
        frame_cache_mib: int = 256,
        frames: DecodedFrames | None = None,
    ):
        self.recording, self.transform = recording, transform
        self.seed, self.batch_size = seed, batch_size
        self.first, self.past_last = slice or (0, batch_size)
        if not 0 <= self.first < self.past_last <= batch_size:
            raise ValueError(f"slice ({self.first}, {self.past_last}) is not part of a batch of {batch_size}")
        self.batches_per_epoch = batches_per_epoch(len(recording), batch_size)
        self._decoded, self._kept = frames, FrameCache(frame_cache_mib * 2**20)

    def examples(self, step: int) -> np.ndarray:
        """Rows of the recording, int64 [b]; nothing is read for it."""
        epoch, batch = step_position(step, self.batches_per_epoch)
        start = batch * self.batch_size
        positions = np.arange(start + self.first, start + self.past_last)
        return examples_at(self.seed, epoch, positions, len(self.recording))

    def batch(self, step: int) -> Batch:
        rows = self.examples(step)
        examples: list[Any] = [None] * len(rows)
        # Decoded in the order of the recording, so that neighbours share a decoder that is already there.
        for place in np.argsort(rows):
            examples[place] = self._example(step, int(rows[place]))
        return _stack(examples) | {"example": rows}

    def _example(self, step: int, row: int) -> Any:
        try:
            return self.transform(self.recording, row, self._frame)
        except UserError as error:
            raise UserError(f"step {step}, row {row} of the recording: {error}") from error
        except Exception as error:
            raise RuntimeError(f"step {step}, row {row} of the recording: {type(error).__name__}: {error}") from error

    def _frame(self, row: int, camera: str) -> np.ndarray:
        if self._decoded is not None:
            return self._decoded.image(row, camera)
        return self._kept.get(row, camera, lambda: self.transform.frame(self.recording, row, camera))


class BatchThread:
    """What BatchProcess does, by one thread of this process."""

    def __init__(self, source: Source):
        self._source = source
        self._executor = ThreadPoolExecutor(1, "batches")

    def submit(self, step: int) -> Future:
        return self._executor.submit(self._source.batch, step)

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)


class Loader:
    """Iterates the batches of steps first_step, ..., last_step - 1, `prefetch` of them under way or waiting.

    The consumer steps, and with an exception from a worker raised at the step it belongs to. Close it, or use `with`.
    """

    def __init__(self, source: Source, *, first_step: int, last_step: int, workers: int, prefetch: int):
        self._next_step, self._last_step = first_step, last_step
        self._ahead = max(1, prefetch, workers)
        self._under_way: deque[Future] = deque()
        self._makers: list[BatchProcess | BatchThread] = []
        # Before multiprocessing's own exit handler, which would wait for processes that ignore its SIGTERM.
        atexit.register(self.close)
        if first_step >= last_step:
            return
        if workers == 0:
            self._makers.append(BatchThread(source))
        for index in range(min(workers, last_step - first_step)):
            self._makers.append(BatchProcess(source, f"data worker {index}"))
        self._fill()

    @property
    def pids(self) -> list[int]:
        """Of the worker processes."""
        return [maker.pid for maker in self._makers if isinstance(maker, BatchProcess)]

    def ready(self, within_s: float = 0.0) -> bool:
        """Is the next batch there, now or within some seconds? If not, `next` waits for data."""
        return bool(self._under_way) and bool(wait([self._under_way[0]], within_s).done)

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        if not self._under_way:
            raise StopIteration
        batch = self._under_way[0].result()
        self._under_way.popleft()
        self._fill()
        return batch

    def _fill(self) -> None:
        while len(self._under_way) < self._ahead and self._next_step < self._last_step:
            maker = self._makers[self._next_step % len(self._makers)]  # in turn: every batch costs about the same
            self._under_way.append(maker.submit(self._next_step))
            self._next_step += 1

    def close(self) -> None:
        """Ends the workers, whatever they are doing. Harmless when repeated."""
        atexit.unregister(self.close)
        self._under_way.clear()
        self._next_step = self._last_step
        while self._makers:
            self._makers.pop().close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _stack(examples: list[Any]) -> Any:
    """Like leaves of like trees, along a new first dim."""
    if isinstance(examples[0], dict):
        return {key: _stack([example[key] for example in examples]) for key in examples[0]}
    return np.stack(examples)
