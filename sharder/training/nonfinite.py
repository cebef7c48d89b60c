"""A loss or gradient that is no finite number: what it came from is written down before anything else happens.

The train step has moved no weight for it (step.py), so a skipped step is skipped again whenever the run is resumed
before it: the skip follows from weights and data, as everything else does.

    <run folder>/nonfinite-<step>.json    {"step", "loss", "grad_norm", "examples", "gradient_norms", "weight_norms"}

Examples are the rows of the recording that this process held; norms are by path of the weight.
"""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from sharder.errors import UserError
from sharder.model.weight import Weights
from sharder.run_folder import write_atomically
from sharder.training.program import Program
from sharder.training.state import TrainState
from sharder.training.step import Batch, example_keys, make_step_gradients

log = logging.getLogger(__name__)


def report(
    program: Program, folder: Path, step: int, metrics: dict[str, float], state: TrainState, batch: Batch, examples: Any
) -> None:
    """Every process calls it. UserError unless train.on_nonfinite is skip. `batch` is placed, `state` newer by a step
    at most; the gradients are computed once more, as they are not kept."""
    config = program.config
    gradients_of = make_step_gradients(config, program.execution, program.mesh, program.layout)

    def norms(state: TrainState, batch: Batch) -> tuple[Weights, Weights]:
        keys = example_keys(config.train.seed, jnp.int32(step), config.train.batch_size)
        _, gradients, _ = gradients_of(state.trainable, state.frozen, (batch, keys))
        of = lambda weights: {path: jnp.sqrt(jnp.square(x.astype(jnp.float32)).sum()) for path, x in weights.items()}  # noqa: E731
        return of(gradients), of(state.trainable)

    found, weights = jax.jit(norms)(state, batch)
    said = {name: metrics[name] for name in ("loss", "grad_norm") if name in metrics}
    text = json.dumps(
        {
            "step": step,
            **{name: str(value) for name, value in said.items()},
            "examples": [int(row) for row in examples],
            "gradient_norms": {path: str(float(norm)) for path, norm in found.items()},
            "weight_norms": {path: float(norm) for path, norm in weights.items()},
        },
        indent=2,
    )
    place = f"-{jax.process_index()}" if jax.process_count() > 1 else ""
    file = folder / f"nonfinite-{step}{place}.json"
    write_atomically(file, text + "\n")
    bad = [path for path, norm in found.items() if not math.isfinite(float(norm))]
    what = (
        f"step {step}: {' and '.join(f'{name} {value:g}' for name, value in said.items())}: not finite "
        f"(no finite gradient in {len(bad)} of {len(found)} weights{': ' if bad else ''}{', '.join(bad[:3])}); "
        f"examples and norms are in {file}"
    )
    if config.train.on_nonfinite == "skip":
        log.warning(f"{what}; skipped")
        return
    raise UserError(f"{what}; no weight was moved: mend the data or the rates, or set train.on_nonfinite=skip")
