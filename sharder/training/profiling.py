"""profile=window: some steps under jax's profiler, kept with all that is needed to read them anywhere.

<run folder>/profile/process-<index>/
  plugins/profile/<time>/<host>.xplane.pb   the trace of this process's devices
  train_step.hlo.txt.gz                     the program that ran, as XLA scheduled it
  window.json                               what the process knows of these steps: see measure/breakdown.py
"""

from __future__ import annotations

import gzip
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from sharder.errors import UserError
from sharder.measure.breakdown import HLO, WINDOW, WINDOW_NAME, read_breakdown
from sharder.run_folder import write_atomically
from sharder.tracking.breakdown import BREAKDOWN, publish
from sharder.training.ablation import ablate
from sharder.training.clock import DATA, HOST, PAUSE, PEERS, Clock, Spent
from sharder.training.program import Program
from sharder.training.rates import Rates
from sharder.training.state import TrainState
from sharder.training.step import Batch

log = logging.getLogger(__name__)


class Profile:
    """The window of one attempt."""

    def __init__(
        self, program: Program, rates: Rates, compiled: Any, folder: Path, first_step: int, clock: Clock
    ) -> None:
        config = program.config
        self.folder = folder / "profile" / f"process-{jax.process_index()}"
        self._program, self._rates, self._compiled, self._clock = program, rates, compiled, clock
        self._first = first_step + config.profile.after_steps
        self._last = self._first + config.profile.steps - 1
        self._on = config.profile.name == "window" and self._last < config.train.steps
        if config.profile.name == "window" and not self._on:
            log.info(
                f"profile=window: no trace, since only {config.train.steps - first_step} steps are left, and it takes "
                f"{config.profile.after_steps} + {config.profile.steps}"
            )
        self._kept = False
        self._annotation: Any = None  # while it traces
        self._before, self._began = Spent(), 0.0

    def begins(self, step: int) -> bool:
        return self._on and step == self._first

    def ends(self, step: int) -> bool:
        return self._on and step == self._last

    def begin(self) -> None:
        """When no step is under way."""
        with self._clock.host(PAUSE), _or_without("trace"):
            shutil.rmtree(self.folder, ignore_errors=True)  # an earlier attempt's
            (self.folder.parent / BREAKDOWN).unlink(missing_ok=True)
            self.folder.mkdir(parents=True)
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # its events are many, and of no device
            jax.profiler.start_trace(str(self.folder), profiler_options=options)
            self._annotation = jax.profiler.TraceAnnotation(WINDOW_NAME)
            self._annotation.__enter__()
        self._before = self._clock.total
        self._began = time.perf_counter()

    def end(self) -> None:
        """When the steps are done."""
        if self._annotation is None:
            return
        wall_s = time.perf_counter() - self._began
        self._annotation.__exit__(None, None, None)
        spent = self._clock.total - self._before
        with self._clock.host(PAUSE), _or_without("trace"):
            jax.profiler.stop_trace()
            self._keep(wall_s, spent)
            self._kept = True
            log.info(f"traced steps {self._first + 1} to {self._last + 1}: {self.folder}")

    def report(self, state: TrainState, batch: Batch, say: Callable[[str], None]) -> None:
        """After training, so that nobody waits for it meanwhile. Process 0 tells what its own devices did."""
        if self._on and self._program.config.profile.ablation:  # of all, though one has no trace: they meet in it
            with _or_without("ablation"):
                ablate(self._program, self._compiled, state, batch, self.folder)
        if self._kept and jax.process_index() == 0:
            with _or_without("breakdown"):
                publish(read_breakdown(self.folder), self.folder.parent, say)

    def _keep(self, wall_s: float, spent: Spent) -> None:
        config = self._program.config
        with gzip.open(self.folder / HLO, "wt", encoding="utf-8") as file:
            file.write(self._compiled.as_text())
        told = {
            "first_step": self._first,
            "steps": config.profile.steps,
            "wall_ms": wall_s * 1e3,
            "waiting_ms": {part: spent.of(part) * 1e3 for part in (DATA, PEERS, PAUSE, HOST)},
            "devices": len(self._program.mesh.local_devices),
            "flop": self._rates.basis(),
            "attn": config.attn.name,
            "remat": config.remat.name,
            "layout": config.layout.name,
        }
        write_atomically(self.folder / WINDOW, json.dumps(told, indent=2) + "\n")


@contextmanager
def _or_without(what: str) -> Iterator[None]:
    """A full disk, or a profiler or an ablation that fails, is no reason to end a run."""
    try:
        yield
    except (OSError, RuntimeError, UserError) as error:
        log.error(f"profile=window: no {what}, and the training goes on ({error})")
