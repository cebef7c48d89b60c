"""Which devices get a kernel for attn=flash, and what is said about it."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sharder.compose import composed
from sharder.model.fused import Fused
from sharder.training.kernels import attention_said, fused_attention


def mesh(platform: str, capability: str | None = None, kind: str = "a device") -> Any:
    device = SimpleNamespace(platform=platform, device_kind=kind)
    if capability is not None:
        device.compute_capability = capability
    return SimpleNamespace(devices=np.array([[device, device]]))


def config(*typed: str) -> Any:
    return composed("train", ["model=pi0", "data=fixed", "attn=flash", *typed])[0]


@pytest.mark.parametrize(
    ("where", "longest", "said"),
    [
        (mesh("gpu", "9.0"), 256, "attn=flash: cuDNN within the prefix and cameras, tiles in JAX for the rest"),
        (mesh("cuda", "10.3"), 128, "attn=flash: cuDNN within cameras, tiles in JAX for the rest"),
        (mesh("gpu", "12.0"), 128, "attn=flash: cuDNN within cameras, tiles in JAX for the rest"),
        (mesh("gpu", "8.0"), 128, "attn=flash: cuDNN within cameras, tiles in JAX for the rest"),
        (mesh("gpu", "7.5", "Tesla T4"), None, "attn=flash: tiles in JAX, as cuDNN takes no Tesla T4"),
        (mesh("gpu", "gfx942"), None, "attn=flash: tiles in JAX, as there is no kernel for gpu"),  # AMD's
        (mesh("tpu"), None, "attn=flash: tiles in JAX, as there is no kernel for tpu"),
        (mesh("cpu"), None, "attn=flash: tiles in JAX, as there is no kernel for cpu"),
    ],
    ids=["h100", "b300", "rtx5090", "a100", "t4", "amd", "tpu", "cpu"],
)
def test_by_device(where: Any, longest: int | None, said: str) -> None:
    assert fused_attention(config(), where) == (Fused(longest) if longest else None)
    assert attention_said(config(), where) == said


def test_by_config() -> None:
    h100 = mesh("gpu", "9.0")
    assert fused_attention(config("attn=tiles"), h100) is None
    assert fused_attention(config("attn=xla"), h100) is None
    assert fused_attention(config("model.compute_dtype=float32"), h100) is None
    assert attention_said(config("model.compute_dtype=float32"), h100) == (
        "attn=flash: tiles in JAX, as cuDNN takes bfloat16 and float16, and model.compute_dtype is float32"
    )
    odd = config()
    odd.model = dataclasses.replace(
        odd.model,
        language=dataclasses.replace(odd.model.language, head_dim=260),
        vision=dataclasses.replace(odd.model.vision, width=16 * 12),
    )
    assert fused_attention(odd, h100) is None
    assert attention_said(odd, h100) == (
        "attn=flash: tiles in JAX, as cuDNN takes heads of at most 256 here, multiples of 8"
    )
