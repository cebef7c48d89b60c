"""Which attention kernel the devices of a mesh have, and how it runs where each has some of the examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from sharder.config import Config
from sharder.model.fused import Fused
from sharder.parallel.mesh import BATCH, FSDP

DTYPES = ("bfloat16", "float16")
# The largest head dim of cuDNN's attention with gradients, by NVIDIA's table. After Hopper some GPUs take 256 with some
# versions and some never; jax looks at neither, so they get it for 128.
HOPPER, LONGEST_ON_HOPPER = 9, 256
LEAST, LONGEST_ELSEWHERE = (8, 0), 128


def fused_attention(config: Config, mesh: Mesh) -> Fused | None:
    """Of a train step; None where attn=flash is tiles alone."""
    longest, _ = _found(config, mesh)
    return Fused(longest) if longest else None


def attention_said(config: Config, mesh: Mesh) -> str:
    """What attn=flash is on these devices, in words."""
    return _found(config, mesh)[1]


def _found(config: Config, mesh: Mesh) -> tuple[int, str]:
    """The longest head, 0 for no kernel."""
    if config.attn.name != "flash":
        return 0, f"attn={config.attn.name}: no kernel asked for"
    device, dtype = mesh.devices.flat[0], config.model.compute_dtype
    capability = compute_capability(device)
    if capability is None:
        return 0, f"attn=flash: tiles in JAX, as there is no kernel for {device.platform}"
    if dtype not in DTYPES:
        return 0, f"attn=flash: tiles in JAX, as cuDNN takes {' and '.join(DTYPES)}, and model.compute_dtype is {dtype}"
    if capability < LEAST:
        return 0, f"attn=flash: tiles in JAX, as cuDNN takes no {device.device_kind}"
    longest = LONGEST_ON_HOPPER if capability[0] == HOPPER else LONGEST_ELSEWHERE
    heads = {
        "the prefix": config.model.language.head_dim,
        "cameras": config.model.vision.width // config.model.vision.heads,
    }
    taken = [name for name, head in heads.items() if Fused(longest).takes_head(head)]
    if not taken:
        return 0, f"attn=flash: tiles in JAX, as cuDNN takes heads of at most {longest} here, multiples of 8"
    return longest, f"attn=flash: cuDNN within {' and '.join(taken)}, tiles in JAX for the rest"


def compute_capability(device: jax.Device) -> tuple[int, int] | None:
    """None for what is no NVIDIA GPU."""
    found = getattr(device, "compute_capability", None)
    if device.platform not in ("gpu", "cuda") or not isinstance(found, str):
        return None
    major, _, minor = found.partition(".")
    return (int(major), int(minor or 0)) if major.isdigit() else None


def over_examples(mesh: Mesh) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """See Fused: a program of each device's own, in which XLA splits nothing."""
    split = PartitionSpec((BATCH, FSDP))
    return lambda function: jax.shard_map(function, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
