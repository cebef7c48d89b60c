"""A run's own page: what it is, its numbers, loss and speed by step, where its time went, restarts, evaluation."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sharder.config import ReportConfig
from sharder.errors import UserError
from sharder.report import html
from sharder.report.rows import ENVIRONMENT, PLAN, Row, read_json, rows_of, typed
from sharder.run_folder import checkpoint_steps, load_config
from sharder.tracking.metrics import METRICS, read_metrics

PANELS = (  # metric, what it is
    ("loss", "loss"),
    ("grad_norm", "norm of the gradient"),
    ("step_ms", "ms a step"),
    ("data_wait_ms", "ms a step waiting for data"),
    ("examples_per_s", "examples a second"),
    ("mfu", "MFU, exactly counted"),
)
RESTARTS = ("attempt", "resumed_at")
SECONDS = ("device_ms", "data_wait_ms", "peer_wait_ms", "host_ms")


def run_page(folder: Path) -> str:
    """UserError: a folder that is no run, or in which nothing was run or planned yet."""
    config = load_config(folder)
    steps, about = read_metrics(folder / METRICS), read_json(folder / ENVIRONMENT)
    rows = list(rows_of(folder, ReportConfig(), typed(folder)))
    if not rows:
        raise UserError(
            f"resume: found {folder}, where nothing was logged or planned yet; allowed: a folder with {METRICS} or "
            f"{PLAN}; run it, or name another"
        )
    parts = [html.tag("h1", f"{config.run.name}: {folder.name}"), html.numbers(_headline(rows))]
    parts.append(html.tag("p", f"{folder.absolute()}", class_="faint"))
    if about is not None:
        parts += [*_about(about)]
    if steps:
        parts += [html.tag("h2", "By step"), _curves(steps)]
    parts += [*_time(folder, steps), *_restarts(folder, steps), *_evaluations(folder, steps)]
    parts += [html.tag("h2", "What it is"), html.table(("override", "value"), typed(folder).items())]
    parts.append(html.folded("the whole config", html.tag("pre", (folder / ".hydra/config.yaml").read_text())))
    if about is not None:
        parts.append(html.folded("the environment", html.table(("of", "is"), _flat(about))))
    return html.page(f"{config.run.name}: {folder.name}", parts)


def _headline(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    for row in rows:
        where = f"{row['kind']} on {row['devices']} x {row['hardware']}"
        if "loss" in row:
            yield f"{row['loss']:.4g}", f"loss at step {row['steps']}"
        if "success_rate" in row:
            interval = (
                f", 95% interval {row['interval_low']:.0%} to {row['interval_high']:.0%}"
                if "interval_low" in row
                else ""
            )
            yield f"{row['success_rate']:.0%}", f"success of the last evaluation{interval}"
        if "step_ms" in row:
            yield f"{row['step_ms']:.4g} ms", f"a step, {where}"
        if "examples_per_s" in row:
            yield f"{row['examples_per_s']:.4g}", f"examples a second, {where}"
        for name, said in (("mfu", "MFU, exactly counted"), ("mfu_6nd", "MFU by the 6ND convention")):
            if name in row:
                yield f"{row[name]:.1%}", f"{said}, {where}"
        if "goodput" in row:
            yield f"{row['goodput']:.1%}", f"of the time went into steps that stand; {row['restarts']} restarts"


def _about(about: dict[str, Any]) -> Iterator[str]:
    flop = about.get("flop") or {}
    if flop.get("peak_flop_per_s_per_device") is None:
        yield html.tag(
            "p",
            f"MFU needs the device's peak, and none is known of {about['device_kind']!r}: "
            "hardware.peak_flops_per_s=... gives it.",
        )
    else:
        yield html.tag(
            "p",
            f"MFU = {flop['mfu']['formula']}: {flop['mfu']['flop_per_step']:.4g} FLOP a step, "
            f"{flop['devices']} devices, peak {flop['peak_flop_per_s_per_device']:.4g} FLOP/s in {flop['dtype']} "
            f"({flop['peak_source']}).",
        )


def _curves(steps: Sequence[Row]) -> str:
    from matplotlib.figure import Figure

    shown = [(name, said) for name, said in PANELS if sum(row.get(name) is not None for row in steps) > 1]
    if not shown:
        return html.tag("p", "Too few rows for a curve.")
    lines = (len(shown) + 1) // 2
    figure = Figure(figsize=(9, 2.3 * lines), layout="constrained")
    for index, (name, said) in enumerate(shown):
        axes = figure.add_subplot(lines, 2 if len(shown) > 1 else 1, index + 1)
        points = [(row["step"], row[name]) for row in steps if row.get(name) is not None]
        axes.plot(*zip(*points, strict=True), linewidth=1.2, color="#0072b2")
        for row in steps:
            if row.get("resumed_at") is not None:
                axes.axvline(row["resumed_at"], color="#d55e00", linewidth=0.8, linestyle=":")
        axes.set_title(said, fontsize=9)
        axes.set_xlabel("step", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    said = "by step; dotted where an attempt resumed" if any("resumed_at" in row for row in steps) else "by step"
    return _drawn(figure, f"{', '.join(said for _, said in shown)}, {said}")


def _time(folder: Path, steps: Sequence[Row]) -> Iterator[str]:
    timed = [row for row in steps if row.get("step_ms") is not None]
    if timed:
        yield html.tag("h2", "Where the time goes")
        mean = {name: sum(row.get(name) or 0.0 for row in timed) / len(timed) for name in ("step_ms", *SECONDS)}
        shares = [
            (name.removesuffix("_ms"), f"{mean[name]:.4g}", f"{mean[name] / mean['step_ms']:.1%}") for name in SECONDS
        ]
        yield html.table(("of a step, mean", "ms", "share"), shares)
    breakdown = read_json(folder / "profile" / "breakdown.json")
    if breakdown is not None:
        drawn = folder / "profile" / "breakdown.svg"
        if drawn.exists():
            yield html.embedded(drawn.read_bytes(), ".svg", f"a step by what it was spent on, {breakdown['kind']}")
        for sentence in breakdown["sentences"]:
            yield html.tag("p", sentence)
    elif timed:
        yield html.tag("p", "profile=window divides a step by what it was spent on.", class_="faint")
    plan = read_json(folder / PLAN)
    if plan is not None and plan["plan"]["timing"] is not None:
        timing = plan["plan"]["timing"]
        yield html.tag(
            "h3", f"Predicted, for {timing['devices']} x {timing['device_kind']}: {timing['step_ms']:.4g} ms a step"
        )
        yield html.table(
            ("part", "ms", "share"),
            [(one["name"], f"{one['ms']:.4g}", f"{one['share']:.1%}") for one in timing["parts"]],
        )
        yield html.tag("p", f"{timing['model']}: {timing['accuracy']}", class_="faint")


def _restarts(folder: Path, steps: Sequence[Row]) -> Iterator[str]:
    resumed = [row for row in steps if "resumed_at" in row]
    yield html.tag("h2", "Restarts")
    if resumed:
        yield html.table(("attempt", "resumed at step"), [(row["attempt"], row["resumed_at"]) for row in resumed])
    else:
        yield html.tag("p", "None.")
    saved = checkpoint_steps(folder)
    yield html.tag("p", f"Checkpoints kept: {', '.join(map(str, saved)) or 'none'}.")


def _evaluations(folder: Path, steps: Sequence[Row]) -> Iterator[str]:
    evaluated = [row for row in steps if row.get("success_rate") is not None]
    film = folder / "evaluation.mp4"
    if evaluated or film.exists():
        yield html.tag("h2", "Evaluation")
    if evaluated:
        yield html.table(("step", "success"), [(row["step"], f"{row['success_rate']:.0%}") for row in evaluated])
    if film.exists():
        yield html.embedded(
            film.read_bytes(), ".mp4", "rollouts, side by side; framed in the colour of the disc that was named"
        )


def _drawn(figure: Any, caption: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return html.embedded(buffer.getvalue(), ".svg", caption)


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
