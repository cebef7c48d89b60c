"""The evaluate command: a checkpoint, by itself, scored closed-loop or against recorded actions."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from sharder.config import Config
from sharder.data.dataset import open_dataset
from sharder.data.tokenizer import make_tokenizer
from sharder.data.transforms import ExampleTransform
from sharder.model.execution import Execution
from sharder.parallel.mesh import make_mesh, replicated
from sharder.run_folder import parse_resume
from sharder.training.checkpoint import read_about, read_best_weights
from sharder.training.evaluation import against_recording, baselines, closed_loop
from sharder.training.loop import placed
from sharder.training.meaning import saved_normalization
from sharder.training.policy import Sampler
from sharder.training.state import abstract_state

log = logging.getLogger(__name__)


def score(config: Config, folder: Path) -> dict[str, Any]:
    """What evaluation.json says. `config` is the checkpoint's own but for what was typed."""
    checkpoints, step = parse_resume(config.resume).checkpoint()
    saved = read_about(checkpoints, step)
    weights = read_best_weights(checkpoints, step, placed(abstract_state(config), replicated(make_mesh(config.mesh))))
    normalization = saved_normalization(saved)
    execution, cameras = Execution(config.attn.name, config.remat.name), tuple(saved["cameras"])
    result: dict[str, Any] = {"checkpoint": str(checkpoints / str(step)), "step": step}

    if config.data.kind == "planar_arm" and config.data.root is None:
        transform = ExampleTransform(config.model, config.data, normalization, make_tokenizer(config.data.tokenizer))
        sampler = Sampler(config, transform, cameras, execution)
        video = folder / "evaluation.mp4"
        success = closed_loop(sampler, weights, config, video)
        log.info(f"success of {checkpoints / str(step)}: {success}")
        others = baselines(config)
        for name, other in others.items():
            log.info(f"{name}: {other}")
        named = {name.replace(" ", "_"): other.row() for name, other in others.items()}
        return result | success.row() | {"baselines": named, "video": str(video)}

    data = open_dataset(config, normalization)
    errors = against_recording(
        Sampler(config, data.transform, cameras, execution), weights, data, config.evaluation.frames
    )
    log.info(
        f"mean absolute action error over {errors['frames']} frames: {errors['action_error']:.4g} "
        f"(always the mean action: {errors['action_error_of_mean_action']:.4g}), in the recording's unit"
    )
    return result | errors
