"""What the compiler is asked for beyond its defaults: by layout, by `work`, by `overlap`, and by the user, who wins.

As options of one compilation, not as XLA_FLAGS: so they are of the train step alone, and an unknown one is an error of
that compilation and no abort.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from sharder.config import Config
from sharder.errors import UserError
from sharder.parallel.mesh import FSDP

Options = dict[str, Any]

PIPELINED = ("all_gather", "reduce_scatter", "all_reduce")  # whose flags have other names since jax 0.11.1
RENAMED = (0, 11, 1)
WORDS = {"true": True, "false": False}


def compiler_options(config: Config, mesh: Mesh, environ: Mapping[str, str] = os.environ) -> Options:
    """A flag that the user has put in XLA_FLAGS stays as it is. UserError: one that is no name=value."""
    platform = mesh.devices.flat[0].platform
    options: Options = {}
    if config.layout.name == "gather" and mesh.shape[FSDP] > 1 and platform == "gpu":
        # Start the next layer's gather in this turn of the loop. Without it each gather of a layer is waited for in the
        # turn that starts it, with only that layer's own work to hide behind.
        options["xla_gpu_enable_pipelined_all_gather"] = True
    if config.work.unroll and platform == "gpu":
        # No products joined that share an operand (queries, keys and values; gate and up). Their weights are put side
        # by side for it, and the result taken apart again, all by copies, which cost more than fewer products save.
        options["xla_gpu_dot_merger_threshold_mb"] = 0
    if platform != "tpu":  # compilers for CPUs know the flags of GPUs, so that a wrong one is found there too
        options |= dict(map(parsed, config.overlap.flags))
    set_by_user = {flag.split("=")[0].lstrip("-") for flag in environ.get("XLA_FLAGS", "").split()}
    return {name: value for name, value in named_here(options).items() if name not in set_by_user}


def parsed(flag: str) -> tuple[str, Any]:
    name, equals, value = flag.lstrip("-").partition("=")
    if not (name.startswith("xla_") and equals and value):
        raise UserError(f"overlap.flags: found {flag!r}, allowed: xla_...=value; write it so, or leave it out")
    return name, WORDS.get(value, int(value) if value.removeprefix("-").isdecimal() else value)


def named_here(options: Options) -> Options:
    """By the names of this jax."""
    if jax.__version_info__ < RENAMED:
        return options
    names = {f"xla_gpu_enable_pipelined_{kind}": f"xla_gpu_pipeline_{kind}" for kind in PIPELINED}
    mode = {True: "COLLECTIVE_PIPELINING_MODE_ON", False: "COLLECTIVE_PIPELINING_MODE_OFF"}
    # What is no word for yes or no goes on as it is, for XLA to refuse.
    return {
        names.get(name, name): mode.get(value, value) if name in names else value for name, value in options.items()
    }


def refused_option(error: jax.errors.JaxRuntimeError) -> UserError | None:
    """Of a compilation, if an option was what the compiler would not have."""
    said = str(error)
    if "INVALID_ARGUMENT" not in said or not ("compile option" in said or "While setting option" in said):
        return None
    return UserError(
        f"overlap.flags: found one that XLA of jax {jax.__version__} does not take ({said.splitlines()[0]}); allowed: "
        "its own flags and values; correct it, or set overlap=default"
    )
