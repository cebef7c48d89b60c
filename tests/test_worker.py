"""What a worker's log leaves out."""

import logging
import sys

import pytest

from sharder import worker


def of_a_plugin() -> logging.LogRecord:
    try:
        raise RuntimeError("Unable to load cuDNN")
    except RuntimeError:
        text = "Jax plugin configuration error: Exception when calling %s.initialize()"
        return logging.LogRecord("jax", logging.ERROR, __file__, 1, text, ("xla_cuda12",), sys.exc_info())


def test_a_plugin_for_gpus_that_are_not_here_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "NVIDIA_DRIVERS", ("/nowhere",))
    assert not worker._of_devices_that_may_be_here(of_a_plugin())
    other = logging.LogRecord("jax", logging.WARNING, __file__, 1, "plugin %s does not start", ("xla_rocm7",), None)
    assert worker._of_devices_that_may_be_here(other)
    assert other.getMessage() == "plugin xla_rocm7 does not start"


def test_where_there_is_a_driver_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "NVIDIA_DRIVERS", (__file__,))
    record = of_a_plugin()
    assert worker._of_devices_that_may_be_here(record)
    assert logging.Formatter("%(message)s").format(record) == (
        "Jax plugin configuration error: Exception when calling xla_cuda12.initialize(): Unable to load cuDNN"
    )
