"""Command lines: what they compose to, what they refuse, and what they start."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from handover import Handed

from sharder import compose, run_folder
from sharder.config import Config

CONF = Path(__file__).parent.parent / "sharder" / "conf"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def composed(*argv: str, command: str = "train") -> Config:
    (config,) = compose.composed(command, argv)
    return config


PRESETS = ("experiment", "system")  # groups whose options choose among other groups
OPTIONS = sorted(path.relative_to(CONF) for path in CONF.glob("*/*.yaml"))


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_every_option_composes_and_is_valid(option: Path) -> None:
    group, name = option.parts[0], option.stem
    needs = {("data", "lerobot"): "data.root=somewhere", ("remat", "auto"): "hardware=h100"}
    extra = [needs[group, name]] if (group, name) in needs else []
    extra += ["evaluation.execute=1"]
    configs = compose.composed("train", (f"{group}={name}", *extra))
    told = yaml.safe_load((CONF / option).read_text())
    if group in PRESETS:
        assert len(configs) == len(compose.points("plan", (f"{group}={name}", *extra)))
    else:
        (config,) = configs
        section = getattr(config, group)
        for key, value in told.items():
            if isinstance(value, int | str) and f"{group}.{key}" != "data.root" and key != "execute":
                assert getattr(section, key) == value, key


def test_every_option_sets_every_key_of_its_section() -> None:
    """Otherwise a key would silently come from the dataclass, where no one looks."""
    from omegaconf import OmegaConf

    schema = OmegaConf.structured(Config)
    for option in OPTIONS:
        if option.parts[0] in PRESETS:
            continue
        told = OmegaConf.load(CONF / option)
        section = schema[option.parts[0]]
        assert _keys(OmegaConf.to_container(told)) == _keys(OmegaConf.to_container(section)), option


def _keys(node: object, prefix: str = "") -> set[str]:
    if not isinstance(node, dict):
        return {prefix}
    return {key for name, inner in node.items() for key in _keys(inner, f"{prefix}.{name}")}


def test_a_value_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert compose.main("train", Handed(), ["train.steps=???"]) == 2
    assert "train.steps: found ???" in capsys.readouterr().err


def test_the_full_models_have_openpis_shapes() -> None:
    pi0 = composed("model=pi0").model
    assert (pi0.vision.width, pi0.vision.depth, pi0.vision.mlp_dim, pi0.vision.heads) == (1152, 27, 4304, 16)
    assert (pi0.language.width, pi0.language.mlp_dim, pi0.action.width, pi0.action.mlp_dim) == (2048, 16384, 1024, 4096)
    pi05, lora = composed("model=pi05").model, composed("model=pi0_lora").model
    assert (pi05.variant, pi05.prompt_tokens) == ("pi05", 200)
    assert (lora.language.lora_rank, lora.language.lora_alpha) == (16, 16.0)
    assert (lora.action.lora_rank, lora.action.lora_alpha) == (32, 32.0)


def test_values_reach_the_config() -> None:
    config = composed(
        "train.steps=7",
        "data.cameras={base_0_rgb: observation.images.top}",
        "data.cameras.left_wrist_0_rgb=observation.images.wrist",
        "data.episodes=[0,3]",
        "data.augment={crop: 1, brightness: 0}",
        "data.prompt='pick it up, then stop'",
        "tracking=off",
        "optimizer.ema_decay=null",
    )
    assert config.train.steps == 7
    assert config.data.cameras.chosen() == {
        "base_0_rgb": "observation.images.top",
        "left_wrist_0_rgb": "observation.images.wrist",
    }
    assert config.data.episodes == [0, 3]
    assert (config.data.augment.crop, config.data.augment.brightness, config.data.augment.contrast) == (1.0, 0.0, 0.1)
    assert config.data.prompt == "pick it up, then stop"
    assert config.tracking.mode == "off"
    assert config.optimizer.ema_decay is None


def test_a_group_typed_beats_a_preset() -> None:
    assert composed("experiment=convergence").run.name == "convergence"
    config = composed("experiment=convergence", "model=pi0_micro", "train.steps=3")
    assert (config.model.name, config.train.steps) == ("pi0_micro", 3)


def test_the_written_config_is_the_composed_one() -> None:
    handed = Handed()
    assert compose.main("train", handed, ["model=pi0_lora", "train.steps=3", "resume=auto", "run.id=x"]) == 0
    folder, config = handed.runs[0]
    assert folder == Path("outputs/train/x")
    assert run_folder.load_config(folder) == config
    assert yaml.safe_load((folder / run_folder.OVERRIDES).read_text()) == [
        "model=pi0_lora",
        "train.steps=3",
        "resume=auto",
        "run.id=x",
    ]


def test_the_same_id_is_the_same_folder_and_no_id_another_each_time() -> None:
    handed = Handed()
    for argv in (["run.id=x"], ["run.id=x"], [], []):
        assert compose.main("train", handed, argv) == 0
    folders = [folder for folder, _ in handed.runs]
    assert folders[0] == folders[1]
    assert len(set(folders)) == 3


def test_nothing_but_run_folders_is_made(tmp_path: Path) -> None:
    assert compose.main("train", Handed(), ["run.id=x"]) == 0
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    folder = "outputs/train/x"
    assert files == [f"{folder}/.hydra/config.yaml", f"{folder}/.hydra/overrides.yaml", f"{folder}/lock"]


def test_a_run_in_use_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    held = run_folder.claim(composed("run.id=x"), [])
    assert compose.main("train", Handed(), ["run.id=x"]) == 2
    assert capsys.readouterr().err.startswith("error: run.id: found 'x', but process")
    held.release()


def test_never_refuses_to_start_over_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    Path("outputs/train/x/checkpoints/10").mkdir(parents=True)
    assert compose.main("train", Handed(), ["run.id=x", "resume=never"]) == 2
    assert "found never" in capsys.readouterr().err
    assert composed("run.id=y", "resume=outputs/train/x@10").resume == "outputs/train/x@10"


def test_a_sweep_runs_every_point_and_fails_when_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    handed = Handed(codes=(3, 0, 0, 0))
    assert compose.main("train", handed, ["-m", "train.seed=1,2", "model=pi0_nano,pi0_micro"]) == 3
    assert sorted(str(folder) for folder, _ in handed.runs) == [
        f"outputs/train/model={model},train.seed={seed}" for model in ("pi0_micro", "pi0_nano") for seed in (1, 2)
    ]
    assert sorted((config.train.seed, config.model.name) for _, config in handed.runs) == [
        (1, "pi0_micro"),
        (1, "pi0_nano"),
        (2, "pi0_micro"),
        (2, "pi0_nano"),
    ]
    out = capsys.readouterr().out
    assert "sweep: exit 3  outputs/train/model=pi0_nano,train.seed=1" in out
    assert "sweep: 3 of 4 points succeeded" in out


def test_points_that_would_share_a_folder_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert compose.main("train", Handed(), ["-m", "resume=auto,never"]) == 2
    assert "share the run folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_given_id_begins_the_id_of_every_point() -> None:
    handed = Handed()
    assert compose.main("train", handed, ["-m", "run.id=x", "train.seed=1,2"]) == 0
    assert [folder.name for folder, _ in handed.runs] == ["x,train.seed=1", "x,train.seed=2"]


def test_each_point_of_a_sweep_is_a_process_of_its_own(tmp_path: Path) -> None:
    """Through the real command line, with a worker that writes down what it is."""
    script = """
import functools, sys
from sharder.compose import main
from sharder.supervise import workers
worker = '''
import json, os, pathlib, sys
folder = pathlib.Path(sys.argv[2])
about = {"pid": os.getpid(), "command": sys.argv[1], "platform": os.environ.get("JAX_PLATFORMS")}
(folder / "worker.json").write_text(json.dumps(about))
sys.exit("seed=2" in folder.name)
'''
workers.worker_command = lambda command, folder: [sys.executable, "-c", worker, command, str(folder)]
sys.exit(main("train", functools.partial(workers.run_inline, "train")))
"""
    argv = [sys.executable, "-c", script, "-m", "train.seed=1,2,3", "hardware=cpu"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    about = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("outputs/train/*/worker.json"))]
    assert len({one["pid"] for one in about}) == 3
    assert {(one["command"], one["platform"]) for one in about} == {("train", "cpu")}
    assert "sweep: 2 of 3 points succeeded" in done.stdout


def test_evaluate_takes_the_run_it_evaluates_and_what_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    trained = composed("run.id=x", "model=pi0_micro", "data.state=s", "train.seed=5", "evaluation.execute=2")
    about = Path("outputs/train/x/checkpoints/10/about/metadata")
    about.parent.mkdir(parents=True)
    about.write_text(json.dumps({"config": dataclasses.asdict(trained)}))
    config = composed(
        "resume=outputs/train/x", "evaluation.execute=3", "data.workers=0", "model.flow_steps=4", command="evaluate"
    )
    assert config.model.name == "pi0_micro"
    assert config.model.flow_steps == 4
    assert config.model.vision == trained.model.vision
    assert (config.data.state, config.data.workers, config.train.seed) == ("s", 0, 5)
    assert (config.evaluation.episodes, config.evaluation.execute) == (100, 3)
    assert config.run.name == "evaluate"
    for argv, hint in (([], "found auto"), (["resume=auto"], "<run folder>"), (["resume=/nowhere"], "/nowhere")):
        assert compose.main("evaluate", Handed(), argv) == 2
        error = capsys.readouterr().err
        assert hint in error
        assert error.count("\n") == 1


def test_cfg_prints_a_config_that_composes_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert compose.main("train", Handed(), ["--cfg", "train.steps=9"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["train"]["steps"] == 9
    assert list(tmp_path.iterdir()) == []


def test_a_preset_can_be_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      train.seed: 1,2\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    handed = Handed()
    preset = [f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine"]
    assert compose.main("train", handed, preset) == 0
    assert [config.train.seed for _, config in handed.runs] == [1, 2]
    assert compose.main("train", handed, [*preset, "hydra.mode=RUN"]) == 0
    assert [config.train.seed for _, config in handed.runs] == [1, 2, 0]


TOLD = {"JAX_COORDINATOR_ADDRESS": "localhost:9", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}


def test_several_processes_share_one_run_folder_that_the_first_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handed = Handed()
    for index in ("1", "0"):
        for name, value in (TOLD | {"JAX_PROCESS_ID": index}).items():
            monkeypatch.setenv(name, value)
        assert compose.main("train", handed, ["mesh=fsdp2", "run.id=shared"]) == 0
        assert "run folder: outputs/train/shared" in capsys.readouterr().out
        if index == "1":
            assert not (tmp_path / "outputs").exists()
    (passing, _), (claimed, _) = handed.runs
    assert claimed == Path("outputs/train/shared") and not passing.exists()


def test_several_processes_need_a_name_and_a_mesh_that_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in TOLD.items():
        monkeypatch.setenv(name, value)
    assert compose.main("train", Handed(), ["mesh=fsdp2"]) == 2
    assert "run.id: found null, allowed in one of several processes" in capsys.readouterr().err
    assert compose.main("train", Handed(), ["run.id=x"]) == 2
    assert "mesh: found 1 x 1 = 1 devices for 2 processes" in capsys.readouterr().err
    monkeypatch.setenv("JAX_PROCESS_ID", "2")
    assert compose.main("train", Handed(), ["mesh=fsdp2", "run.id=x"]) == 2
    assert "JAX_PROCESS_ID" in capsys.readouterr().err


def test_a_slurm_job_names_its_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Requeued, it has the same name and finds its folder."""
    srun = {"SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    for name, value in (srun | {"SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}).items():
        monkeypatch.setenv(name, value)
    assert compose.main("train", Handed(), ["mesh=fsdp2"]) == 0
    assert "outputs/train/slurm-77" in capsys.readouterr().out
    for name in srun:
        if name != "SLURM_JOB_ID":
            monkeypatch.delenv(name)
    assert compose.main("train", Handed(), []) == 0  # a shell inside a job is no launch
    assert "slurm" not in capsys.readouterr().out
