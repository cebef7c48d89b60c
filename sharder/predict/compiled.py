"""The train step of a config, compiled for devices that are not here."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from sharder.config import Config
from sharder.measure.hlo import Module, parse
from sharder.model.pi0 import CAMERAS
from sharder.parallel.mesh import make_mesh
from sharder.predict.buffers import Buffer, dump_options, read_buffers
from sharder.predict.target import gpu_devices
from sharder.training.program import Program, make_program

# XLA tunes the tiles of its own matrix products by running them. Where it cannot, a product is a call into cuBLAS.
WITHOUT_A_GPU = {"xla_gpu_enable_triton_gemm": False}


class DoesNotFit(Exception):
    """The compiler itself found no room for the program; says so in its words."""


@dataclass(frozen=True)
class Compiled:
    module: Module
    memory: dict[str, int]  # as memory_bytes has it
    temporaries: list[Buffer] | None  # None: this compiler does not tell


def program_for(config: Config, gpu: str, hosts: int = 1) -> Program:
    """`gpu`: a name of `target.GPUS`; as many of them as the mesh has, on `hosts` hosts, with all three cameras."""
    return make_program(config, make_mesh(config.mesh, gpu_devices(gpu, hosts, config.mesh.size // hosts)), CAMERAS)


def compiled(program: Program) -> jax.stages.Compiled:
    return program.compile(more=WITHOUT_A_GPU)


def compiled_and_read(program: Program) -> Compiled:
    """All there is to know of the program. DoesNotFit where the compiler refuses it."""
    with tempfile.TemporaryDirectory(prefix="sharder-xla-") as folder:
        is_gpu = program.mesh.devices.flat[0].platform in ("gpu", "cuda")
        options = {**WITHOUT_A_GPU, **dump_options(Path(folder))} if is_gpu else {}
        executable = compiled_if_it_fits(program, options)
        return Compiled(module_of(executable), memory_bytes(executable), read_buffers(Path(folder)))


def compiled_if_it_fits(program: Program, options: Mapping[str, Any] | None = None) -> jax.stages.Compiled:
    """DoesNotFit where the compiler refuses it."""
    try:
        return program.compile(more=options)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise DoesNotFit(" ".join(str(error).split())[:300]) from None


def module_of(executable: jax.stages.Compiled) -> Module:
    text = executable.as_text()
    assert text is not None
    return parse(text)


def memory_bytes(executable: jax.stages.Compiled) -> dict[str, int]:
    """Of one device: what goes into a step, what comes out, what it needs meanwhile, and what comes out in place."""
    found = executable.memory_analysis()
    if found is None:
        raise ValueError("memory: the compiler of this platform does not tell")
    return {
        "arguments": found.argument_size_in_bytes,
        "outputs": found.output_size_in_bytes,
        "temporaries": found.temp_size_in_bytes,
        "in_place": found.alias_size_in_bytes,
    }


def total_bytes(memory: Mapping[str, int]) -> int:
    """Of one device, all at once: `memory` as memory_bytes has it."""
    return memory["arguments"] + memory["outputs"] - memory["in_place"] + memory["temporaries"]
