"""What is tried when a run does not fit, in which order, and when it stops: with a made-up compiler."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from test_communication import micro_config

from sharder.config import Config
from sharder.predict.alternatives import Alternative, alternatives, single_changes, typed, with_values

LIMIT = 100


def config() -> Config:
    made = micro_config(2, 2)
    made.remat.name, made.train.batch_size = "dots", 16
    return made


def changes(of: Config) -> list[str]:
    return [typed(values) for values, _ in single_changes(of)]


def test_one_change_at_a_time_the_cheapest_first() -> None:
    assert changes(config()) == [
        "remat=dots_no_batch",
        "remat=full",
        "train.accumulation=2",
        "train.accumulation=4",
        "mesh.batch=1 mesh.fsdp=4",
        "mesh.batch=1 mesh.fsdp=8 hardware.count=8",
        "model.weight_dtype=bfloat16",
        "optimizer.ema_decay=null",
    ]


def test_nothing_is_proposed_that_is_so_already() -> None:
    lean = config()
    lean.remat.name, lean.train.batch_size, lean.mesh.batch, lean.mesh.fsdp = "full", 4, 1, 4
    lean.model.weight_dtype, lean.optimizer.ema_decay = "bfloat16", None
    assert changes(lean) == ["mesh.batch=1 mesh.fsdp=8 hardware.count=8"]


def test_more_devices_than_a_host_has_come_with_another_host() -> None:
    one_host = config()
    one_host.mesh.batch, one_host.mesh.fsdp = 1, 8
    assert "mesh.batch=1 mesh.fsdp=16 hardware.count=16 hardware.hosts=2" in changes(one_host)


def plans(needs: Callable[[Config], int], compiled: list[Config]) -> Callable[[Config], Any]:
    """Plans that say no more than whether they fit."""

    def plan(config: Config) -> Any:
        compiled.append(config)
        total = needs(config)
        return SimpleNamespace(fits=total <= LIMIT, memory=SimpleNamespace(total_bytes=total))

    return plan


def found(needs: Callable[[Config], int], placed: Callable[[Config], int] = lambda _: 0) -> list[Alternative]:
    return list(alternatives(config(), LIMIT, plans(needs, []), placed))


def test_it_stops_at_the_third_that_fits_and_tries_no_more_of_what_is_enough() -> None:
    tried = found(lambda config: 90 if config.train.accumulation > 1 or config.mesh.fsdp > 2 else 110)
    assert [(one.change, one.fits) for one in tried] == [
        ("remat=dots_no_batch", False),
        ("remat=full", False),
        ("train.accumulation=2", True),
        ("mesh.batch=1 mesh.fsdp=4", True),
        ("mesh.batch=1 mesh.fsdp=8 hardware.count=8", True),
    ]
    assert [one.least_bytes for one in tried] == [110, 110, 90, 90, 90]


def test_what_cannot_fit_for_what_is_placed_alone_is_not_compiled() -> None:
    compiled: list[Config] = []
    tried = list(
        alternatives(
            config(), LIMIT, plans(lambda _: 90, compiled), lambda config: 101 if config.mesh.fsdp == 2 else 50
        )
    )
    assert [one.change for one in tried if one.plan is None][:2] == ["remat=dots_no_batch", "remat=full"]
    assert {config.mesh.fsdp for config in compiled} == {4, 8}
    assert all(one.least_bytes == 101 for one in tried if one.plan is None)


def test_changes_are_added_up_where_no_single_one_is_enough() -> None:
    def needs(config: Config) -> int:
        is_lean = config.remat.name == "full" and config.train.accumulation == 4 and config.mesh.batch == 1
        return 90 if is_lean else 110

    tried = found(needs)
    assert [one.fits for one in tried] == [False] * (len(tried) - 1) + [True]
    assert tried[-1].change == "remat=full train.accumulation=4 mesh.batch=1 mesh.fsdp=4"


def test_what_validation_refuses_is_no_proposal() -> None:
    """A batch that two microbatches of eight devices would not divide."""
    odd = config()
    odd.train.batch_size = 4
    tried = list(alternatives(odd, LIMIT, plans(lambda _: 110, []), lambda _: 0))
    assert not [one.change for one in tried if "hardware.count=8" in one.change]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"remat.name": "full"}, "remat=full"),
        ({"optimizer.ema_decay": None, "a.b": 2}, "optimizer.ema_decay=null a.b=2"),
    ],
)
def test_changes_are_told_as_they_are_typed(values: dict[str, Any], text: str) -> None:
    assert typed(values) == text


def test_the_config_that_is_changed_is_a_copy() -> None:
    base = config()
    assert with_values(base, {"remat.name": "full", "mesh.fsdp": 4}).mesh.fsdp == 4
    assert (base.remat.name, base.mesh.fsdp) == ("dots", 2)
