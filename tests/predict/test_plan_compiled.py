"""Plans of a micro pi0, compiled for devices that are not here."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from plan_extra import needs_plan_extra

from sharder.predict import memory

pytestmark = [
    pytest.mark.compile,
    needs_plan_extra,
]
MICRO = ("model=pi0_micro", "layout.min_shard_bytes=512", "data=lerobot", "data.root=/nowhere")
STATE = (memory.WEIGHTS, memory.MOMENTS, memory.AVERAGE)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    for name in (memory.FRACTION, memory.OLD_FRACTION):
        monkeypatch.delenv(name, raising=False)


def planned(*typed: str) -> tuple[dict[str, Any], str]:
    """(plan.json, the page)."""
    argv = [sys.executable, "-m", "sharder.plan", *MICRO, *typed, "run.id=x"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return json.loads(Path("outputs/plan/x/plan.json").read_text()), done.stdout


def parts_of(plan: dict[str, Any]) -> dict[str, int]:
    return {part["kind"]: part["bytes"] for part in plan["memory"]["parts"]}


def bytes_needed(*typed: str) -> int:
    """Of one device."""
    total: int = planned(*typed)[0]["plan"]["memory"]["total_bytes"]
    return total


def device_of(limit: int) -> int:
    """The bytes of a device of which a program can have so many."""
    return -(-limit * 4 // 3)


def test_a_run_on_four_h100s() -> None:
    written, text = planned("mesh=fsdp4", "hardware.count=4", "train.batch_size=4")
    plan = written["plan"]
    parts, needs = parts_of(plan), plan["memory"]
    assert plan["hardware"] | {"peak_source": ""} == {
        **{"kind": "h100", "device_kind": "NVIDIA H100 80GB HBM3", "devices": 4, "hosts": 1},
        **{"peak_flops_per_s": 494.7e12, "peak_source": ""},
    }

    # The kinds add up, and what is not told apart is little and a row of its own.
    assert sum(parts.values()) == needs["total_bytes"]
    assert memory.PADDING not in parts  # what is placed is what goes in, to the byte
    assert 0 <= parts[memory.GAPS] < 0.1 * needs["total_bytes"]
    assert all(parts[kind] > 0 for kind in (*STATE, memory.BATCH, memory.ACTIVATIONS))
    assert needs["fits"] and needs["limit_bytes"] == int(0.75 * 84978434048)

    # Layout gather gathers weights and scatters gradients; no activation travels.
    moved = plan["traffic"]["moved"]
    assert {one["kind"] for one in moved if one["tensor"] == "layer weights"} == {"all-gather"}
    assert not [one for one in moved if one["tensor"] == "activations"]
    assert sum(one["payload_bytes"] for one in moved) == plan["traffic"]["payload_bytes"]
    assert all(one["times"] >= 1 and one["group_size"] == 4 and not one["between_hosts"] for one in moved)

    # What is multiplied is what shapes say, and the time is that of its parts.
    takes = plan["timing"]
    assert takes["compiled_flops"] == pytest.approx(takes["counted_flops"], rel=0.02)
    assert sum(part["ms"] for part in takes["parts"]) == pytest.approx(takes["step_ms"])
    assert sum(place["ms"] for place in takes["places"]) == pytest.approx(takes["step_ms"])
    assert takes["unknown"] == []
    alone = sum(one["alone_ms"] for one in takes["transfers"])
    assert takes["step_ms"] <= takes["exposed_step_ms"] and alone == pytest.approx(takes["collectives_alone_ms"])
    assert {one["name"] for one in moved} <= {one["name"] for one in takes["transfers"]}
    assert "predicted: " in text and "mean error" in text

    assert "fits: " in text and "planned for 4 x NVIDIA H100 80GB HBM3 of 1 host" in text
    assert "data.root=/nowhere is not here; cameras: base_0_rgb, left_wrist_0_rgb, right_wrist_0_rgb" in text


@pytest.mark.slow
def test_the_state_of_a_device_shrinks_with_the_devices_and_a_plan_is_the_same_twice() -> None:
    one, _ = planned("mesh=single", "train.batch_size=4")
    four, _ = planned("mesh=fsdp4", "train.batch_size=4")
    again, _ = planned("mesh=fsdp4", "train.batch_size=4")
    assert four == again
    whole, part = parts_of(one["plan"]), parts_of(four["plan"])
    for kind in STATE:
        assert 0.25 <= part[kind] / whole[kind] < 0.35, kind  # biases and norms are held whole
    assert four["plan"]["saving"] == one["plan"]["saving"]  # one host writes all of it either way
    assert one["plan"]["saving"]["disk_bytes"] == sum(whole[kind] for kind in STATE)
    assert one["plan"]["traffic"]["moved"] == []


@pytest.mark.slow
def test_the_largest_batch_of_a_small_device_is_found_by_compiling() -> None:
    limit = bytes_needed("mesh=fsdp4", "train.batch_size=12")
    small = f"hardware.hbm_bytes={device_of(limit)}"
    written, text = planned("mesh=fsdp4", "train.batch_size=16", "plan.search=batch", small)
    tried = {one["batch_size"]: one for one in written["tried"]}
    largest = max(batch for batch, one in tried.items() if one["fits"])
    assert largest >= 12 and not tried[largest + 4]["fits"]
    assert all(one["fits"] == (one["bytes"] <= limit) for one in tried.values())
    assert written["plan"]["choices"]["batch_size"] == largest
    assert f"the largest batch that fits is {largest}" in text


@pytest.mark.slow
def test_what_does_not_fit_comes_with_a_change_whose_own_plan_does() -> None:
    run = ("mesh=fsdp4", "train.batch_size=64", "remat=none")
    limit = bytes_needed(*run) - 100_000
    written, text = planned(*run, f"hardware.hbm_bytes={device_of(limit)}")
    assert not written["plan"]["memory"]["fits"] and "does not fit" in text
    fitting = [one for one in written["alternatives"] if one["fits"]]
    assert 1 <= len(fitting) <= 3
    for one in fitting:
        needs = one["plan"]["memory"]
        assert needs["total_bytes"] <= needs["limit_bytes"] == limit
        assert sum(parts_of(one["plan"]).values()) == needs["total_bytes"]
    assert f"it fits with {fitting[0]['change']}" in text


@pytest.mark.slow
def test_the_fastest_of_several_ways() -> None:
    written, text = planned("mesh=fsdp4", "train.batch_size=16", "plan.search=fastest", "plan.remats=[full,none]")
    ways = [one["plan"] for one in written["ranked"]]
    assert len(ways) == 4 and {way["choices"]["layout"] for way in ways} == {"gather", "auto"}
    rates = [way["timing"]["examples_per_s"] for way in ways]
    assert rates == sorted(rates, reverse=True)
    assert written["plan"] == ways[0]
    assert f"the fastest is {written['ranked'][0]['change']}" in text


@pytest.mark.slow
def test_full_pi0_on_four_h100s_and_a_batch_that_does_not_fit() -> None:
    """Two minutes: compiled in full, and again with each proposal."""
    base = ("model=pi0", "layout.min_shard_bytes=16384", "mesh=fsdp4", "hardware.count=4")
    written, _ = planned(*base, "train.batch_size=16")
    plan = written["plan"]
    assert plan["timing"]["compiled_flops"] == pytest.approx(plan["timing"]["counted_flops"], rel=0.02)
    needs, parts = plan["memory"], parts_of(plan)
    assert needs["fits"] and sum(parts.values()) == needs["total_bytes"]
    assert parts[memory.GAPS] < 0.02 * needs["total_bytes"]
    written, text = planned(*base, "train.batch_size=256")
    assert not written["plan"]["memory"]["fits"]
    fitting = [one for one in written["alternatives"] if one["fits"]]
    assert fitting and f"it fits with {fitting[0]['change']}" in text
    for one in fitting:
        needs = one["plan"]["memory"]
        assert needs["total_bytes"] <= needs["limit_bytes"] < 84_978_434_048


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [8, 32])
def test_many_hosts_of_eight(hosts: int) -> None:
    """Weights are gathered inside a host; between hosts each device sums its slices of the gradients."""
    devices = 8 * hosts
    mesh = (f"mesh.batch={hosts}", "mesh.fsdp=8", f"hardware.count={devices}", f"hardware.hosts={hosts}")
    written, _ = planned(*mesh, f"train.batch_size={devices}", "layout.min_shard_bytes=256")
    plan = written["plan"]
    assert (plan["hardware"]["devices"], plan["hardware"]["hosts"]) == (devices, hosts)
    gathered = [one for one in plan["traffic"]["moved"] if one["tensor"] == "layer weights"]
    assert gathered and all(one["group_size"] == 8 and not one["between_hosts"] for one in gathered)
    assert any(one["between_hosts"] and one["tensor"] == "gradients" for one in plan["traffic"]["moved"])
    # A host holds its slices once for all, and the first one writes them.
    assert plan["saving"]["host_bytes"] == plan["saving"]["disk_bytes"]


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs libtpu: pip install 'sharder[tpu]'")
def test_a_slice_of_sixteen_tpus() -> None:
    mesh = ("mesh.batch=2", "mesh.fsdp=8", "hardware.count=16")
    written, _ = planned("hardware=tpu_v5e", *mesh, "train.batch_size=16", "layout.min_shard_bytes=256")
    plan = written["plan"]
    assert (plan["hardware"]["device_kind"], plan["hardware"]["devices"]) == ("TPU v5 lite", 16)
    assert plan["hardware"]["hosts"] == 4
    assert plan["memory"]["fits"] and plan["memory"]["limit_bytes"] == 16911433728
    assert sum(parts_of(plan).values()) == plan["memory"]["total_bytes"]
