"""The convert command: a checkpoint's acting weights and its normalization as openpi keeps them.

<run folder>/params                                 Orbax tree {"params": {...}}, openpi's names and shapes
<run folder>/assets/<run name>/norm_stats.json      what it was normalised by
"""

from __future__ import annotations

import logging
from pathlib import Path

import orbax.checkpoint as ocp

from sharder.config import Config
from sharder.data import norm_stats
from sharder.model.openpi_names import to_openpi
from sharder.parallel.mesh import make_mesh, replicated
from sharder.run_folder import parse_resume
from sharder.training.checkpoint import nest, read_about, read_best_weights
from sharder.training.loop import placed
from sharder.training.meaning import saved_normalization
from sharder.training.state import abstract_state

log = logging.getLogger(__name__)


def to_openpi_layout(config: Config, folder: Path) -> None:
    checkpoints, step = parse_resume(config.resume).checkpoint()
    saved = read_about(checkpoints, step)
    weights = read_best_weights(checkpoints, step, placed(abstract_state(config), replicated(make_mesh(config.mesh))))
    with ocp.PyTreeCheckpointer() as writer:
        writer.save((folder / "params").absolute(), {"params": nest(to_openpi(config.model, weights))})
    stats = folder / "assets" / checkpoints.parent.parent.name / "norm_stats.json"
    norm_stats.write(stats, saved_normalization(saved))
    acting = "averaged" if config.optimizer.ema_decay is not None else "trained"
    log.info(f"written: {folder / 'params'} (the {acting} weights of step {step}) and {stats}")
