"""All the places a row of metrics goes, behind one object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from sharder.config import Config
from sharder.tracking.metrics import METRICS, MetricsFile
from sharder.tracking.terminal import Terminal
from sharder.tracking.wandb_sink import WandbSink


class Sink(Protocol):
    def log(self, row: Mapping[str, Any]) -> None: ...

    def message(self, text: str) -> None: ...

    def close(self, hurry: bool) -> None:
        """`hurry`: the training was stopped or has failed, and whoever started it waits for it to end."""


class Tracker:
    """Logs to every sink, in order. Rows are flat, have `step`, and carry units in their keys (step_ms)."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks

    def log(self, row: Mapping[str, Any]) -> None:
        for sink in self._sinks:
            sink.log(row)

    def message(self, text: str) -> None:
        for sink in self._sinks:
            sink.message(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sink in self._sinks:
            sink.close(hurry=kind is not None)


def open_tracker(config: Config, folder: Path, first_step: int) -> Tracker:
    """The sinks the config asks for; `first_step` is where this attempt starts, 0 or the restored step."""
    terminal = Terminal(first_step, config.train.steps)
    metrics = MetricsFile(folder / METRICS, first_step)
    sinks: list[Sink] = [metrics, terminal]
    if config.tracking.mode != "off":
        sinks.append(WandbSink(config, folder, metrics.rows_before, warn=terminal.message))
    return Tracker(sinks)
