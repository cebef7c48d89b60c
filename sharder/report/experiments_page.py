"""The page of all experiments: headline numbers, figures, what was predicted beside what was published, environment."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from sharder.report import html, tables
from sharder.report.experiment import FIGURE, README, Experiment
from sharder.report.rows import LAST, MEASURED, PREDICTED, PUBLISHED, SIMULATED, Row
from sharder.report.tables import Compared, compared

KIND_SAID = {
    PUBLISHED: "measured by the authors of the published system",
    PREDICTED: "by sharder.plan: compiled for the hardware named, sizes exact, times by its model; nothing was run",
    SIMULATED: "run on devices that one CPU pretends to have: results are real, times are not those of such devices",
    MEASURED: "run on the devices named",
}
LONGEST_TABLE = 60  # rows; longer ones are in their files
OF_INTEREST = ("step_ms", "success_rate", "goodput")


def experiments_page(found: Sequence[tuple[Experiment, Sequence[Row]]], kept: Path, runs: Sequence[str]) -> str:
    """`found`: each with its rows of all kinds; `runs`: lines of HTML about run folders."""
    shown = [(one, rows) for one, rows in found if rows]
    parts = [html.tag("h1", "Sharder: what was found"), _kinds(), html.numbers(_headline(shown))]
    parts.append("<nav>" + " ".join(html.tag("a", one.name, href=f"#{one.name}") for one, _ in shown) + "</nav>")
    parts += [*_against_published(shown)]
    for one, rows in shown:
        parts += [*_section(one, rows, kept)]
    if runs:
        parts += [html.tag("h2", "Runs", id="runs"), *runs]
    parts += [html.tag("h2", "Environment", id="environment"), _environment(shown)]
    return html.page("Sharder: what was found", parts)


def _kinds() -> str:
    return html.table(("word", "means"), KIND_SAID.items())


def ratios(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """(ours, theirs) of the same point and kind, where a table has both systems."""
    rows = [row for row in rows if row.get("step_ms") and row["kind"] != PUBLISHED]
    theirs = {
        (row["kind"], row["hardware"], row["devices"], row.get("mesh")): row
        for row in rows
        if row.get("system") == "published"
    }
    for row in rows:
        other = theirs.get((row["kind"], row["hardware"], row["devices"], row.get("mesh")))
        if row.get("system") == "sharder" and other is not None:
            yield row, other


def _headline(shown: Sequence[tuple[Experiment, Sequence[Row]]]) -> Iterator[tuple[str, str]]:
    for one, rows in shown:
        pairs = list(ratios(rows))
        if pairs:
            ours, theirs = pairs[-1]
            times = theirs["step_ms"] / ours["step_ms"]
            yield (
                f"{times:.2f} times",
                f"as fast as the published system's step, {one.name} on {ours['devices']} x {ours['hardware']}: "
                f"{ours['step_ms']:.1f} ms against {theirs['step_ms']:.1f}, both {ours['kind']}",
            )
        for row in rows:
            if row["kind"] == MEASURED and "success_rate" in row and "interval_low" in row:
                low, high = f"{row['interval_low']:.0%}", f"{row['interval_high']:.0%}"
                yield (
                    f"{row['success_rate']:.0%}",
                    f"success on unseen starts, {one.name}, 95% interval {low} to {high}, measured",
                )
                break
    errors = [
        point.error
        for one, rows in shown
        for point in compared(rows, one.keys)
        if point.kind == PREDICTED and point.name == "step_ms"
    ]
    if errors:
        mean = statistics.fmean(map(abs, errors))
        worst = max(map(abs, errors))
        yield (
            f"{mean:.1%}",
            f"mean difference of predicted and published step times, {len(errors)} points, the worst {worst:.1%}",
        )


def _against_published(shown: Sequence[tuple[Experiment, Sequence[Row]]]) -> Iterator[str]:
    points = [(one, point) for one, rows in shown for point in compared(rows, one.keys)]
    if not points:
        return
    yield html.tag("h2", "Beside what was published, point by point", id="published")
    head = ("experiment", "point", "number", "published", "found here", "kind", "difference")
    yield html.table(head, [_compared(one.name, point) for one, point in points])


def _compared(name: str, point: Compared) -> tuple[str, ...]:
    where = " ".join(f"{key}={value}" for key, value in point.point.items())
    return (name, where, point.name, f"{point.published:.4g}", f"{point.found:.4g}", point.kind, f"{point.error:+.1%}")


def _section(one: Experiment, rows: Sequence[Row], kept: Path) -> Iterator[str]:
    yield html.tag("h2", one.name, id=one.name)
    yield html.tag("p", one.about)
    drawn = kept / one.name / f"{FIGURE}.svg"
    if drawn.exists():
        kinds = ", ".join(kind for kind in tables.KINDS if any(row["kind"] == kind for row in rows))
        yield html.embedded(drawn.read_bytes(), ".svg", f"{one.config.report.title} ({kinds})")
    for ours, theirs in ratios(rows):
        yield html.tag(
            "p",
            f"{ours['devices']} x {ours['hardware']}: {ours['step_ms']:.4g} ms a step against the published system's "
            f"{theirs['step_ms']:.4g}, a ratio of {ours['step_ms'] / theirs['step_ms']:.2f} (both {ours['kind']})",
        )
    readme = kept / one.name / README
    if readme.exists():
        yield html.tag("p", f"Claim, command and what would refute it: {readme}", class_="faint")
    inside = _table(rows)
    yield inside if len(rows) <= 12 else html.folded(f"the table: {len(rows)} rows", inside)


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
