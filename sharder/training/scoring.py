"""The evaluate command: a checkpoint, by itself, scored closed-loop or against recorded actions."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from sharder.config import Config
from sharder.data.dataset import open_dataset
from sharder.data.tokenizer import make_tokenizer
from sharder.data.transforms import ExampleTransform
from sharder.model.execution import make_execution
from sharder.training.evaluation import against_recording, baselines, closed_loop
from sharder.training.policy import Sampler
from sharder.training.saved import read_policy

log = logging.getLogger(__name__)


def score(config: Config, folder: Path) -> dict[str, Any]:
    """What evaluation.json says. `config` is the checkpoint's own but for what was typed."""
    saved = read_policy(config)
    execution = make_execution(config)
    result: dict[str, Any] = {"checkpoint": str(saved.path), "step": saved.step}

    if config.data.has_simulator:
        tokenizer = make_tokenizer(config.data.tokenizer)
        transform = ExampleTransform(config.model, config.data, saved.normalization, tokenizer)
        sampler = Sampler(config, transform, saved.cameras, execution)
        video = folder / "evaluation.mp4"
        success = closed_loop(sampler, saved.weights, config, video)
        log.info(f"success of {saved.path}: {success}")
        others = baselines(config)
        for name, other in others.items():
            log.info(f"{name}: {other}")
        named = {name.replace(" ", "_"): other.row() for name, other in others.items()}
        return result | success.row() | {"baselines": named, "video": str(video)}

    data = open_dataset(config, saved.normalization)
    sampler = Sampler(config, data.transform, saved.cameras, execution)
    errors = against_recording(sampler, saved.weights, data, config.evaluation.frames)
    log.info(
        f"mean absolute action error over {errors['frames']} frames: {errors['action_error']:.4g} "
        f"(always the mean action: {errors['action_error_of_mean_action']:.4g}), in the recording's unit"
    )
    return result | errors
