"""Does it learn? Half an hour on two cores: pytest -m convergence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.convergence
def test_the_convergence_experiment_reaches_ninety_percent_on_unseen_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train = [sys.executable, "-m", "sharder.train", "experiment=convergence", "run.id=run", "tracking=off"]
    subprocess.run(train, check=True, timeout=3600)
    evaluate = [sys.executable, "-m", "sharder.evaluate", "resume=outputs/convergence/run", "run.id=run"]
    subprocess.run(evaluate, check=True, timeout=600)
    result = json.loads(Path("outputs/evaluate/run/evaluation.json").read_text())
    assert result["episodes"] == 100
    assert result["success_rate"] >= 0.9, result
    assert result["baselines"]["random_policy"]["success_rate"] <= 0.1
    assert result["baselines"]["zero_actions"]["success_rate"] <= 0.1
