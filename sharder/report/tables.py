"""The tables of an experiment, one file a kind: experiments/<name>/{published,predicted,simulated,measured}.csv."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharder.errors import UserError
from sharder.report.rows import LAST, MEASURED, NUMBERS, OF_A_STEP, ORIGIN, PREDICTED, PUBLISHED, SHAPE, SIMULATED, Row
from sharder.run_folder import write_atomically

KINDS = (PUBLISHED, PREDICTED, SIMULATED, MEASURED)
SAME = ("kind", "hardware", "run", "step")  # rows with these the same are one row, the newer standing
COMPARED = ("step_ms", "examples_per_s", "attention_ms", "memory_gb")


@dataclass(frozen=True)
class Compared:
    """A published number and what is predicted, or measured here, of the same point."""

    point: dict[str, str]  # what the two rows have in common that says which point it is
    name: str  # of the number
    published: float
    found: float
    kind: str  # of the found one

    @property
    def error(self) -> float:
        return self.found / self.published - 1


def read(folder: Path) -> list[Row]:
    """The rows of all kinds. UserError for a file that is no such table."""
    return [row for kind in KINDS for row in read_table(folder / f"{kind}.csv", kind)]


def read_table(path: Path, kind: str) -> list[Row]:
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [{key: _value(text) for key, text in row.items() if text != ""} for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error, AttributeError, TypeError) as error:
        raise UserError(
            f"{path}: cannot be read ({error}); allowed: a table with a head; correct it, or delete it"
        ) from error
    for number, row in enumerate(rows, 2):
        if row.get("kind", kind) != kind:
            raise UserError(
                f"{path}: line {number} says kind {row['kind']}, allowed there: {kind}; move it to {row['kind']}.csv"
            )
        row["kind"] = kind
    return rows


def merged(before: Iterable[Row], found: Iterable[Row]) -> list[Row]:
    """A run that is in both: as it was found now. What other machines added stays."""
    rows = {tuple(row.get(name) for name in SAME): row for row in before}
    for row in found:
        rows[tuple(row.get(name) for name in SAME)] = row
    return list(rows.values())


def write(path: Path, rows: Sequence[Row], keys: Collection[str]) -> None:
    """Where its rows come from, the sweep's `keys`, numbers, and how to find the run; no column without a value."""
    there = {name for row in rows for name, value in row.items() if value not in ("", None)}
    ordered = dict.fromkeys(
        (*ORIGIN, *keys, *SHAPE, "step", *NUMBERS, *OF_A_STEP, *(key for row in rows for key in row))
    )
    names = [
        *(name for name in ordered if name in there and name not in LAST),
        *(name for name in LAST if name in there),
    ]
    lines = [",".join(map(_cell, names)), *(",".join(_cell(row.get(name, "")) for name in names) for row in rows)]
    write_atomically(path, "\n".join(lines) + "\n")


def compared(rows: Sequence[Row], keys: Collection[str]) -> list[Compared]:
    """Every published number beside the same number of rows that are the same point: the same in all `keys`."""
    found = []
    for published in (row for row in rows if row["kind"] == PUBLISHED):
        for row in (row for row in rows if row["kind"] in (PREDICTED, MEASURED)):
            common = [key for key in (*keys, "devices", "batch_size", "tokens") if key in published and key in row]
            if not common or any(str(published[key]) != str(row[key]) for key in common):
                continue
            if any(key in row and key not in published for key in keys):
                continue  # another point, of which nothing was published
            point = {key: str(published[key]) for key in common}
            found += [
                Compared(point, name, float(published[name]), float(row[name]), row["kind"])
                for name in COMPARED
                if name in published and name in row
            ]
    return found


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _cell(value: Any) -> str:
    text = str(value)
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') else text
