"""What W&B is told of a run, so that the runs of an experiment are found together and told apart."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from sharder.config import Config, MeshConfig
from sharder.tracking.wandb_about import about_run, mesh_name, read_environment, tags

H100 = "NVIDIA H100 80GB HBM3"


def environment(device_kind: str, device_count: int) -> dict[str, Any]:
    return {
        "sharder": "0.1.0", "git_commit": "abc", "device_kind": device_kind, "device_count": device_count,
        "process_count": 1, "versions": {"jax": "0.10.2"}, "command": ["private"],
    }  # fmt: skip


def run_on(folder: Path, device_kind: str, device_count: int) -> dict[str, Any]:
    config = Config()
    config.run.name, config.mesh = "strong_scaling", MeshConfig(batch=1, fsdp=device_count)
    (folder / "environment.json").write_text(json.dumps(environment(device_kind, device_count)))
    return about_run(config, folder)


def test_a_run_is_grouped_by_its_experiment_and_tagged_with_what_it_is(tmp_path: Path) -> None:
    about = run_on(tmp_path, H100, 4)
    assert (about["group"], about["job_type"]) == ("strong_scaling", "train")
    assert about["tags"] == [
        "model=pi0", "mesh=fsdp4", "layout=gather", "attn=naive", "remat=none", f"hardware={H100}",
    ]  # fmt: skip
    assert about["config"]["environment"]["device_count"] == 4
    assert about["config"]["environment"]["kind"] == "measured"
    assert about["config"]["mesh"] == {"batch": 1, "fsdp": 4}


@pytest.mark.parametrize(("kind", "count", "simulated"), [("cpu", 4, True), ("cpu", 1, False), (H100, 4, False)])
def test_several_devices_on_a_cpu_are_simulated(tmp_path: Path, kind: str, count: int, simulated: bool) -> None:
    about = run_on(tmp_path, kind, count)
    assert ("simulated" in about["tags"]) == simulated
    assert (about["config"]["environment"]["kind"] == "simulated") == simulated


@pytest.mark.parametrize("written", [None, "", "[]", '{"device_kind": "cpu"}'])
def test_without_an_environment_the_hardware_is_what_was_asked_for(tmp_path: Path, written: str | None) -> None:
    if written is not None:
        (tmp_path / "environment.json").write_text(written)
    assert read_environment(tmp_path) == {}
    assert "hardware=auto" in tags(Config(), {})


def test_a_tag_is_as_long_as_wandb_takes_it() -> None:
    config = Config()
    config.model.name = "m" * 100
    assert max(map(len, tags(config, {}))) == 64


def test_meshes_are_called_as_their_options() -> None:
    options = {file.name: yaml.safe_load(file.read_text()) for file in files("sharder.conf").joinpath("mesh").iterdir()}
    named = {name.removesuffix(".yaml"): sizes for name, sizes in options.items() if name.endswith(".yaml")}
    assert len(named) > 5
    assert {mesh_name(MeshConfig(**sizes)) for sizes in named.values()} == named.keys()
    assert all(mesh_name(MeshConfig(**sizes)) == name for name, sizes in named.items())
