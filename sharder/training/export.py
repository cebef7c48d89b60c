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
from sharder.training.checkpoint import nest
from sharder.training.saved import read_policy

log = logging.getLogger(__name__)


def to_openpi_layout(config: Config, folder: Path) -> None:
    saved = read_policy(config)
    with ocp.PyTreeCheckpointer() as writer:
        writer.save((folder / "params").absolute(), {"params": nest(to_openpi(config.model, saved.weights))})
    stats = folder / "assets" / saved.run_name / "norm_stats.json"
    norm_stats.write(stats, saved.normalization)
    acting = "averaged" if config.optimizer.ema_decay is not None else "trained"
    log.info(f"written: {folder / 'params'} (the {acting} weights of step {saved.step}) and {stats}")
