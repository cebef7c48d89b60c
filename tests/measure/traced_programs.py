"""Run for the tests of traces: profiles two small programs on two simulated CPU devices, and prints what it knows of
them: for each the folder of the trace and the time of its steps, in ns.

    python traced_programs.py FOLDER
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

STEPS = 3
MATMULS = 8


def looped(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eight matmuls in a loop, and one elementwise pass whose time is nothing beside them."""
    return jax.lax.fori_loop(0, MATMULS, lambda _, y: jnp.tanh(y @ x), x), jnp.sin(x)


def summed(x: jax.Array) -> jax.Array:
    """A matmul on each of two devices and a sum over both."""
    return jax.lax.psum(jnp.tanh(x @ x.T), "fsdp")


def profile(folder: Path, step: Callable, x: jax.Array) -> dict[str, str | int]:
    jax.block_until_ready(step(x))
    with jax.profiler.trace(folder), jax.profiler.TraceAnnotation("measured"):
        start = time.perf_counter_ns()
        for index in range(STEPS):
            with jax.profiler.StepTraceAnnotation("train", step_num=10 + index):
                jax.block_until_ready(step(x))
        wall_ns = time.perf_counter_ns() - start
    return {"folder": str(folder), "wall_ns": wall_ns}


def main(folder: Path) -> None:
    jax.config.update("jax_num_cpu_devices", 2)
    mesh = jax.make_mesh((2,), ("fsdp",))
    sharded = jax.device_put(jnp.ones((512, 256)), jax.NamedSharding(mesh, P("fsdp")))
    both = jax.jit(jax.shard_map(summed, mesh=mesh, in_specs=P("fsdp"), out_specs=P()))
    traces = {
        "looped": profile(folder / "looped", jax.jit(looped), jnp.ones((384, 384))),
        "summed": profile(folder / "summed", both, sharded),
    }
    print(json.dumps(traces))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
