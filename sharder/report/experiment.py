"""One experiment: its preset, the runs and plans of it, and what experiments/<name>/ keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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

    @property
    def has_figure(self) -> bool:
        return bool(self.config.report.y)


def preset_names() -> list[str]:
    presets = files("sharder.conf").joinpath("experiment").iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in presets if entry.name.endswith(".yaml"))


def experiment(name: str, typed: Sequence[str] = ()) -> Experiment:
    """UserError: no such preset, or one that does not compose. `typed`: what else a user says of it."""
    found = points("plan", [f"experiment={name}", *typed])
    values = [dict(_split(override) for override in point) for point, _ in found]
    keys = [key for key in values[0] if len({value.get(key) for value in values}) > 1]
    return Experiment(name, _about(name), found[0][1], tuple(tuple(point) for point, _ in found), tuple(keys))


def collect(found: Experiment, root: Path, kept: Path) -> list[Row]:
    """What runs and plans under root/<run.name> say joins the tables in kept/<name>; then its figure is drawn."""
    runs, report = root / found.config.run.name, found.config.report
    folders = sorted(folder for folder in runs.iterdir() if has_config(folder)) if runs.is_dir() else []
    rows = [row for folder in folders for row in rows_of(folder, report, found.keys)]
    for kind in tables.KINDS[1:]:
        new = [row for row in rows if row["kind"] == kind]
        if new:
            path = kept / found.name / f"{kind}.csv"
            tables.write(path, in_order(found, tables.merged(tables.read_table(path, kind), new)), found.keys)
    everything = tables.read(kept / found.name)
    figure.draw(report, everything, kept / found.name / FIGURE)
    return everything


def missing(found: Experiment, rows: Sequence[Row]) -> list[str]:
    """The points of which nothing is known yet, as they would be named."""
    there = {tuple(str(row.get(key)) for key in found.keys) for row in rows if row["kind"] != PUBLISHED}
    values = [dict(_split(override) for override in point) for point in found.points]
    return [
        sweep_id(point, None)
        for point, value in zip(found.points, values, strict=True)
        if tuple(str(value.get(key)) for key in found.keys) not in there
    ]


def in_order(found: Experiment, rows: Sequence[Row]) -> list[Row]:
    """That of the sweep, so that a table does not depend on when its rows were made; others come last."""
    values = [dict(_split(override) for override in point) for point in found.points]
    order = {tuple(value.get(key, "") for key in found.keys): index for index, value in enumerate(values)}
    place = {id(row): order.get(tuple(str(row.get(key, "")) for key in found.keys), len(order)) for row in rows}
    return sorted(rows, key=lambda row: (place[id(row)], str(row["hardware"]), str(row["run"]), row.get("step", 0)))


def check_name(name: str) -> None:
    if name not in preset_names():
        raise UserError(
            f"experiment: no option {name!r}, allowed: {', '.join(preset_names())}; set experiment=<option>"
        )


def _split(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key, value


def _about(name: str) -> str:
    lines = files("sharder.conf").joinpath("experiment", f"{name}.yaml").read_text().splitlines()
    return next((line[2:] for line in lines if line.startswith("# ") and "@package" not in line), "")
