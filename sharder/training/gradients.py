"""Loss and gradients of a global batch, behind one signature, under any layout.

On one device, and with the layouts auto and published, the global batch is one array and XLA writes what collectives it
likes; it is told that what passes from layer to layer is split by example. With layout gather a device's own program
writes them (gathered.py), and this places its slices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from sharder.config import Config, LayoutConfig
from sharder.model.execution import Execution
from sharder.model.weight import Weights, as_computed_with
from sharder.parallel.collectives import Collectives
from sharder.parallel.layout import Layout, placements, specs
from sharder.parallel.mesh import BATCH, FSDP, batch_split
from sharder.training.accumulation import Examples, add_up, microbatches
from sharder.training.gathered import Losses, OneDevice
from sharder.training.kernels import fused_attention, over_examples

Result = tuple[jax.Array, Weights, jax.Array]  # mean loss, its gradients, their norm
GradientsOf = Callable[[Weights, Weights, Examples], Result]  # trainable, frozen, examples


def make_gradients(losses: Losses, config: Config, execution: Execution, mesh: Mesh, layout: Layout) -> GradientsOf:
    execution = dataclasses.replace(execution, fused=fused_attention(config, mesh))
    if mesh.size > 1 and config.layout.name == "gather":
        return gathered(losses, config, execution, mesh, layout)
    return inferred(losses, config, execution, mesh, layout)


def inferred(losses: Losses, config: Config, execution: Execution, mesh: Mesh, layout: Layout) -> GradientsOf:
    batch_size, accumulation = config.train.batch_size, config.train.accumulation
    if mesh.size > 1:
        # Left alone, XLA splits what layers pass on by channel, and passes all examples around.
        execution = dataclasses.replace(
            execution,
            carry_hook=lambda carry: jax.lax.with_sharding_constraint(carry, batch_split(mesh)),
            fused=execution.fused and dataclasses.replace(execution.fused, over_examples=over_examples(mesh)),
        )

    def ready(weights: Weights) -> Weights:
        """Cast once for all passes; with remat=full in each, for it is there to save memory."""
        return weights if execution.remat == "full" else as_computed_with(weights, config.model.compute_dtype)

    def gradients_of(trainable: Weights, frozen: Weights, examples: Examples) -> Result:
        held = ready(frozen)

        def loss_of(trainable: Weights, part: Examples) -> jax.Array:
            return losses(trainable | held, *part, execution).sum() / batch_size

        loss, gradients = add_up(loss_of, ready(trainable), microbatches(examples, accumulation))
        gradients = {path: gradients[path].astype(weight.dtype) for path, weight in trainable.items()}
        if mesh.size > 1 and config.layout.name == "auto":
            gradients = jax.lax.with_sharding_constraint(gradients, placements(gradients, layout, mesh))
        with jax.named_scope("gradient_norm"):
            return loss, gradients, optax.tree.norm(gradients)

    return gradients_of


def gathered(losses: Losses, config: Config, execution: Execution, mesh: Mesh, layout: Layout) -> GradientsOf:
    of_one_device = OneDevice(
        losses,
        execution,
        layout,
        Collectives(mesh.shape[BATCH], mesh.shape[FSDP], fixed_order(config.layout, mesh)),
        jnp.dtype(config.model.compute_dtype),
        config.train.batch_size,
        config.train.accumulation,
    )
    split, whole = PartitionSpec((BATCH, FSDP)), PartitionSpec()

    def gradients_of(trainable: Weights, frozen: Weights, examples: Examples) -> Result:
        held = specs(trainable, layout)
        run = jax.shard_map(
            of_one_device,
            mesh=mesh,
            in_specs=(held, specs(frozen, layout), split),
            out_specs=(whole, held, whole),
            check_vma=False,  # what is the same on all devices is so by construction
        )
        return run(trainable, frozen, examples)

    return gradients_of


def fixed_order(config: LayoutConfig, mesh: Mesh) -> bool:
    """Does the order of a sum depend on nothing but the mesh? On CPUs that costs nothing that is noticed."""
    if config.reduction == "auto":
        return mesh.devices.flat[0].platform == "cpu"
    return config.reduction == "fixed_order"
