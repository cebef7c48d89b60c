"""What a run was bound by, said from parts that add up."""

import re

import pytest

from sharder.measure.verdict import verdict


def test_a_loader_three_times_too_slow():
    """A step of 100 ms on the device and batches every 300 ms from one worker: three workers keep up."""
    said = verdict({"device": 10.0, "data": 20.0}, steps=100, workers=1)
    assert said.bound_by == "input"
    assert said.share == pytest.approx(2 / 3)
    assert (
        "input-bound: 67% of the time no batch was ready; without that a step would be 3.00 times as fast" in said.text
    )
    assert "set data.workers=3 (now 1)" in said.text
    assert (
        "300.0 ms a step: 100.0 device + 200.0 waiting for data + 0.0 waiting for other processes + 0.0 host"
        in said.text
    )


def test_busy_devices():
    said = verdict({"device": 9.8, "data": 0.1, "host": 0.1, "pause": 3.0}, steps=10, workers=2)
    assert (said.bound_by, said.share) == ("device", pytest.approx(0.98))
    assert said.text.startswith("device-bound: the devices were busy 98% of the time (1000.0 ms a step: 980.0 device")
    assert "saves, evaluations and traces took 3.0 s beside" in said.text


@pytest.mark.parametrize(
    ("seconds", "bound_by", "words"),
    [
        ({"device": 5.0, "host": 5.0}, "host", "host-bound: 50% .* without that a step would be 2.00 times as fast"),
        ({"device": 5.0, "peers": 5.0}, "peers", "held up by other processes 50% of the time"),
        ({"data": 1.0}, "input", "input-bound: 100% .*; make batches cheaper"),
    ],
)
def test_idle_devices(seconds, bound_by, words):
    said = verdict(seconds, steps=5, workers=2)
    assert said.bound_by == bound_by
    assert re.search(words, said.text)


def test_there_is_none_without_a_step():
    assert verdict({"device": 1.0}, steps=0, workers=1) is None
    assert verdict({}, steps=3, workers=1) is None
