"""One experiment: its preset, the runs and plans of it, and what experiments/<name>/ keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from sharder.compose import SEARCH_PATH, points
from sharder.config import Config
from sharder.errors import UserError
from sharder.report import figure, tables
from sharder.report.rows import PUBLISHED, Row, has_config, rows_of
from sharder.run_folder import sweep_id
from sharder.usage import group_options

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


def preset_names(search_path: str | None = None) -> list[str]:
    """`search_path`: of presets of the user's own, as the other commands take it: [file:///my/conf]."""
    return sorted(_presets(search_path))


@cache
def experiment(name: str, search_path: str | None = None) -> Experiment:
    """UserError: no such preset, or one that does not compose."""
    presets = _presets(search_path)
    if name not in presets:
        raise UserError(
            f"experiment: no option {name!r}, allowed: {', '.join(sorted(presets))}; set experiment=<option>, or "
            f"{SEARCH_PATH}=[file://<folder>] for one of your own"
        )
    own = [f"{SEARCH_PATH}={search_path}"] if search_path else []
    found = points("plan", [*own, f"experiment={name}"])
    values = [_values(point) for point, _ in found]
    keys = [key for key in values[0] if len({value.get(key) for value in values}) > 1]
    return Experiment(name, presets[name], found[0][1], tuple(tuple(point) for point, _ in found), tuple(keys))


def collect(found: Experiment, root: Path, kept: Path) -> tuple[list[Row], list[str]]:
    """What runs and plans under root/<run.name> say joins the tables in kept/<name>; then its figure is drawn.

    Returns all rows that the tables then have, and what was left out: run folders with what is wrong with them, and
    columns that the preset draws and no row has.
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
    said = f"column {{}} of the figure of {found.name}: no row has it; report.x, .y and .series name columns"
    return everything, wrong + [said.format(name) for name in figure.absent(found.config.report, everything)]


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


def _presets(search_path: str | None) -> dict[str, str]:
    """Name -> its first comment line. A name that is in several places is the first one's, as Hydra has it."""
    told = search_path.strip("[]").split(",") if search_path else []
    own = [Path(place.strip().removeprefix("file://")) / "experiment" for place in told]
    found: dict[str, str] = {}
    for place in (files("sharder.conf").joinpath("experiment"), *own):
        if place.is_dir():
            found = dict(group_options(place)) | found
    return found
