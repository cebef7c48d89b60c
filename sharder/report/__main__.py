"""Tables, figures and one self-contained page, from run folders and experiments/. Needs no device and no network."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from sharder.errors import UserError, ended

if TYPE_CHECKING:
    from sharder.report.experiment import Experiment

USAGE = """Tables, figures and pages from what was run and planned. Runs nothing, needs no device and no network.

python -m sharder.report                        all experiments: <run.root>/report.html
python -m sharder.report experiment=<preset>    its rows into experiments/<preset>/*.csv, its figure, then the page
python -m sharder.report resume=<run folder>    one run's own page: <run folder>/report.html

run.root=outputs          where run folders are
kept=experiments          the folder with a folder an experiment, its tables and its figure
hydra.searchpath=[file:///my/conf]   where presets of your own are, as for the other commands"""
SEARCH_PATH = "hydra.searchpath"
ALLOWED = ("experiment", "resume", "run.root", "kept", SEARCH_PATH)
LATEST = 30  # runs that the page links to


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    return ended(lambda: _main(argv))


def _main(argv: Sequence[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print(USAGE)
        return 0
    print(f"written: {_write(_typed(argv))}")
    return 0


def _typed(argv: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in argv:
        key, equals, value = text.partition("=")
        if key not in ALLOWED or not equals or not value or key in found:
            raise UserError(
                f"found {text!r}, allowed, each once: {', '.join(f'{one}=...' for one in ALLOWED)}, --help; correct it"
            )
        found[key] = value.strip("'\"")
    if {"experiment", "resume"} <= found.keys():
        raise UserError("resume: found it with experiment=, allowed: one of them; leave one out")
    return found


def _write(told: dict[str, str]) -> Path:
    root, kept = Path(told.get("run.root", "outputs")), Path(told.get("kept", "experiments"))
    search_path = told.get(SEARCH_PATH)
    if "resume" in told:
        from sharder.report.run_page import run_page

        folder = Path(told["resume"])
        return _write_text(folder / "report.html", run_page(folder), "resume")

    from sharder.report import tables
    from sharder.report.experiment import experiment, preset_names
    from sharder.report.experiments_page import experiments_page

    if "experiment" in told:
        _gather(experiment(told["experiment"], search_path), root, kept)
    in_tables = {name: rows for name in preset_names(search_path) if (rows := tables.read(kept / name))}
    runs = list(_links(root))
    if not runs and not in_tables:
        raise UserError(
            f"run.root: found {root}, with no runs, and {kept}, with no tables; allowed: folders that have some; set "
            "run.root=... or kept=..."
        )
    shown = [(experiment(name, search_path), rows) for name, rows in in_tables.items()]
    return _write_text(root / "report.html", experiments_page(shown, kept, runs), "run.root")


def _gather(found: Experiment, root: Path, kept: Path) -> None:
    """The tables and the figure of one experiment; says what is not in them."""
    from sharder.report.experiment import collect, missing

    name = found.name
    try:
        rows, wrong = collect(found, root, kept)
    except OSError as error:
        raise UserError(
            f"kept: found {kept}, where {name} cannot be written ({error.strerror}); allowed: a writable folder; set "
            "kept=..."
        ) from error
    for problem in wrong:
        print(f"left out: {problem}", file=sys.stderr)
    if not rows:
        raise UserError(
            f"experiment: found {name}, of which nothing lies in {root / found.config.run.name} or {kept / name}; "
            f"allowed: one that was run or planned; python -m sharder.plan experiment={name}"
        )
    for point in missing(found, rows):
        print(f"not there yet: {point}")
    print(f"tables and figure: {kept / name}")


def _write_text(path: Path, text: str, key: str) -> Path:
    from sharder.run_folder import write_atomically

    try:
        write_atomically(path, text)
    except OSError as error:
        raise UserError(
            f"{key}: found {path.parent}, where {path.name} cannot be written ({error.strerror}); allowed: a writable "
            f"folder; set {key}=..."
        ) from error
    return path


def _links(root: Path) -> Iterator[str]:
    """To the newest run folders, or to their own pages. Nothing in them is read."""
    from sharder.report import html
    from sharder.report.experiment import run_folders

    names = root.iterdir() if root.is_dir() else ()
    folders = [folder for parent in names if parent.is_dir() for folder in run_folders(parent)]
    folders.sort(key=_age_s)
    for folder in folders[:LATEST]:
        relative = folder.relative_to(root)
        own = relative / "report.html" if (folder / "report.html").exists() else relative
        yield "<p>" + html.tag("a", str(relative), href=quote(str(own))) + "</p>"
    if len(folders) > LATEST:
        yield html.tag("p", f"and {len(folders) - LATEST} older ones", class_="faint")


def _age_s(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:  # it went away meanwhile
        return math.inf


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
