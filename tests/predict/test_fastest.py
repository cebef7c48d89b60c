"""Which ways of running a step are compiled to find the fastest, in which order, and how they are ranked."""

from types import SimpleNamespace
from typing import Any

from test_communication import micro_config

from sharder.config import Config
from sharder.predict.fastest import Candidate, combinations, ranked

LIMIT = 100
KEPT = {"none": 80, "dots": 40, "dots_no_batch": 20, "full": 10}  # bytes for the backward pass, and placed ones
RATE = {"none": 3.0, "dots": 5.0, "dots_no_batch": 4.0, "full": 2.0}  # examples/s of a batch of 8


def config() -> Config:
    made = micro_config(1, 4)
    made.train.batch_size = 8
    return made


def plan(of: Config) -> Any:
    """A made-up compiler: memory and examples per second grow with the batch; layout auto is slower."""
    size = of.train.batch_size // 8
    total = 30 + KEPT[of.remat.name] * size
    rate = RATE[of.remat.name] * size * (0.5 if of.layout.name == "auto" else 1.0)
    timing = SimpleNamespace(examples_per_s=rate)
    return SimpleNamespace(timing=timing, fits=total <= LIMIT, memory=SimpleNamespace(total_bytes=total))


def found(of: Config, placed: int = 30) -> tuple[Candidate, ...]:
    return ranked(of, LIMIT, plan, lambda _: placed)


def told(candidates: tuple[Candidate, ...]) -> list[tuple[str, int, str, float]]:
    return [
        (one.values["layout.name"], one.values["train.batch_size"], one.values["remat.name"], one.examples_per_s)
        for one in candidates
    ]


def test_every_combination_of_the_lists_is_there() -> None:
    asked = config()
    asked.plan.layouts, asked.plan.batch_sizes, asked.plan.accumulations = ["gather", "auto"], [8, 16], [1, 2]
    assert len(combinations(asked)) == 8
    asked.plan.batch_sizes, asked.plan.accumulations = [], []
    assert [one["train.batch_size"] for one in combinations(asked)] == [8, 8]
    asked.mesh.fsdp = 1
    assert [one["layout.name"] for one in combinations(asked)] == [asked.layout.name]  # on one device all are alike


def test_what_is_listed_twice_is_compiled_once() -> None:
    asked = config()
    asked.plan.remats, asked.plan.layouts = ["full", "full"], ["gather", "gather"]
    asked.plan.batch_sizes, asked.plan.accumulations = [8, 8], [1, 1]
    assert told(found(asked)) == [("gather", 8, "full", 2.0)]


def test_the_most_examples_per_second_come_first_and_what_does_not_fit_last() -> None:
    asked = config()
    asked.plan.layouts, asked.plan.batch_sizes = ["gather"], [8, 16]
    assert told(found(asked)) == [
        ("gather", 16, "dots_no_batch", 8.0),
        ("gather", 8, "dots", 5.0),
        ("gather", 8, "dots_no_batch", 4.0),
        ("gather", 16, "full", 4.0),
        ("gather", 8, "full", 2.0),
        ("gather", 8, "none", 0.0),
        ("gather", 16, "dots", 0.0),
        ("gather", 16, "none", 0.0),
    ]


def test_what_keeps_more_than_what_did_not_fit_is_not_compiled() -> None:
    asked = config()
    asked.plan.layouts, asked.plan.batch_sizes = ["gather"], [16]
    why = {one.values["remat.name"]: one.why for one in found(asked) if one.plan is None}
    assert why == {"none": "keeps more than what did not fit"}


def test_nothing_is_compiled_where_what_is_placed_does_not_fit() -> None:
    assert {one.why for one in found(config(), placed=LIMIT + 1)} == {"what is placed alone is more than fits"}


def test_a_run_that_is_refused_is_listed_with_the_reason() -> None:
    asked = config()
    asked.plan.remats, asked.plan.layouts, asked.plan.batch_sizes = ["full"], ["gather"], [8, 9]
    fits, refused = found(asked)
    assert fits.plan is not None
    assert refused.plan is None and refused.why.startswith("train.batch_size: found 9, allowed: a multiple of")
    assert refused.change == "remat=full layout=gather train.batch_size=9 train.accumulation=1"
