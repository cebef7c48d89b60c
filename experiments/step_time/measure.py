"""A train step with and without what makes it cheaper, in turns in one process, on whatever device is here.

python experiments/step_time/measure.py [ROUNDS] [key=value ...]     prints both times, their ratio and both losses
"""

from __future__ import annotations

import sys
import time
from statistics import median

import jax

from sharder.compose import composed
from sharder.data.dataset import open_dataset
from sharder.parallel.mesh import make_mesh
from sharder.training.program import Program, make_program, on_devices
from sharder.training.state import init_state, run_once

COMMON = ("model=pi0_small", "data=fixed", "train.batch_size=4", "optimizer.warmup_steps=1")
PLAIN = ("layout=auto", "attn=naive", "remat=full", "work=published")
CHEAPER = ("layout=gather", "attn=flash", "remat=none", "work=unrolled")
STEPS_BEFORE = 2  # that warm up


def main(rounds: int, typed: list[str]) -> None:
    sides = {"plain": (*COMMON, *PLAIN, *typed), "cheaper": (*COMMON, *CHEAPER, *typed)}
    programs = {name: program(list(overrides)) for name, overrides in sides.items()}
    compiled = {}
    for name, one in programs.items():
        began = time.perf_counter()
        compiled[name] = one.compile()
        print(f"{name}: {' '.join(sides[name])}; compiled in {time.perf_counter() - began:.1f} s", flush=True)
    data = open_dataset(programs["plain"].config)
    batch = data.source().batch(0)
    states = {name: run_once(lambda one=one: init_state(one.config)) for name, one in programs.items()}  # type: ignore[misc]
    times: dict[str, list[float]] = {name: [] for name in programs}
    losses: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(STEPS_BEFORE + rounds):
        for name, step in compiled.items():
            placed = on_devices(batch, programs[name].batch)
            jax.block_until_ready(states[name])
            began = time.perf_counter()
            states[name], metrics = step(states[name], placed)
            jax.block_until_ready(metrics)
            times[name].append(time.perf_counter() - began)
            losses[name].append(float(metrics["loss"]))
    ms = {name: 1e3 * median(seconds[STEPS_BEFORE:]) for name, seconds in times.items()}
    least = {name: 1e3 * min(seconds[STEPS_BEFORE:]) for name, seconds in times.items()}
    apart = max(abs(a / b - 1) for a, b in zip(losses["plain"], losses["cheaper"], strict=True))
    device = jax.devices()[0].device_kind
    print(f"measured on {device}, {rounds} rounds in turns, jax {jax.__version__}:")
    for name in programs:
        print(f"  {name}: median {ms[name]:.1f} ms, least {least[name]:.1f} ms a step; losses {losses[name][:3]} ...")
    print(f"  plain / cheaper: {ms['plain'] / ms['cheaper']:.2f} (least: {least['plain'] / least['cheaper']:.2f})")
    print(f"  losses of {STEPS_BEFORE + rounds} steps agree within {apart:.1e} of themselves")


def program(overrides: list[str]) -> Program:
    config = open_dataset(composed("train", overrides)[0]).config
    return make_program(config, make_mesh(config.mesh), tuple(vars(config.data.cameras)))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(int(arguments[0]) if arguments and arguments[0].isdecimal() else 10, [one for one in arguments if "=" in one])
