"""Which way of running the step is the fastest, predicted: remat x layout x batch x microbatches, each compiled.

Of each layout, batch and number of microbatches, first what keeps least for the backward pass: where that does not fit,
nothing that keeps more does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from sharder.config import Config
from sharder.errors import UserError
from sharder.predict.alternatives import REMATS, Planner, Values, typed, with_values
from sharder.predict.plan import Plan
from sharder.validation import validate

T = TypeVar("T")


@dataclass(frozen=True)
class Candidate:
    values: Values
    plan: Plan | None  # None: not compiled
    why: str = ""  # it was not

    @property
    def change(self) -> str:
        """As typed."""
        return typed(self.values)

    @property
    def examples_per_s(self) -> float:
        """Predicted; 0 of what does not fit."""
        if self.plan is None or self.plan.timing is None or not self.plan.fits:
            return 0.0
        return self.plan.timing.examples_per_s


def ranked(config: Config, limit_bytes: int, plan: Planner, placed: Callable[[Config], int]) -> tuple[Candidate, ...]:
    """Fastest first, then what does not fit. `placed`: bytes that one device holds from step to step."""
    found: list[Candidate] = []
    for combination in combinations(config):
        fits = True
        for remat in sorted(set(config.plan.remats), key=REMATS.index, reverse=True):
            values = {"remat.name": remat} | combination
            changed = with_values(config, values)
            try:
                validate(changed)
                least = placed(changed)
            except UserError as error:
                found.append(Candidate(values, None, str(error)))
                continue
            if not fits:
                found.append(Candidate(values, None, "keeps more than what did not fit"))
            elif least > limit_bytes:
                found.append(Candidate(values, None, "what is placed alone is more than fits"))
            else:
                found.append(Candidate(values, plan(changed)))
                fits = found[-1].examples_per_s > 0
    return tuple(sorted(found, key=lambda one: -one.examples_per_s))


def combinations(config: Config) -> list[Values]:
    """All but remat. A layout is none where nothing is split."""
    asked = config.plan
    layouts = _each_once(asked.layouts if config.mesh.size > 1 else [config.layout.name])
    batches = _each_once(asked.batch_sizes or [config.train.batch_size])
    parts = _each_once(asked.accumulations or [config.train.accumulation])
    return [
        {"layout.name": layout, "train.batch_size": batch, "train.accumulation": accumulation}
        for layout, batch, accumulation in product(layouts, batches, parts)
    ]


def _each_once(asked: list[T]) -> list[T]:
    return list(dict.fromkeys(asked))
