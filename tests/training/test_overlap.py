"""What the compiler is asked for: by layout, platform and overlap, and by the names of this jax."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from sharder import conf
from sharder.config import Config
from sharder.errors import UserError
from sharder.parallel.mesh import BATCH, FSDP
from sharder.training.overlap import PIPELINED, compiler_options, parsed, refused_option

CONF = Path(conf.__file__).parent / "overlap"
OLD = "xla_gpu_enable_pipelined_all_gather"
NEW = "xla_gpu_pipeline_all_gather"
JOINED = "xla_gpu_dot_merger_threshold_mb"


def options(
    layout: str = "gather",
    fsdp: int = 4,
    platform: str = "gpu",
    flags: str = "",
    overlap: tuple[str, ...] = (),
    unroll: bool = False,
) -> dict[str, Any]:
    config = Config()
    config.overlap.flags = list(overlap)
    config.layout.name, config.work.unroll = layout, unroll
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


def test_layers_written_out_have_no_products_joined_on_gpus() -> None:
    assert options(layout="auto", unroll=True) == {JOINED: 0}
    assert options(layout="auto", unroll=True, platform="cpu") == options(layout="auto", unroll=False) == {}
    assert options(layout="auto", unroll=True, flags=f"--{JOINED}=64") == {}
    assert options(layout="auto", unroll=True, overlap=(f"{JOINED}=32",)) == {JOINED: 32}


def test_what_the_user_set_stays() -> None:
    assert options(flags=f"--xla_a=1 --{OLD}=false --{NEW}=COLLECTIVE_PIPELINING_MODE_OFF") == {}
    assert len(options(flags="--xla_gpu_enable_latency_hiding_scheduler=true")) == 1


def compile_with(options: dict[str, Any]) -> None:
    """XLA's compiler for CPUs parses the flags of GPUs, and refuses what it does not know."""
    jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((), np.float32)).compile(compiler_options=options)


def test_xla_knows_the_flag_by_this_name() -> None:
    compile_with(options())


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("xla_a=true", ("xla_a", True)),
        ("--xla_a=false", ("xla_a", False)),
        ("xla_a=1073741824", ("xla_a", 2**30)),
        ("xla_a=-1", ("xla_a", -1)),
        ("xla_a=SOME_MODE", ("xla_a", "SOME_MODE")),
        ("xla_a=--1", ("xla_a", "--1")),  # no number: XLA says so
    ],
)
def test_a_flag_is_written_as_in_xla_flags(flag: str, expected: tuple[str, Any]) -> None:
    assert parsed(flag) == expected


@pytest.mark.parametrize("flag", ["xla_a", "xla_a=", "a=1", ""])
def test_what_is_no_flag_is_refused_in_one_line(flag: str) -> None:
    with pytest.raises(UserError, match=f"overlap.flags: found {flag!r}, allowed: xla_...=value"):
        parsed(flag)


def test_overlap_adds_to_the_layout_and_tpus_have_none_of_it() -> None:
    flag = "xla_gpu_enable_latency_hiding_scheduler"
    assert options(overlap=(f"{flag}=true",)).keys() == {*options(), flag}
    assert options(layout="auto", platform="cpu", overlap=(f"{flag}=true",)) == {flag: True}
    assert options(platform="tpu", overlap=(f"{flag}=true",)) == {}


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF.glob("*.yaml")))
def test_xla_takes_every_flag_of_every_option(name: str) -> None:
    flags = tuple(yaml.safe_load((CONF / f"{name}.yaml").read_text())["flags"])
    compile_with(options(layout="auto", overlap=flags))


@pytest.mark.parametrize("flag", ["xla_gpu_of_nobody=true", "xla_gpu_enable_latency_hiding_scheduler=7x"])
def test_what_xla_does_not_take_is_refused_in_one_line_that_names_it(flag: str) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        compile_with(options(overlap=(flag,)))
    refused = refused_option(caught.value)
    assert refused is not None and flag.split("=")[0] in str(refused) and "\n" not in str(refused)
    assert refused_option(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")) is None


def test_pipelined_collectives_by_the_new_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "__version_info__", (0, 12, 0))
    asked = options(layout="auto", overlap=tuple(f"xla_gpu_enable_pipelined_{kind}=false" for kind in PIPELINED))
    assert asked == {f"xla_gpu_pipeline_{kind}": "COLLECTIVE_PIPELINING_MODE_OFF" for kind in PIPELINED}


@pytest.mark.parametrize("value", ["yes", "2"])
def test_a_word_that_is_neither_yes_nor_no_is_left_for_xla_to_refuse(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "__version_info__", (0, 12, 0))
    ((name, asked),) = options(layout="auto", overlap=(f"{OLD}={value}",)).items()
    assert (name, str(asked)) == (NEW, value)
