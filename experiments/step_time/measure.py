"""A train step with and without what makes it cheaper, in turns in one process, on whatever device is here.

    python experiments/step_time/measure.py [ROUNDS] [key=value ... for both sides of both cases]

Writes measured.csv here: see README.md.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import jax

from sharder.compose import composed
from sharder.data.dataset import open_dataset
from sharder.measure.costs import Costs
from sharder.measure.hlo import parse
from sharder.parallel.mesh import make_mesh
from sharder.table import write_csv
from sharder.training.program import make_program, on_devices
from sharder.training.state import init_state, run_once

HERE = Path(__file__).parent
COMMON = ("model=pi0_small", "train.batch_size=4", "optimizer.warmup_steps=1")
SIDES = {
    "plain": ("layout=auto", "attn=naive", "remat=full", "work=published"),
    "cheaper": ("layout=gather", "attn=xla", "remat=none", "work=unrolled"),
}
PROMPTS = {"plain": "model.prompt_tokens=64", "cheaper": "model.prompt_tokens=0"}  # the model's, and what is needed
ARM = ("data=planar_arm", "data.planar_arm.episodes=20", "data.workers=0", "data.frames=on_demand")
CASES = {  # of each side
    "all three cameras": {side: ("data=fixed",) for side in SIDES},
    "the planar arm's two cameras and prompts": {side: (*ARM, PROMPTS[side]) for side in SIDES},
}
STEPS_BEFORE = 2  # that warm up


@dataclass
class Side:
    """One program under way, and what its steps took and lost."""

    overrides: tuple[str, ...]
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.data = open_dataset(composed("train", list(self.overrides))[0])
        config = self.data.config
        self.program = make_program(config, make_mesh(config.mesh), tuple(self.data.recording.cameras))
        self.compiled = self.program.compile()
        self.state = run_once(lambda: init_state(config))

    @property
    def gflop(self) -> float:
        """Of all matrix products of the compiled step."""
        module = parse(self.compiled.as_text())
        return Costs(module).of_all(module.entry).product_flops / 1e9

    def step(self, number: int) -> None:
        placed = on_devices(self.data.source().batch(number), self.program.batch)
        jax.block_until_ready((self.state, placed))
        began = time.perf_counter()
        self.state, metrics = self.compiled(self.state, placed)
        jax.block_until_ready(metrics)
        self.seconds.append(time.perf_counter() - began)
        self.losses.append(float(metrics["loss"]))


def measured(case: str, rounds: int, typed: list[str]) -> list[dict[str, Any]]:
    sides = {side: Side((*COMMON, *SIDES[side], *CASES[case][side], *typed)) for side in SIDES}
    for number in range(STEPS_BEFORE + rounds):
        for side in sides.values():
            side.step(number)
    plain, cheaper = sides["plain"], sides["cheaper"]
    apart = max(abs(a / b - 1) for a, b in zip(plain.losses, cheaper.losses, strict=True))
    return [
        {
            "kind": "measured",
            "date": time.strftime("%Y-%m-%d"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "jax": jax.__version__,
            "case": case,
            "side": name,
            "step_ms": f"{1e3 * median(side.seconds[STEPS_BEFORE:]):.0f}",
            "least_ms": f"{1e3 * min(side.seconds[STEPS_BEFORE:]):.0f}",
            "gflop": f"{side.gflop:.1f}",
            "plain_over_this": f"{median(plain.seconds[STEPS_BEFORE:]) / median(side.seconds[STEPS_BEFORE:]):.2f}",
            "first_loss": f"{side.losses[0]:.7f}",
            "last_loss": f"{side.losses[-1]:.7f}",
            "losses_apart": f"{apart:.1e}",
            "overrides": " ".join(side.overrides),
        }
        for name, side in sides.items()
    ]


def main(rounds: int, typed: list[str]) -> None:
    rows: list[dict[str, Any]] = []
    for case in CASES:
        rows += measured(case, rounds, typed)
        print(*("  ".join(f"{name} {value}" for name, value in row.items()) for row in rows[-2:]), sep="\n", flush=True)
    write_csv(HERE / "measured.csv", rows)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(int(arguments[0]) if arguments and arguments[0].isdecimal() else 10, [one for one in arguments if "=" in one])
