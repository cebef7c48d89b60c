"""Where the wall time of real runs goes: what they are bound by, and what a profiled window says."""

import json
import logging
import re
import sys
import time

import jax
import pytest
from micro import micro_config

from sharder.data.dataset import open_dataset
from sharder.data.pipeline import BatchSource
from sharder.parallel.agreement import Hosts
from sharder.tracking.metrics import read_metrics
from sharder.training import loop

DEVICE_S = 0.1  # that a step takes on a device of known speed, beside its own milliseconds


@pytest.fixture
def device_of_known_speed(monkeypatch):
    """The compiled step, and then a program on the device that takes its time."""
    compiled = loop._compile

    def slow(program, hosts):
        step = compiled(program, hosts)
        takes_its_time = jax.jit(lambda x: jax.pure_callback(lambda x: (time.sleep(DEVICE_S), x)[1], x, x))

        def slow_step(state, batch):
            state, metrics = step(state, batch)
            return state, metrics | {"loss": takes_its_time(metrics["loss"])}

        return slow_step

    monkeypatch.setattr(loop, "_compile", slow)


def train(tmp_path, caplog, **sections):
    config = micro_config(tmp_path, steps=14, log_every=4)
    for key, value in sections.items():
        section, _, leaf = key.partition("__")
        setattr(getattr(config, section), leaf, value)
    folder = tmp_path / "run"
    folder.mkdir()
    with caplog.at_level(logging.INFO, "sharder"):
        loop.train(open_dataset(config), folder, Hosts())
    return folder, [record.getMessage() for record in caplog.records]


def slow_down(monkeypatch, seconds):
    batch = BatchSource.batch

    def slow(self, step):
        time.sleep(seconds)
        return batch(self, step)

    monkeypatch.setattr(BatchSource, "batch", slow)


def test_a_loader_three_times_slower_than_the_device(tmp_path, caplog, monkeypatch, device_of_known_speed):
    slow_down(monkeypatch, 3 * DEVICE_S)
    folder, said = train(tmp_path, caplog)
    (line,) = [line for line in said if "bound:" in line]
    told = re.search(r"input-bound: .* a step would be ([\d.]+) times as fast; set data.workers=(\d+)", line)
    assert told is not None, line
    assert 2.2 < float(told[1]) < 3.3  # less than 3: the micro step itself takes some time as well
    assert told[2] in ("3", "4")  # rounded up
    row = read_metrics(folder / "metrics.jsonl")[-1]
    parts = sum(row[f"{part}_ms"] for part in ("device", "data_wait", "peer_wait", "host"))
    assert row["step_ms"] == pytest.approx(parts)


def test_a_fast_loader(tmp_path, caplog, monkeypatch, device_of_known_speed):
    monkeypatch.setattr(sys.modules[__name__], "DEVICE_S", 0.4)  # so that a busy machine's other work is little of it
    _, said = train(tmp_path, caplog, train__steps=8)
    (line,) = [line for line in said if "bound:" in line]
    assert re.match(r"device-bound: the devices were busy (9\d|100)% of the time", line), line


def test_a_profiled_window(tmp_path, caplog):
    folder, said = train(
        tmp_path, caplog, profile__name="window", profile__after_steps=5, profile__steps=4, profile__ablation=True
    )
    assert "traced steps 6 to 9: " in " ".join(said)
    found = json.loads((folder / "profile/breakdown.json").read_text())
    assert (found["kind"], found["steps"], found["devices"]) == ("measured", 4, 1)
    assert found["window"]["first_step"] == 5
    rows = found["rows"]
    assert sum(row["ms"] for row in rows) == pytest.approx(found["step_ms"], rel=0.01)
    by_category = {}
    for row in rows:
        by_category[row["category"]] = by_category.get(row["category"], 0) + row["ms"]
    assert {"vision", "attention", "attention projections", "MLP", "optimizer", "idle"} <= by_category.keys()
    assert by_category["attention"] > 0
    assert by_category.get("unknown", 0) < 0.02 * found["step_ms"]
    assert {row["pass"] for row in rows if row["category"] == "MLP"} >= {"forward", "backward"}
    assert found["attention_share"] > 0
    assert found["attention_share_by_ablation"] is not None
    if found["complete"]:
        assert found["sentences"][0].startswith("A step took ")
        assert len(found["sentences"]) == 3
    for name in ("breakdown.svg", "breakdown.png"):
        assert (folder / "profile" / name).stat().st_size > 1000
    # The traced steps are as they would have been: nothing but time was spent.
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [4, 8, 12, 14]


def test_no_window_where_too_few_steps_are_left(tmp_path, caplog):
    train(tmp_path, caplog, train__steps=9)
    caplog.clear()
    folder = tmp_path / "again"
    config = micro_config(tmp_path, steps=14)
    config.resume = str(tmp_path / "run")
    config.profile.name, config.profile.after_steps, config.profile.steps = "window", 8, 4
    folder.mkdir()
    with caplog.at_level(logging.INFO, "sharder"):
        loop.train(open_dataset(config), folder, Hosts())
    assert "profile=window: no trace, since only 5 steps are left, and it takes 8 + 4" in [
        r.getMessage() for r in caplog.records
    ]
    assert not (folder / "profile").exists()
