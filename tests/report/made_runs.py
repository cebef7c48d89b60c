"""Run folders whose every number is chosen, so that tests know what a table has to say of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from sharder.config import Config
from sharder.run_folder import CONFIG, OVERRIDES, write_atomically

H100 = "NVIDIA H100 80GB HBM3"
BATCH, PROMPT, HORIZON, DEPTH = 8, 48, 50, 4


def made_config(name: str = "train") -> Config:
    config = Config()
    config.run.name = name
    config.train.batch_size = BATCH
    config.model.name, config.model.variant = "pi0_made", "pi0"
    config.model.image_size, config.model.vision.patch = 64, 16  # 16 patches a camera
    config.model.prompt_tokens, config.model.horizon, config.model.language.depth = PROMPT, HORIZON, DEPTH
    return config


def make_folder(root: Path, overrides: Sequence[str] = (), name: str = "train", id: str = "a") -> Path:
    """One that was claimed, and in which nothing happened yet."""
    folder = root / name / id
    write_atomically(folder / CONFIG, OmegaConf.to_yaml(OmegaConf.structured(made_config(name))))
    write_atomically(folder / OVERRIDES, OmegaConf.to_yaml(OmegaConf.create(list(overrides))))
    return folder


def add_plan(folder: Path, devices: int = 2, step_ms: float = 100.0, **changed: Any) -> Path:
    """Of 100 ms, 60 are of the MLP, 30 of attention (12 of them forward), 10 of something else."""
    places = [
        {"category": "MLP", "in_pass": "forward", "ms": 0.6 * step_ms},
        {"category": "attention", "in_pass": "forward", "ms": 0.12 * step_ms},
        {"category": "attention", "in_pass": "backward", "ms": 0.18 * step_ms},
        {"category": "other", "in_pass": "outside", "ms": 0.1 * step_ms},
    ]
    timing = {
        "device_kind": H100, "devices": devices, "step_ms": step_ms, "exposed_step_ms": 1.2 * step_ms,
        "examples_per_s": BATCH / step_ms * 1e3, "mfu": 0.25, "mfu_6nd": None, "hfu": 0.3, "kernels": 7,
        "compiled_flops": 5e12, "moved_bytes": 3e9, "collectives_exposed_ms": 4.0, "bound_by": "memory",
        "places": places, "parts": [{"name": "arithmetic", "ms": step_ms, "share": 1.0}],
        "model": "a model", "accuracy": "of some accuracy",
    }  # fmt: skip
    moved = [
        {"times": 3, "payload_bytes": 3e9, "is_async": True},
        {"times": 1, "payload_bytes": 1e9, "is_async": False},
    ]
    plan = {
        "choices": {"cameras": ["base", "wrist"]},
        "hardware": {"device_kind": H100, "devices": devices, "peak_flops_per_s": 1e15},
        "memory": {
            "parts": [{"kind": "weights", "bytes": 10e9}, {"kind": "gradients", "bytes": 5e9}],
            "total_bytes": 20e9,
            "fits": True,
        },
        "traffic": {"moved": moved, "payload_bytes": 4e9, "sent_bytes": 2e9},
        "timing": timing,
        "jax_version": "0.10.2",
    }
    write_json(folder / "plan.json", {"plan": plan | changed})
    write_json(folder / "plan-environment.json", {"git_commit": "12345e678901", "started": "2026-11-30T21:57:27+0000"})
    return folder


def add_run(folder: Path, rows: Sequence[dict[str, Any]], device_kind: str = H100, devices: int = 1) -> Path:
    lines = [json.dumps({"attempt": 0} | row) + "\n" for row in rows]
    (folder / "metrics.jsonl").write_text("".join(lines))
    flop = {
        "device_kind": device_kind, "devices": devices, "dtype": "float32", "tokens_per_step": BATCH * 131,
        "peak_flop_per_s_per_device": None if device_kind == "cpu" else 1e15, "peak_source": "a source",
        "mfu": {"formula": "a formula", "flop_per_step": 4e12},
    }  # fmt: skip
    about = {
        "git_commit": "abc", "cpu_count": 2, "versions": {"jax": "0.10.2"}, "started": "2026-11-30T20:00:00+0000",
        "device_kind": device_kind, "device_count": devices, "flop": flop,
    }  # fmt: skip
    write_json(folder / "environment.json", about)
    return folder


def add_breakdown(folder: Path, complete: bool = True) -> Path:
    rows = [
        {"category": "MLP", "pass": "forward", "ms": 50.0},
        {"category": "attention", "pass": "forward", "ms": 8.0},
        {"category": "attention", "pass": "backward", "ms": 16.0},
    ]
    sentences = ["most of it is the MLP"]
    found = {"kind": "measured", "complete": complete, "rows": rows, "sentences": sentences}
    return write_json(folder / "profile" / "breakdown.json", found)


def write_json(path: Path, value: Any) -> Path:
    write_atomically(path, json.dumps(value))
    return path


def steps(*values: dict[str, Any], every: int = 10) -> list[dict[str, Any]]:
    return [{"step": every * number} | value for number, value in enumerate(values, 1)]
