"""Runs the collectives of the gather layout on four devices; writes what came out to an .npz.

XLA_FLAGS=--xla_force_host_platform_device_count=4 python four_devices.py <.npz to read> <.npz to write>
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from sharder.config import MeshConfig
from sharder.parallel.collectives import Collectives, gather_and_scatter, gather_beside
from sharder.parallel.mesh import BATCH, FSDP, batch_split, make_mesh, process_slice
from sharder.parallel.preflight import preflight

MESHES = {"fsdp4": MeshConfig(1, 4), "dp4": MeshConfig(4, 1), "hsdp2x2": MeshConfig(2, 2)}
EACH, COLUMNS = P((BATCH, FSDP)), P(None, None, None, FSDP)  # dim 0 is a device; or the last dim is split


def main(given: dict[str, np.ndarray]) -> dict[str, Any]:
    """`gradients` [4, 8, 12] and `odd` [4, 5, 7]: of each device; `rows` [8, 3, 12]: of 8 examples, all columns."""
    results: dict[str, Any] = {}
    for name, config in MESHES.items():
        mesh = make_mesh(config)
        preflight(mesh, timeout_s=600)
        results[f"{name} slice"] = process_slice(mesh, 16)
        results[f"{name} split"] = batch_split(mesh).shard_shape((16, 3))
        for reduction in ("fixed_order", "transport"):
            collectives = Collectives(config.batch, config.fsdp, reduction == "fixed_order")
            for what, result in sums(collectives, mesh, given).items():
                results[f"{name} {reduction} {what}"] = result
        for what, result in exchanges(Collectives(config.batch, config.fsdp, True), mesh, given).items():
            results[f"{name} {what}"] = result
    return results


def sums(collectives: Collectives, mesh: Any, given: dict[str, np.ndarray]) -> dict[str, Any]:
    def run(body: Callable, out: Any, *arguments: Any) -> Any:
        mapped = jax.shard_map(body, mesh=mesh, in_specs=EACH, out_specs=out, check_vma=False)
        return jax.device_get(jax.jit(mapped)(*arguments))

    gradients, odd = given["gradients"], given["odd"]
    narrow = jnp.asarray(gradients, jnp.bfloat16)
    results = {
        "whole": run(lambda x: collectives.sum_slices(x[0], None), P(), odd),
        "dim 0": run(lambda x: collectives.sum_slices(x[0], 0), P(FSDP), gradients),
        "dim 1": run(lambda x: collectives.sum_slices(x[0], 1), P(None, FSDP), gradients),
        "bfloat16": run(lambda x: collectives.sum_slices(x[0], 0), P(FSDP), narrow),
        "over groups": run(lambda x: collectives.sum_over_groups(x[0])[None], P(FSDP), gradients),
        "scalars": run(lambda x: collectives.sum_scalars(x[0, 0, :3]), P(), gradients),
        "scalars of a group": run(lambda x: collectives.sum_scalars(x[0, 0, :3], (FSDP,))[None], EACH, gradients),
    }

    def packed(odd: jax.Array, gradients: jax.Array) -> dict[str, jax.Array]:
        assert collectives.sum_packed({}) == {}
        return collectives.sum_packed({"odd": odd[0], "scalar": odd[0, 0, 0], "vector": gradients[0, 0]})

    return results | {f"packed {path}": x for path, x in run(packed, P(), odd, gradients).items()}


def exchanges(collectives: Collectives, mesh: Any, given: dict[str, np.ndarray]) -> dict[str, Any]:
    def run(body: Callable, into: Any, out: Any, *arguments: Any) -> Any:
        mapped = jax.shard_map(body, mesh=mesh, in_specs=into, out_specs=out, check_vma=False)
        return jax.device_get(jax.jit(mapped)(*arguments))

    rows, weight = given["rows"], given["gradients"][0]
    by_sender = rows.reshape(collectives.fsdp, -1, *rows.shape[1:])

    def use(held: jax.Array, gradient: jax.Array) -> jax.Array:
        whole = gather_and_scatter(held, 1, jnp.bfloat16, collectives)
        assert whole.dtype == jnp.bfloat16
        return (whole.astype(jnp.float32) * gradient[0]).sum()

    def use_beside(held: jax.Array, tap: jax.Array, gradient: jax.Array) -> jax.Array:
        return (gather_beside(held, tap, 1, jnp.float32, collectives) * gradient[0]).sum()

    def beside(held: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
        own, tap = jax.grad(use_beside, argnums=(0, 1))(held, jnp.zeros(weight.shape, jnp.float32), gradient)
        return own, tap[None]

    split = P(None, FSDP)
    held, tapped = run(beside, (split, EACH), (split, EACH), weight, given["gradients"])
    return {
        "gathered": run(lambda x: collectives.gather(x, 1), split, P(), weight),
        "gathered not": run(lambda x: collectives.gather(x, None), P(), P(), weight),
        "my rows": run(collectives.swap_rows_for_columns, COLUMNS, P(FSDP), by_sender),
        "my columns": run(collectives.swap_columns_for_rows, P(FSDP), COLUMNS, rows),
        "all rows": run(collectives.gather_examples, P(FSDP), P(), rows),
        "gradient": run(jax.grad(use), (split, EACH), split, weight, given["gradients"]),
        "gradient beside, held": held,
        "gradient beside, tap": tapped,
    }


if __name__ == "__main__":
    with np.load(sys.argv[1]) as file:
        np.savez(sys.argv[2], **main(dict(file)))
