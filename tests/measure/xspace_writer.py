"""Writes `.xplane.pb` files: the bytes a profiler would leave of a device that is not here.

space(plane("/device:GPU:0", {"Stream #7": [Event("fusion.1", 0, 100, {"hlo_op": "fusion.1"})]}))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Event:
    name: str
    start_ns: int  # from the timestamp of the line
    end_ns: int
    stats: Mapping[str, str | int] = field(default_factory=dict)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers are written in two's complement, ten bytes long
    written = bytearray()
    while value >= 128:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def number(index: int, value: int) -> bytes:
    return varint(index << 3) + varint(value)


def message(index: int, content: bytes | str) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return varint(index << 3 | 2) + varint(len(raw)) + raw


class Ids(dict[str, int]):
    def __missing__(self, text: str) -> int:
        self[text] = len(self) + 1
        return self[text]


def event(one: Event, events: Ids, stats: Ids, spelt: bool = False) -> bytes:
    """Texts are written as references to the stat metadata, as the profiler does, or `spelt` out."""
    written = (
        number(1, events[one.name]) + number(2, one.start_ns * 1000) + number(3, (one.end_ns - one.start_ns) * 1000)
    )
    for name, value in one.stats.items():
        if isinstance(value, int):
            content = number(4, value)
        else:
            content = message(5, value) if spelt else number(7, stats[value])
        written += message(4, number(1, stats[name]) + content)
    return written


def plane(
    name: str,
    lines: Mapping[str, Sequence[Event]],
    timestamp_ns: int = 0,
    of_events: Mapping[str, Mapping[str, str]] | None = None,
    spelt: bool = False,
) -> bytes:
    """`of_events`: stats that hold for every event of a name, by the name."""
    events, stats = Ids(), Ids()
    written = message(2, name)
    for index, (line, content) in enumerate(lines.items()):
        head = number(1, index) + message(2, line) + number(3, timestamp_ns)
        written += message(3, head + b"".join(message(4, event(one, events, stats, spelt)) for one in content))
    for text, key in events.items():
        metadata = number(1, key) + message(2, text)
        for stat, value in (of_events or {}).get(text, {}).items():
            metadata += message(5, number(1, stats[stat]) + message(5, value))
        written += message(4, number(1, key) + message(2, metadata))
    for text, key in stats.items():
        written += message(5, number(1, key) + message(2, number(1, key) + message(2, text)))
    return written


def space(*planes: bytes, warnings: Sequence[str] = (), finished: bool = True) -> bytes:
    """With the plane that the profiler writes last, unless it never finished."""
    last = [plane("Task Environment", {})] if finished else []
    return b"".join(message(1, one) for one in [*planes, *last]) + b"".join(message(3, text) for text in warnings)
