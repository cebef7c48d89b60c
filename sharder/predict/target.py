"""GPUs and TPUs that are not here, as devices to compile for.

XLA compiles for a GPU from a page of its numbers; the compiler itself comes in jax's CUDA plugin, which needs no NVIDIA
library and no driver for this. The devices make a `Mesh`; lower with `ShapeDtypeStruct`s placed on it and `.compile()`.
Such a program can be read (`as_text()`, `memory_analysis()`) but not run. The process needs JAX_PLATFORMS=cpu from its
start: without it jax's plugin looks for a driver first, and registers nothing when there is none. For TPUs the compiler
is libtpu, which knows their numbers itself.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
from jax._src.cudnn import fused_attention_stablehlo
from jax.experimental import topologies

from sharder.config import HardwareConfig
from sharder.errors import UserError
from sharder.predict.available import PLUGINS, TPU_SLICES, check_tpu, has_any

CUDNN_VERSION = 9_10_00  # as cuDNN writes 9.10.0


@dataclass(frozen=True)
class Gpu:
    """What XLA asks about a GPU, in the units CUDA reports; the rest is the same on all of these."""

    description: str  # as nvidia-smi and `device_kind` have it
    compute_capability: tuple[int, int]
    core_count: int  # streaming multiprocessors
    fpus_per_core: int  # float32 lanes of one
    clock_rate_ghz: float  # boost
    shared_memory_per_core: int  # bytes
    shared_memory_per_block: int  # bytes, the most a kernel can opt in to
    l2_cache_bytes: int
    memory_bytes: int  # as CUDA reports it: a little under the label
    memory_bytes_per_s: int


# Memory rates: memory clock x 2 x bus bits / 8. Sizes of cores and caches: NVIDIA's Ampere and Hopper tuning guides
# (164 and 228 KiB of shared memory a core, 1 KiB of it reserved for each block) and data sheets.
H100 = Gpu(
    description="NVIDIA H100 80GB HBM3",
    compute_capability=(9, 0),
    core_count=132,
    fpus_per_core=128,
    clock_rate_ghz=1.98,
    shared_memory_per_core=228 * 1024,
    shared_memory_per_block=227 * 1024,
    l2_cache_bytes=50 * 2**20,
    memory_bytes=84_978_434_048,
    memory_bytes_per_s=2_619_000_000 * 2 * 5120 // 8,
)
GPUS = {
    "h100": H100,
    "h200": dataclasses.replace(  # with six stacks of faster memory: 141 GB, 4.8 TB/s
        H100, description="NVIDIA H200", memory_bytes=150_000_000_000, memory_bytes_per_s=4_800_000_000_000
    ),
    "a100": Gpu(  # SXM4, 80 GB
        description="NVIDIA A100-SXM4-80GB",
        compute_capability=(8, 0),
        core_count=108,
        fpus_per_core=64,
        clock_rate_ghz=1.41,
        shared_memory_per_core=164 * 1024,
        shared_memory_per_block=163 * 1024,
        l2_cache_bytes=40 * 2**20,
        memory_bytes=84_980_000_000,
        memory_bytes_per_s=1_593_000_000 * 2 * 5120 // 8,
    ),
}


def target_devices(hardware: HardwareConfig, count: int) -> list[jax.Device]:
    """`count` devices of the kind that `hardware` names, on its hosts, with the memory that it says."""
    if hardware.kind == "tpu_v5e":
        return tpu_devices(count, hardware.hosts)
    return gpu_devices(hardware.kind, hardware.hosts, count // hardware.hosts, hardware.hbm_bytes)


def tpu_devices(count: int, hosts: int) -> list[jax.Device]:
    """A slice of TPU v5e; `hosts` 1: as many as it has."""
    check_tpu(count)
    found: list[Any] = list(
        topologies.get_topology_desc(topology_name=f"v5e:{TPU_SLICES[count]}", platform="tpu").devices
    )
    there = len({device.process_index for device in found})
    if hosts not in (1, there):
        raise UserError(
            f"hardware.hosts: found {hosts}, allowed: {there}, as a slice of {count} TPU v5e has; set "
            f"hardware.hosts={there}"
        )
    return found


def gpu_devices(name: str, hosts: int, devices_per_host: int, memory_bytes: int | None = None) -> list[jax.Device]:
    """`hosts` x `devices_per_host` GPUs of this kind, host by host; `process_index` is the host.

    `memory_bytes`: of one device, where it is not what the GPU has. XLA schedules so that a program fits.
    """
    if name not in GPUS:
        raise UserError(f"hardware: {name!r} is not a GPU that can be compiled for; allowed: {', '.join(GPUS)}")
    let_cudnn_be_compiled()
    gpu = dataclasses.replace(GPUS[name], memory_bytes=memory_bytes or GPUS[name].memory_bytes)
    if not has_any(PLUGINS):
        raise UserError(f"hardware: compiling for {name} needs jax's CUDA plugin; pip install 'sharder[plan]'")
    try:
        topology = topologies.get_topology_desc(
            topology_name="",
            platform="cuda",
            target_config=target_config(gpu),
            topology=f"1x{hosts}x{devices_per_host}",  # slices x hosts x devices
        )
    except NotImplementedError:
        raise UserError(
            f"hardware: jax registered no compiler for {name}, as its CUDA plugin found no driver; "
            "start the process with JAX_PLATFORMS=cpu"
        ) from None
    return list(topology.devices)


def let_cudnn_be_compiled() -> None:
    """jax looks for cuDNN and a GPU in this process before it traces a call into it, which is no use where neither is.

    training/kernels.py has asked of the devices compiled for what is asked here.
    """
    if any(device.platform in ("gpu", "cuda") for device in jax.local_devices()):
        return
    answers = {
        "check_cudnn_version": lambda: CUDNN_VERSION,
        "check_compute_capability": lambda capability: True,
        "is_cuda_compute_capability_equal": lambda capability: False,
    }
    missing = [name for name in answers if not hasattr(fused_attention_stablehlo, name)]
    if missing:
        raise UserError(
            f"jax: found {jax.__version__}, whose cuDNN attention is checked in another way ({', '.join(missing)} not "
            "there); allowed: a version of pyproject.toml; install one"
        )
    for name, answer in answers.items():
        setattr(fused_attention_stablehlo, name, answer)


def target_config(gpu: Gpu) -> str:
    """The text form of XLA's GpuTargetConfigProto."""
    major, minor = gpu.compute_capability
    info = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "threads_per_core_limit": 2048,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "shared_memory_per_block": 48 * 1024,  # without opting in
        "shared_memory_per_block_optin": gpu.shared_memory_per_block,
        "shared_memory_per_core": gpu.shared_memory_per_core,
        "core_count": gpu.core_count,
        "fpus_per_core": gpu.fpus_per_core,
        "clock_rate_ghz": gpu.clock_rate_ghz,
        "l2_cache_size": gpu.l2_cache_bytes,
        "device_memory_size": gpu.memory_bytes,
        "memory_bandwidth": gpu.memory_bytes_per_s,
    }
    return (
        f"gpu_device_info {{ {' '.join(f'{key}: {value}' for key, value in info.items())} "
        f"cuda_compute_capability {{ major: {major} minor: {minor} }} }} "
        f'platform_name: "CUDA" dnn_version_info {{ major: {CUDNN_VERSION // 10_000} '
        f"minor: {CUDNN_VERSION // 100 % 100} }} "
        "runtime_version { major: 12 minor: 8 } "
        f'device_description_str: "{gpu.description}"'
    )
