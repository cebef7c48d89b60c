"""Measured numbers beside the predicted and the published ones of the same point."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sharder.provenance import MEASURED
from sharder.report.rows import PREDICTED, PUBLISHED, Row
from sharder.table import Table

NUMBERS = ("step_ms", "attention_ms", "attention_layer_forward_ms", "memory_gb")
SHAPE = ("devices", "batch_size", "batch_per_device")  # the same in rows of one point, where both tell of it


@dataclass(frozen=True)
class Beside:
    """One number of one measured row. None: nobody says so of this point."""

    point: str
    hardware: str
    name: str
    measured: float
    predicted: float | None
    predicted_for: str  # hardware; that of the measured row where there is such a prediction
    published: float | None


def beside(preset: str, rows: Sequence[Row], keys: Collection[str]) -> list[Beside]:
    found = []
    for row in (row for row in rows if row["kind"] == MEASURED):
        predicted, published = (_nearest(row, rows, kind, keys) for kind in (PREDICTED, PUBLISHED))
        point = " ".join((preset, *(f"{key}={row[key]}" for key in keys if key in row)))
        if row["model"] != "pi0":
            point += f" model={row['model']}"
        for name in (name for name in NUMBERS if name in row):
            there = _number(predicted, name), _number(published, name)
            where = "" if predicted is None or there[0] is None else str(predicted["hardware"])
            found.append(Beside(point, str(row["hardware"]), name, float(row[name]), there[0], where, there[1]))
    return found


def as_table(found: Sequence[Beside]) -> Table:
    head = ("point", "on", "number", "measured", "predicted", "for", "measured / predicted", "published")
    cells = [
        (
            *(one.point, one.hardware, one.name, f"{one.measured:.4g}", _said(one.predicted), one.predicted_for or "-"),
            _said(None if not one.predicted else one.measured / one.predicted),
            _said(one.published),
        )
        for one in found
    ]
    return Table(
        "measured, beside predicted and published" if cells else "nothing is measured yet",
        head,
        cells,
        (head[3], head[4], *head[6:]),
    )


def _nearest(row: Row, rows: Iterable[Row], kind: str, keys: Collection[str]) -> Row | None:
    """Of the same point, and on the same hardware where there is one."""

    def is_same(one: Row) -> bool:
        shape = [name for name in SHAPE if name in one and name in row]
        return all(str(one.get(name)) == str(row.get(name)) for name in ("model", *keys, *shape))

    there = [one for one in rows if one["kind"] == kind and is_same(one)]
    return min(there, key=lambda one: one.get("hardware") != row["hardware"], default=None)


def _number(row: Row | None, name: str) -> float | None:
    return None if row is None or name not in row else float(row[name])


def _said(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
