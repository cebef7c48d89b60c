"""The training loop, in the order in which things happen."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import time
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from sharder.config import Config
from sharder.data.dataset import Dataset
from sharder.data.pipeline import Loader
from sharder.errors import Stopped
from sharder.measure.start_up import StartUp
from sharder.measure.verdict import verdict
from sharder.parallel import fingerprint
from sharder.parallel.agreement import Hosts
from sharder.parallel.compile_cache import compiled_so_far, in_words
from sharder.parallel.fingerprint import agree
from sharder.parallel.late import said_when_late
from sharder.parallel.layout import device_bytes, held_whole
from sharder.parallel.mesh import make_mesh, process_slice
from sharder.parallel.preflight import preflight
from sharder.provenance import environment
from sharder.run_folder import ENVIRONMENT, completed_step, mark_complete, write_atomically
from sharder.supervise.presence import Presence
from sharder.tracking.ledger import open_ledger
from sharder.tracking.sinks import Tracker, open_tracker
from sharder.training.checkpoint import Checkpoints
from sharder.training.clock import DATA, PAUSE, Clock
from sharder.training.evaluation import Evaluation
from sharder.training.kernels import attention_said
from sharder.training.meaning import about, flat_config, meaning
from sharder.training.meeting import Meeting
from sharder.training.profiling import Profile
from sharder.training.program import Program, make_program, on_devices
from sharder.training.rates import Rates, make_rates
from sharder.training.start import Start, starting_state
from sharder.training.state import TrainState, state_bytes
from sharder.training.step import Batch, Metrics
from sharder.training.under_way import UnderWay, is_done

log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks whether anyone asked to stop, while there is no batch
SLOW_COMPILE_S = 60.0  # a compile that takes longer is told of, every so often


def train(
    data: Dataset, folder: Path, hosts: Hosts, presence: Presence | None = None, start_up: StartUp | None = None
) -> None:
    presence, start_up = presence or Presence(), start_up or StartUp()
    config = data.config
    mesh = make_mesh(config.mesh)
    steps = config.train.steps

    # Processes that are not the same, or cannot talk, end here, in seconds.
    agree(hosts, "start", fingerprint.of_installation() | of_run(data) | of_devices(mesh))
    preflight(mesh, config.launch.preflight_timeout_s)
    start_up.part("devices")
    program = make_program(config, mesh, tuple(data.recording.cameras))
    rates = make_rates(program)

    # Refuse what would fail late, then find out where to start.
    presence.phase("restore")
    checkpoints = Checkpoints(folder / "checkpoints", config.checkpoint)
    if config.checkpoint.at_end or steps >= config.checkpoint.every_steps:
        checkpoints.check_room(state_bytes(program.state), steps)
    start = starting_state(data, checkpoints, program.state, hosts)
    hosts.barrier("state restored")
    if hosts.index == 0:
        told = environment(of_devices(mesh)) | {"flop": rates.basis()}
        write_atomically(folder / ENVIRONMENT, json.dumps(told, indent=2) + "\n")
    _tell(start, program)
    done = start.step if config.checkpoint.at_end else max(start.step, steps)  # whose end was not to be saved
    if done >= steps and completed_step(folder) == done:
        log.info(f"complete: step {done} of train.steps={steps} is done; raise train.steps to go on")
        checkpoints.close()
        return

    start_up.part("state")
    evaluate = Evaluation(data, program, hosts)
    tracked = open_tracker(config, folder, start.step) if hosts.index == 0 else Tracker([])
    with tracked as tracker, checkpoints:
        state = start.state
        if start.step < steps:
            start_up.part("tracking")
            state = _take_steps(
                start, data, program, rates, folder, hosts, presence, start_up, evaluate, tracker, checkpoints
            )
        if config.evaluation.at_end:
            presence.phase("evaluate")
            evaluate(state.best_weights, tracker, steps, "after training")
    presence.phase("end")
    if hosts.index == 0:
        mark_complete(folder, steps)
        if checkpoints.saves:
            log.info(
                f"saved {checkpoints.saves} times: training stood still for {checkpoints.stalled_s:.2f} of the "
                f"{checkpoints.saving_s:.2f} s it took"
            )
    log.info(f"finished at step {steps}; run folder: {folder}")


def _take_steps(
    start: Start,
    data: Dataset,
    program: Program,
    rates: Rates,
    folder: Path,
    hosts: Hosts,
    presence: Presence,
    start_up: StartUp,
    evaluate: Evaluation,
    tracker: Tracker,
    checkpoints: Checkpoints,
) -> TrainState:
    """From the start to train.steps, or to a request to stop: then what there is is saved, and Stopped raised."""
    config, state, first_step = data.config, start.state, start.step
    steps = config.train.steps

    # Compile, the same program everywhere.
    presence.phase("compile")
    train_step, put_back = _compile(program, hosts), program.put_back()
    start_up.part("compile")
    if config.evaluation.at_start and first_step == 0:
        presence.phase("evaluate")
        evaluate(state.best_weights, tracker, first_step, "before training")
        start_up.part("evaluation")
    source = data.source(process_slice(program.mesh, config.train.batch_size))
    loader = Loader(
        source,
        first_step=first_step,
        last_step=steps,
        workers=config.data.workers,
        prefetch=config.data.prefetch,
    )
    clock = Clock()
    meeting = Meeting(hosts, clock)

    def next_batch() -> Batch | None:
        """Everyone's, or no one's: who is slow is named on the host, not waited for inside a collective; and when
        anyone was told to stop, all stop at this step."""
        with clock.host(DATA):
            while not loader.ready(LOOK_S) and not presence.stop_requested:
                pass
        return next(loader) if meeting.all_go_on(presence.stop_requested) else None

    with loader, open_ledger(config, folder, hosts.index) as ledger:
        under_way = UnderWay(program, folder, clock, tracker, rates, source.batches_per_epoch)
        profile = Profile(program, rates, train_step, folder, first_step, clock)
        saved_step = first_step
        for step in range(first_step, steps):
            presence.phase("data wait", step)
            if profile.begins(step):
                under_way.finish(state)  # nothing of another step is in the window
                profile.begin()
            if not loader.ready():  # nothing to dispatch: once the device is idle too, waiting is waiting
                under_way.finish(state)
            batch = next_batch()
            under_way.look()
            checkpoints.check()
            if batch is None:
                under_way.finish(state)
                if step > saved_step:
                    presence.phase("save", step)
                    checkpoints.save(state, step, about(data, step))
                checkpoints.wait()
                raise Stopped(f"stopped at step {step}, which is saved; the same run.id goes on from there: {folder}")
            if step == first_step:
                start_up.part("first batch")
            presence.phase("step" if step > first_step else "first step", step)
            ledger.write(step, batch["example"])
            placed_batch = on_devices(batch, program.batch)
            under_way.look()
            with clock.dispatching() as call:
                state, metrics = train_step(state, placed_batch)
                state, call.done = put_back(state), is_done(metrics)
            if step == first_step:
                _first_step_returns(metrics, config)
                start_up.part("first step")
                log.info(str(start_up))
                if compiled := compiled_so_far():
                    log.info(in_words(compiled))
            under_way.finish(state)
            under_way.dispatched(step, metrics, placed_batch, batch["example"])
            if profile.ends(step):
                under_way.finish(state)
                profile.end()
            is_end = step + 1 == steps and config.checkpoint.at_end
            if is_end or (step + 1) % config.checkpoint.every_steps == 0:
                under_way.finish(state)
                saved_step = step + 1
                presence.phase("save", step + 1)
                with clock.host(PAUSE):
                    checkpoints.save(state, step + 1, about(data, step + 1))
        under_way.finish(state)
        profile.report(state, placed_batch, tracker.message)
        presence.phase("save", steps)
        checkpoints.wait()  # the last save is on disk before anything is said of it
    said = verdict(clock.total.seconds, clock.total.steps, config.data.workers)
    if said is not None:
        log.info(said.text)
    return state


def _compile(program: Program, hosts: Hosts) -> Any:
    launch, started = program.config.launch, time.monotonic()  # how long it compiled is said by compile_cache
    with said_when_late("lowering the train step", launch.late_after_s, log.info):
        lowered = program.lower()
    log.info(f"lowered the train step in {time.monotonic() - started:.1f} s")
    agree(hosts, "program", {"lowered train step": hashlib.sha256(lowered.as_text().encode()).hexdigest()[:16]})
    with said_when_late("still compiling the train step", SLOW_COMPILE_S, log.info):
        return program.compile(lowered)


def _first_step_returns(metrics: Metrics, config: Config) -> None:
    """A hang in a first collective looks like a long compile, unless it is told apart."""
    what = "compiled and started, but the first step has not returned"
    with said_when_late(what, config.launch.late_after_s, log.info):
        jax.block_until_ready(metrics)


def of_devices(mesh: Mesh) -> dict[str, Any]:
    devices = mesh.devices.ravel()
    return {
        "device_kind": devices[0].device_kind,
        "device_count": len(devices),
        "process_count": jax.process_count(),
        "mesh": dict(mesh.shape),
    }


def of_run(data: Dataset) -> dict[str, Any]:
    """What a run is, for comparison between its processes."""
    return flat_config(dataclasses.asdict(data.config)) | meaning(data)


def _tell(start: Start, program: Program) -> None:
    target, config = program.state, program.config
    count = sum(x.size for x in jax.tree.leaves((target.trainable, target.frozen)))
    trained = sum(x.size for x in jax.tree.leaves(target.trainable))
    log.info(
        f"model: {config.model.name}, {count:,} weights ({trained:,} trained), "
        f"state {state_bytes(target) / 1e6:,.1f} MB; {start.said}"
    )
    if program.mesh.size > 1:
        devices = program.mesh.devices.ravel()
        kind = "simulated CPU devices" if devices[0].platform == "cpu" else devices[0].device_kind
        log.info(
            f"mesh: {len(devices)} {kind} of {jax.process_count()} processes, batch {config.mesh.batch} x fsdp "
            f"{config.mesh.fsdp}; layout {config.layout.name}, {device_bytes(target) / 1e6:,.1f} MB of state a device; "
            f"held whole by each: {', '.join(held_whole(target.weights, program.layout)) or 'nothing above 1 MB'}"
        )
    if config.attn.name == "flash":
        log.info(attention_said(config, program.mesh))
