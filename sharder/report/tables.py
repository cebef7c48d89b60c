"""The tables of an experiment, one file a kind: experiments/<name>/{published,predicted,simulated,measured}.csv."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharder.errors import UserError
from sharder.provenance import MEASURED, SIMULATED
from sharder.report.rows import (
    LAST,
    NUMBERS,
    OF_A_STEP,
    ORIGIN,
    PREDICTED,
    PUBLISHED,
    SHAPE,
    WORDS,
    Row,
)
from sharder.run_folder import write_atomically
from sharder.table import as_csv

KINDS = (PUBLISHED, PREDICTED, SIMULATED, MEASURED)
NEEDED = ("hardware", "devices")  # of every row
NUMERIC = {"devices", "step", *SHAPE, *NUMBERS, *OF_A_STEP}  # columns
POINT = ("model", "hardware", "devices", "batch_size", "batch_per_device", "tokens")  # beside the keys of a sweep
COMPARED = ("step_ms", "attention_layer_forward_ms", "memory_gb")
NOTHING_HIDDEN = "step_ms, nothing hidden"  # predicted so; as scheduled it is step_ms


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
    """Columns that are numbers for all experiments are read as such; others stay the text that they are."""
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{path}: cannot be read ({error}); allowed: a table with a head; correct it, or delete it"
        ) from error
    return [_row(f"{path}: line {number}", line, kind) for number, line in enumerate(lines, 2)]


def _row(where: str, line: dict[str, str], kind: str) -> Row:
    if None in line or None in line.values():
        raise UserError(f"{where} has not as many cells as the head, allowed: as many; correct it")
    row: Row = {name: text for name, text in line.items() if text != ""}
    for name in NEEDED:
        if name not in row:
            raise UserError(f"{where} has no {name}, allowed: rows that say it; add it")
    for name in NUMERIC & row.keys():
        try:
            row[name] = _number(row[name])
        except ValueError as error:
            raise UserError(f"{where} has {name} {row[name]!r}, allowed: a number; correct it") from error
    if row.setdefault("kind", kind) != kind:
        raise UserError(f"{where} says kind {row['kind']}, allowed there: {kind}; move it to {row['kind']}.csv")
    return {"kind": kind} | row


def merged(before: Iterable[Row], found: Sequence[Row]) -> list[Row]:
    """A run that is in both: as it was found now, all of its rows. What other machines added stays."""
    new = {_run_of(row) for row in found}
    return [*(row for row in before if _run_of(row) not in new), *found]


def write(path: Path, rows: Sequence[Row], keys: Collection[str]) -> None:
    """Where its rows come from, the sweep's `keys`, numbers, and how to find the run; no column without a value."""
    there = {name for row in rows for name, value in row.items() if value not in ("", None)}
    first = (*ORIGIN, *keys, *SHAPE, "step", *NUMBERS, *WORDS, *OF_A_STEP)
    ordered = dict.fromkeys((*first, *(name for row in rows for name in row if name not in LAST), *LAST))
    names = [name for name in ordered if name in there]
    write_atomically(path, as_csv([{name: row.get(name, "") for name in names} for row in rows]))


def compared(rows: Sequence[Row], keys: Collection[str]) -> list[Compared]:
    """Every published number beside the same number of the rows that are the same point.

    The same in all `keys`, and in whatever else the two say of the model, the hardware and the shape.
    """
    found = []
    for published in (row for row in rows if row["kind"] == PUBLISHED):
        for row in (row for row in rows if row["kind"] in (PREDICTED, MEASURED)):
            if any(key in row and key not in published for key in keys):
                continue  # another point, of which nothing was published
            common = [key for key in (*keys, *POINT) if key in published and key in row]
            if any(published[key] != row[key] for key in common):
                continue
            point = {key: str(published[key]) for key in common}
            found += [
                Compared(point, name, published[name], row[name], row["kind"])
                for name in COMPARED
                if published.get(name) and row.get(name) is not None
            ]
            exposed = row.get("exposed_step_ms")
            if published.get("step_ms") and exposed is not None and exposed != row.get("step_ms"):
                found.append(Compared(point, NOTHING_HIDDEN, published["step_ms"], exposed, row["kind"]))
    return found


def _run_of(row: Row) -> tuple[Any, ...]:
    return row["kind"], row["hardware"], row.get("run")


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)
