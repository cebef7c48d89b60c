"""What the compiler is asked for, by layout and platform."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from sharder.config import Config
from sharder.parallel.mesh import BATCH, FSDP
from sharder.training.program import compiler_options

OLD = "xla_gpu_enable_pipelined_all_gather"
NEW = "xla_gpu_pipeline_all_gather"


def options(layout: str = "gather", fsdp: int = 4, platform: str = "gpu", flags: str = "") -> dict[str, Any]:
    config = Config()
    config.layout.name = layout
    devices = np.array([[SimpleNamespace(platform=platform)] * fsdp])
    mesh: Any = SimpleNamespace(shape={BATCH: 1, FSDP: fsdp}, devices=devices)
    return compiler_options(config, mesh, {"XLA_FLAGS": flags})


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((0, 10, 2), {OLD: True}),
        ((0, 11, 0), {OLD: True}),
        ((0, 11, 1), {NEW: "COLLECTIVE_PIPELINING_MODE_ON"}),
        ((0, 12, 0, 1), {NEW: "COLLECTIVE_PIPELINING_MODE_ON"}),
    ],
)
def test_gpus_gather_the_next_layers_weights_early(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], expected: dict[str, Any]
) -> None:
    """The flag has another name since jax 0.11.1, and XLA refuses the one it does not know."""
    monkeypatch.setattr(jax, "__version_info__", version)
    assert options() == expected


def test_nothing_is_asked_for_where_nothing_is_gathered_or_the_platform_has_no_such_flag() -> None:
    assert options(layout="auto") == options(layout="published") == {}
    assert options(fsdp=1) == {}
    assert options(platform="cpu") == options(platform="tpu") == {}


def test_what_the_user_set_stays() -> None:
    assert options(flags=f"--xla_a=1 --{OLD}=false --{NEW}=COLLECTIVE_PIPELINING_MODE_OFF") == {}
    assert len(options(flags="--xla_gpu_enable_latency_hiding_scheduler=true")) == 1


def test_xla_knows_the_flag_by_this_name() -> None:
    """Its compiler for CPUs parses the flags of GPUs, and refuses what it does not know."""
    jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((), np.float32)).compile(compiler_options=options())
