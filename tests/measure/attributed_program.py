"""Run by test_attribution.py: profiles a program whose phases are known, and prints where its trace, its HLO and the
times of its windows are.

    python attributed_program.py FOLDER

Of everything it does, 70% belongs to the scope `mlp` by construction: of 20 equal turns of two loops of matrix products
14, and of 20 equal passes over an array 14. The products also have `attention`, the passes `norm`, and XLA makes one
fusion of all passes.
"""

import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

STEPS, WINDOWS = 3, 9
MORE, LESS = 14, 6


def turns(x: jax.Array, y: jax.Array, count: int) -> jax.Array:
    return jax.lax.fori_loop(0, count, lambda _, z: jnp.tanh(z @ x), y)


def passes(x: jax.Array, count: int) -> jax.Array:
    for _ in range(count):
        x = jnp.sin(x)
    return x


def step(x: jax.Array, wave: jax.Array) -> tuple[jax.Array, jax.Array]:
    with jax.named_scope("mlp"):
        y = turns(x, x, MORE)
    with jax.named_scope("attention"):
        y = turns(x, y, LESS)
    with jax.named_scope("mlp"):
        wave = passes(wave + y[0, 0], MORE)  # so the passes do not run beside the products
    with jax.named_scope("norm"):
        wave = passes(wave, LESS)
    return y, wave


def main(folder: Path) -> None:
    arguments = jnp.full((256, 256), 0.01), jnp.linspace(0.0, 1.0, 1 << 17)
    compiled = jax.jit(step).lower(*arguments).compile()
    (folder / "step.hlo").write_text(compiled.as_text())
    jax.block_until_ready(compiled(*arguments))
    wall_ns = []
    with jax.profiler.trace(folder):
        for window in range(WINDOWS):
            with jax.profiler.TraceAnnotation(f"window {window}"):
                start = time.perf_counter_ns()
                for _ in range(STEPS):
                    jax.block_until_ready(compiled(*arguments))
                wall_ns.append(time.perf_counter_ns() - start)
    print(json.dumps({"wall_ns": wall_ns}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
