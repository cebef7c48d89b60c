"""What attribution says that attention takes, against what a step saves without it: pi0_small, `pytest -m slow`."""

import json
from pathlib import Path

import pytest
from processes import QUICK, run

pytestmark = pytest.mark.slow


def test_both_agree_within_3_points(tmp_path: Path) -> None:
    done = run(
        tmp_path, "model=pi0_small", "attn=naive", "train.batch_size=2", "train.steps=14", "profile=window",
        "profile.after_steps=4", "profile.ablation=true", "run.id=x", *QUICK,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "outputs/train/x/profile/breakdown.json").read_text())
    assert told["complete"], told["problems"]
    assert told["attention_share"] > 0.02
    assert told["attention_share_of_busy"] == pytest.approx(told["attention_share_by_ablation"], abs=0.03)
