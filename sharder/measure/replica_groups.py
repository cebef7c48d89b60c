"""Which devices take part together in a collective: the three ways XLA writes it.

{{0,1,2,3},{4,5,6,7}}                                        the groups
[2,4]<=[8]  [4,2]<=[2,4]T(1,0)                               groups x size, of 0..7 reshaped and transposed
mesh['batch'=2,'fsdp'=4] {'fsdp'}  mesh['x'=8] {'x':(2)4}    axes of a mesh; the 4 after the first 2 parts of x
mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}            of a mesh whose devices are not in order
"""

from __future__ import annotations

import math
import re
from itertools import pairwise

import numpy as np

NUMBER = re.compile(r"\d+")
IOTA = re.compile(r"(?:\[([\d,]+)\]<=)?\[([\d,]+)\](?:T\(([\d,]+)\))?$")
MESH = re.compile(r"mesh\[(.*?)\](?:, device_ids=\((.*)\))? \{(.*)\}$")
AXIS_SIZE = re.compile(r"'?([^'=,]+)'?=(\d+)")
GROUP_AXIS = re.compile(r"'?([^':,]+)'?(?::\((\d+)\)(\d+))?")

Groups = tuple[tuple[int, ...], ...]


def replica_groups(text: str) -> Groups:
    """Device ids by group; () for `{}`, all devices in one."""
    if text.startswith("{"):
        return tuple(tuple(_numbers(group)) for group in re.findall(r"\{([\d,]+)\}", text))
    if text.startswith("["):
        return _rows(_iota(text))
    if text.startswith("mesh["):
        return _mesh_groups(text)
    raise ValueError(f"HLO: replica_groups of a form that is not known: {text[:200]}")


def _mesh_groups(text: str) -> Groups:
    """Each axis is cut where a group begins or ends inside it; the pieces that belong to the group go last."""
    found = MESH.match(text)
    if found is None:
        raise ValueError(f"HLO: replica_groups of a form that is not known: {text[:200]}")
    sizes = {name: int(size) for name, size in AXIS_SIZE.findall(found[1])}
    within: dict[str, list[tuple[int, int]]] = {}  # from and to which part of the axis, counted from its major end
    for name, before, size in GROUP_AXIS.findall(found[3]):
        first = int(before or 1)
        within.setdefault(name, []).append((first, first * int(size or sizes[name])))
    pieces, is_grouped = [], []
    for name, total in sizes.items():
        spans = within.get(name, [])
        cuts = sorted({1, total, *(cut for span in spans for cut in span)})
        for low, high in pairwise(cuts):
            pieces.append(high // low)
            is_grouped.append(any(first <= low and high <= last for first, last in spans))
    count = math.prod(sizes.values())
    devices = np.arange(count) if found[2] is None else _device_ids(found[2])
    order = sorted(range(len(pieces)), key=lambda piece: is_grouped[piece])
    group_size = math.prod(piece for piece, grouped in zip(pieces, is_grouped, strict=True) if grouped)
    return _rows(devices.reshape(pieces).transpose(order).reshape(-1, group_size))


def _device_ids(text: str) -> np.ndarray:
    return _iota(text) if text.startswith("[") else np.array(_numbers(text))


def _iota(text: str) -> np.ndarray:
    found = IOTA.match(text)
    if found is None:
        raise ValueError(f"HLO: a list of devices of a form that is not known: {text[:200]}")
    shape = _numbers(found[2])
    devices = np.arange(math.prod(shape)).reshape(shape)
    if found[3]:
        devices = devices.transpose(_numbers(found[3]))
    return devices.reshape(_numbers(found[1])) if found[1] else devices


def _rows(devices: np.ndarray) -> Groups:
    return tuple(tuple(int(device) for device in row) for row in devices)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in NUMBER.findall(text)]
