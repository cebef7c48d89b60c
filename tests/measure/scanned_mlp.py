"""Prints the compiled program of an MLP scanned over layers whose two weights are split over four devices.

python scanned_mlp.py <cpu | a GPU that can be compiled for> <layers> <width> <rows a device>
"""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sharder.predict.target import gpu_devices

kind, (layers, width, rows) = sys.argv[1], map(int, sys.argv[2:])
mesh = Mesh(np.array(jax.devices() if kind == "cpu" else gpu_devices(kind, 1, 4)), ("fsdp",))
dtype = jnp.float32 if kind == "cpu" else jnp.bfloat16  # XLA widens what a CPU cannot multiply, before it is gathered
split, by_layer = PartitionSpec("fsdp"), PartitionSpec(None, "fsdp")


@partial(jax.shard_map, mesh=mesh, in_specs=(by_layer, by_layer, split), out_specs=split)
def forward(up, down, x):
    def layer(x, weights):
        up, down = (jax.lax.all_gather(weight, "fsdp", tiled=True) for weight in weights)
        return x + jax.nn.gelu(x @ up) @ down, None

    return jax.lax.scan(layer, x, (up, down))[0]


def placed(shape, spec):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


weights = placed((layers, width, 4 * width), by_layer), placed((layers, 4 * width, width), by_layer)
print(jax.jit(forward).lower(*weights, placed((4 * rows, width), split)).compile().as_text())
