"""Tables, figures and one self-contained page, from run folders and experiments/. Needs no device and no network."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from sharder.errors import EXIT_USER_ERROR, INTERRUPTED, UserError

USAGE = """Tables, figures and pages from what was run and planned. Runs nothing, needs no device and no network.

python -m sharder.report                        all experiments: <run.root>/report.html
python -m sharder.report experiment=<preset>    its rows into experiments/<preset>/*.csv, its figure, then the page
python -m sharder.report resume=<run folder>    one run's own page: <run folder>/report.html

run.root=outputs          where run folders are
kept=experiments          the folder with a folder an experiment, its tables and its figure"""
ALLOWED = ("experiment", "resume", "run.root", "kept")
LATEST = 30  # runs that the page links to


def main(argv: Sequence[str]) -> int:
    try:
        if {"-h", "--help"} & set(argv):
            print(USAGE)
            return 0
        written = _write(_typed(argv))
        print(f"written: {written}")
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


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
    if "resume" in told:
        from sharder.report.run_page import run_page

        folder = Path(told["resume"])
        _write_text(folder / "report.html", run_page(folder), "resume")
        return folder / "report.html"

    from sharder.report.experiment import check_name, collect, experiment, missing, preset_names
    from sharder.report.experiments_page import experiments_page
    from sharder.report.tables import read

    if (name := told.get("experiment")) is not None:
        check_name(name)
        found = experiment(name)
        rows = collect(found, root, kept)
        if not rows:
            raise UserError(
                f"experiment: found {name}, of which nothing lies in {root / found.config.run.name} or {kept / name}; "
                f"allowed: one that was run or planned; python -m sharder.plan experiment={name}"
            )
        for point in missing(found, rows):
            print(f"not there yet: {point}")
        print(f"tables and figure: {kept / name}")
    all_of_them = [experiment(name) for name in preset_names()]
    shown = [(one, read(kept / one.name)) for one in all_of_them]
    runs = list(_runs(root))
    if not runs and not any(rows for _, rows in shown):
        raise UserError(
            f"run.root: found {root}, with no runs, and {kept}, with no tables; allowed: folders that have some; set "
            "run.root=... or kept=..."
        )
    _write_text(root / "report.html", experiments_page(shown, kept, runs), "run.root")
    return root / "report.html"


def _write_text(path: Path, text: str, key: str) -> None:
    from sharder.run_folder import write_atomically

    try:
        write_atomically(path, text)
    except OSError as error:
        raise UserError(
            f"{key}: found {path.parent}, where {path.name} cannot be written ({error.strerror}); allowed: a writable "
            f"folder; set {key}=..."
        ) from error


def _runs(root: Path) -> list[str]:
    """The newest run folders, with links beside the page."""
    from sharder.report import html
    from sharder.report.rows import has_config

    folders = [folder for folder in root.glob("*/*") if not folder.name.startswith(".") and has_config(folder)]
    folders.sort(key=lambda folder: -os.stat(folder).st_mtime)
    lines = []
    for folder in folders[:LATEST]:
        relative = folder.relative_to(root)
        own = relative / "report.html" if (folder / "report.html").exists() else relative
        lines.append("<p>" + html.tag("a", str(relative), href=quote(str(own))) + "</p>")
    if len(folders) > LATEST:
        lines.append(html.tag("p", f"and {len(folders) - LATEST} older ones", class_="faint"))
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
