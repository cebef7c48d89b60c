"""A sealed checkpoint is whole to the bit, or what is wrong with it is said."""

import errno
import json
import os
from pathlib import Path

import pytest

from sharder.errors import Fault
from sharder.training import manifest
from sharder.training.manifest import MANIFEST, damage, seal, set_aside


@pytest.fixture
def step(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints" / "20"
    (folder / "trainable" / "d").mkdir(parents=True)
    (folder / "trainable" / "d" / "array").write_bytes(bytes(range(256)) * 100)
    (folder / "about").write_text("{}")
    seal(folder)
    return folder


def test_what_was_written_is_whole(step: Path) -> None:
    assert damage(step) is None
    seal(step)  # again: the manifest is no part of what it lists
    assert damage(step) is None


def test_a_flipped_bit_is_found(step: Path) -> None:
    array = step / "trainable/d/array"
    data = bytearray(array.read_bytes())
    data[5000] ^= 1
    array.write_bytes(data)
    assert damage(step) == "trainable/d/array is not what was written (its checksum differs)"


def test_a_truncated_a_missing_and_an_unsealed_one_are_named(step: Path) -> None:
    array = step / "trainable/d/array"
    array.write_bytes(array.read_bytes()[:100])
    assert damage(step) == "trainable/d/array has 100 bytes, 25,600 were written"
    array.unlink()
    assert damage(step) == "trainable/d/array is missing"
    (step / MANIFEST).write_text('{"files": ')
    assert "manifest.json is not one" in (damage(step) or "")
    (step / MANIFEST).unlink()
    assert damage(step) == "it has no manifest.json: saving it was not finished"


def test_set_aside_keeps_everything_and_frees_the_name(step: Path) -> None:
    moved = set_aside(step)
    assert moved.name == "20.damaged-1" and (moved / MANIFEST).is_file() and not step.exists()
    step.mkdir()
    assert set_aside(step).name == "20.damaged-2"


@pytest.mark.parametrize("text", ["[]", '{"files": null}', '{"files": {"about": 5}}', '{"files": {}}', "nothing"])
def test_a_manifest_that_is_none_is_damage(step: Path, text: str) -> None:
    (step / MANIFEST).write_text(text)
    assert "its manifest.json" in (damage(step) or "")


def test_a_file_elsewhere_does_not_count(step: Path) -> None:
    (step.parent / "other").write_text("x")
    told = json.loads((step / MANIFEST).read_text())
    (step / MANIFEST).write_text(json.dumps({"files": told["files"] | {"../other": [1, 0]}}))
    assert damage(step) == "../other is missing"


def test_a_disk_that_cannot_be_read_just_now_is_no_damage(step: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a whole checkpoint would be moved away for a moment's trouble."""

    def fails(path: Path) -> list[int]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(manifest, "_read", fails)
    with pytest.raises(Fault, match=r"checkpoint .*20: .* cannot be read \(Input/output error\); try again"):
        damage(step)
