"""A run's own page: its numbers, loss and speed by step, where its time went, restarts, evaluations, what it is."""

from __future__ import annotations

import io
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sharder.config import ReportConfig
from sharder.errors import UserError
from sharder.report import html
from sharder.report.evaluations import EVALUATION, evaluations
from sharder.report.rows import PREDICTED, Row, read_json, reading, rows_of, typed
from sharder.report.run_statistics import interval
from sharder.run_folder import CONFIG, ENVIRONMENT, PLAN, checkpoint_steps, load_config
from sharder.supervise.supervisor import read_events
from sharder.tracking.metrics import METRICS, raw_rows, read_metrics
from sharder.tracking.workspace import PARTS

PANELS = (  # metric, what it is
    ("loss", "loss"),
    ("grad_norm", "norm of the gradient"),
    ("step_ms", "ms a step"),
    ("data_wait_ms", "ms a step waiting for data"),
    ("examples_per_s", "examples a second"),
    ("mfu", "MFU, exactly counted"),
)


def run_page(folder: Path) -> str:
    """UserError: a folder that is no run, or in which nothing was run, planned or evaluated yet."""
    with reading(folder):
        return _page(folder)


def _page(folder: Path) -> str:
    config = load_config(folder)
    steps, about = read_metrics(folder / METRICS), read_json(folder / ENVIRONMENT)
    rows = list(rows_of(folder, ReportConfig(), typed(folder)))
    evaluated = list(evaluations(folder, steps))
    if not rows and not evaluated:
        raise UserError(
            f"resume: found {folder}, where nothing was logged, planned or evaluated yet; allowed: a folder with "
            f"{METRICS}, {PLAN} or {EVALUATION}; run it, or name another"
        )
    parts = [html.tag("h1", config.run.name), html.tag("p", str(folder.absolute()), class_="faint")]
    parts.append(html.numbers(_headline(rows)))
    if about is not None:
        parts += [*_mfu(about)]
    if steps:
        parts += [html.tag("h2", "By step"), _curves(folder, steps)]
    parts += [*_time(folder, steps, rows)]
    if steps:
        parts += [*_restarts(folder)]
    parts += evaluated
    parts += [html.tag("h2", "What it is"), html.table(("override", "value"), typed(folder).items())]
    parts.append(html.folded("the whole config", html.tag("pre", (folder / CONFIG).read_text())))
    if about is not None:
        parts.append(html.folded("the environment", html.table(("of", "is"), _flat(about))))
    return html.page(f"{config.run.name}: {folder.name}", parts)


def _headline(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    for row in rows:
        where = f"{row['kind']} on {row['devices']} x {row['hardware']}"
        if row["kind"] == PREDICTED:
            where = f"predicted for {row['devices']} x {row['hardware']}"
        if "loss" in row:
            yield f"{row['loss']:.4g}", f"loss at step {row['steps']}"
        if "success_rate" in row:
            told = f", 95% interval {interval(row)}" if interval(row) else ""
            yield f"{row['success_rate']:.0%}", f"success of the last evaluation while training{told}"
        if "step_ms" in row:
            yield f"{row['step_ms']:.4g} ms", f"a step, {where}"
        if "examples_per_s" in row:
            yield f"{row['examples_per_s']:.4g}", f"examples a second, {where}"
        for name, said in (("mfu", "MFU, exactly counted"), ("mfu_6nd", "MFU by the 6ND convention")):
            if name in row:
                yield f"{row[name]:.1%}", f"{said}, {where}"
        if "memory_gb" in row:
            yield f"{row['memory_gb']:.4g} GB", f"of a device's memory at its peak, {where}"
        if "goodput" in row:
            yield f"{row['goodput']:.1%}", f"of the time went into steps that stand; {row['restarts']} restarts"


def _mfu(about: dict[str, Any]) -> Iterator[str]:
    """What an MFU is made of, or why there is none."""
    flop = about.get("flop")
    if flop is None:
        return
    if flop["peak_flop_per_s_per_device"] is None:
        said = (
            f"No MFU: it needs the device's peak, and none is known of {about['device_kind']!r} in {flop['dtype']}; "
            "hardware.peak_flops_per_s=... gives one."
        )
    else:
        said = (
            f"MFU = {flop['mfu']['formula']}: {flop['mfu']['flop_per_step']:.4g} FLOP a step, "
            f"{flop['devices']} devices, peak {flop['peak_flop_per_s_per_device']:.4g} "
            f"FLOP/s in {flop['dtype']} ({flop['peak_source']})."
        )
    yield html.tag("p", said)


def _curves(folder: Path, steps: Sequence[Row]) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    shown = [(name, said) for name, said in PANELS if sum(row.get(name) is not None for row in steps) > 1]
    if not shown:
        return html.tag("p", "Too few rows for a curve.")
    resumed = [row["resumed_at"] for row in raw_rows(folder / METRICS) if "resumed_at" in row]
    lines = (len(shown) + 1) // 2
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "sharder"}):
        figure = Figure(figsize=(9, 2.3 * lines), layout="constrained")
        for index, (name, said) in enumerate(shown):
            axes = figure.add_subplot(lines, 2 if len(shown) > 1 else 1, index + 1)
            points = [(row["step"], row[name]) for row in steps if row.get(name) is not None]
            axes.plot(*zip(*points, strict=True), linewidth=1.2, color="#0072b2")
            for step in resumed:
                axes.axvline(step, color="#d55e00", linewidth=0.8, linestyle=":")
            axes.set_title(said, fontsize=9)
            axes.set_xlabel("step", fontsize=8)
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    said = "by step; dotted where an attempt resumed" if resumed else "by step"
    return html.embedded(buffer.getvalue(), ".svg", f"{', '.join(said for _, said in shown)}, {said}")


def _time(folder: Path, steps: Sequence[Row], rows: Sequence[Row]) -> Iterator[str]:
    kind = next((row["kind"] for row in rows if row["kind"] != PREDICTED), None)  # None: nothing says what it ran on
    timed = [row for row in steps if row.get("step_ms")] if kind is not None else []
    breakdown, plan = read_json(folder / "profile" / "breakdown.json"), read_json(folder / PLAN)
    timing = plan["plan"]["timing"] if plan is not None else None
    if timed or breakdown is not None or timing is not None:
        yield html.tag("h2", "Where the time goes")
    if timed:
        step_ms = statistics.fmean(row["step_ms"] for row in timed)
        told = [name for name in PARTS if any(name in row for row in timed)]
        parts = {name: statistics.fmean(row.get(name) or 0.0 for row in timed) for name in told}
        shares = [(name.removesuffix("_ms"), f"{ms:.4g}", f"{ms / step_ms:.1%}") for name, ms in parts.items()]
        yield html.table((f"of a step, mean, {kind}", "ms", "share"), shares)
    if breakdown is not None:
        drawn = folder / "profile" / "breakdown.svg"
        if drawn.exists():
            yield html.embedded(drawn.read_bytes(), ".svg", f"a step by what it was spent on, {breakdown['kind']}")
        for sentence in breakdown["sentences"]:
            yield html.tag("p", sentence)
    elif timed:
        yield html.tag("p", "profile=window divides a step by what it was spent on.", class_="faint")
    if timing is not None:
        said = f"Predicted, for {timing['devices']} x {timing['device_kind']}: {timing['step_ms']:.4g} ms a step"
        yield html.tag("h3", said)
        shares = [(one["name"], f"{one['ms']:.4g}", f"{one['share']:.1%}") for one in timing["parts"]]
        yield html.table(("part, predicted", "ms", "share"), shares)
        yield html.tag("p", f"{timing['model']}: {timing['accuracy']}", class_="faint")


def _restarts(folder: Path) -> Iterator[str]:
    """Of all attempts, those too whose steps were done again."""
    resumed = [row for row in raw_rows(folder / METRICS) if "resumed_at" in row]
    ended = [event for event in read_events(folder) if event.get("event") in ("exit", "stuck", "stop", "give_up")]
    yield html.tag("h2", "Restarts")
    if resumed:
        yield html.table(("attempt", "resumed at step"), [(row["attempt"], row["resumed_at"]) for row in resumed])
    else:
        yield html.tag("p", "No attempt resumed.")
    if ended:
        columns = ("event", "rank", "how", "phase", "step")
        lines = html.table(columns, [[event.get(name) or "" for name in columns] for event in ended])
        yield html.folded(f"how workers ended: {len(ended)} events", lines)
    saved = checkpoint_steps(folder)
    yield html.tag("p", f"Checkpoints kept: {', '.join(map(str, saved)) or 'none'}.")


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
