"""--help."""

import subprocess
import sys
from pathlib import Path

import pytest

from sharder import conf

OPTIONS = sorted(Path(conf.__path__[0]).glob("*/*.yaml"))


@pytest.mark.parametrize("command", ["train", "evaluate", "convert", "plan"])
def test_help_imports_nothing_slow_and_lists_every_option_and_key(command: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-X", "importtime", "-m", f"sharder.{command}", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "sharder.usage" in imported
    assert not imported & {"jax", "numpy", "pyarrow", "av", "wandb", "hydra"}  # what would make it slow
    words = done.stdout.split()
    for option in OPTIONS:
        if command in ("train", "plan") or option.parent.name not in ("experiment", "system"):
            assert option.stem in words, option
    for key in ("run.id", "run.root", "resume"):
        assert any(word.startswith(f"{key}=") for word in words), key
    if command == "train":
        assert "train.steps=1200" in words
    assert max(map(len, done.stdout.splitlines())) < 150
