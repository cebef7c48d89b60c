"""What does not fit: the first changes of its config that do, each compiled.

One change at a time, those first that cost least: computing more again, smaller microbatches, more slices, narrower
weights, no average. Where no single one is enough, they are added up in that order, until it fits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sharder.config import Config
from sharder.errors import UserError
from sharder.predict.plan import Plan
from sharder.validation import validate

ENOUGH = 3  # alternatives that fit
REMATS = ("none", "dots", "dots_no_batch", "full")  # what is computed again: more and more
GPUS_A_HOST = 8

Values = dict[str, Any]  # dotted key -> value
Planner = Callable[[Config], Plan]


@dataclass(frozen=True)
class Alternative:
    change: str  # as typed
    about: str
    plan: Plan | None  # None: what is placed alone is more than fits, so it was not compiled
    least_bytes: int  # what one device needs at least

    @property
    def fits(self) -> bool:
        return self.plan is not None and self.plan.fits


def alternatives(
    config: Config, limit_bytes: int, plan: Planner, placed: Callable[[Config], int]
) -> Iterator[Alternative]:
    """Each as soon as it is known. `placed`: bytes that one device holds from step to step."""
    enough: set[tuple[str, ...]] = set()  # keys, of which more is not needed
    for values, about in single_changes(config):
        if tuple(values) in enough:
            continue
        found = _alternative(config, values, about, limit_bytes, plan, placed)
        if found is None:
            continue
        yield found
        if found.fits:
            enough.add(tuple(values))
        if len(enough) == ENOUGH:
            return
    if not enough:
        yield from _added_up(config, limit_bytes, plan, placed)


def _added_up(
    config: Config, limit_bytes: int, plan: Planner, placed: Callable[[Config], int]
) -> Iterator[Alternative]:
    """The strongest change of each kind and all before it, until it fits."""
    strongest = {tuple(values): values for values, _ in single_changes(config)}
    together: Values = {}
    for values in strongest.values():
        more = together | values
        found = _alternative(config, more, "all of these together", limit_bytes, plan, placed) if together else None
        if found is None and together:
            continue  # such a run is not possible
        together = more
        if found is not None:
            yield found
            if found.fits:
                return


def single_changes(config: Config) -> Iterator[tuple[Values, str]]:
    """(keys and values, what it costs)."""
    if config.remat.name in REMATS:
        for remat in REMATS[REMATS.index(config.remat.name) + 1 :]:
            yield {"remat.name": remat}, "computes more of the forward pass twice"
    accumulation, each = config.train.accumulation, config.train.batch_size // config.mesh.size
    while accumulation * 2 <= each and each % (accumulation * 2) == 0:
        accumulation *= 2
        yield {"train.accumulation": accumulation}, "the same step in smaller parts"
    size, hosts = config.mesh.size, config.hardware.hosts
    if config.mesh.batch > 1:
        yield {"mesh.batch": 1, "mesh.fsdp": size}, "every device holds another slice"
    more = {"mesh.batch": 1, "mesh.fsdp": 2 * size, "hardware.count": 2 * size}
    if 2 * size > GPUS_A_HOST * hosts:
        more["hardware.hosts"] = 2 * hosts
    yield more, "takes twice the devices"
    if config.model.weight_dtype == "float32":
        yield {"model.weight_dtype": "bfloat16"}, "weights, moments and average lose digits: small updates are lost"
    if config.optimizer.ema_decay is not None:
        yield {"optimizer.ema_decay": None}, "there is no average of the weights to act with"


def _alternative(
    config: Config, values: Values, about: str, limit: int, plan: Planner, placed: Callable[[Config], int]
) -> Alternative | None:
    """None where there is no such run: a batch that does not divide, widths that do not."""
    changed = with_values(config, values)
    try:
        validate(changed)
        least = placed(changed)
    except UserError:
        return None
    if least > limit:
        return Alternative(typed(values), about, None, least)
    found = plan(changed)
    return Alternative(typed(values), about, found, found.memory.total_bytes)


def with_values(config: Config, values: Values) -> Config:
    changed = copy.deepcopy(config)
    for key, value in values.items():
        *sections, name = key.split(".")
        node: Any = changed
        for section in sections:
            node = getattr(node, section)
        setattr(node, name, value)
    return changed


def typed(values: Values) -> str:
    """As on a command line; a group of one word by its own name."""
    words = {None: "null", True: "true", False: "false"}
    return " ".join(
        f"{key.removesuffix('.name')}={words.get(value, value) if not isinstance(value, int) else value}"
        for key, value in values.items()
    )
