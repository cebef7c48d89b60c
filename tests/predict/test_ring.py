"""The time of one collective, found by hand on links of round numbers."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharder.config import HardwareConfig
from sharder.errors import UserError
from sharder.measure.collectives import KINDS, collectives
from sharder.measure.hlo import parse
from sharder.predict.ring import LINK_SHARE, Links, collective_s, links, spread, transfer_s

LATENCY = 1e-5
NODE = Links(
    bytes_per_s=100e9 / LINK_SHARE,  # 100 GB/s get through
    latency_s=LATENCY,
    network_bytes_per_s=10e9 / LINK_SHARE,
    devices_per_host=8,
)


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("all-gather", 3 / 4),
        ("reduce-scatter", 3 / 4),
        ("all-reduce", 6 / 4),
        ("all-to-all", 3 / 4),
        ("collective-permute", 1),
        ("collective-broadcast", 1),
    ],
)
def test_four_devices_move_a_gigabyte(kind: str, share: float) -> None:
    assert transfer_s(kind, 1e9, 4, NODE) == pytest.approx(LATENCY + share * 1e9 / 100e9)


def test_one_device_moves_nothing() -> None:
    assert transfer_s("all-reduce", 1e9, 1, NODE) == 0


def test_between_hosts_each_device_brings_its_adapter() -> None:
    def seconds(hosts: int, in_a_host: int) -> float:
        return transfer_s("all-gather", 1e9, hosts * in_a_host, NODE, hosts, in_a_host) - LATENCY

    assert seconds(2, 1) == pytest.approx(1 / 2 * 1e9 / 10e9)  # a pair of adapters
    assert seconds(2, 4) == pytest.approx(7 / 8 * 1e9 / 40e9)  # four rings, each over one of four adapters
    assert seconds(1, 8) == pytest.approx(7 / 8 * 1e9 / 100e9)
    many = replace(NODE, network_bytes_per_s=NODE.bytes_per_s)
    assert transfer_s("all-gather", 1e9, 8, many, 2, 4) == transfer_s("all-gather", 1e9, 8, many)  # the link is slower


def test_the_hosts_of_a_group() -> None:
    assert spread((0, 1, 2, 3), 8) == (1, 4)
    assert spread((0, 8, 16, 24), 8) == (4, 1)
    assert spread(range(16), 8) == (2, 8)
    assert spread((), 8) == (1, 1)


def test_a_tpu_pays_for_every_hop() -> None:
    pod = replace(NODE, latency_is_per_hop=True, network_bytes_per_s=None)
    assert transfer_s("all-gather", 0, 4, pod) == pytest.approx(3 * LATENCY)
    assert transfer_s("all-reduce", 0, 4, pod) == pytest.approx(6 * LATENCY)
    assert transfer_s("all-gather", 1e9, 4, pod, hosts=2, in_a_host=2) == pytest.approx(3 * LATENCY + 0.75 / 100)


def test_a_collective_of_a_program() -> None:
    module = parse("""HloModule test, num_partitions=16

ENTRY %main () -> f32[] {
  %a = f32[1000,1000]{1,0} parameter(0)
  %near = f32[1000,1000]{1,0} all-reduce(%a), replica_groups=[2,8]<=[16], to_apply=%add
  %far = f32[1000,1000]{1,0} all-reduce(%a), replica_groups=[8,2]<=[2,8]T(1,0), to_apply=%add
  %on = f32[1000,1000]{1,0} collective-permute(%a), source_target_pairs={{0,1},{1,0}}
  ROOT %out = f32[] constant(0)
}
""")
    near, far, on = (collective_s(one, NODE) for one in collectives(module))
    assert near == pytest.approx(LATENCY + 2 * 7 / 8 * 4e6 / 100e9)
    assert far == pytest.approx(LATENCY + 2 * 1 / 2 * 4e6 / 10e9)
    assert on == pytest.approx(LATENCY + 4e6 / 100e9)


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(KINDS), st.integers(1, 64), st.integers(0, 10**11), st.integers(0, 10**11))
def test_more_bytes_never_take_less(kind: str, size: int, some: int, more: int) -> None:
    assert transfer_s(kind, some + more, size, NODE) >= transfer_s(kind, some, size, NODE)


def test_links_come_from_the_hardware() -> None:
    hardware = HardwareConfig(
        kind="h100", hosts=2, link_bytes_per_s=450e9, link_latency_s=2e-5, network_bytes_per_s=50e9
    )
    assert links(hardware, 16) == Links(450e9, 2e-5, 50e9, 8)
    with pytest.raises(UserError, match="hardware: found auto, whose links are not known"):
        links(HardwareConfig(), 1)
