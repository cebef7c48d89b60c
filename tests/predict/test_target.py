"""Compiling for GPUs that are not here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from plan_extra import needs_plan_extra

from sharder.errors import UserError
from sharder.measure.collectives import collectives
from sharder.measure.hlo import parse
from sharder.predict import target

SCANNED_MLP = Path(__file__).parent.parent / "measure" / "scanned_mlp.py"
needs_plan_extra = needs_plan_extra


def output_of(*arguments: str, platforms: str | None = "cpu") -> str:
    """jax decides about the GPU plugin once a process, so each of these is one of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    if platforms is not None:
        environment["JAX_PLATFORMS"] = platforms
    child = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    return child.stdout


def test_a_target_is_a_text_of_the_gpus_numbers() -> None:
    text = target.target_config(target.GPUS["h100"])
    assert "core_count: 132 " in text
    assert "memory_bandwidth: 3352320000000 " in text
    assert "shared_memory_per_core: 233472 " in text
    assert "shared_memory_per_block_optin: 232448 " in text
    assert "cuda_compute_capability { major: 9 minor: 0 }" in text
    assert text.count("{") == text.count("}")


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(UserError, match="'v100' is not a GPU that can be compiled for; allowed: h100, h200, a100"):
        target.gpu_devices("v100", 1, 4)


def test_without_the_plan_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "PLUGINS", ("jax_cuda_plugin_that_nobody_has",))
    with pytest.raises(UserError, match=r"compiling for h100 needs jax's CUDA plugin; pip install 'sharder\[plan\]'"):
        target.gpu_devices("h100", 1, 4)


def test_where_jax_registered_no_compiler_the_error_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: str) -> None:
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(target, "PLUGINS", ("jax",))
    monkeypatch.setattr(target.topologies, "get_topology_desc", refuse)
    with pytest.raises(UserError, match="start the process with JAX_PLATFORMS=cpu"):
        target.gpu_devices("h100", 1, 4)


@pytest.mark.compile
@needs_plan_extra
@pytest.mark.parametrize(
    ("name", "kind"), [("h100", "NVIDIA H100 80GB HBM3"), ("h200", "NVIDIA H200"), ("a100", "NVIDIA A100-SXM4-80GB")]
)
def test_devices_come_host_by_host(name: str, kind: str) -> None:
    """Two hosts of two, and a program for all four: XLA accepts the numbers."""
    script = f"""
import jax, numpy, sharder.predict.target as target
devices = target.gpu_devices({name!r}, hosts=2, devices_per_host=2)
print([device.process_index for device in devices], {{device.device_kind for device in devices}})
mesh = jax.sharding.Mesh(numpy.array(devices), "x")
split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
compiled = jax.jit(lambda x: x @ x.T).lower(jax.ShapeDtypeStruct((64, 64), "bfloat16", sharding=split)).compile()
print(compiled.memory_analysis().argument_size_in_bytes)
"""
    assert output_of("-c", script).splitlines() == [f"[0, 0, 1, 1] {{'{kind}'}}", str(64 * 64 * 2 // 4)]


@pytest.mark.compile
@needs_plan_extra
def test_gathers_of_a_scanned_mlp_run_under_its_matmuls_on_four_h100s() -> None:
    """Two weights a layer: the schedule starts the second gather, multiplies by the first weight, and then waits."""
    layers, width = 18, 2048
    found = collectives(parse(output_of(str(SCANNED_MLP), "h100", str(layers), str(width), "4096")))

    assert {one.kind for one in found} == {"all-gather"}
    assert all(one.is_async and one.group_size == 4 and one.times == layers for one in found)
    weight_bytes = 2 * width * 4 * width  # bf16
    assert sum(one.payload_bytes for one in found) == 2 * weight_bytes
    assert any(work.is_matmul for one in found for work in one.between)
