"""--help."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from sharder import conf

OPTIONS = sorted(Path(conf.__path__[0]).glob("*/*.yaml"))


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_help_is_quick_and_lists_every_option_and_key(command: str, tmp_path: Path) -> None:
    started = time.monotonic()
    argv = [sys.executable, "-m", f"sharder.{command}", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path)
    elapsed = time.monotonic() - started
    assert elapsed < 1.5
    words = done.stdout.split()
    for option in OPTIONS:
        if command == "train" or option.parent.name != "experiment":
            assert option.stem in words, option
    for key in ("run.id", "run.root", "resume"):
        assert any(word.startswith(f"{key}=") for word in words), key
    if command == "train":
        assert "train.steps=1000" in words
    assert max(map(len, done.stdout.splitlines())) < 150
