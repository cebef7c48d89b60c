"""remat=auto: the fastest that fits is chosen, what does not fit is not, and why is said."""

import dataclasses
import logging

import pytest
from test_communication import micro_config

from sharder.compose import composed
from sharder.config import Config, HardwareConfig
from sharder.errors import UserError
from sharder.predict import remat
from sharder.predict.remat import Tried, tried, with_fastest_remat

CAMERAS = ("base_0_rgb",)
FOUND = {
    "none": Tried("none", 900, 10.0),
    "dots": Tried("dots", 700, 12.0),
    "dots_no_batch": Tried("dots_no_batch", 500, 11.0),
    "full": Tried("full", None, 0.0),
}


def config(hbm_bytes: int = 1000) -> Config:
    made = micro_config(1, 1)
    made.remat.name = "auto"
    made.hardware = HardwareConfig("tpu_v5e", hbm_bytes=hbm_bytes, memory_share=1.0)
    return made


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tried]:
    made = dict(FOUND)
    monkeypatch.setattr(remat, "tried", lambda config, cameras: made[config.remat.name])
    return made


def test_the_fastest_that_fits(found: dict[str, Tried], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sharder")
    assert with_fastest_remat(config(1000), CAMERAS).remat.name == "none"
    assert with_fastest_remat(config(800), CAMERAS).remat.name == "dots_no_batch"
    assert "remat=auto: dots_no_batch, the fastest that fits by prediction (none: predicted 10.0 ms" in caplog.text
    assert "0.900 kB, too much" in caplog.text and "full: the compiler found no room" in caplog.text


def test_where_none_fits_that_is_an_error(found: dict[str, Tried]) -> None:
    with pytest.raises(UserError, match=r"remat: found auto, and with none does the step fit in 0\.100 kB a device"):
        with_fastest_remat(config(100), CAMERAS)


def test_a_program_of_the_devices_at_hand_is_read() -> None:
    """By the numbers of an H100, though the devices are CPUs: more is kept, more memory is needed."""
    (h100,) = composed("train", ["hardware=h100"])
    made = {}
    for name in ("none", "full"):
        one = config()
        one.hardware = dataclasses.replace(h100.hardware)
        one.remat.name = name
        made[name] = tried(one, CAMERAS)
    assert made["none"].bytes is not None and made["full"].bytes is not None
    assert made["none"].bytes > made["full"].bytes > 0
    assert made["none"].step_ms > 0 and made["full"].step_ms > 0


def test_auto_needs_hardware_whose_rates_are_known() -> None:
    with pytest.raises(UserError, match="remat: found auto with hardware=auto, allowed: with hardware whose rates"):
        composed("train", ["remat=auto"])
    assert composed("train", ["remat=auto", "hardware=a100"])[0].remat.name == "auto"
