"""What must be the same in every process, compared before the first compile: a difference is named, not waited out.

Processes that compile different programs wait for each other for hours in a collective that never meets.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import sharder
from sharder.errors import UserError

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
SETTINGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NPROC")
PREFIXES = ("JAX_", "NCCL_", "XLA_")
OWN = (  # of one process by nature
    *("JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS", "JAX_COMPILATION_CACHE_DIR"),
    *("JAX_LOCAL_DEVICE_IDS", "NCCL_SOCKET_IFNAME"),
)
LONGEST = 200  # characters of a value in a message


class Hosts(Protocol):
    """As much of agreement.Hosts as is needed here."""

    index: int
    count: int

    def exchange(self, name: str, text: str) -> list[str]: ...


def of_installation(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Code, packages and the variables that change what is compiled."""
    fields = {f"version of {name}": _version(name) for name in PACKAGES}
    fields |= {"version of python": platform.python_version(), "code of sharder": _code()}
    names = {*SETTINGS, *(name for name in environ if name.startswith(PREFIXES))} - set(OWN)
    return fields | {name: environ.get(name, "") for name in names}


def agree(hosts: Hosts, what: str, fields: Mapping[str, object]) -> None:
    """Every process raises the same UserError when any differs from process 0 in any field."""
    if hosts.count == 1:
        return
    everyone = [json.loads(text) for text in hosts.exchange(what, json.dumps(dict(fields), default=str))]
    found = [
        f"{name}: {_short(everyone[0].get(name))} in process 0, {_short(other.get(name))} in process {index}"
        for index, other in enumerate(everyone)
        for name in sorted(everyone[0].keys() | other.keys())
        if everyone[0].get(name) != other.get(name)
    ]
    if found:
        more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
        raise UserError(
            f"{what}: the processes of this run differ in {'; '.join(found[:3])}{more}; start all with the same"
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _code() -> str:
    """A digest of every source file of this package."""
    root, digest = Path(sharder.__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
