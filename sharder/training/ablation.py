"""How long a step takes without its attention: a check on what attribution says that attention takes.

The two programs take turns in the same run, on copies of the state, so it needs twice its memory beside the run's own.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from sharder.measure.breakdown import ABLATION
from sharder.model.execution import ABLATED
from sharder.run_folder import write_atomically
from sharder.training.program import Program
from sharder.training.state import TrainState
from sharder.training.step import Batch

ROUNDS = 7  # the first of them warms up


def ablate(program: Program, full: Any, state: TrainState, batch: Batch, folder: Path) -> None:
    """Every process takes part; each writes ablation.json into its own `folder`. `full`: the compiled step."""
    execution = dataclasses.replace(program.execution, attention=ABLATED)
    without = dataclasses.replace(program, execution=execution).compile()
    put_back = program.put_back()
    states = {name: jax.tree.map(jnp.copy, state) for name in ("full", "without")}
    times: dict[str, list[float]] = {name: [] for name in states}
    for _ in range(ROUNDS):
        for name, step in (("full", full), ("without", without)):
            jax.block_until_ready(states[name])
            began = time.perf_counter()
            states[name], metrics = step(states[name], batch)
            jax.block_until_ready(metrics)
            states[name] = put_back(states[name])
            times[name].append(time.perf_counter() - began)
    ms = {name: median(seconds[1:]) * 1e3 for name, seconds in times.items()}
    told = {"full_ms": ms["full"], "without_attention_ms": ms["without"], "rounds": ROUNDS - 1}
    write_atomically(folder / ABLATION, json.dumps(told, indent=2) + "\n")
