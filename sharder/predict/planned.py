"""Whether a folder's plan.json is what planning again would write: then a sweep that was cut off goes on after it.

Beside plan.json lies plan-environment.json: where the numbers come from, and the digests that this is decided by.
It is written last, so that a plan without it is planned again, as is one that is not what was written.
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
from sharder.run_folder import PLAN, PLAN_ENVIRONMENT, write_atomically

INSTALLATION = of_installation()  # as it is imported: code that is edited while a plan compiles is not what compiled it
NOT_PLANNED = ("run", "tracking", "launch", "report", "evaluation", "profile", "resume", "system", "experiment")


def is_planned(folder: Path, inputs: Inputs) -> bool:
    """By the same code, packages and flags, of the same config and cameras."""
    try:
        found = json.loads((folder / PLAN_ENVIRONMENT).read_text())
        text = (folder / PLAN).read_text()
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and _digests(inputs, text).items() <= found.items()


def write_planned(folder: Path, plan: dict[str, Any], inputs: Inputs) -> None:
    text = json.dumps(plan, indent=1) + "\n"
    (folder / PLAN_ENVIRONMENT).unlink(missing_ok=True)
    write_atomically(folder / PLAN, text)
    write_atomically(folder / PLAN_ENVIRONMENT, json.dumps(environment(_digests(inputs, text)), indent=2) + "\n")


def _digests(inputs: Inputs, text: str) -> dict[str, Any]:
    config = dataclasses.asdict(inputs.config)
    planned = {key: value for key, value in config.items() if key not in NOT_PLANNED}
    return {
        "digest_of_config": _digest([planned, list(inputs.cameras)]),
        "digest_of_installation": _digest(INSTALLATION),
        "digest_of_plan": _digest(text),
    }


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
