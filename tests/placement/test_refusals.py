"""What a mesh, or the place of a process in a run, cannot be: one line and exit 2, before anything is compiled."""

from pathlib import Path

import pytest
from processes import MICRO, run


@pytest.mark.parametrize(
    ("overrides", "variables", "words"),
    [
        (
            ("mesh=fsdp4",),
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
            "error: mesh: found 1 x 4 = 4, allowed: 2",
        ),
        (("mesh.fsdp=7", "train.batch_size=7"), {}, "error: mesh.fsdp: found 7, which divides no dim of any weight"),
    ],
    ids=["larger than the devices", "divides nothing"],
)
def test_a_mesh_that_does_not_fit(
    tmp_path: Path, overrides: tuple[str, ...], variables: dict[str, str], words: str
) -> None:
    refused = run(tmp_path, "run.id=x", "train.steps=1", *MICRO, *overrides, **variables)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert words in refused.stderr and "Traceback" not in refused.stderr
    assert len([line for line in refused.stderr.splitlines() if line.startswith("error")]) == 1
    assert not (tmp_path / "outputs/train/x").exists()
