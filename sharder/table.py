"""Tables: for people, drawn on a terminal; elsewhere lines of text that no width cuts, for a pipe or a log; as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.table
from rich.console import Console
from rich.text import Text


@dataclass(frozen=True)
class Table:
    """`title` stands alone where there are no rows."""

    title: str
    head: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    numbers: tuple[str, ...] = ()  # columns aligned to the right


def print_table(table: Table, console: Console) -> None:
    _print(table.title, console)
    if table.rows and console.is_terminal:
        console.print(_drawn(table))
    elif table.rows:
        for line in _lines(table):
            _print(line, console)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text(as_csv(rows), newline="")


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a row, under the keys of the first."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _drawn(table: Table) -> rich.table.Table:
    drawn = rich.table.Table()
    for name in table.head:
        drawn.add_column(name, justify="right" if name in table.numbers else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    return drawn


def _lines(table: Table) -> list[str]:
    rows = [table.head, *table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [name in table.numbers for name in table.head]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]


def _print(line: str, console: Console) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
