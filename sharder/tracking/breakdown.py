"""A breakdown for people: a table, a figure, and breakdown.json in the run's profile folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sharder.measure.breakdown import Breakdown
from sharder.measure.categories import PASSES
from sharder.run_folder import write_atomically

BREAKDOWN, FIGURE = "breakdown.json", "breakdown"  # .svg and .png
COLORS = {"forward": "#4c78a8", "backward": "#f58518", "recomputation": "#e45756", "outside": "#72b7b2", "": "#bab0ac"}


def publish(breakdown: Breakdown, folder: Path, say: Callable[[str], None]) -> None:
    """Writes all of it into `folder`, <run folder>/profile, and says the table and the sentences."""
    write_atomically(folder / BREAKDOWN, json.dumps(breakdown.to_json(), indent=2) + "\n")
    draw(breakdown, folder / FIGURE)
    say(text(breakdown))
    for sentence in breakdown.sentences:
        say(sentence)
    say(f"table and figure: {folder / BREAKDOWN}, {folder / FIGURE}.svg, .png")


def by_category(breakdown: Breakdown) -> dict[str, dict[str, float]]:
    """{category: {pass: ms}} of a step, the most time first, and what is no op last."""
    found: dict[str, dict[str, float]] = {}
    for row in breakdown.rows():
        passes = found.setdefault(row["category"], {})
        passes[row["pass"]] = passes.get(row["pass"], 0.0) + row["ms"]
    ops = {name: passes for name, passes in found.items() if "" not in passes}
    rest = {name: passes for name, passes in found.items() if "" in passes}
    return dict(sorted(ops.items(), key=lambda item: -sum(item[1].values()))) | rest


def text(breakdown: Breakdown, width: int = 110) -> str:
    found = breakdown.attribution
    table = Table(title=f"a step of {found.wall_ns / 1e6:.2f} ms, by what it was spent on (ms, a device)")
    table.add_column("category")
    for name in (*PASSES, "all", "share"):
        table.add_column(name, justify="right")
    for category, passes in by_category(breakdown).items():
        ms = sum(passes.values())
        cells = [f"{passes[name]:.2f}" if passes.get(name) else "" for name in PASSES]
        table.add_row(category, *cells, f"{ms:.2f}", f"{ms / (found.wall_ns / 1e6):.1%}")
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(table)
        console.print(
            f"mean of {found.steps} steps; devices: {found.device_count} of {breakdown.window['flop']['devices']}; "
            f"{found.share(found.divided_ns):.1%} of the time was divided among what XLA fused, "
            f"{found.share(found.inferred_ns):.1%} had no scope and got its neighbours'"
        )
        if breakdown.ablated_share is not None:
            console.print(
                f"attention: {breakdown.attention_share_of_busy:.1%} of the busy time by attribution, "
                f"{breakdown.ablated_share:.1%} of a step by leaving it out (measured)"
            )
    return capture.get().rstrip("\n")


def draw(breakdown: Breakdown, path: Path) -> None:
    """Horizontal bars, one a category, stacked by pass: `path`.svg and `path`.png."""
    from matplotlib.figure import Figure  # half a second: only where one is drawn

    categories = by_category(breakdown)
    figure = Figure(figsize=(8, 0.6 + 0.32 * len(categories)), layout="constrained")
    axes = figure.add_subplot()
    left = dict.fromkeys(categories, 0.0)
    for name, color in COLORS.items():
        widths = [passes.get(name, 0.0) for passes in categories.values()]
        if any(widths):
            axes.barh(list(categories), widths, left=list(left.values()), color=color, label=name or "no op")
            left = {category: left[category] + width for category, width in zip(categories, widths, strict=True)}
    axes.invert_yaxis()
    window = breakdown.window
    axes.set_xlabel("ms of a step, a device (measured)")
    state = "" if breakdown.complete else "  INCOMPLETE TRACE"
    axes.set_title(
        f"{breakdown.attribution.wall_ns / 1e6:.1f} ms a step on {window['flop']['devices']} x "
        f"{window['flop']['device_kind']}, attn={window['attn']}, remat={window['remat']}, "
        f"layout={window['layout']}{state}",
        fontsize=9,
    )
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    for ending in ("svg", "png"):
        figure.savefig(path.with_suffix(f".{ending}"), dpi=150)
