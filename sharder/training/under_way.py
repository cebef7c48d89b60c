"""The step that the devices are working on: waited for once the next one is dispatched, then logged and looked at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from sharder.data.order import step_position
from sharder.supervise.heartbeat import host_peak_mb
from sharder.tracking.sinks import Tracker
from sharder.training import nonfinite
from sharder.training.clock import Clock
from sharder.training.program import Program
from sharder.training.rates import Rates, device_peak_mb
from sharder.training.state import TrainState
from sharder.training.step import Batch, Metrics


@dataclass
class _Step:
    number: int
    metrics: Metrics
    batch: Batch  # placed
    examples: Any  # rows of the recording, [b]
    done: bool = False  # and the clock knows


class UnderWay:
    """At most one step waits here, so at most two are on the devices."""

    def __init__(
        self, program: Program, folder: Path, clock: Clock, tracker: Tracker, rates: Rates, batches_per_epoch: int
    ):
        self._program, self._folder, self._clock, self._tracker = program, folder, clock, tracker
        self._rates = rates
        self._batches_per_epoch = batches_per_epoch
        self._step: _Step | None = None

    def dispatched(self, number: int, metrics: Metrics, batch: Batch, examples: Any) -> None:
        assert self._step is None
        self._step = _Step(number, metrics, batch, examples)

    def look(self) -> None:
        """Tells the clock when the step is done, without waiting for it."""
        if self._step is not None and not self._step.done and is_done(self._step.metrics):
            self._step.done = True
            self._clock.done()

    def finish(self, state: TrainState) -> None:
        """Waits for the step, if there is one. `state`: the newest. UserError when it was not finite and is not to be
        skipped."""
        if self._step is None:
            return
        step, self._step = self._step, None
        jax.block_until_ready(step.metrics)
        if not step.done:
            self._clock.done()
        train = self._program.config.train
        metrics = {name: float(value) for name, value in step.metrics.items()}
        if not metrics.pop("finite"):
            nonfinite.report(self._program, self._folder, step.number, metrics, state, step.batch, step.examples)
        done = step.number + 1
        if done % train.log_every and done != train.steps:
            return
        epoch, _ = step_position(step.number, self._batches_per_epoch)
        row = {"step": done, "epoch": epoch, **metrics, **self._rates.row(self._clock.lap()), **memory()}
        self._tracker.log(row)


def memory() -> dict[str, float]:
    """The most that was held so far, by this process and by its first device where the backend counts."""
    peaks = {"host_peak_mb": host_peak_mb(), "device_peak_mb": device_peak_mb(jax.local_devices()[0])}
    return {name: peak for name, peak in peaks.items() if peak is not None}


def is_done(metrics: Metrics) -> bool:
    """Asks without waiting."""
    leaves: list[Any] = list(metrics.values())  # jax.Array has is_ready, and its type does not say so
    return all(leaf.is_ready() for leaf in leaves)
