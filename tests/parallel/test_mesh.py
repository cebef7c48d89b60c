"""The mesh over all devices of all processes: their order, and who holds which part of a batch."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import PartitionSpec
from made_up_devices import Client, Device, hosts

from sharder.config import MeshConfig
from sharder.errors import UserError
from sharder.parallel.mesh import BATCH, FSDP, batch_split, make_mesh, process_slice, replicated


def ids(config: MeshConfig, devices: list[Device]) -> list[list[int]]:
    return [[device.id for device in row] for row in make_mesh(config, devices).devices]


def test_devices_are_in_order_of_processes_and_then_of_their_ids() -> None:
    assert ids(MeshConfig(1, 8), hosts(2, 4)) == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert ids(MeshConfig(8, 1), hosts(2, 4)) == [[0], [1], [2], [3], [4], [5], [6], [7]]
    numbered_across = [Device(host, 2 * i + host, Client(0)) for i in range(2) for host in (0, 1)]
    assert ids(MeshConfig(1, 4), numbered_across) == [[0, 2, 1, 3]]


@pytest.mark.parametrize(("batch", "fsdp"), [(2, 4), (4, 2), (8, 1)])
def test_a_group_that_fits_in_a_host_lies_within_one(batch: int, fsdp: int) -> None:
    groups = make_mesh(MeshConfig(batch, fsdp), hosts(2, 4)).devices
    assert [{device.process_index for device in group} for group in groups] == (
        [{0}] * (batch // 2) + [{1}] * (batch // 2)
    )


def test_the_axes_have_their_sizes_and_a_batch_lies_along_both() -> None:
    mesh = make_mesh(MeshConfig(2, 4), hosts(2, 4))
    assert dict(mesh.shape) == {BATCH: 2, FSDP: 4}
    assert batch_split(mesh).spec == PartitionSpec((BATCH, FSDP))
    assert batch_split(mesh).shard_shape((16, 3)) == (2, 3)
    assert replicated(mesh).shard_shape((16, 3)) == (16, 3)


@pytest.mark.parametrize(("batch", "fsdp"), [(1, 8), (8, 1), (2, 4), (4, 2)])
def test_a_process_reads_a_contiguous_part_of_the_batch_and_the_parts_make_the_batch(batch: int, fsdp: int) -> None:
    parts = [process_slice(make_mesh(MeshConfig(batch, fsdp), hosts(4, 2, own)), 48) for own in range(4)]
    assert parts == [(0, 12), (12, 24), (24, 36), (36, 48)]


def test_one_process_reads_it_all() -> None:
    assert process_slice(make_mesh(MeshConfig(2, 4), hosts(1, 8)), 16) == (0, 16)
    assert process_slice(make_mesh(MeshConfig()), 16) == (0, 16)
    assert make_mesh(MeshConfig()).devices.tolist() == [jax.devices()]


def test_another_number_of_devices_is_refused_in_one_line() -> None:
    for found in (hosts(1, 4), hosts(4, 4)):
        with pytest.raises(UserError) as refusal:
            make_mesh(MeshConfig(2, 4), found)
        assert str(refusal.value) == (
            f"mesh: found 2 x 4 = 8, allowed: {len(found)}, as there are so many devices (NVIDIA H100 80GB HBM3); "
            "choose another mesh, or start on other hardware"
        )
    with pytest.raises(UserError, match=r"^mesh: found 1 x 2 = 2, allowed: 1, .* \(cpu\)"):
        make_mesh(MeshConfig(1, 2))
