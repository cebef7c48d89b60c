"""The train step on several devices: the numbers of one device, in every layout, and the collectives we wrote down.

several_devices.py trains in a process of its own, where a CPU is four devices; what it found is judged here.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
LAYERS = {"vision/layers": 2, "gemma/layers": 3}  # stack -> how often its loop runs
Cases = dict[str, dict[str, Any]]


def child(which: str, script: str = "several_devices.py") -> Any:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    environment |= {"NPROC": "4", "PYTHONPATH": str(HERE.parent.parent)}
    command = [sys.executable, str(HERE / script), which]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def quick() -> Cases:
    return child("quick")


@pytest.fixture(scope="module")
def slow() -> Cases:
    return child("slow")


def assert_like(found: dict[str, Any], wanted: dict[str, Any], rel: float = 1e-6) -> None:
    """Losses, norms and final weights, over three steps; and nobody is warned."""
    assert found["warnings"] == []
    assert found["losses"] == pytest.approx(wanted["losses"], rel=rel)
    assert found["grad_norms"] == pytest.approx(wanted["grad_norms"], rel=10 * rel)
    assert found["off"]
    for path, furthest in found["off"].items():
        if not path.endswith("attention/k/bias"):  # its gradient is zero but for rounding, which AdamW makes a step of
            assert furthest < rel, path


def assert_placed(found: dict[str, Any], share: float) -> None:
    assert found["misplaced"] == []
    assert share <= found["share"] < 1.1 * share


@pytest.mark.parametrize(("case", "share"), [("gather", 1 / 4), ("gather hsdp2x2", 1 / 2)])
def test_several_devices_train_like_one_and_keep_their_slices(quick: Cases, case: str, share: float) -> None:
    assert_like(quick[case], quick["one device"])
    assert_placed(quick[case], share)


def test_accumulation_changes_neither_loss_nor_weights(quick: Cases) -> None:
    assert_like(quick["accumulation 4"], quick["gather"])
    assert_placed(quick["accumulation 4"], 1 / 4)


def test_frozen_weights_stay_to_the_bit_and_are_split(quick: Cases) -> None:
    """LoRA corrections and the other expert train beside them; only the norms' scales are too small to split."""
    case = quick["lora accumulation 4"]
    assert_like(case, quick["one device lora"])
    assert_placed(case, 1 / 4)
    kept = {
        path.removeprefix("gemma/layers/language/"): share
        for path, (moved, share) in case["frozen"].items()
        if not moved
    }
    assert len(kept) == len(case["frozen"])
    assert {path for path, share in kept.items() if share == 1 / 4} == {
        *("attention/q", "attention/k", "attention/v", "attention/out"),
        *("mlp/gate", "mlp/up", "mlp/down"),
    }
    assert {path for path, share in kept.items() if share == 1} == {"norm_attention/scale", "norm_mlp/scale"}


def moved(case: dict[str, Any], *outer: int) -> list[dict[str, Any]]:
    """The collectives within loops that begin with those that run so often."""
    return [one for one in case["moves"] if tuple(one["loops"][: len(outer)]) == outer]


def assert_gathered_forward_and_backward(case: dict[str, Any], *outer: int, again: bool = False) -> None:
    """Every split weight of a layer twice, and nothing else: what was gathered is not kept from one to the other.

    Whoever differentiates an addition needs no bias, unless the layer is computed `again`.
    """
    for stack, depth in LAYERS.items():
        layer = {path: tuple(dims) for path, dims in case["layer_weights"].items() if path.startswith(stack)}
        assert len(layer) == {"vision/layers": 9, "gemma/layers": 14}[stack]
        gathers = [one for one in moved(case, *outer, depth) if "gather_weights" in one["from"]]
        assert all(one["kind"] == "all-gather" for one in gathers)
        for backward in (False, True):
            needed = [dims for path, dims in layer.items() if again or not (backward and path.endswith("/bias"))]
            found = Counter(tuple(*one["dims"]) for one in gathers if ("transpose" in one["from"]) == backward)
            assert found == Counter(needed), f"{stack}, {'backward' if backward else 'forward'}"


def test_every_layer_weight_is_gathered_forward_and_again_backward(quick: Cases) -> None:
    assert_gathered_forward_and_backward(quick["gather"])


def test_every_layer_weight_is_gathered_twice_a_microbatch(quick: Cases) -> None:
    assert_gathered_forward_and_backward(quick["accumulation 4"], 4)


def test_gradients_are_summed_layer_by_layer(quick: Cases) -> None:
    """Beside the gathers a layer's loop has one collective for each split weight, backward, and no activation moves."""
    case = quick["gather"]
    for stack, depth in LAYERS.items():
        others = [one for one in moved(case, depth) if "gather_weights" not in one["from"]]
        assert Counter(one["kind"] for one in others) == {"all-to-all": 9 if stack == "vision/layers" else 14}
        assert all("transpose" in one["from"] and "reduce_gradients" in one["from"] for one in others)


def test_within_the_microbatches_nothing_moves_but_weights(quick: Cases) -> None:
    """The gradients are summed after the last one."""
    case = quick["accumulation 4"]
    inside = moved(case, 4)
    assert {one["kind"] for one in inside} == {"all-gather"}
    assert all("gather_weights" in one["from"] for one in inside)
    sums = [one for one in case["moves"] if "reduce_gradients" in one["from"]]
    assert len(sums) > len(case["layer_weights"]) and all(one["loops"] == [] for one in sums)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "like", "share"),
    [
        ("gather dp4", "one device", 1.0),
        ("auto", "one device", 1 / 4),
        ("transport", "gather", 1 / 4),
        ("transport hsdp2x2", "one device", 1 / 2),
        ("full", "gather", 1 / 4),
        ("dots", "gather", 1 / 4),
        ("unrolled", "gather", 1 / 4),
        ("unrolled accumulation 2", "gather", 1 / 4),
        ("unrolled auto", "one device", 1 / 4),
        ("flash", "gather", 1 / 4),
        ("accumulation 2", "gather", 1 / 4),
        ("accumulation 4 hsdp2x2", "one device", 1 / 2),
        ("lora", "one device lora", 1 / 4),
    ],
)
def test_all_other_ways_train_like_it_too(slow: Cases, case: str, like: str, share: float) -> None:
    assert_like(slow[case], slow[like])
    assert_placed(slow[case], share)


@pytest.mark.slow
def test_what_xla_places_as_it_likes_trains_like_it_too_and_is_put_back(slow: Cases) -> None:
    assert_like(slow["published"], slow["one device"], rel=1e-5)
    assert_placed(slow["published"], 1 / 4)


@pytest.mark.slow
def test_in_bfloat16_several_devices_come_close_to_one(slow: Cases) -> None:
    found, wanted = slow["bfloat16"], slow["one device bfloat16"]
    assert found["losses"] == pytest.approx(wanted["losses"], rel=2e-3)
    assert found["grad_norms"] == pytest.approx(wanted["grad_norms"], rel=1e-2)
    assert found["losses"] != slow["gather"]["losses"]
    assert_placed(found, 1 / 4)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["full", "dots"])
def test_no_remat_keeps_a_gathered_weight(slow: Cases, remat: str) -> None:
    assert_gathered_forward_and_backward(slow[remat], again=True)


@pytest.mark.slow
def test_peak_memory_falls_with_accumulation() -> None:
    """With 16 examples a device, most of what a step needs beside its state is activations."""
    needed = child("memory")
    assert needed["accumulation 2"] < 0.7 * needed["accumulation 1"]
    assert needed["accumulation 4"] < 0.7 * needed["accumulation 2"]
