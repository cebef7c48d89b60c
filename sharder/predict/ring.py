"""How long a collective takes that nothing runs beside: a ring over the links.

    time = latency + rounds x (n - 1) / n x bytes / (link rate x 2/3)

Of n devices in a ring each passes on all parts of the tensor but one: all-gather and reduce-scatter go once around,
an all-reduce is the one after the other. In an all-to-all each device sends every other one its part, in a permute each
sends what it has, in a broadcast all passes through. `bytes` are of the whole tensor: see Collective.payload_bytes.

A ring over several hosts crosses each border of a host in one place; NCCL lays several rings, so that every adapter of
a host carries a share. So the rate is that of the link, or of the adapters that the group has in one host, if less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sharder.config import HardwareConfig
from sharder.errors import UserError
from sharder.measure.collectives import Collective

LINK_SHARE = 2 / 3  # of the data sheet's rate, assumed: 300 of 450 GB/s, large messages among a few H100s
ROUNDS = {"all-reduce": 2}  # around the ring; all others one
WHOLE = ("collective-permute", "collective-broadcast")  # each device sends all that it has


@dataclass(frozen=True)
class Links:
    bytes_per_s: float  # of one device to others of its host, each way
    latency_s: float  # of a collective; on a TPU of a hop, of which a ring has n - 1 in a round
    network_bytes_per_s: float | None  # of one device's adapter to other hosts, each way; None: links go everywhere
    devices_per_host: int
    latency_is_per_hop: bool = False


def links(hardware: HardwareConfig, devices: int) -> Links:
    """`devices`: over all of `hardware.hosts`."""
    if hardware.link_bytes_per_s is None or hardware.link_latency_s is None:
        raise UserError(
            f"hardware: found {hardware.kind}, whose links are not known, allowed: h100, h200, a100, tpu_v5e; a step's "
            "time is predicted for one of these; set hardware=h100"
        )
    return Links(
        hardware.link_bytes_per_s,
        hardware.link_latency_s,
        hardware.network_bytes_per_s,
        max(1, devices // hardware.hosts),
        latency_is_per_hop=hardware.kind == "tpu_v5e",
    )


def collective_s(collective: Collective, links: Links) -> float:
    """One execution. 0 among one device, which copies at most."""
    group = collective.groups[0] if collective.groups else ()
    size, kind = collective.group_size, collective.kind
    if kind == "collective-permute":
        crosses = size > links.devices_per_host
        hosts, here = (2, 1) if crosses else (1, 1)
        return transfer_s(kind, collective.payload_bytes, 2 if size else 1, links, hosts, here)
    hosts, here = spread(group, links.devices_per_host)
    return transfer_s(kind, collective.payload_bytes, size, links, hosts, here)


def spread(group: Sequence[int], devices_per_host: int) -> tuple[int, int]:
    """Over how many hosts a group lies, and how many of its devices are in one of them, at least."""
    found = Counter(device // devices_per_host for device in group)
    return max(1, len(found)), min(found.values(), default=1)


def transfer_s(kind: str, payload_bytes: float, size: int, links: Links, hosts: int = 1, in_a_host: int = 1) -> float:
    """Among `size` devices, on `hosts` hosts with `in_a_host` of them each."""
    if size <= 1:
        return 0.0
    rounds = ROUNDS.get(kind, 1)
    share = 1.0 if kind in WHOLE else rounds * (size - 1) / size
    hops = (1 if kind == "collective-permute" else rounds * (size - 1)) if links.latency_is_per_hop else 1
    return hops * links.latency_s + share * payload_bytes / (rate(links, hosts, in_a_host) * LINK_SHARE)


def rate(links: Links, hosts: int, in_a_host: int) -> float:
    """Bytes/s of one device around the ring."""
    if hosts == 1 or links.network_bytes_per_s is None:
        return links.bytes_per_s
    return min(links.bytes_per_s, in_a_host * links.network_bytes_per_s)
