"""`python -m sharder.inspect` lists what a larger machine wrote, where there is no jax, and changes nothing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import sharder
from sharder.inspect.__main__ import main
from sharder.inspect.arrays import Array, read_arrays
from sharder.inspect.checkpoints import read_checkpoints, read_leftovers
from sharder.inspect.listing import human_bytes
from sharder.training.manifest import set_aside

ROOT = Path(sharder.__file__).parent


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder written on eight devices."""
    root = tmp_path_factory.mktemp("eight")
    environ = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": str(ROOT.parent),
    }
    script = [sys.executable, str(Path(__file__).parent / "save_on_eight.py"), str(root)]
    done = subprocess.run(script, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return root / "train" / "eight"


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(saved, tmp_path / "run")


def files(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in [folder, *folder.rglob("*")]}


def test_arrays_are_those_of_the_whole_mesh(saved: Path) -> None:
    """Orbax's JSON has the shapes of slices: [66, 16] for the table here."""
    assert read_arrays(saved / "checkpoints/20/trainable") == [
        Array("gemma/layers/kernel", (3, 16, 8), "bfloat16", 768),
        Array("gemma/table", (264, 16), "float32", 16896),
    ]
    assert read_arrays(saved / "checkpoints/20/frozen") == [Array("vision/bias", (7,), "float32", 28)]
    assert read_arrays(saved / "checkpoints/20/optimizer") == [
        Array("0000", (), "int32", 4),
        Array("0001", (3, 16, 8), "bfloat16", 768),
    ]


def test_one_step_is_listed_without_jax_and_nothing_changes(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise ImportError('there is no jax here')")
    before = files(saved)
    argv = [sys.executable, "-m", "sharder.inspect", f"resume={saved}@20"]
    environ = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT.parent}"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert files(saved) == before
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "run train, id eight" in lines
    assert "state the newest checkpoint is step 20 of 30" in lines
    assert any("mesh batch=2 fsdp=4, layout gather, batch size 32, 30 steps" in line for line in lines)
    assert "last run by unknown: there is no environment.json" in lines
    assert "trainable: 2 arrays, 17,664 bytes" in lines
    assert "gemma/table [264, 16] float32 16,896" in lines
    assert lines[-1] == "all items: 5 arrays, 18,464 bytes"
    assert not any(line.startswith("10 ") for line in lines)


def test_every_step_is_held_against_its_manifest(run: Path) -> None:
    array = max((run / "checkpoints/10/trainable").rglob("d/*"), key=lambda path: path.stat().st_size)
    array.write_bytes(array.read_bytes()[:-1] + b"?")
    (run / "checkpoints/20/manifest.json").unlink()
    damaged, unsealed = read_checkpoints(run)
    assert damaged.step == 10 and damaged.state.startswith("damaged: trainable/") and "checksum" in damaged.state
    assert unsealed.step == 20 and unsealed.state == "unfinished: no manifest.json"
    assert damaged.items == ("about", "frozen", "optimizer", "trainable")
    written = [path.stat() for path in (run / "checkpoints/10").rglob("*") if path.is_file()]
    assert (damaged.files, damaged.bytes) == (len(written), sum(stat.st_size for stat in written))


def test_when_a_step_was_written_survives_a_copy(saved: Path, run: Path) -> None:
    for path in run.rglob("*"):
        os.utime(path, (0, 0))
    told, copied = read_checkpoints(saved, 10)[0].written_s, read_checkpoints(run, 10)[0].written_s
    assert told == copied and abs(told - (saved / "checkpoints/10/manifest.json").stat().st_mtime) < 600
    (run / "checkpoints/10/_CHECKPOINT_METADATA").unlink()
    assert read_checkpoints(run, 10)[0].written_s is None


def test_what_no_run_will_read_is_named(run: Path) -> None:
    checkpoints = run / "checkpoints"
    set_aside(checkpoints / "10")
    (checkpoints / "30.orbax-checkpoint-tmp" / "trainable").mkdir(parents=True)
    (checkpoints / "30.orbax-checkpoint-tmp" / "trainable" / "d").write_bytes(b"12345")
    (checkpoints / "copy of 20").mkdir()
    aside, unfinished, other = read_leftovers(run)
    assert (aside.name, aside.what) == ("10.damaged-1", "set aside: a run found it damaged or unfinished")
    assert (unfinished.name, unfinished.bytes, unfinished.files) == ("30.orbax-checkpoint-tmp", 5, 1)
    assert unfinished.what.startswith("unfinished: ")
    assert (other.name, other.what) == ("copy of 20", "not written by Sharder")
    assert [checkpoint.step for checkpoint in read_checkpoints(run)] == [20]


def test_checkpoints_alone_tell_their_config(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    shutil.copytree(saved / "checkpoints/20", tmp_path / "checkpoints/20")
    assert main([f"resume='{tmp_path}'"]) == 0  # in quotes, as other commands need it around commas
    assert "mesh batch=2 fsdp=4" in capsys.readouterr().out


def test_a_damaged_item_does_not_hide_the_others(run: Path, capsys: pytest.CaptureFixture) -> None:
    (run / "checkpoints/20/optimizer/_METADATA").write_text("{")
    (run / "checkpoints/20/frozen/manifest.ocdbt").unlink()
    assert main([f"resume={run}@20"]) == 0
    out = capsys.readouterr().out
    assert f"optimizer: {run}/checkpoints/20/optimizer: its arrays cannot be listed" in out
    assert f"frozen: {run}/checkpoints/20/frozen: its arrays cannot be listed" in out
    assert "trainable: 2 arrays, 17,664 bytes" in out


def test_the_run_tells_how_far_it_is_and_who_ran_it(run: Path, capsys: pytest.CaptureFixture) -> None:
    versions = {"jax": "1.2", "jaxlib": "1.3", "orbax-checkpoint": "1.4"}
    environment = {
        "sharder": "9.9",
        "git_commit": None,
        "python": "3.99",
        "versions": versions,
        "host": "h",
        "started": "t",
    }
    (run / "environment.json").write_text(
        json.dumps(environment | {"device_count": 8, "device_kind": "H100", "process_count": 2})
    )
    (run / "complete.json").write_text('{"step": 30}')
    assert main([f"resume={run}"]) == 0
    out = capsys.readouterr().out
    assert "state        complete at step 30\n" in out
    assert "sharder 9.9 (no git commit), jax 1.2, jaxlib 1.3, orbax-checkpoint 1.4, python 3.99; 8 x H100 on h" in out
    (run / "complete.json").write_text('{"step": 20}')
    (run / "environment.json").write_text('{"versions": {}}')
    assert main([f"resume={run}"]) == 0
    out = capsys.readouterr().out
    assert "the newest checkpoint is step 20 of 30; it was complete at step 20, before train.steps was changed\n" in out
    assert "unknown: environment.json cannot be read (KeyError: 'jax')" in out


def test_a_config_of_another_version_is_said_and_the_rest_is_listed(run: Path, capsys: pytest.CaptureFixture) -> None:
    config = run / ".hydra/config.yaml"
    config.write_text(config.read_text() + "new_in_2031: 1\n")
    assert main([f"resume={run}"]) == 0
    out = capsys.readouterr().out
    assert "key new_in_2031 does not fit this version of sharder" in out and "run          unknown" in out
    assert out.count("  whole ") == 2


def test_a_run_that_has_saved_nothing_is_a_run(run: Path, capsys: pytest.CaptureFixture) -> None:
    shutil.rmtree(run / "checkpoints")
    assert main([f"resume={run}"]) == 0
    out = capsys.readouterr().out
    assert "state        there is no checkpoint of 30\n" in out and "checkpoints: none" in out


def test_a_terminal_gets_a_drawn_table(saved: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([f"resume={saved}@20"], Console(force_terminal=True, width=120)) == 0
    assert "│ gemma/table         │ [264, 16]  │ float32  │ 16,896 │" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "resume: found 0 of them, allowed: resume=<run folder>[@step], --help"),
        (["resume=a", "resume=b"], "resume: found 2 of them"),
        (["resume=a", "model=pi0"], "found 'model=pi0', allowed: resume=<run folder>[@step]"),
        (["resume=auto"], "resume: found auto, allowed: <run folder>[@step]"),
        (["resume={run}/nowhere"], "which holds neither .hydra/config.yaml nor checkpoints"),
        (["resume={run}@15"], "resume: found step 15 of {run}, allowed: 10, 20"),
        (["resume={run}@last"], "allowed after @: the number of a step"),
    ],
)
def test_what_cannot_be_listed_is_one_line(
    argv: list[str], says: str, saved: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main([text.format(run=saved) for text in argv]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert says.format(run=saved) in captured.err and captured.out == ""


def test_the_standard_library_s_inspect_stays_itself() -> None:
    """With sharder/ itself on the path: a file run by its name, as debuggers do, and a shell in that folder."""
    argv = [sys.executable, "-c", "import inspect; print(inspect.signature(len))"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "(obj, /)\n", done.stderr


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (36.2e9, "36.2 GB"), (2.5e15, "2.5e+03 TB")],
)
def test_bytes_for_people(count: float, text: str) -> None:
    assert human_bytes(count) == text
