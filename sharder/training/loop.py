"""The training loop, in the order in which things happen."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from sharder.config import Config
from sharder.data.cache import cache_dir
from sharder.data.dataset import Dataset
from sharder.data.order import step_position
from sharder.data.pipeline import Loader
from sharder.model.execution import Execution
from sharder.model.weight import Weights
from sharder.parallel.mesh import batch_split, make_mesh, replicated
from sharder.run_folder import environment, write_atomically
from sharder.tracking.sinks import Tracker, open_tracker
from sharder.training.checkpoint import Checkpoints
from sharder.training.clock import Clock
from sharder.training.evaluation import baselines, closed_loop
from sharder.training.meaning import about
from sharder.training.policy import Sampler
from sharder.training.start import Start, starting_state
from sharder.training.state import TrainState, abstract_state, state_bytes
from sharder.training.step import Batch, Metrics, make_train_step

log = logging.getLogger(__name__)


def train(data: Dataset, folder: Path) -> None:
    config = data.config
    mesh = make_mesh(config.mesh)
    cameras = tuple(data.recording.cameras)
    target = placed(abstract_state(config), replicated(mesh))
    steps = config.train.steps

    # Refuse what would fail late, then find out where to start.
    checkpoints = Checkpoints(folder / "checkpoints", config.checkpoint)
    checkpoints.check_room(state_bytes(target), steps)
    start = starting_state(data, checkpoints, target)
    write_atomically(folder / "environment.json", json.dumps(environment(_devices(mesh)), indent=2) + "\n")
    _tell(start, target, config)
    state, first_step = start.state, start.step
    if first_step >= steps:
        log.info(f"complete: step {first_step} of train.steps={steps} is saved; raise train.steps to go on")
        checkpoints.close()
        return

    # Compile.
    execution = Execution(config.attn.name, config.remat.name)
    example = placed(abstract_batch(config, cameras), batch_split(mesh))
    train_step = _compile(config, execution, target, example)
    sampler = Sampler(config, data.transform, cameras, execution)
    source = data.source()
    loader = Loader(
        source,
        first_step=first_step,
        last_step=steps,
        workers=config.data.workers,
        prefetch=config.data.prefetch,
    )
    clock = Clock()

    with loader, open_tracker(config, folder, first_step) as tracker, checkpoints:
        if config.evaluation.at_start and first_step == 0:
            _evaluate(sampler, state.best_weights, config, tracker, first_step, "before training")
        under_way: tuple[int, Metrics] | None = None  # a dispatched step, finished once the next one is dispatched
        for step in range(first_step, steps):
            if not loader.ready():  # nothing to dispatch: once the device is idle too, waiting is waiting
                _finish_step(under_way, config, clock, tracker, source.batches_per_epoch)
                under_way = None
            batch = clock.waiting_for_data(lambda: next(loader))
            state, metrics = train_step(state, on_devices(batch, example))
            _finish_step(under_way, config, clock, tracker, source.batches_per_epoch)
            under_way = (step, metrics)
            if (step + 1) % config.checkpoint.every_steps == 0 or step + 1 == steps:
                _finish_step(under_way, config, clock, tracker, source.batches_per_epoch)
                under_way = None
                with clock.paused():
                    checkpoints.save(state, step + 1, about(data, step + 1))
        checkpoints.wait()  # the last save is on disk before anything is said of it
        if config.evaluation.at_end:
            _evaluate(sampler, state.best_weights, config, tracker, steps, "after training")
    log.info(f"finished at step {steps}; run folder: {folder}")


def placed(tree: Any, sharding: jax.sharding.Sharding) -> Any:
    """Abstract arrays that know where they belong."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def abstract_batch(config: Config, cameras: tuple[str, ...]) -> Batch:
    """The global batch as the train step takes it: see data/pipeline.py."""
    B, model = config.train.batch_size, config.model
    shape = jax.ShapeDtypeStruct
    return {
        "images": {camera: shape((B, model.image_size, model.image_size, 3), np.uint8) for camera in cameras},
        "image_masks": {camera: shape((B,), np.bool_) for camera in cameras},
        "tokens": shape((B, model.prompt_tokens), np.int32),
        "token_mask": shape((B, model.prompt_tokens), np.bool_),
        "state": shape((B, model.action_dim), np.float32),
        "actions": shape((B, model.horizon, model.action_dim), np.float32),
    }


def on_devices(batch: Batch, target: Batch) -> Batch:
    """This process's part of the global batch, placed; what the step does not take (the example ids) stays here."""
    kept = {name: batch[name] for name in target}
    return jax.tree.map(lambda x, t: jax.make_array_from_process_local_data(t.sharding, x, t.shape), kept, target)


def _compile(config: Config, execution: Execution, state: TrainState, batch: Batch) -> Any:
    started = time.monotonic()
    step = jax.jit(make_train_step(config, execution), donate_argnums=0)
    compiled = step.lower(state, batch).compile()
    log.info(f"compiled the train step in {time.monotonic() - started:.1f} s")
    return compiled


def _finish_step(
    under_way: tuple[int, Metrics] | None, config: Config, clock: Clock, tracker: Tracker, batches_per_epoch: int
) -> None:
    """Waits for a dispatched step, so that at most two are under way, and logs it if it is one to log."""
    if under_way is None:
        return
    step, metrics = under_way
    jax.block_until_ready(metrics)
    clock.step_done()
    done = step + 1
    if done % config.train.log_every == 0 or done == config.train.steps:
        times = clock.lap()
        epoch, _ = step_position(step, batches_per_epoch)
        row = {"step": done, "epoch": epoch, **{name: float(value) for name, value in metrics.items()}, **times}
        if times["step_ms"]:
            row["examples_per_s"] = config.train.batch_size / times["step_ms"] * 1e3
        tracker.log(row)


def _evaluate(sampler: Sampler, weights: Weights, config: Config, tracker: Tracker, step: int, when: str) -> None:
    if not config.data.has_simulator:
        if when == "before training":
            tracker.message("closed-loop evaluation: there is no simulator of this recording, none is done")
        return
    success = closed_loop(sampler, weights, config)
    tracker.message(f"success {when}: {success}")
    tracker.log({"step": step, "success_rate": success.rate, "success_episodes": success.episodes})
    if when == "before training":
        others = "; ".join(f"{name} {result}" for name, result in baselines(config).items())
        tracker.message(f"for comparison: {others}")


def _devices(mesh: Mesh) -> dict[str, Any]:
    devices = mesh.devices.ravel()
    return {
        "device_kind": devices[0].device_kind,
        "device_count": len(devices),
        "process_count": jax.process_count(),
        "mesh": dict(mesh.shape),
    }


def _tell(start: Start, target: TrainState, config: Config) -> None:
    count = sum(x.size for x in jax.tree.leaves((target.trainable, target.frozen)))
    trained = sum(x.size for x in jax.tree.leaves(target.trainable))
    log.info(
        f"model: {config.model.name}, {count:,} weights ({trained:,} trained), "
        f"state {state_bytes(target) / 1e6:,.1f} MB; {start.said}"
    )


def use_compilation_cache() -> None:
    """A second start of the same program reads its executable instead of compiling it."""
    jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
