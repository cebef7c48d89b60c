"""The dense peak of the devices that are known, by the name that JAX has for them (`device.device_kind`).

A float32 product runs in what JAX asks for unless told otherwise: TF32 on these GPUs, bfloat16 passes on a TPU
(docs.jax.dev, "Matmul precision"). So that unit's peak is the one to compare with; data sheets' figures "with sparsity"
are twice the dense ones and nobody's. A device that is not in the table has no peak: none is guessed from its name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """Of one device, in one dtype."""

    flops_per_s: float
    source: str  # who says so; of a peak that the user gave, the key it came from
    is_given: bool = False  # by the user


HOPPER_SXM = {"bfloat16": 989.4e12, "float32": 494.7e12}
AMPERE = {"bfloat16": 312e12, "float32": 156e12}
V5E = {"bfloat16": 197e12, "float32": 197e12}
WHITE_PAPER = "NVIDIA, H100 Tensor Core GPU Architecture, table of peak rates"
A100_SHEET = "NVIDIA, A100 Tensor Core GPU data sheet"
V5E_PAGE = "Google Cloud, TPU v5e"
DENSE_PEAKS: dict[str, tuple[dict[str, float], str]] = {  # device kind: FLOP/s by dtype, source
    "NVIDIA H100 80GB HBM3": (HOPPER_SXM, WHITE_PAPER),
    "NVIDIA H100 PCIe": ({"bfloat16": 756e12, "float32": 378e12}, WHITE_PAPER),
    "NVIDIA H200": (HOPPER_SXM, "NVIDIA, H200 Tensor Core GPU data sheet"),  # an H100 with other memory
    "NVIDIA A100-SXM4-40GB": (AMPERE, A100_SHEET),
    "NVIDIA A100-SXM4-80GB": (AMPERE, A100_SHEET),
    "NVIDIA A100-PCIE-40GB": (AMPERE, A100_SHEET),
    "NVIDIA A100 80GB PCIe": (AMPERE, A100_SHEET),
    "TPU v5 lite": (V5E, V5E_PAGE),
    "TPU v5e": (V5E, V5E_PAGE),
}


def known_peak(device_kind: str, dtype: str) -> Peak | None:
    """None: the device is not known, or has no such dtype."""
    by_dtype, source = DENSE_PEAKS.get(device_kind, ({}, ""))
    return Peak(by_dtype[dtype], source) if dtype in by_dtype else None
