"""Bytes for people: GB = 10^9 bytes, MB = 10^6, kB = 10^3."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    name: str
    bytes: int

    def text(self, count: float) -> str:
        return f"{count / self.bytes:.3f}"


UNITS = (Unit("GB", 10**9), Unit("MB", 10**6), Unit("kB", 10**3))


def unit_of(largest: float) -> Unit:
    """The unit for a column whose largest number this is."""
    return next((unit for unit in UNITS if largest >= unit.bytes), UNITS[-1])


def in_words(count: float) -> str:
    unit = unit_of(count)
    return f"{unit.text(count)} {unit.name}"
