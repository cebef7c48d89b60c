"""The collectives of the gather layout on four devices, against numpy: sums in the order of the devices to the bit."""

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from sharder.parallel.collectives import Collectives

SCRIPT = Path(__file__).parent / "four_devices.py"
MESHES = {"fsdp4": (1, 4), "dp4": (4, 1), "hsdp2x2": (2, 2)}
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def given() -> Arrays:
    """Sizes so far apart that a sum depends on its order."""
    random = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 10.0 ** random.uniform(-4, 4, shape)).astype(np.float32)

    return {"gradients": draw(4, 8, 12), "odd": draw(4, 5, 7), "rows": draw(8, 3, 12)}


@pytest.fixture(scope="module")
def found(given: Arrays, tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    folder = tmp_path_factory.mktemp("four devices")
    np.savez(folder / "given.npz", **given)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    environment |= {"NPROC": "4", "PYTHONPATH": str(SCRIPT.parent.parent.parent)}
    command = [sys.executable, "-W", "error", str(SCRIPT), str(folder / "given.npz"), str(folder / "found.npz")]
    child = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    with np.load(folder / "found.npz") as file:
        return dict(file)


def one_by_one(parts: Sequence[np.ndarray]) -> np.ndarray:
    """float32, whatever the parts are."""
    return reduce(np.add, [part.astype(np.float32) for part in parts])


def in_order(of_devices: np.ndarray, mesh: str) -> np.ndarray:
    """First over the devices of a group, then over the groups."""
    _, fsdp = MESHES[mesh]
    return one_by_one([one_by_one(of_devices[first : first + fsdp]) for first in range(0, len(of_devices), fsdp)])


@pytest.mark.parametrize("mesh", MESHES)
def test_a_fixed_order_is_that_of_the_devices_to_the_bit(mesh: str, given: Arrays, found: Arrays) -> None:
    gradients, odd = given["gradients"], given["odd"]
    wanted = in_order(gradients, mesh)
    assert not np.array_equal(in_order(gradients[[2, 0, 3, 1]], mesh), wanted)  # the order matters here
    for dim in (0, 1):
        np.testing.assert_array_equal(found[f"{mesh} fixed_order dim {dim}"], wanted)
    np.testing.assert_array_equal(found[f"{mesh} fixed_order whole"], in_order(odd, mesh))
    np.testing.assert_array_equal(found[f"{mesh} fixed_order scalars"], wanted[0, :3])


@pytest.mark.parametrize("mesh", MESHES)
def test_what_travels_in_bfloat16_is_summed_in_float32(mesh: str, given: Arrays, found: Arrays) -> None:
    narrow = given["gradients"].astype(jnp.bfloat16)
    np.testing.assert_array_equal(found[f"{mesh} fixed_order bfloat16"], in_order(narrow, mesh))
    assert found[f"{mesh} transport bfloat16"].dtype == np.float32


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("reduction", ["fixed_order", "transport"])
def test_either_reduction_gives_the_sum(mesh: str, reduction: str, given: Arrays, found: Arrays) -> None:
    gradients, odd = given["gradients"], given["odd"]
    wanted = {
        "dim 0": gradients,
        "dim 1": gradients,
        "whole": odd,
        "packed odd": odd,
        "packed scalar": odd[:, 0, 0],
        "packed vector": gradients[:, 0],
        "scalars": gradients[:, 0, :3],
    }
    for what, of_devices in wanted.items():
        total, largest = of_devices.astype(np.float64).sum(0), np.abs(of_devices).max(0)
        result = found[f"{mesh} {reduction} {what}"]
        assert result.dtype == np.float32 and result.shape == total.shape
        assert (np.abs(result - total) <= 1e-6 * largest).all(), what


def test_small_arrays_packed_together_keep_the_fixed_order(given: Arrays, found: Arrays) -> None:
    for mesh in MESHES:
        np.testing.assert_array_equal(found[f"{mesh} fixed_order packed odd"], in_order(given["odd"], mesh))
        vector = in_order(given["gradients"][:, 0], mesh)
        np.testing.assert_array_equal(found[f"{mesh} fixed_order packed vector"], vector)


def test_sums_within_a_group_and_over_groups(given: Arrays, found: Arrays) -> None:
    gradients = given["gradients"]
    for reduction in ("fixed_order", "transport"):
        across = found[f"hsdp2x2 {reduction} over groups"]
        np.testing.assert_array_equal(across, [gradients[0] + gradients[2], gradients[1] + gradients[3]])
        np.testing.assert_array_equal(found[f"fsdp4 {reduction} over groups"], gradients)
        within = found[f"hsdp2x2 {reduction} scalars of a group"]
        first, second = gradients[0] + gradients[1], gradients[2] + gradients[3]
        np.testing.assert_array_equal(within, np.stack([first, first, second, second])[:, 0, :3])


@pytest.mark.parametrize("mesh", MESHES)
def test_slices_become_a_whole_weight(mesh: str, given: Arrays, found: Arrays) -> None:
    for what in ("gathered", "gathered not"):
        np.testing.assert_array_equal(found[f"{mesh} {what}"], given["gradients"][0])


@pytest.mark.parametrize("mesh", MESHES)
def test_rows_found_in_everyones_columns_become_my_rows_and_back(mesh: str, given: Arrays, found: Arrays) -> None:
    rows, fsdp = given["rows"], MESHES[mesh][1]
    by_sender = rows.reshape(fsdp, -1, *rows.shape[1:])
    np.testing.assert_array_equal(found[f"{mesh} my rows"], rows)
    np.testing.assert_array_equal(found[f"{mesh} my columns"], by_sender)
    np.testing.assert_array_equal(found[f"{mesh} all rows"], by_sender)


@pytest.mark.parametrize("mesh", MESHES)
def test_the_gradient_of_a_gathered_weight_is_everyones_and_beside_it_ones_own(
    mesh: str, given: Arrays, found: Arrays
) -> None:
    gradients = given["gradients"]
    narrow = gradients.astype(jnp.bfloat16)  # the cotangent has the dtype the weight was used in
    np.testing.assert_array_equal(found[f"{mesh} gradient"], in_order(narrow, mesh))
    np.testing.assert_array_equal(found[f"{mesh} gradient beside, tap"], gradients)
    assert not found[f"{mesh} gradient beside, held"].any()


@pytest.mark.parametrize("mesh", MESHES)
def test_the_one_process_reads_the_whole_batch_and_each_device_holds_a_quarter(mesh: str, found: Arrays) -> None:
    assert found[f"{mesh} slice"].tolist() == [0, 16]
    assert found[f"{mesh} split"].tolist() == [4, 3]


def test_one_device_moves_nothing() -> None:
    alone, x = Collectives(1, 1, True), np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert alone.axes == ()
    assert alone.gather(x, 1) is x
    assert alone.sum_over_groups(x) is x
    assert alone.sum_scalars(x) is x
    np.testing.assert_array_equal(alone.sum_slices(x, 0), x)
    np.testing.assert_array_equal(alone.swap_rows_for_columns(x[None]), x)
    np.testing.assert_array_equal(alone.swap_columns_for_rows(x), x[None])
    np.testing.assert_array_equal(alone.gather_examples(x), x[None])
