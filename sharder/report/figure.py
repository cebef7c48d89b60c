"""The figure of an experiment: figure.svg and figure.png. Published, predicted, simulated and measured are drawn apart.

lines    a colour a series, a line and a mark a kind; points of the same place are repeats: their median, and a bar
         from the least to the most
bars     a group a place on the axis, a colour a series, a hatching a kind
stacked  a bar a row, a colour a part, up to the row's total
"""

from __future__ import annotations

import math
import os
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharder.config import ReportConfig
from sharder.provenance import MEASURED, SIMULATED
from sharder.report.rows import PREDICTED, PUBLISHED, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALETTE = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    *("#7f7f7f", "#8c564b", "#bcbd22", "#17becf", "#f0e442", "#444444"),
)
STYLES = {  # kind: line, mark, is the mark filled, hatching of a bar
    PUBLISHED: ("--", "o", False, ""),
    PREDICTED: ("-.", "s", True, "///"),
    SIMULATED: (":", "^", True, "..."),
    MEASURED: ("-", "D", True, ""),
}
UNITS = {
    "step_ms": "ms a step",
    "exposed_step_ms": "ms a step, nothing hidden",
    "examples_per_s": "examples a second",
    "attention_ms": "attention, ms a step",
    "attention_layer_forward_ms": "attention of a layer, forward, ms",
    "memory_gb": "GB of one device at its peak",
    "sent_gb": "GB sent by a device a step",
    "tokens": "tokens of an example",
    "batch_per_device": "examples a device",
    "goodput": "time in steps that stand, share",
    "checkpoint.every_steps": "steps between checkpoints",
    "success_rate": "success rate",
    "learning_rate": "learning rate",
}
LOGARITHMIC = {"devices", "tokens", "batch_per_device", "attention_ms", "attention_layer_forward_ms"}
LOGARITHMIC |= {"checkpoint.every_steps"}  # powers of two, mostly
WIDTH, HEIGHT, NARROWEST = 4.6, 3.6, 6.0  # inches: of a panel, and of a figure
CHARACTERS = 13  # of a title, an inch
SERIES = " series"  # a key of no table
MANY = 40  # points of a line, from which on none is marked
REST, TOTALS = "the rest", {"ms": "step_ms", "GB": "memory_gb"}  # unit of a stack -> column


def title(report: ReportConfig, rows: Iterable[Row], model: str) -> str:
    """What the preset says it shows, and of which models, where others than its own are among the rows."""
    models = dict.fromkeys(str(row["model"]) for row in rows if "model" in row)
    return report.title + ("" if set(models) <= {model} else f"; here of {', '.join(models)}")


def draw(report: ReportConfig, rows: Sequence[Row], path: Path, model: str) -> bool:
    """Writes `path`.svg and `path`.png, the same for the same rows; `model` is the preset's. False: nothing to draw."""
    import matplotlib  # half a second: only where one is drawn

    with matplotlib.rc_context({"svg.hashsalt": "sharder", "font.size": 9, "hatch.linewidth": 0.6}):
        figure = make(report, rows, title(report, rows, model))
        if figure is None:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        for ending, told in ((".svg", {"Date": None}), (".png", {"Software": None})):
            unfinished = path.with_name(f".{path.name}{ending}")
            figure.savefig(unfinished, format=ending[1:], dpi=130, metadata=told)
            os.replace(unfinished, path.with_suffix(ending))
    return True


def absent(report: ReportConfig, rows: Sequence[Row]) -> list[str]:
    """Columns that the preset names and no row has. Of what is stacked a run may lack some, but not all."""
    there = {name for row in rows for name, value in row.items() if value not in ("", None)}
    drawn = report.y if report.draw != "stacked" or not there & set(report.y) else []
    return [name for name in (report.x, *drawn, *report.series) if name and rows and name not in there]


def make(report: ReportConfig, rows: Sequence[Row], said: str) -> Figure | None:
    """None: there is nothing to draw."""
    from matplotlib.figure import Figure

    of_what = [y for y in report.y if _with(rows, report.x, y)]
    panels = [report.unit] if report.draw == "stacked" and of_what else of_what
    if not panels:
        return None
    rows = _with_series(report, rows)
    width = max(NARROWEST, WIDTH * len(panels))
    figure = Figure(figsize=(width, HEIGHT + 0.7), layout="constrained")
    for index, y in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), index + 1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel(UNITS.get(report.x, report.x))
        axes.set_ylabel(UNITS.get(y, y))
        {"lines": _lines, "bars": _bars, "stacked": _stacked}[report.draw](axes, report, rows, y)
    figure.suptitle(textwrap.fill(said, int(width * CHARACTERS)), fontsize=10)
    _legend(figure, width)
    return figure


def _with(rows: Iterable[Row], x: str, y: str) -> list[Row]:
    """Those that have both, as numbers that can be drawn: the loss of a run that failed is none."""
    there = [row for row in rows if row.get(x) not in (None, "") and row.get(y) not in (None, "")]
    return [row for row in there if math.isfinite(float(row[y]))]


def _with_series(report: ReportConfig, rows: Iterable[Row]) -> list[Row]:
    """Those that the figure shows, with their series. Rows of another model, or hardware, are of another series."""
    there = [row for row in rows if any(row.get(y) not in (None, "") for y in report.y)]
    varying = {kind: _varying(there, kind) for kind in STYLES}
    named = []
    for row in there:
        names = dict.fromkeys((*report.series, *varying[row["kind"]]))
        named.append(row | {SERIES: " ".join(f"{name}={row[name]}" for name in names if name in row)})
    return named


def _groups(report: ReportConfig, rows: Sequence[Row], y: str) -> dict[tuple[str, str], list[Row]]:
    """(series, kind) -> its rows."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in _with(rows, report.x, y):
        found.setdefault((row[SERIES], row["kind"]), []).append(row)
    return found


def _colors(rows: Iterable[Row]) -> dict[str, str]:
    """Of each series, the same in all panels."""
    return dict(zip(dict.fromkeys(row[SERIES] for row in rows), _cycle(), strict=False))


def _varying(rows: Iterable[Row], kind: str) -> list[str]:
    """What rows of a kind differ in, though it is not swept."""
    inside = [row for row in rows if row["kind"] == kind]
    return [name for name in ("model", "hardware") if len({row.get(name) for row in inside}) > 1]


def _name(series: str, kind: str) -> str:
    return f"{series}, {kind}" if series else kind


def _lines(axes: Any, report: ReportConfig, rows: Sequence[Row], y: str) -> None:
    groups, colors = _groups(report, rows, y), _colors(rows)
    for (series, kind), inside in groups.items():
        at: dict[float, list[Row]] = {}
        for row in inside:
            at.setdefault(float(row[report.x]), []).append(row)
        xs = sorted(at)
        medians = [statistics.median(float(row[y]) for row in at[x]) for x in xs]
        least = [min(float(row[f"{y}_low" if f"{y}_low" in row else y]) for row in at[x]) for x in xs]
        most = [max(float(row[f"{y}_high" if f"{y}_high" in row else y]) for row in at[x]) for x in xs]
        bars = [
            [max(0.0, middle - low) for middle, low in zip(medians, least, strict=True)],
            [max(0.0, high - middle) for middle, high in zip(medians, most, strict=True)],
        ]
        line, mark, filled, _ = STYLES[kind]
        axes.errorbar(
            xs,
            medians,
            yerr=bars if any(map(any, bars)) else None,
            color=colors[series],
            linestyle=line,
            marker=mark if len(xs) < MANY else None,
            markersize=5,
            markerfacecolor=colors[series] if filled else "white",
            linewidth=1.4,
            capsize=2,
            label=_name(series, kind),
        )
    if report.x in LOGARITHMIC:
        places = sorted({float(row[report.x]) for row in _with(rows, report.x, y)})
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.minorticks_off()
    if y in LOGARITHMIC:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)


def _bars(axes: Any, report: ReportConfig, rows: Sequence[Row], y: str) -> None:
    groups, colors = _groups(report, rows, y), _colors(rows)
    places = list(dict.fromkeys(str(row[report.x]) for row in _with(rows, report.x, y)))
    width = 0.84 / len(groups)
    for index, ((series, kind), inside) in enumerate(groups.items()):
        at: dict[str, float] = {}
        for place in dict.fromkeys(str(row[report.x]) for row in inside):  # of repeats, the median
            at[place] = statistics.median(float(row[y]) for row in inside if str(row[report.x]) == place)
        middles = [places.index(place) + (index - (len(groups) - 1) / 2) * width for place in at]
        _, _, filled, hatch = STYLES[kind]
        color = colors[series]
        bars = axes.bar(
            middles,
            list(at.values()),
            0.94 * width,
            color=color if filled else "white",
            edgecolor=color if not filled else "white",
            hatch=hatch,
            label=_name(series, kind),
        )
        axes.bar_label(bars, fmt="{:.3g}", fontsize=7, padding=1)
    axes.set_xticks(range(len(places)), places)


def _stacked(axes: Any, report: ReportConfig, rows: Sequence[Row], unit: str) -> None:
    """What no part of `report.y` says of a row's total is drawn as the rest: the top is the total."""
    parts = [*report.y, REST]
    shown = [row for row in rows if any(float(row.get(part) or 0) for part in report.y)]
    names = ["\n".join((str(row.get(report.x, "")), *_besides(shown, row), row["kind"])) for row in shown]
    floor = [0.0] * len(shown)
    for part, color in zip(parts, (*islice(_cycle(), len(report.y)), "#dddddd"), strict=True):
        if part == REST:
            totals = [float(row.get(TOTALS.get(unit, "")) or 0) for row in shown]
            heights = [max(0.0, total - low) for total, low in zip(totals, floor, strict=True)]
            heights = [rest if rest > 0.001 * low else 0.0 for rest, low in zip(heights, floor, strict=True)]
        else:
            heights = [float(row.get(part) or 0) for row in shown]
        if any(heights):
            axes.bar(
                range(len(shown)), heights, 0.7, bottom=floor, color=color, label=part, edgecolor="white", linewidth=0.4
            )
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    for index, top in enumerate(floor):
        axes.text(index, top, f"{top:.3g}", ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(len(shown)), names)
    axes.set_ylabel(UNITS.get(TOTALS.get(unit, ""), unit))


def _besides(rows: Sequence[Row], row: Row) -> list[str]:
    return [str(row.get(name, "")) for name in _varying(rows, row["kind"])]


def _cycle() -> Iterable[str]:
    while True:
        yield from PALETTE


def _legend(figure: Any, width: float) -> None:
    """One for all panels, below them, in as many columns as there is room for."""
    found = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    columns = max(1, min(len(found), int(width * CHARACTERS / (max(map(len, found)) + 5))))
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
