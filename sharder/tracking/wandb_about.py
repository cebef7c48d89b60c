"""What W&B is told of a run besides its rows: its group, its tags, and a config that also says what it ran on.

A run's group is its experiment, `run.name`. Its tags are what tells the runs of a sweep apart, written as it is typed:

    model=pi0  mesh=fsdp4  layout=gather  attn=xla  remat=full  hardware=NVIDIA H100 80GB HBM3
    model=pi0_nano  mesh=fsdp4  layout=gather  attn=xla  remat=full  hardware=cpu  simulated

`simulated`: several devices on a CPU. Their number means something there, their speed does not.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from sharder.config import Config, MeshConfig
from sharder.provenance import SIMULATED, kind_of
from sharder.run_folder import ENVIRONMENT

JOB_TYPE = "train"  # the command: no other one records to W&B
LONGEST_TAG = 64  # characters W&B allows
SENT = ("sharder", "git_commit", "device_kind", "device_count", "process_count", "versions")


def about_run(config: Config, folder: Path) -> dict[str, Any]:
    """group, job_type, tags and config, as wandb.init takes them."""
    environment = read_environment(folder)
    return {
        "group": config.run.name,
        "job_type": JOB_TYPE,
        "tags": tags(config, environment),
        "config": dataclasses.asdict(config) | {"environment": environment},
    }


def read_environment(folder: Path) -> dict[str, Any]:
    """What charts and filters need of environment.json, which this attempt has written, and whether the devices are
    simulated. Empty where there is none."""
    try:
        told = json.loads((folder / ENVIRONMENT).read_text())
        return {name: told[name] for name in SENT} | {"kind": kind_of(told)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def tags(config: Config, environment: dict[str, Any]) -> list[str]:
    told = {
        "model": config.model.name,
        "mesh": mesh_name(config.mesh),
        "layout": config.layout.name,
        "attn": config.attn.name,
        "remat": config.remat.name,
        "hardware": environment.get("device_kind", config.hardware.kind),
    }
    found = [f"{name}={value}"[:LONGEST_TAG] for name, value in told.items()]
    return [*found, SIMULATED] if environment.get("kind") == SIMULATED else found


def mesh_name(mesh: MeshConfig) -> str:
    """As the options of the group `mesh` are called."""
    if mesh.batch > 1 and mesh.fsdp > 1:
        return f"hsdp{mesh.batch}x{mesh.fsdp}"
    if mesh.fsdp > 1:
        return f"fsdp{mesh.fsdp}"
    return f"dp{mesh.batch}" if mesh.batch > 1 else "single"
