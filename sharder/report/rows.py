"""From a run folder to rows of a table: what was measured there, and what was predicted.

A row begins with where it comes from (ORIGIN), then has the sweep's own keys, then NUMBERS. The kind is one of

    measured    a run on the devices it names
    simulated   a run on several devices that one CPU pretends to have: what it computes is real, its times are not
    predicted   `sharder.plan`: compiled for hardware that is not here, sizes compiled, times by a model
    published   what another system's authors measured; in no run folder, but in published.csv

and is in every table and every figure.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sharder.config import Config, ReportConfig
from sharder.errors import UserError
from sharder.measure.flops import tokens
from sharder.provenance import kind_of
from sharder.report.run_statistics import of_attempts, of_steps, of_success, short
from sharder.run_folder import CONFIG, ENVIRONMENT, OVERRIDES, PLAN, PLAN_ENVIRONMENT, load_config
from sharder.tracking.metrics import METRICS, read_metrics

Row = dict[str, Any]

PREDICTED, PUBLISHED = "predicted", "published"
CPU = "CPU"  # what the hardware of a row begins with where it is one
ORIGIN = ("kind", "model", "hardware", "devices")
LAST = ("jax", "commit", "date", "run")
SHAPE = ("batch_size", "batch_per_device", "tokens")
NUMBERS = (
    *("step_ms", "step_ms_low", "step_ms_high", "exposed_step_ms", "examples_per_s", "mfu", "mfu_6nd", "hfu"),
    *("attention_ms", "attention_layer_forward_ms", "memory_gb", "tflop", "model_tflop", "moved_gb"),
    *("payload_gb", "sent_gb", "collectives", "async_share", "exposed_collectives_ms", "kernels"),
    *("steps", "loss", "success_rate", "success_rate_low", "success_rate_high", "restarts", "goodput"),
)
WORDS = ("fits", "bound_by")  # of a plan
OF_A_STEP = ("loss", "grad_norm", "learning_rate", "step_ms", "data_wait_ms", "examples_per_s", "mfu")


def rows_of(folder: Path, report: ReportConfig, swept: Collection[str]) -> Iterator[Row]:
    """UserError for a folder whose files cannot be read. Nothing for one where nothing was run or planned yet."""
    with reading(folder):
        config = load_config(folder)
        keys = {key: value for key, value in typed(folder).items() if key in swept}
        for row in (*_predicted(folder, config, report), *_measured(folder, config, report)):
            origin = {name: row.pop(name) for name in ORIGIN}
            last = {name: row.pop(name) for name in LAST}
            yield origin | keys | row | last


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """UserError for files that went away meanwhile, or that another version wrote."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be read ({error}); allowed: a run folder that stays; name another"
        ) from error
    except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise UserError(
            f"{folder}: its files are not as this version writes them ({type(error).__name__}: {error}); run or plan "
            "the same run.id again, or take the folder away"
        ) from error


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


def _shape(config: Config, devices: int, cameras: int) -> Row:
    batch = config.train.batch_size
    found = {"batch_size": batch, "batch_per_device": batch // devices}
    return found | ({"tokens": tokens(config.model, 1, cameras)} if config.model.prompt_tokens else {})


def _predicted(folder: Path, config: Config, report: ReportConfig) -> Iterator[Row]:
    written, about = read_json(folder / PLAN), read_json(folder / PLAN_ENVIRONMENT) or {}
    if written is None or report.rows == "step":
        return
    plan = written["plan"]
    memory, traffic, timing, hardware = plan["memory"], plan["traffic"], plan["timing"], plan["hardware"]
    devices = hardware["devices"]
    row: Row = {"kind": PREDICTED, "model": config.model.name, "hardware": hardware["device_kind"], "devices": devices}
    row |= _shape(config, devices, len(plan["choices"]["cameras"]))
    row |= {"memory_gb": short(memory["total_bytes"] / 1e9), "fits": "yes" if memory["fits"] else "no"}
    stacked = {part["kind"]: part["bytes"] / 1e9 for part in memory["parts"]} if report.unit == "GB" else {}
    if timing is not None:
        by_category = _sums((place["category"], place["ms"]) for place in timing["places"])
        stacked = by_category if report.unit == "ms" else stacked
        row |= {name: short(timing[name]) for name in ("step_ms", "exposed_step_ms", "examples_per_s", "kernels")}
        row |= {name: short(timing[name]) for name in ("mfu", "mfu_6nd", "hfu") if timing[name] is not None}
        row |= _attention(config, ((one["category"], one["in_pass"], one["ms"]) for one in timing["places"]))
        row |= {"tflop": short(timing["compiled_flops"] / 1e12), "moved_gb": short(timing["moved_bytes"] / 1e9)}
        row["exposed_collectives_ms"] = short(timing["collectives_exposed_ms"])
        row["bound_by"] = timing["bound_by"]
        if timing["mfu"] is not None:
            total = devices * hardware["peak_flops_per_s"] * timing["step_ms"] / 1e3
            row["model_tflop"] = short(timing["mfu"] * total / 1e12)
    if traffic is not None:
        moved = traffic["moved"]
        row |= {"payload_gb": short(traffic["payload_bytes"] / 1e9), "sent_gb": short(traffic["sent_bytes"] / 1e9)}
        row["collectives"] = sum(one["times"] for one in moved)
        if traffic["payload_bytes"]:
            hidden = sum(one["payload_bytes"] for one in moved if one["is_async"])
            row["async_share"] = short(hidden / traffic["payload_bytes"])
    row |= _stack(report, stacked)
    yield row | _origin(about, plan["jax_version"], folder)


def _measured(folder: Path, config: Config, report: ReportConfig) -> Iterator[Row]:
    about = read_json(folder / ENVIRONMENT)
    steps = read_metrics(folder / METRICS)
    if about is None or not steps:
        return
    devices, on_cpu = about["device_count"], about["device_kind"] == "cpu"
    hardware = f"{CPU}, {about['cpu_count']} cores" if on_cpu else about["device_kind"]
    row: Row = {"kind": kind_of(about), "model": config.model.name, "hardware": hardware, "devices": devices}
    last = _origin(about, about["versions"]["jax"], folder)
    if report.rows == "step":
        for one in steps:
            found = {name: one[name] for name in OF_A_STEP if one.get(name) is not None}  # in full: runs are compared
            found |= of_success(one) if one.get("success_rate") is not None else {}
            if found:
                yield row | {"step": one["step"]} | found | last
        return
    batch = config.train.batch_size
    row |= {"batch_size": batch, "batch_per_device": batch // devices}
    if config.model.prompt_tokens and "tokens_per_step" in about.get("flop", {}):
        row["tokens"] = about["flop"]["tokens_per_step"] // batch
    row |= of_steps(steps) | of_attempts(folder, steps)
    breakdown = read_json(folder / "profile" / "breakdown.json")
    if breakdown is not None and breakdown["complete"]:
        by_category = _sums((one["category"], one["ms"]) for one in breakdown["rows"])
        row |= _attention(config, ((one["category"], one["pass"], one["ms"]) for one in breakdown["rows"]))
        row |= _stack(report, by_category if report.unit == "ms" else {})
    yield row | last


def _attention(config: Config, places: Iterable[tuple[str, str, float]]) -> Row:
    """`places`: category, pass, ms of a step. A layer's forward pass is what others publish of attention."""
    of_attention = [(in_pass, ms) for category, in_pass, ms in places if category == "attention"]
    forward_ms = sum(ms for in_pass, ms in of_attention if in_pass == "forward")
    found = {"attention_ms": short(sum(ms for _, ms in of_attention))}
    return found | {"attention_layer_forward_ms": short(forward_ms / config.model.language.depth)}


def _stack(report: ReportConfig, parts: Mapping[str, float]) -> Row:
    """What the figure lays on one another, as far as there is some of it."""
    return {name: short(parts[name]) for name in report.y if name in parts} if report.draw == "stacked" else {}


def _sums(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in pairs:
        found[name] = found.get(name, 0.0) + value
    return found


def _origin(about: Mapping[str, Any], jax: str, folder: Path) -> Row:
    date = str(about.get("started", ""))[:10]
    return {"jax": jax, "commit": about.get("git_commit") or "", "date": date, "run": folder.name}


def has_config(folder: Path) -> bool:
    return (folder / CONFIG).is_file()
