"""`python -m sharder.report`: tables, figures and pages; or one line, and nothing half-written."""

import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import add_plan, add_run, make_folder, steps

from sharder.errors import EXIT_USER_ERROR
from sharder.report.__main__ import USAGE, main
from sharder.report.experiment import experiment, in_order, missing, preset_names
from sharder.report.tables import read_table

POINTS = [("single", "published"), ("single", "sharder"), ("fsdp2", "published"), ("fsdp2", "sharder")]
MS = {"published": 200.0, "sharder": 100.0}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four of the six points of strong_scaling are planned."""
    for mesh, system in POINTS:
        overrides = [f"mesh={mesh}", f"system={system}", "experiment=strong_scaling"]
        folder = make_folder(tmp_path / "outputs", overrides, "strong_scaling", f"mesh={mesh},system={system}")
        add_plan(folder, 1 if mesh == "single" else 2, MS[system] / (1 if mesh == "single" else 2))
    return tmp_path / "outputs"


def report(root: Path, *argv: str) -> int:
    return main([*argv, f"run.root={root}", f"kept={root.parent / 'experiments'}"])


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_one_command_makes_tables_figure_and_page(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(root, "experiment=strong_scaling") == 0
    kept = root.parent / "experiments" / "strong_scaling"
    assert files(kept) == ["figure.png", "figure.svg", "predicted.csv"]
    rows = read_table(kept / "predicted.csv", "predicted")
    assert [(row["mesh"], row["system"], row["step_ms"]) for row in rows] == [
        ("single", "published", 200.0),
        ("single", "sharder", 100.0),
        ("fsdp2", "published", 100.0),
        ("fsdp2", "sharder", 50.0),
    ]  # the order of the sweep, not that of folders
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "not there yet: experiment=strong_scaling,mesh=fsdp4,system=published",
        "not there yet: experiment=strong_scaling,mesh=fsdp4,system=sharder",
        f"tables and figure: {kept}",
        f"written: {root / 'report.html'}",
    ]
    assert err == ""
    page = (root / "report.html").read_text()
    assert "2.00 times" in page and "both predicted" in page


def test_second_time_changes_nothing_and_needs_no_run_folders(root: Path) -> None:
    kept = root.parent / "experiments" / "strong_scaling"
    report(root, "experiment=strong_scaling")
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    (root / "strong_scaling").rename(root / "elsewhere")
    assert report(root, "experiment=strong_scaling") == 0
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before


def test_ratio_of_a_cpu_is_no_headline(root: Path) -> None:
    for system, step_ms in (("published", 300.0), ("sharder", 100.0)):
        folder = root / "strong_scaling" / f"mesh=single,system={system}"
        add_run(folder, steps(*[{"step_ms": step_ms}] * 3), device_kind="cpu")
    assert report(root, "experiment=strong_scaling") == 0
    page = (root / "report.html").read_text()
    assert "2.00 times" in page and "3.00 times" not in page
    assert "1 x CPU, 2 cores: 100 ms a step against the published system&#x27;s 300" in page


def test_damaged_folder_is_named_and_the_others_count(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = root / "strong_scaling" / "mesh=single,system=sharder" / "plan.json"
    broken.write_text("{")
    (root / "strong_scaling" / ".new-x").mkdir()
    assert report(root, "experiment=strong_scaling") == 0
    out, err = capsys.readouterr()
    assert err.startswith(f"left out: {broken}: cannot be read") and err.count("\n") == 1
    assert "not there yet: experiment=strong_scaling,mesh=single,system=sharder" in out
    assert len(read_table(root.parent / "experiments/strong_scaling/predicted.csv", "predicted")) == 3


def test_preset_of_ones_own_has_tables_figure_and_a_place_on_the_page(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(root, ["experiment=mine", "mesh=single"], "mine", "experiment=mine,mesh=single")
    add_plan(folder, 1, 100.0)
    own = root.parent / "conf"
    (own / "experiment").mkdir(parents=True)
    (own / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n# A question of my own.\nrun: {name: mine}\n"
        "report: {title: mine, x: devices, y: [step_ms, stepms]}\n"
        "hydra: {mode: MULTIRUN, sweeper: {params: {mesh: 'single,fsdp2'}}}\n"
    )
    assert report(root, "experiment=mine") == EXIT_USER_ERROR
    assert "hydra.searchpath=[file://<folder>] for one of your own" in capsys.readouterr().err
    assert report(root, "experiment=mine", f"hydra.searchpath=[file://{own}]") == 0
    out, err = capsys.readouterr()
    assert "not there yet: experiment=mine,mesh=fsdp2" in out
    assert err.startswith("left out: column stepms of the figure of mine: no row has it") and err.count("\n") == 1
    assert files(root.parent / "experiments" / "mine") == ["figure.png", "figure.svg", "predicted.csv"]
    assert "A question of my own." in (root / "report.html").read_text()


def test_damaged_table_is_refused_before_anything_is_written(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = root.parent / "experiments" / "strong_scaling"
    kept.mkdir(parents=True)
    (kept / "measured.csv").write_text("step_ms\nfast\n")
    assert report(root, "experiment=strong_scaling") == EXIT_USER_ERROR
    assert files(kept) == ["measured.csv"]
    error = capsys.readouterr().err
    assert error.startswith(f"error: {kept / 'measured.csv'}: line 2 has no hardware") and error.count("\n") == 1


def test_page_of_everything_links_to_runs_without_reading_them(root: Path) -> None:
    run = root / "train" / "a run, with=signs #1"
    (run / ".hydra").mkdir(parents=True)
    (run / ".hydra" / "config.yaml").write_text("not a config: [")
    (root / "train" / "no run").mkdir()
    assert report(root) == 0
    page = (root / "report.html").read_text()
    assert '<a href="train/a%20run%2C%20with%3Dsigns%20%231">train/a run, with=signs #1</a>' in page
    assert "no run" not in page


def test_run_has_a_page_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = add_run(make_folder(tmp_path), steps({"loss": 2.0, "step_ms": 9.0}, {"loss": 1.0, "step_ms": 8.0}))
    assert main([f"resume={folder}"]) == 0
    assert capsys.readouterr().out == f"written: {folder / 'report.html'}\n"
    assert "loss at step 20" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["experimnt=memory"], "found 'experimnt=memory', allowed, each once: experiment=..., resume=..."),
        (["experiment"], "found 'experiment', allowed"),
        (["experiment="], "found 'experiment=', allowed"),
        (["kept=a", "kept=b"], "found 'kept=b', allowed, each once"),
        (["experiment=memory", "resume=outputs/train/a"], "resume: found it with experiment="),
        (["experiment=memroy"], "experiment: no option 'memroy', allowed: attention_length, "),
        (["experiment=strong_scaling"], "experiment: found strong_scaling, of which nothing lies in outputs/strong"),
        (["resume=nowhere"], "nowhere: cannot be read"),
        (["resume=empty"], "resume: found empty, where nothing was logged, planned or evaluated yet"),
        ([], "run.root: found outputs, with no runs, and experiments, with no tables"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    argv: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_folder(tmp_path, name="", id="empty")
    monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    assert main(argv) == EXIT_USER_ERROR
    error = capsys.readouterr().err
    assert error.startswith(f"error: {said}") and error.count("\n") == 1
    assert files(tmp_path) == before


def test_place_that_cannot_be_written_is_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root.parent / "experiments").write_text("a file")
    assert report(root, "experiment=strong_scaling") == EXIT_USER_ERROR
    error = capsys.readouterr().err
    assert error.startswith(f"error: kept: found {root.parent / 'experiments'}, where strong_scaling cannot be written")
    assert error.count("\n") == 1


def test_missing_points_are_those_of_which_nothing_is_known_here() -> None:
    found = experiment("strong_scaling")
    rows = [
        {"kind": "published", "mesh": "single", "system": "published"},
        {"kind": "measured", "mesh": "fsdp2", "system": "sharder"},
    ]
    assert found.keys == ("mesh", "system")
    assert missing(found, rows) == [
        f"experiment=strong_scaling,mesh={mesh},system={system}"
        for mesh, system in [*POINTS[:3], ("fsdp4", "published"), ("fsdp4", "sharder")]
    ]


def test_rows_of_no_point_come_last() -> None:
    found = experiment("strong_scaling")
    named = [("fsdp8", "sharder"), ("fsdp2", "sharder"), ("single", "sharder"), ("single", "published")]
    rows = [{"mesh": mesh, "system": system, "hardware": "gpu"} for mesh, system in named]
    assert [(row["mesh"], row["system"]) for row in in_order(found, rows)] == list(reversed(named))


def test_every_preset_can_be_asked_for() -> None:
    assert {"strong_scaling", "convergence", "memory"} <= set(preset_names())


def test_help_needs_nothing() -> None:
    script = (
        "import sys; from sharder.report.__main__ import main; main(['--help']); "
        "assert not {'hydra', 'matplotlib', 'jax'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, USAGE + "\n"), done.stderr
