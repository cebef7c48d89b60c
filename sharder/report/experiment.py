"""One experiment: its preset, the runs and plans of it, and what experiments/<name>/ keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from sharder.compose import points
from sharder.config import Config
from sharder.errors import UserError
from sharder.report import figure, tables
from sharder.report.rows import PUBLISHED, Row, has_config, rows_of
from sharder.run_folder import sweep_id

FIGURE = "figure"  # .svg and .png
README = "README.md"


@dataclass(frozen=True)
class Experiment:
    name: str
    about: str  # the first comment line of its preset
    config: Config  # of its first point
    points: tuple[tuple[str, ...], ...]  # what each is composed of, as its run folder is named
    keys: tuple[str, ...]  # what its sweep varies

    def place(self, row: Row) -> int:
        """Of the row's point in the sweep; their number for a row of no point."""
        places = [[str(_values(point).get(key)) for key in self.keys] for point in self.points]
        place = [str(row.get(key)) for key in self.keys]
        return places.index(place) if place in places else len(places)


def preset_names() -> list[str]:
    presets = files("sharder.conf").joinpath("experiment").iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in presets if entry.name.endswith(".yaml"))


@cache
def experiment(name: str) -> Experiment:
    """UserError: no such preset, or one that does not compose."""
    if name not in preset_names():
        raise UserError(
            f"experiment: no option {name!r}, allowed: {', '.join(preset_names())}; set experiment=<option>"
        )
    found = points("plan", [f"experiment={name}"])
    values = [_values(point) for point, _ in found]
    keys = [key for key in values[0] if len({value.get(key) for value in values}) > 1]
    return Experiment(name, _about(name), found[0][1], tuple(tuple(point) for point, _ in found), tuple(keys))


def collect(found: Experiment, root: Path, kept: Path) -> tuple[list[Row], list[str]]:
    """What runs and plans under root/<run.name> say joins the tables in kept/<name>; then its figure is drawn.

    Returns all rows that the tables then have, and what is wrong with the run folders that were left out.
    """
    rows, wrong = [], []
    for folder in run_folders(root / found.config.run.name):
        try:
            rows += list(rows_of(folder, found.config.report, found.keys))
        except UserError as error:
            wrong.append(str(error))
    folder = kept / found.name
    before = {kind: tables.read_table(folder / f"{kind}.csv", kind) for kind in tables.KINDS}
    for kind in tables.KINDS:
        new = [row for row in rows if row["kind"] == kind]
        if new:
            together = in_order(found, tables.merged(before[kind], new))
            tables.write(folder / f"{kind}.csv", together, found.keys)
    everything = tables.read(folder)
    figure.draw(found.config.report, everything, folder / FIGURE, found.config.model.name)
    return everything, wrong


def run_folders(parent: Path) -> list[Path]:
    """Those right below it, by name; not those that are being made, whose names begin with a dot."""
    try:
        below = sorted(folder for folder in parent.iterdir() if not folder.name.startswith("."))
    except OSError:
        return []
    return [folder for folder in below if has_config(folder)]


def missing(found: Experiment, rows: Sequence[Row]) -> list[str]:
    """The points of which nothing is known yet but what others published, as they would be named."""
    there = {found.place(row) for row in rows if row["kind"] != PUBLISHED}
    return [sweep_id(point, None) for place, point in enumerate(found.points) if place not in there]


def in_order(found: Experiment, rows: Sequence[Row]) -> list[Row]:
    """That of the sweep, so that a table does not depend on when its rows were made; others come last."""
    return sorted(
        rows, key=lambda row: (found.place(row), row["hardware"], str(row.get("run", "")), row.get("step", 0))
    )


def _values(point: Sequence[str]) -> dict[str, str]:
    return {key: value for key, _, value in (override.partition("=") for override in point)}


def _about(name: str) -> str:
    lines = files("sharder.conf").joinpath("experiment", f"{name}.yaml").read_text().splitlines()
    return next((line[2:] for line in lines if line.startswith("# ") and "@package" not in line), "")
