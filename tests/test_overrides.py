"""Mistakes on the command line and in presets: one line each, with what would have been right, and nothing written."""

import subprocess
import sys
from pathlib import Path

import pytest
from handover import Handed

from sharder import compose


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


REFUSED = [
    ("train.stepz=3", "train.stepz", "train.steps?"),
    ("optimizer.lr=1", "optimizer.lr", "optimizer.learning_rate?"),
    ("model.languge.width=3", "model.languge.width", "model.language.width?"),
    ("moddel=pi0", "moddel", "model?"),
    ("+train.stepz=3", "train.stepz", "train.steps?"),
    ("train.optimizer=adamw", "train.optimizer", "the group optimizer=adamw|adamw_nano|none?"),
    ("data.augment=off", "data.augment", "set data.augment.crop="),
    ("model.vision=so400m", "model.vision", "is a group of keys (width"),
    ("train=100", "train", "set train.steps="),
    ("data.augment={crpo: 1}", "data.augment.crpo", "data.augment.crop?"),
    ("data/augment=off", "data.augment", "set data.augment.crop="),
    ("data/root=x", "data/root", "write data.root="),
    ("optimzer/adam=1", "optimzer/adam", "did you mean optimizer"),
    ("data.cameras.base=x", "data.cameras.base", "data.cameras.base_0_rgb?"),
    ("model=pi0_nanoo", "model", "model=pi0_nano?"),
    ("mesh=fsdp5", "mesh", "allowed: dp2, dp4, dp8, fsdp2"),
    ("attn=cudnn", "attn", "allowed: flash, naive, tiles, xla"),
    ("experiment=converge", "experiment", "experiment=convergence?"),
    ("system=null", "system", "leave it out"),
    ("experiment=null", "experiment", "leave it out"),
    ("+experiment=memory", "+experiment=memory", "without +"),
    ("optimizer=0.1", "optimizer", "allowed: adamw, adamw_nano"),
    ("model={width: 1}", "model", "set a key as model.<key>="),
    ("train.steps=abc", "train.steps", "found 'abc', allowed: a whole number"),
    ("train.steps=1.5", "train.steps", "found '1.5', allowed: a whole number"),
    ("train.steps=null", "train.steps", "found null, allowed: a whole number"),
    ("optimizer.ema_decay=x", "optimizer.ema_decay", "allowed: a number or null"),
    ("evaluation.at_end=7.5", "evaluation.at_end", "allowed: true or false"),
    ("data.episodes=0:3", "data.episodes", "allowed: a list, written [a,b], of whole numbers or null"),
    ("data.episodes=[a]", "data.episodes", "allowed: a list, written [a,b], of whole numbers or null"),
    ("train.steps=1,2", "train.steps", "add -m"),
    ("~train.steps", "~train.steps", "cannot be removed"),
    ("model@other=pi0", "model@other=pi0", "packages"),
    ("hydra.swep.dir=x", "hydra.swep.dir", "hydra.sweep.dir?"),
    ("hydra.run.dirr=x", "hydra.run.dirr", "hydra.run.dir?"),
    ("+hydra.jobb.name=x", "hydra.jobb.name", "hydra.job.name?"),
    ("hydra.sweeper.params.mesh=single,fsdp2", "hydra.sweeper.params.mesh", "write mesh=a,b"),
    ("hydra/launcher=slurm", "hydra/launcher", "allowed: basic"),
    ("convergence", "'convergence'", "key=value"),
    ("a=b=c", "'a=b=c'", "key=value"),
    ("--resume", "unrecognized arguments", "-m, --cfg, --help"),
    ("train.batch_size=-1", "train.batch_size", "1 or more"),
    ("scaling.batch_per_device=0", "scaling.batch_per_device", "found 0, allowed: a number above 0, or null"),
    (
        "scaling.batch_per_device=4",
        "scaling.batch_per_device",
        "found 4 with scaling=fixed, allowed: with scaling=weak",
    ),
    ("data=lerobot", "data.root", "add data.root="),
    ("resume=x@y", "resume", "write resume=x@<step>"),
    ("resume=/nowhere", "resume", "has no checkpoints"),
    ("run.root=/dev/null/x", "run.root", "not a folder"),
]


@pytest.mark.parametrize(("typed", "key", "hint"), REFUSED, ids=[typed for typed, _, _ in REFUSED])
def test_a_mistake_is_one_line_and_writes_nothing(
    typed: str, key: str, hint: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    handed = Handed()
    assert compose.main("train", handed, [typed]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert error.startswith(f"error: {key}: ")
    assert hint in error
    assert handed.runs == []
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_in_any_point_of_a_sweep_stops_all_of_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for sweep, hint in (
        ("train.batch_size=2,0", "train.batch_size: found 0"),
        ("model=pi0_nano,pi0_nanoo", "did you mean model=pi0_nano?"),
        ("train.steps=1,x", "train.steps: found 'x'"),
        ("data.augment=off,on", "data.augment: found a sweep"),
        ("train.steps=interval(1,2)", "does not support sweep type"),
    ):
        handed = Handed()
        assert compose.main("train", handed, ["-m", sweep]) == 2, sweep
        error = capsys.readouterr().err
        assert hint in error
        assert error.count("\n") == 1
        assert handed.runs == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {stepz: 3}", "train.stepz: no such key; did you mean train.steps? (in experiment/mine.yaml)"),
        ("train: {steps: x}", "train.steps: found 'x', allowed: a whole number (in experiment/mine.yaml)"),
        ("trian: {steps: 1}", "trian: no such key"),
        ("model: pi0", "str is not a subclass of ModelConfig"),
        ("defaults: [override /model: pi9]", "model: no option 'pi9', allowed: pi0, pi05"),
        ("a: [", 'mine.yaml", line 3'),
    ],
)
def test_a_mistake_in_a_users_preset_names_its_file(
    text: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}\n")
    assert compose.main("train", Handed(), [f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_mistake_comes_before_jax_without_traceback_and_quickly(tmp_path: Path) -> None:
    script = """
import sys
from sharder.compose import main
code = main("train", None, ["optimizer.lr=1"])
assert not {"jax", "flax", "orbax", "wandb"} & set(sys.modules)
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
