"""From a run folder to rows of a table: what was measured there, and what was predicted.

A row begins with where it comes from (ORIGIN), then has the sweep's own keys, then NUMBERS. The kind is one of

    measured    a run on the devices it names
    simulated   a run on several devices that one CPU pretends to have: what it computes is real, its times are not
    predicted   `sharder.plan`: compiled for hardware that is not here, sizes compiled, times by a model
    published   what another system's authors measured; in no run folder, but in published.csv

and is in every table and every figure.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sharder.config import Config, ReportConfig
from sharder.errors import UserError
from sharder.run_folder import CONFIG, OVERRIDES, load_config
from sharder.supervise.supervisor import EVENTS
from sharder.tracking.metrics import METRICS, read_metrics

Row = dict[str, Any]

MEASURED, SIMULATED, PREDICTED, PUBLISHED = "measured", "simulated", "predicted", "published"
ORIGIN = ("kind", "model", "hardware", "devices")
LAST = ("jax", "commit", "date", "run")
PLAN, PLAN_ENVIRONMENT, ENVIRONMENT = "plan.json", "plan-environment.json", "environment.json"
DIGITS = 6  # that a number of a table keeps

SHAPE = ("batch_size", "batch_per_device", "tokens")
NUMBERS = (
    *("step_ms", "step_ms_low", "step_ms_high", "exposed_step_ms", "examples_per_s", "mfu", "mfu_6nd", "hfu"),
    *("attention_ms", "memory_gb", "fits", "tflop", "model_tflop", "moved_gb"),
    *("payload_gb", "sent_gb", "collectives", "async_share", "exposed_collectives_ms", "kernels", "bound_by"),
    *("steps", "loss", "success_rate", "interval_low", "interval_high", "restarts", "goodput"),
)
OF_A_STEP = ("loss", "grad_norm", "learning_rate", "step_ms", "data_wait_ms", "examples_per_s", "mfu")


def rows_of(folder: Path, report: ReportConfig, swept: Collection[str]) -> Iterator[Row]:
    """UserError for a folder whose files cannot be read. Nothing for one where nothing was run or planned yet."""
    config = load_config(folder)
    keys = {key: value for key, value in typed(folder).items() if key in swept}
    for row in (*_predicted(folder, config, report), *_measured(folder, config, report)):
        origin = {name: row.pop(name) for name in ORIGIN}
        last = {name: row.pop(name) for name in LAST}
        yield origin | keys | row | last


def typed(folder: Path) -> dict[str, str]:
    """The overrides of a run: key or group -> value."""
    try:
        overrides = OmegaConf.to_container(OmegaConf.load(folder / OVERRIDES))
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{folder / OVERRIDES}: cannot be read ({error}); run the same run.id again") from error
    return {str(key): value for key, _, value in (str(text).lstrip("+").partition("=") for text in overrides or ())}


def read_json(path: Path) -> Any:
    """None: it is not there. UserError: it is no JSON."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); run or plan the same run.id again to rewrite it") from error


def tokens(config: Config, cameras: int) -> int:
    """Of one example: patches of the cameras, prompt, state (pi0 has it as a token) and actions."""
    model = config.model
    patches = (model.image_size // model.vision.patch) ** 2
    return cameras * patches + model.prompt_tokens + (model.variant == "pi0") + model.horizon


def _shape(config: Config, devices: int, cameras: int) -> Row:
    batch = config.train.batch_size
    found = {"batch_size": batch, "batch_per_device": batch // devices}
    return found | ({"tokens": tokens(config, cameras)} if config.model.prompt_tokens else {})


def _predicted(folder: Path, config: Config, report: ReportConfig) -> Iterator[Row]:
    written, about = read_json(folder / PLAN), read_json(folder / PLAN_ENVIRONMENT) or {}
    if written is None or report.rows == "step":
        return
    plan = written["plan"]
    memory, traffic, timing, hardware = plan["memory"], plan["traffic"], plan["timing"], plan["hardware"]
    row: Row = {"kind": PREDICTED, "model": config.model.name, "hardware": hardware["device_kind"], "devices": hardware["devices"]}
    row |= _shape(config, hardware["devices"], len(plan["choices"]["cameras"]))
    row |= {"memory_gb": _short(memory["total_bytes"] / 1e9), "fits": "yes" if memory["fits"] else "no"}
    stacked = {part["kind"]: part["bytes"] / 1e9 for part in memory["parts"]} if report.unit == "GB" else {}
    if timing is not None:
        by_category = _sums((place["category"], place["ms"]) for place in timing["places"])
        stacked = by_category if report.unit == "ms" else stacked
        row |= {name: _short(timing[name]) for name in ("step_ms", "exposed_step_ms", "examples_per_s", "kernels")}
        row |= {name: _short(timing[name]) for name in ("mfu", "mfu_6nd", "hfu") if timing[name] is not None}
        row["attention_ms"] = _short(by_category.get("attention", 0.0))
        row |= {"tflop": _short(timing["compiled_flops"] / 1e12), "moved_gb": _short(timing["moved_bytes"] / 1e9)}
        row["exposed_collectives_ms"] = _short(timing["collectives_exposed_ms"])
        row["bound_by"] = timing["bound_by"]
        if timing["mfu"] is not None:
            total = hardware["devices"] * hardware["peak_flops_per_s"] * timing["step_ms"] / 1e3
            row["model_tflop"] = _short(timing["mfu"] * total / 1e12)
    if traffic is not None:
        moved = traffic["moved"]
        row |= {"payload_gb": _short(traffic["payload_bytes"] / 1e9), "sent_gb": _short(traffic["sent_bytes"] / 1e9)}
        row["collectives"] = sum(one["times"] for one in moved)
        if traffic["payload_bytes"]:
            hidden = sum(one["payload_bytes"] for one in moved if one["is_async"])
            row["async_share"] = _short(hidden / traffic["payload_bytes"])
    row |= {name: _short(stacked.get(name, 0.0)) for name in report.y if report.draw == "stacked"}
    yield row | _origin(about, plan["jax_version"], folder)


def _measured(folder: Path, config: Config, report: ReportConfig) -> Iterator[Row]:
    about = read_json(folder / ENVIRONMENT)
    steps = read_metrics(folder / METRICS)
    if about is None or not steps:
        return
    devices, on_cpu = about["device_count"], about["device_kind"] == "cpu"
    hardware = f"CPU, {about['cpu_count']} cores" if on_cpu else about["device_kind"]
    kind = SIMULATED if on_cpu and devices > 1 else MEASURED
    row: Row = {"kind": kind, "model": config.model.name, "hardware": hardware, "devices": devices}
    last = _origin(about, about["versions"]["jax"], folder)
    if report.rows == "step":
        for one in steps:
            if found := {name: _short(one[name]) for name in OF_A_STEP if name in one}:
                yield row | {"step": one["step"]} | found | last
        return
    row |= {"batch_size": config.train.batch_size, "batch_per_device": config.train.batch_size // devices}
    row |= _of_steps(steps) | _of_attempts(folder, steps)
    breakdown = read_json(folder / "profile" / "breakdown.json")
    if breakdown is not None:
        by_category = _sums((one["category"], one["ms"]) for one in breakdown["rows"])
        row["attention_ms"] = _short(by_category.get("attention", 0.0))
        if report.draw == "stacked" and report.unit == "ms":
            row |= {name: _short(by_category.get(name, 0.0)) for name in report.y}
    yield row | last


def _of_steps(steps: list[Row]) -> Row:
    """Times are the median of what was logged, the first row left out: it has what a start costs."""
    timed = [one for one in steps if one.get("step_ms") is not None]
    timed = timed[1:] or timed
    found: Row = {"steps": steps[-1]["step"]}
    for name in ("step_ms", "examples_per_s", "mfu", "mfu_6nd", "hfu"):
        values = [one[name] for one in timed if one.get(name) is not None]
        if values:
            found[name] = _short(statistics.median(values))
        if values and name == "step_ms":
            found |= {"step_ms_low": _short(min(values)), "step_ms_high": _short(max(values))}
    peaks = [one["device_peak_mb"] for one in steps if one.get("device_peak_mb")]
    if peaks:
        found["memory_gb"] = _short(max(peaks) / 1e3)
    losses = [one["loss"] for one in steps if one.get("loss") is not None]
    if losses:
        found["loss"] = _short(losses[-1])
    evaluated = [one for one in steps if one.get("success_rate") is not None]
    if evaluated:
        names = ("success_rate", "interval_low", "interval_high")
        found |= {name: _short(evaluated[-1][name]) for name in names if name in evaluated[-1]}
    return found


def _of_attempts(folder: Path, steps: list[Row]) -> Row:
    """Of a watched run that was started again: the share of its time that went into steps that stand."""
    told = list(_events(folder / EVENTS))
    starts = [event["time"] for event in told if event.get("event") == "start"]
    ends = [event["time"] for event in told if event.get("event") == "complete"]
    if not starts or not ends:
        return {}
    useful_s = sum(
        one["step_ms"] / 1e3 * (one["step"] - before["step"])
        for before, one in zip([{"step": 0}, *steps], steps, strict=False)
        if one.get("step_ms") is not None
    )
    return {"restarts": len(starts) - 1, "goodput": _short(useful_s / (ends[-1] - starts[0]))}


def _events(path: Path) -> Iterator[Row]:
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        try:
            event = json.loads(line)
        except ValueError:  # torn by a crash
            continue
        if isinstance(event, dict):
            yield event


def _sums(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in pairs:
        found[name] = found.get(name, 0.0) + value
    return found


def _origin(about: Mapping[str, Any], jax: str, folder: Path) -> Row:
    date = str(about.get("started", ""))[:10]
    return {"jax": jax, "commit": about.get("git_commit") or "", "date": date, "run": folder.name}


def _short(value: float) -> float | int:
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def has_config(folder: Path) -> bool:
    return (folder / CONFIG).is_file()
