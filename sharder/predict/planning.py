"""The plan command: the run as it is, the changes that make it fit, the largest batch or the fastest way; plan.json."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from sharder.config import Config
from sharder.errors import UserError
from sharder.predict import page
from sharder.predict.alternatives import Alternative, Planner, alternatives, with_values
from sharder.predict.batch_search import Tried, largest_that_fits
from sharder.predict.fastest import Candidate, ranked
from sharder.predict.inputs import Inputs
from sharder.predict.memory import limit_bytes
from sharder.predict.plan import Plan, make_plan, placed_bytes
from sharder.predict.planned import is_planned, write_planned
from sharder.predict.roofline import device
from sharder.run_folder import PLAN
from sharder.table import print_table
from sharder.validation import AT_MOST

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Planned:
    plan: Plan  # of the run as it is; with search=batch of the largest that fits, with search=fastest of the fastest
    alternatives: tuple[Alternative, ...]  # compiled because it does not fit
    tried: tuple[Tried, ...]  # batches, with search=batch
    ranked: tuple[Candidate, ...] = ()  # with search=fastest, whose first the plan is


def write_plan(inputs: Inputs, folder: Path, console: Console | None = None) -> None:
    """Prints the page and writes <folder>/plan.json, which has every collective. Once: not again what is there."""
    console = console or Console()
    if inputs.config.resume != "never" and is_planned(folder, inputs):
        log.info(f"planned before, of the same config by the same code: {folder / PLAN}; resume=never plans it again")
        return
    if inputs.said is not None:
        log.info(inputs.said)
    planned = planned_for(inputs.config, inputs.cameras)
    write_planned(folder, as_json(planned), inputs)
    log.info(f"written: {folder / PLAN}")
    for table in page.tables(planned.plan, planned.alternatives, planned.tried, planned.ranked):
        print_table(table, console)


def planned_for(config: Config, cameras: tuple[str, ...]) -> Planned:
    def plan(config: Config) -> Plan:
        log.info(f"compiling: {page.choices_line(config)}")
        return make_plan(config, cameras)

    # UserError now rather than after minutes of compiling.
    limit_bytes(config.hardware)
    device(config.hardware)
    if config.plan.search == "batch":
        return _largest_batch(config, plan)
    if config.remat.name == "auto" and config.plan.search != "fastest":
        only_remats = {"plan.layouts": [config.layout.name], "plan.batch_sizes": [], "plan.accumulations": []}
        config = with_values(config, {"plan.search": "fastest"} | only_remats)
    if config.plan.search == "fastest":
        return _fastest(config, plan, lambda changed: placed_bytes(changed, cameras))
    as_it_is = plan(config)
    found: list[Alternative] = []
    if not as_it_is.fits and config.plan.alternatives:
        found += alternatives(
            config, limit_bytes(config.hardware), plan, lambda changed: placed_bytes(changed, cameras)
        )
    return Planned(as_it_is, tuple(found), ())


def _largest_batch(config: Config, plan: Callable[[Config], Plan]) -> Planned:
    plans: dict[int, Plan] = {}

    def tried(batch_size: int) -> Tried:
        plans[batch_size] = made = plan(with_values(config, {"train.batch_size": batch_size}))
        return Tried(batch_size, made.memory.total_bytes, made.fits)

    unit, most = config.mesh.size * config.train.accumulation, int(AT_MOST["train.batch_size"])
    largest, seen = largest_that_fits(tried, config.train.batch_size, unit, most, limit_bytes(config.hardware))
    return Planned(plans[(largest or seen[-1]).batch_size], (), tuple(seen))


def _fastest(config: Config, plan: Planner, placed: Callable[[Config], int]) -> Planned:
    found = ranked(config, limit_bytes(config.hardware), plan, placed)
    compiled = [one.plan for one in found if one.plan is not None]
    if not compiled:
        whys = "; ".join(f"{one.change}: {one.why}" for one in found)
        raise UserError(f"plan.search: found fastest, and nothing to compile ({whys}); change mesh or train.batch_size")
    return Planned(compiled[0], (), (), found)


def as_json(planned: Planned) -> dict[str, Any]:
    """As the dataclasses are, with what follows from them beside."""
    return {
        "plan": _plan_json(planned.plan),
        "alternatives": [
            {
                "change": one.change,
                "about": one.about,
                "fits": one.fits,
                "least_bytes": one.least_bytes,
                "plan": None if one.plan is None else _plan_json(one.plan),
            }
            for one in planned.alternatives
        ],
        "tried": [dataclasses.asdict(one) for one in planned.tried],
        "ranked": [
            {"change": one.change, "why_not": one.why, "plan": None if one.plan is None else _plan_json(one.plan)}
            for one in planned.ranked
        ],
    }


def _plan_json(plan: Plan) -> dict[str, Any]:
    written = dataclasses.asdict(plan)
    memory = plan.memory
    written["memory"] |= {
        "limit_bytes": memory.limit_bytes,
        "fits": memory.fits,
        "fits_with_fraction": memory.fits_with_fraction,
    }
    return written
