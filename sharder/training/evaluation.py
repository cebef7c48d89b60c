"""How good a policy is: closed-loop in the simulator, or against recorded actions where there is no simulator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sharder.config import Config
from sharder.data.closed_loop import random_policy, roll_out, wilson_interval, write_video, zero_policy
from sharder.data.dataset import Dataset
from sharder.model.weight import Weights
from sharder.parallel.agreement import Hosts
from sharder.parallel.compile_cache import every_process_writes
from sharder.parallel.mesh import replicated
from sharder.tracking.sinks import Tracker
from sharder.training.policy import Sampler, stack
from sharder.training.program import Program

FILMED = 6  # environments in the video
FRAMES_AT_ONCE = 32  # of a recording


@dataclass(frozen=True)
class Success:
    successes: int
    episodes: int

    @property
    def rate(self) -> float:
        return self.successes / self.episodes

    def __str__(self) -> str:
        low, high = wilson_interval(self.successes, self.episodes)
        return f"{self.rate:.0%} ({self.successes} of {self.episodes}, 95% interval {low:.0%} to {high:.0%})"

    def row(self) -> dict[str, Any]:
        low, high = wilson_interval(self.successes, self.episodes)
        rate = {"success_rate": self.rate, "interval_low": low, "interval_high": high}
        return rate | {"successes": self.successes, "episodes": self.episodes}


def _roll_out(policy: Any, config: Config, video: Path | None = None) -> Success:
    evaluation = config.evaluation
    rollouts = roll_out(
        policy,
        seeds=evaluation.seed + np.arange(evaluation.episodes),
        image_size=config.data.planar_arm.image_size,
        max_steps=evaluation.max_steps,
        execute=evaluation.execute,
        video=min(FILMED, evaluation.episodes) if video else None,
    )
    if video and rollouts.frames is not None:
        write_video(video, rollouts.frames)
    return Success(int(rollouts.success.sum()), evaluation.episodes)


def closed_loop(sampler: Sampler, weights: Weights, config: Config, video: Path | None = None) -> Success:
    return _roll_out(sampler.policy(weights), config, video)


def baselines(config: Config) -> dict[str, Success]:
    """What knows nothing, on the same starts."""
    return {
        "random policy": _roll_out(random_policy(config.evaluation.seed), config),
        "zero actions": _roll_out(zero_policy, config),
    }


class Evaluation:
    """Closed-loop rollouts of a run's weights, by process 0 on one device; the others wait for it at a named point."""

    def __init__(self, data: Dataset, program: Program, hosts: Hosts) -> None:
        self._config, self._hosts, self._mesh = data.config, hosts, program.mesh
        self._sampler = Sampler(data.config, data.transform, tuple(data.recording.cameras), program.execution)
        self._whole = jax.jit(_gathered_weights, out_shardings=replicated(program.mesh))

    def __call__(self, weights: Weights, tracker: Tracker, step: int, when: str) -> None:
        if not self._config.data.has_simulator:
            if when == "before training":
                tracker.message("closed-loop evaluation: there is no simulator of this recording, none is done")
            return
        if self._mesh.size > 1:
            with every_process_writes(self._mesh):
                whole = self._whole(weights)
            weights = {path: weight.addressable_data(0) for path, weight in whole.items()}
        if self._hosts.index == 0:
            success = closed_loop(self._sampler, weights, self._config)
            tracker.message(f"success {when}: {success}")
            tracker.log({"step": step, "success_rate": success.rate, "success_episodes": success.episodes})
            if when == "before training":
                others = "; ".join(f"{name} {result}" for name, result in baselines(self._config).items())
                tracker.message(f"for comparison: {others}")
        self._hosts.barrier("evaluated")


def _gathered_weights(weights: Weights) -> Weights:
    return weights


def against_recording(sampler: Sampler, weights: Weights, data: Dataset, frames: int) -> dict[str, Any]:
    """Mean absolute error of sampled chunks against recorded ones, in the recording's unit, over evenly spaced frames.

    Beside it, what always answering the mean recorded action would score on the same frames.
    """
    recording, transform = data.recording, data.transform
    rows = np.unique(np.linspace(0, len(recording) - 1, min(frames, len(recording))).round().astype(int))
    errors, naive = [], []
    for first in range(0, len(rows), FRAMES_AT_ONCE):
        chosen = rows[first : first + FRAMES_AT_ONCE]
        padded = np.resize(chosen, FRAMES_AT_ONCE)  # one compiled shape
        batch = stack([transform(recording, int(row)) for row in padded])
        wanted = np.stack([recording.action_chunk(int(row), transform.horizon) for row in chosen])
        sampled = sampler.sample(weights, batch, first)[: len(chosen)]
        errors.append(np.abs(sampled - wanted).mean(axis=1))
        naive.append(np.abs(data.normalization.actions.mean - wanted).mean(axis=1))
    by_joint = np.concatenate(errors).mean(axis=0)
    return {
        "frames": len(rows),
        "action_error": float(by_joint.mean()),
        "action_error_of_mean_action": float(np.concatenate(naive).mean()),
        "action_error_by_joint": dict(zip(recording.action_names, map(float, by_joint), strict=True)),
    }
