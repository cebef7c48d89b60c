"""The train step of a config, compiled for GPUs that are not here."""

from __future__ import annotations

import jax

from sharder.config import Config
from sharder.model.pi0 import CAMERAS
from sharder.parallel.mesh import make_mesh
from sharder.predict.target import gpu_devices
from sharder.training.program import Program, make_program

# XLA tunes the tiles of its own matrix products by running them. Where it cannot, a product is a call into cuBLAS.
WITHOUT_A_GPU = {"xla_gpu_enable_triton_gemm": False}


def program_for(config: Config, gpu: str, hosts: int = 1) -> Program:
    """`gpu`: a name of `target.GPUS`; as many of them as the mesh has, on `hosts` hosts, with all three cameras."""
    return make_program(config, make_mesh(config.mesh, gpu_devices(gpu, hosts, config.mesh.size // hosts)), CAMERAS)


def compiled(program: Program) -> jax.stages.Compiled:
    return program.compile(more=WITHOUT_A_GPU)


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
