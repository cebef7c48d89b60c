"""A program that the compiler itself refuses for lack of memory: TPUs' does, GPUs' does not."""

from types import SimpleNamespace
from typing import Any

import jax
import pytest
from test_communication import micro_config

from sharder.config import Config
from sharder.predict import page, plan
from sharder.predict.compiled import DoesNotFit, compiled_and_read

FULL = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 23.43G of 15.75G hbm."


def on_one_device() -> Config:
    config = micro_config(1, 1)
    config.hardware.kind, config.hardware.hbm_bytes, config.hardware.memory_share = "tpu_v5e", 10**9, 1.0
    return config


def refusing(words: str) -> Any:
    def compile(more: dict[str, Any]) -> Any:
        assert more == {}, "what only GPUs know is not asked of a TPU"
        raise jax.errors.JaxRuntimeError(words)

    devices = SimpleNamespace(flat=[SimpleNamespace(platform="tpu")])
    return SimpleNamespace(mesh=SimpleNamespace(devices=devices), compile=compile)


def test_no_room_is_an_answer_and_anything_else_an_error() -> None:
    with pytest.raises(DoesNotFit, match="Ran out of memory in memory space hbm"):
        compiled_and_read(refusing(FULL))
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        compiled_and_read(refusing("INTERNAL: a bug"))


def test_what_is_placed_is_known_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(program: object) -> None:
        raise DoesNotFit(FULL)

    monkeypatch.setattr(plan, "target_devices", lambda hardware, count: jax.devices()[:count])
    monkeypatch.setattr(plan, "compiled_and_read", refuse)
    made = plan.make_plan(on_one_device(), ("base_0_rgb",))
    assert not made.fits and made.traffic is None
    assert made.memory.total_bytes == plan.placed_bytes(on_one_device(), ("base_0_rgb",))
    heading, needs = page.tables(made, (), ())
    assert "does not fit in 1.000 GB a device" in heading.title and FULL in heading.title
    assert needs.rows[-1][0] == "all that is placed"
