"""The page of all experiments: headline numbers, figures, what was predicted beside what was published, environment."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from sharder.provenance import MEASURED, SIMULATED
from sharder.report import html, tables
from sharder.report.experiment import FIGURE, README, Experiment
from sharder.report.figure import title
from sharder.report.rows import CPU, LAST, PREDICTED, PUBLISHED, Row
from sharder.report.run_statistics import interval
from sharder.report.tables import NOTHING_HIDDEN, Compared, compared

KIND_SAID = {
    PUBLISHED: "measured by the authors of the published system",
    PREDICTED: "by sharder.plan: compiled for the hardware named, sizes exact, times by its model; nothing was run",
    SIMULATED: "run on devices that one CPU pretends to have: results are real, times are not those of such devices",
    MEASURED: "run on the devices named",
}
LONGEST_TABLE = 60  # rows; longer ones are in their files
SAME = ("kind", "model", "hardware", "devices", "mesh", "batch_size", "tokens")  # in rows of which two are a ratio
SHORT_TABLE = 12  # rows; longer ones are folded


def experiments_page(found: Sequence[tuple[Experiment, Sequence[Row]]], kept: Path, runs: Sequence[str]) -> str:
    """`found`: each with its rows of all kinds; `runs`: lines of HTML about run folders."""
    shown = [(one, rows) for one, rows in found if rows]
    parts = [html.tag("h1", "Sharder: what was found"), html.numbers(_headline(shown))]
    parts.append("<nav>" + " ".join(html.tag("a", one.name, href=f"#{one.name}") for one, _ in shown) + "</nav>")
    parts += [*_kinds(), *_against_published(shown)]
    for one, rows in shown:
        parts += [*_section(one, rows, kept)]
    if runs:
        parts += [html.tag("h2", "Runs", id="runs"), *runs]
    parts += [html.tag("h2", "Environment", id="environment"), _environment(shown)]
    return html.page("Sharder: what was found", parts)


def _kinds() -> Iterator[str]:
    for kind, said in KIND_SAID.items():
        yield html.tag("p", f"{kind}: {said}", class_="faint")


def ratios(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """(ours, theirs) of the same point and kind, where a table has both systems. Simulated times tell nothing."""
    rows = [row for row in rows if row.get("step_ms") and row["kind"] in (PREDICTED, MEASURED)]
    theirs = {tuple(row.get(name) for name in SAME): row for row in rows if row.get("system") == "published"}
    for row in rows:
        other = theirs.get(tuple(row.get(name) for name in SAME))
        if row.get("system") == "sharder" and other is not None:
            yield row, other


def _headline(shown: Sequence[tuple[Experiment, Sequence[Row]]]) -> Iterator[tuple[str, str]]:
    for one, rows in shown:
        # A CPU is hardware of neither system: its ratios are in their experiment's section only.
        pairs = [pair for pair in ratios(rows) if not pair[0]["hardware"].startswith(CPU)]
        if pairs:
            ours, theirs = pairs[-1]
            times = theirs["step_ms"] / ours["step_ms"]
            yield (
                f"{times:.2f} times",
                f"as fast as the published system's step, {one.name} on {ours['devices']} x {ours['hardware']}: "
                f"{ours.get('model', '')}, {ours['step_ms']:.4g} ms against {theirs['step_ms']:.4g}, "
                f"both {ours['kind']}",
            )
        evaluated = [row for row in rows if row["kind"] == MEASURED and "success_rate_low" in row]
        if evaluated:
            last = evaluated[-1]
            yield (
                f"{last['success_rate']:.0%}",
                f"success on unseen starts, {one.name}, 95% interval {interval(last)}, measured",
            )
    errors = [point.error for one, rows in shown for point in _as_they_ran(compared(rows, one.keys))]
    if errors:
        mean, worst = statistics.fmean(map(abs, errors)), max(map(abs, errors))
        yield (
            f"{mean:.1%}",
            f"mean difference of predicted from published step times, {len(errors)} points, the worst {worst:.1%}; "
            "those that the model was fitted on are among them; attention alone is further off, see below",
        )


def _as_they_ran(points: Sequence[Compared]) -> Iterator[Compared]:
    """Published runs hid communication where they had the flags for it, nowhere else: experiments/prediction."""
    steps = [point for point in points if point.kind == PREDICTED and point.name in ("step_ms", NOTHING_HIDDEN)]
    exposed = [point.point for point in steps if point.name == NOTHING_HIDDEN]
    for one in steps:
        hid = one.point.get("overlap") == "published" or one.point not in exposed
        if one.name == ("step_ms" if hid else NOTHING_HIDDEN):
            yield one


def _against_published(shown: Sequence[tuple[Experiment, Sequence[Row]]]) -> Iterator[str]:
    points = [(one, point) for one, rows in shown for point in compared(rows, one.keys)]
    alone = [one.name for one, rows in shown for row in _without_partner(rows, one.keys)]
    if points or alone:
        yield html.tag("h2", "Beside what was published, point by point", id="published")
    if points:
        head = ("experiment", "point", "number", "published", "found here", "kind", "difference")
        yield html.table(head, [_compared(one.name, point) for one, point in points])
    if alone:
        counted = ", ".join(f"{alone.count(name)} of {name}" for name in dict.fromkeys(alone))
        yield html.tag("p", f"Published, but neither predicted nor measured here yet: {counted}.", class_="faint")


def _without_partner(rows: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    others = [row for row in rows if row["kind"] != PUBLISHED]
    return [row for row in rows if row["kind"] == PUBLISHED and not compared([row, *others], keys)]


def _compared(name: str, point: Compared) -> tuple[str, ...]:
    where = " ".join(f"{key}={value}" for key, value in point.point.items() if key not in ("model", "hardware"))
    return (name, where, point.name, f"{point.published:.4g}", f"{point.found:.4g}", point.kind, f"{point.error:+.1%}")


def _section(one: Experiment, rows: Sequence[Row], kept: Path) -> Iterator[str]:
    yield html.tag("h2", one.name, id=one.name)
    yield html.tag("p", one.about)
    drawn = kept / one.name / f"{FIGURE}.svg"
    if drawn.exists():
        kinds = ", ".join(kind for kind in tables.KINDS if any(row["kind"] == kind for row in rows))
        said = title(one.config.report, rows, one.config.model.name)
        yield html.embedded(drawn.read_bytes(), ".svg", f"{said} ({kinds})")
    for ours, theirs in ratios(rows):
        yield html.tag(
            "p",
            f"{ours['devices']} x {ours['hardware']}: {ours['step_ms']:.4g} ms a step against the published system's "
            f"{theirs['step_ms']:.4g}, a ratio of {ours['step_ms'] / theirs['step_ms']:.2f}, both {ours['kind']}",
        )
    readme = kept / one.name / README
    if readme.exists():
        yield html.tag("p", f"Claim, command and what would refute it: {readme}", class_="faint")
    inside = _table(rows)
    yield inside if len(rows) <= SHORT_TABLE else html.folded(f"the table: {len(rows)} rows", inside)


def _table(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row if name not in LAST))
    names = [name for name in names if any(row.get(name) not in ("", None) for row in rows)]
    shown = [[row.get(name, "") for name in names] for row in rows[:LONGEST_TABLE]]
    more = len(rows) - len(shown)
    return html.table(names, shown) + (html.tag("p", f"and {more} more rows", class_="faint") if more else "")


def _environment(shown: Sequence[tuple[Experiment, Sequence[Row]]]) -> str:
    found = {
        (one.name, row["kind"], row["hardware"], row.get("jax", ""), row.get("commit", ""), row.get("date", ""))
        for one, rows in shown
        for row in rows
        if row["kind"] != PUBLISHED
    }
    return html.table(("experiment", "kind", "hardware", "jax", "commit", "date"), sorted(found, key=str))
