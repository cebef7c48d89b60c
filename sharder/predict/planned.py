"""Whether a folder's plan.json is what planning again would write: then a sweep that was cut off goes on after it.

Beside plan.json lies plan-environment.json: where the numbers come from, and the two digests that this is decided by.
It is written last, so that a plan without it is planned again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from sharder.parallel.fingerprint import of_installation
from sharder.predict.inputs import Inputs
from sharder.provenance import environment
from sharder.run_folder import write_atomically

PLAN = "plan.json"
ENVIRONMENT = "plan-environment.json"
NOT_PLANNED = ("run", "tracking", "launch", "report", "evaluation", "profile", "resume", "system", "experiment")


def is_planned(folder: Path, inputs: Inputs) -> bool:
    """By the same code, packages and flags, of the same config and cameras."""
    try:
        found = json.loads((folder / ENVIRONMENT).read_text())
    except (OSError, ValueError):
        return False
    return (folder / PLAN).exists() and isinstance(found, dict) and _digests(inputs).items() <= found.items()


def write_planned(folder: Path, plan: dict[str, Any], inputs: Inputs) -> None:
    (folder / ENVIRONMENT).unlink(missing_ok=True)
    write_atomically(folder / PLAN, json.dumps(plan, indent=1) + "\n")
    write_atomically(folder / ENVIRONMENT, json.dumps(environment(_digests(inputs)), indent=2) + "\n")


def _digests(inputs: Inputs) -> dict[str, Any]:
    config = dataclasses.asdict(inputs.config)
    planned = {key: value for key, value in config.items() if key not in NOT_PLANNED}
    return {
        "digest_of_config": _digest([planned, list(inputs.cameras)]),
        "digest_of_installation": _digest(of_installation()),
    }


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
