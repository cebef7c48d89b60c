"""Runs one step of the micro model on four devices in many ways, and compares each with the reference; prints JSON.

XLA_FLAGS=--xla_force_host_platform_device_count=4 python every_way.py <quick | slow>

The reference is one program on one device, with attn=naive and no remat. It gets every camera, and those that a way
leaves out masked. Tests of the model hold it against the golden vectors.

The embedding of flow time is made slower here than pi0's. That turns 250 times in a unit of time, an angle of up to
1571 whose last place in float32 is 1e-4: two programs that round time or angle differently get gradients 8e-5 apart,
whatever else they do. Slower, they are within 1.5e-5, and a mistake that small is seen.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from micro import micro_config, random_batch
from several_devices import in_haste

from sharder.compose import composed
from sharder.config import AugmentConfig, Config, LayoutConfig, MeshConfig
from sharder.model import pi0
from sharder.model.fused import Fused
from sharder.model.pi0 import CAMERAS
from sharder.parallel.mesh import make_mesh
from sharder.training import gradients
from sharder.training.program import Program, make_program, on_devices
from sharder.training.state import TrainState, init_state, run_once
from sharder.validation import CHOICES

FUSED = "fused"  # attn=flash where there is a kernel, for which XLA stands in
ATTN = (*(word for word in CHOICES["attn.name"] if word != "tiles"), FUSED)  # on CPUs tiles is flash
LAYOUT, WORK = CHOICES["layout.name"], CHOICES["work.name"]
REMAT = tuple(word for word in CHOICES["remat.name"] if word != "auto")  # auto is one of the others
BASE, LEFT, RIGHT = CAMERAS
SUBSETS = tuple(subset for size in (3, 1, 2) for subset in itertools.combinations(CAMERAS, size))


@dataclasses.dataclass(frozen=True)
class Way:
    attn: str = "naive"
    remat: str = "none"
    layout: str = "gather"
    work: str = "least"
    cameras: tuple[str, ...] = CAMERAS

    def __str__(self) -> str:
        return " ".join((self.attn, self.remat, self.layout, self.work, *self.cameras))

    def config(self, mesh: MeshConfig) -> Config:
        config = micro_config(Path("unused"))
        config.mesh, config.layout = mesh, LayoutConfig(self.layout, min_shard_bytes=64)
        config.attn.name, config.remat.name = "flash" if self.attn == FUSED else self.attn, self.remat
        config.work = composed("train", [f"work={self.work}"])[0].work
        config.data.augment = AugmentConfig(1.0, 0.0, 0.0, 0.0, 0.0)  # whose draws depend on which cameras there are
        config.optimizer.updates, config.optimizer.ema_decay = False, None  # a step leaves its gradients
        return config


QUICK = (  # every choice at least once, gather with every attn
    Way("xla", "dots_no_batch", "gather", "unrolled", (LEFT, RIGHT)),
    Way("flash", "dots", "gather", "published", (BASE,)),
    Way("naive", "full", "auto", "published", CAMERAS),
    Way("flash", "none", "published", "unrolled", (BASE, RIGHT)),
    Way("fused", "dots_no_batch", "auto", "unrolled", (LEFT, RIGHT)),
)
SLOW = tuple(  # all that there are, and of the cameras each subset in turn
    Way(*choices, cameras)
    for choices, cameras in zip(itertools.product(ATTN, REMAT, LAYOUT, WORK), itertools.cycle(SUBSETS), strict=False)
)


def compiled(way: Way, mesh: MeshConfig, cameras: tuple[str, ...]) -> tuple[Program, jax.stages.Compiled]:
    config = way.config(mesh)
    kernel = Fused(256, "xla") if way.attn == FUSED else None
    gradients.fused_attention = lambda config, mesh: kernel
    program = make_program(config, make_mesh(mesh, jax.devices()[: mesh.size]), cameras)
    return program, program.lower().compile(compiler_options=in_haste())


def done(program: Program, step: jax.stages.Compiled, start: TrainState, batch: Any) -> tuple[float, Any]:
    """(loss, gradients)."""
    after, metrics = step(jax.device_put(start, program.places), on_devices(batch, program.batch))
    return float(metrics["loss"]), jax.device_get(after.optimizer)


def main(which: str) -> dict[str, Any]:
    pi0.SHORTEST_PERIOD *= 100
    one, four = MeshConfig(1, 1), MeshConfig(1, 4)
    reference, reference_step = compiled(Way(), one, CAMERAS)
    start = jax.device_get(run_once(lambda: init_state(reference.config)))
    batch = random_batch(reference.config, cameras=CAMERAS)
    found: dict[str, Any] = {}
    for way in {"quick": QUICK, "slow": SLOW}[which]:
        masks = {camera: np.full_like(mask, camera in way.cameras) for camera, mask in batch["image_masks"].items()}
        wanted_loss, wanted = done(reference, reference_step, start, batch | {"image_masks": masks})
        there = {name: {camera: batch[name][camera] for camera in way.cameras} for name in ("images", "image_masks")}
        loss, found_gradients = done(*compiled(way, four, way.cameras), start, batch | there)
        assert found_gradients.keys() == wanted.keys()
        off = {
            path: float(np.abs(found_gradients[path] - gradient).max() / (np.abs(gradient).max() + 1e-3))
            for path, gradient in wanted.items()
        }
        found[str(way)] = {"loss": loss, "wanted": wanted_loss, "off": off}
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
