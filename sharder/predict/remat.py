"""remat=auto: the fastest remat that fits, by the prediction, from programs compiled for the devices at hand."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sharder.config import Config
from sharder.errors import UserError
from sharder.parallel.mesh import make_mesh
from sharder.predict.alternatives import REMATS, with_values
from sharder.predict.compiled import DoesNotFit, compiled_if_it_fits, memory_bytes, module_of, total_bytes
from sharder.predict.memory import limit_bytes
from sharder.predict.sizes import in_words
from sharder.predict.timing import timing
from sharder.training.program import make_program

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tried:
    remat: str
    bytes: int | None  # of one device; None: the compiler found no room
    step_ms: float  # predicted


def with_fastest_remat(config: Config, cameras: tuple[str, ...]) -> Config:
    """The config with a remat in place of auto. Every process compiles the same programs, so all choose alike; the one
    that is chosen is in the compile cache then. UserError where none fits."""
    limit = limit_bytes(config.hardware)
    found = [tried(with_values(config, {"remat.name": remat}), cameras) for remat in REMATS]
    fitting = [one for one in found if one.bytes is not None and one.bytes <= limit]
    said = "; ".join(_said(one, limit) for one in found)
    if not fitting:
        raise UserError(
            f"remat: found auto, and with none does the step fit in {in_words(limit)} a device ({said}); lower "
            "train.batch_size, or raise train.accumulation or the mesh: python -m sharder.plan says what helps"
        )
    best = min(fitting, key=lambda one: one.step_ms)
    log.info(f"remat=auto: {best.remat}, the fastest that fits by prediction ({said})")
    return with_values(config, {"remat.name": best.remat})


def tried(config: Config, cameras: tuple[str, ...]) -> Tried:
    program = make_program(config, make_mesh(config.mesh), cameras)
    try:
        executable = compiled_if_it_fits(program)
    except DoesNotFit:
        return Tried(config.remat.name, None, 0.0)
    step_ms = timing(program, module_of(executable), config.hardware).step_ms
    return Tried(config.remat.name, total_bytes(memory_bytes(executable)), step_ms)


def _said(one: Tried, limit: int) -> str:
    if one.bytes is None:
        return f"{one.remat}: the compiler found no room"
    fits = "" if one.bytes <= limit else ", too much"
    return f"{one.remat}: predicted {one.step_ms:.1f} ms, {in_words(one.bytes)}{fits}"
