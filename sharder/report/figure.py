"""The figure of an experiment: figure.svg and figure.png. Published, predicted, simulated and measured are drawn apart.

lines    a colour a series, a line and a mark a kind; points of the same place are repeats: their median, and a bar
         from the least to the most
bars     a group a place on the axis, a colour a series, a hatching a kind
stacked  a bar a row, a colour a part
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sharder.config import ReportConfig
from sharder.report.rows import MEASURED, PREDICTED, PUBLISHED, SIMULATED, Row

PALETTE = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7f7f7f",
    "#8c564b",
    "#bcbd22",
    "#17becf",
    "#444444",
)
STYLES = {  # kind: line, mark, is the mark filled, hatching of a bar
    PUBLISHED: ("--", "o", False, ""),
    PREDICTED: ("-", "s", True, "///"),
    SIMULATED: (":", "^", True, "..."),
    MEASURED: ("-", "D", True, ""),
}
UNITS = {
    "step_ms": "ms a step",
    "exposed_step_ms": "ms a step, nothing hidden",
    "examples_per_s": "examples a second",
    "attention_ms": "attention, ms a step",
    "memory_gb": "GB of one device at its peak",
    "sent_gb": "GB sent by a device a step",
    "tokens": "tokens of an example",
    "batch_per_device": "examples a device",
    "goodput": "time in steps that stand, share",
    "checkpoint.every_steps": "steps between checkpoints",
    "success_rate": "success rate",
    "learning_rate": "learning rate",
}
LOGARITHMIC = (
    "devices",
    "tokens",
    "batch_per_device",
    "attention_ms",
    "checkpoint.every_steps",
)  # powers of two, mostly
WIDTH, HEIGHT = 4.6, 3.6  # inches of a panel


def draw(report: ReportConfig, rows: Sequence[Row], path: Path) -> bool:
    """Writes `path`.svg and `path`.png, the same for the same rows. False: there is nothing to draw."""
    import matplotlib  # half a second: only where one is drawn
    from matplotlib.figure import Figure

    panels = [report.unit] if report.draw == "stacked" else [y for y in report.y if _with(rows, y)]
    if not panels or not any(_with(rows, y) for y in report.y):
        return False
    with matplotlib.rc_context({"svg.hashsalt": "sharder", "font.size": 9, "hatch.linewidth": 0.6}):
        figure = Figure(figsize=(max(6.0, WIDTH * len(panels)), HEIGHT + 0.7), layout="constrained")
        for index, y in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), index + 1)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_xlabel(UNITS.get(report.x, report.x))
            axes.set_ylabel(UNITS.get(y, y))
            {"lines": _lines, "bars": _bars, "stacked": _stacked}[report.draw](axes, report, rows, y)
        figure.suptitle(report.title, fontsize=10)
        _legend(figure, len(panels))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(path.with_suffix(".png"), dpi=130, metadata={"Software": None})
    return True


def _with(rows: Iterable[Row], *names: str) -> list[Row]:
    return [row for row in rows if all(row.get(name) not in (None, "") for name in names)]


def _series(report: ReportConfig, row: Row) -> tuple[str, ...]:
    return tuple(str(row.get(name, "")) for name in report.series)


def _groups(report: ReportConfig, rows: Sequence[Row], y: str) -> dict[tuple[tuple[str, ...], str], list[Row]]:
    found: dict[tuple[tuple[str, ...], str], list[Row]] = {}
    for row in _with(rows, report.x, y):
        found.setdefault((_series(report, row), row["kind"]), []).append(row)
    return found


def _name(series: tuple[str, ...], kind: str) -> str:
    return f"{' '.join(filter(None, series))}, {kind}".lstrip(", ")


def _lines(axes: Any, report: ReportConfig, rows: Sequence[Row], y: str) -> None:
    groups = _groups(report, rows, y)
    colors = dict(zip(dict.fromkeys(series for series, _ in groups), _cycle(), strict=False))
    for (series, kind), inside in groups.items():
        at: dict[float, list[float]] = {}
        for row in inside:
            at.setdefault(float(row[report.x]), []).extend(
                float(row[name]) for name in (f"{y}_low", y, f"{y}_high") if row.get(name) not in (None, "")
            )
        xs = sorted(at)
        means = [statistics.median(at[x]) for x in xs]
        spread = [
            [mean - min(at[x]) for x, mean in zip(xs, means, strict=True)],
            [max(at[x]) - mean for x, mean in zip(xs, means, strict=True)],
        ]
        line, mark, filled, _ = STYLES[kind]
        axes.errorbar(
            xs,
            means,
            yerr=spread if any(map(any, spread)) else None,
            color=colors[series],
            linestyle=line,
            marker=mark if len(xs) < 40 else None,
            markersize=5,
            markerfacecolor=colors[series] if filled else "white",
            linewidth=1.4,
            capsize=2,
            label=_name(series, kind),
        )
    places = sorted({float(row[report.x]) for row in _with(rows, report.x, y)})
    if report.x in LOGARITHMIC:
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.minorticks_off()
    if y in LOGARITHMIC:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)


def _bars(axes: Any, report: ReportConfig, rows: Sequence[Row], y: str) -> None:
    groups = _groups(report, rows, y)
    places = list(dict.fromkeys(str(row[report.x]) for row in _with(rows, report.x, y)))
    colors = dict(zip(dict.fromkeys(series for series, _ in groups), _cycle(), strict=False))
    width = 0.84 / len(groups)
    for index, ((series, kind), inside) in enumerate(groups.items()):
        at = {str(row[report.x]): float(row[y]) for row in inside}
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
    shown = [row for row in rows if any(row.get(part) not in (None, "", 0) for part in report.y)]
    names = [f"{row.get(report.x, '')}\n{row['kind']}" for row in shown]
    floor = [0.0] * len(shown)
    for part, color in zip(report.y, _cycle(), strict=False):
        heights = [float(row.get(part) or 0) for row in shown]
        if any(heights):
            axes.bar(
                range(len(shown)), heights, 0.7, bottom=floor, color=color, label=part, edgecolor="white", linewidth=0.4
            )
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    for index, top in enumerate(floor):
        axes.text(index, top, f"{top:.3g}", ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(len(shown)), names)


def _cycle() -> Iterable[str]:
    while True:
        yield from PALETTE


def _legend(figure: Any, panels: int) -> None:
    """One for all panels, below them."""
    found = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    columns = min(len(found), 2 + panels)
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
