"""experiments/measure_on_gpu: what comes first, what is skipped, what goes on, and what stands beside what."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharder.errors import UserError
from sharder.report.tables import read_table

ROOT = Path(__file__).parents[1]
HERE = ROOT / "experiments" / "measure_on_gpu"
sys.path.insert(0, str(HERE))  # as for a script there

import measure  # noqa: E402
from beside import as_table, beside  # noqa: E402
from points import (  # noqa: E402
    CUT_OFF,
    FAILED,
    FINISHED,
    Point,
    Tried,
    expected_s,
    fitting,
    hardware_named,
    in_order,
    scale,
    sweep,
    to_do,
)

ONE_GPU = in_order(1)


def test_the_published_step_comes_first_then_ours() -> None:
    assert [str(point) for point in ONE_GPU[:3]] == [
        "strong_scaling mesh=single system=published",
        "strong_scaling mesh=single system=sharder",
        "flash_end_to_end attn=xla remat=full",
    ]


def test_one_gpu_measures_every_attention_with_every_remat_and_length() -> None:
    told = {point.overrides for point in ONE_GPU if point.preset == "flash_end_to_end"}
    remats = ("full", "dots_no_batch", "dots", "none")
    assert told == {
        (f"attn={attn}", f"remat={remat}") for attn in ("naive", "xla", "tiles", "flash") for remat in remats
    }
    lengths = [point for point in ONE_GPU if point.preset == "attention_length"]
    assert len(lengths) == 16 and all("profile=window" in point.overrides for point in lengths)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_a_machine_measures_what_it_has_devices_for_each_once(devices: int) -> None:
    points = in_order(devices)
    assert {point.devices for point in points} == {one for one in (1, 2, 4, 8) if one <= devices}
    assert len({(point.preset, frozenset(point.overrides)) for point in points}) == len(points)


def test_every_point_of_a_sweep_is_measured_where_there_are_devices_enough() -> None:
    told = {(point.preset, frozenset(point.overrides)) for point in in_order(8)}
    presets = {preset for preset, _ in told}
    assert presets == {
        *("strong_scaling", "weak_scaling", "overlap", "layouts", "memory"),
        *("flash_end_to_end", "attention_length", "step_breakdown", "speed"),
    }
    assert {(point.preset, frozenset(point.overrides)) for preset in presets for point in sweep(preset)} <= told


def test_the_mesh_of_a_preset_counts_where_the_point_names_none() -> None:
    assert Point("layouts", ("layout=auto",)).devices == 4
    assert Point("speed", ("work=least",)).devices == 1
    assert Point("overlap", ("mesh=fsdp2",)).devices == 2


def test_a_guess_counts_writing_layers_out_and_the_trace() -> None:
    guess = {point: point.guess_s for point in ONE_GPU}
    published, ours = Point("step_breakdown", ("system=published",)), Point("step_breakdown", ("system=sharder",))
    assert ours.guess_s - published.guess_s == 120
    assert guess[ONE_GPU[3]] - published.guess_s == 15 and "profile=window" in ONE_GPU[3].overrides


def test_what_was_measured_corrects_all_guesses_by_its_median() -> None:
    a, b, c, d = ONE_GPU[:4]
    assert (scale(ONE_GPU, {}, "pi0"), scale(ONE_GPU, {}, "pi0_nano")) == (1.0, 0.2)
    tried = {a: Tried(FINISHED, a.guess_s / 2), b: Tried(FINISHED, b.guess_s / 4), c: Tried(FINISHED, c.guess_s * 9)}
    assert scale(ONE_GPU, tried | {d: Tried(FAILED, 1.0)}, "pi0") == 0.5
    assert scale(ONE_GPU, tried | {d: Tried(FINISHED, None)}, "pi0") == 0.5
    assert expected_s(d, {}, 0.5) == d.guess_s / 2
    assert expected_s(d, {d: Tried(CUT_OFF, 1000.0)}, 0.5) == 1200
    assert expected_s(d, {d: Tried(FAILED, 1000.0)}, 0.5) == d.guess_s / 2


def test_what_is_finished_is_left_out_and_what_failed_comes_last() -> None:
    a, b, c = ONE_GPU[:3]
    tried = {a: Tried(FINISHED, 1.0), b: Tried(FAILED, 1.0), c: Tried(CUT_OFF, 1.0)}
    assert to_do([a, b, c], tried) == [c, b]


def test_what_does_not_fit_is_passed_over_for_what_does() -> None:
    short, long = ONE_GPU[0], ONE_GPU[1]
    assert long.guess_s > short.guess_s
    found = list(fitting([long, short, long], {}, 1.0, short.guess_s))
    assert found == [(long, long.guess_s, False), (short, short.guess_s, True)]
    assert [fits for *_, fits in fitting([long, short], {}, 1.0, 0.0)] == [False, False]


@given(left_s=st.floats(0, 1000), factor=st.floats(0.01, 10), first=st.integers(0, 20))
def test_only_the_last_point_told_of_fits(left_s: float, factor: float, first: int) -> None:
    found = list(fitting(ONE_GPU[first:], {}, factor, left_s))
    assert all(not fits and seconds > left_s for _, seconds, fits in found[:-1])
    assert found[-1][2] == (found[-1][1] <= left_s)


def test_hardware_is_known_by_the_name_that_jax_has_for_it() -> None:
    assert (hardware_named("NVIDIA H200"), hardware_named("NVIDIA H100 80GB HBM3")) == ("h200", "h100")
    assert hardware_named("NVIDIA GeForce RTX 4090") is None


def row(kind: str, hardware: str = "NVIDIA H200", **more: object) -> dict[str, object]:
    found = {"kind": kind, "model": "pi0", "hardware": hardware, "devices": 1, "attn": "xla", "step_ms": 100.0}
    return found | {"batch_size": 4} | more


def test_a_measured_number_stands_beside_that_of_the_same_point() -> None:
    rows = [
        row("measured", step_ms=110.0, memory_gb=20.0, run="a"),
        row("predicted", attn="naive", step_ms=1.0),
        row("predicted", model="pi0_nano", step_ms=2.0),
        row("predicted", batch_size=8, step_ms=3.0),
        row("predicted", devices=2, step_ms=4.0),
        row("predicted", "NVIDIA H100 80GB HBM3", step_ms=177.0, memory_gb=19.0),
        row("published", "NVIDIA H100 80GB HBM3", step_ms=177.61, batch_size=4),
    ]
    step, memory = beside("flash_end_to_end", rows, ("attn",))
    assert (step.point, step.name, step.measured) == ("flash_end_to_end attn=xla", "step_ms", 110.0)
    assert (step.predicted, step.predicted_for, step.published) == (177.0, "NVIDIA H100 80GB HBM3", 177.61)
    assert (memory.name, memory.predicted, memory.published) == ("memory_gb", 19.0, None)


def test_a_prediction_for_the_same_hardware_wins_and_a_small_model_is_named() -> None:
    rows = [row("measured"), row("predicted", "NVIDIA H100 80GB HBM3", step_ms=1.0), row("predicted", step_ms=80.0)]
    (found,) = beside("x", rows, ("attn",))
    assert (found.predicted, found.predicted_for) == (80.0, "NVIDIA H200")
    (small,) = beside("x", [row("measured", model="pi0_nano"), *rows[1:]], ("attn",))
    assert (small.point, small.predicted, small.predicted_for) == ("x attn=xla model=pi0_nano", None, "")


def test_the_table_has_the_ratio_and_a_dash_where_nothing_is_known() -> None:
    table = as_table(beside("x", [row("measured", step_ms=110.0), row("predicted", step_ms=88.0)], ("attn",)))
    assert dict(zip(table.head, table.rows[0], strict=True)) == {
        "point": "x attn=xla", "on": "NVIDIA H200", "number": "step_ms", "measured": "110", "predicted": "88",
        "for": "NVIDIA H200", "measured / predicted": "1.25", "published": "-",
    }  # fmt: skip
    alone = as_table(beside("x", [row("measured")], ("attn",))).rows[0]
    assert alone[4:] == ("-", "-", "-", "-")
    assert as_table([]).title == "nothing is measured yet"


class Played:
    """Runs that take as long as they are told to, on a clock that stands still meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: Path, ends: dict[Point, tuple[str, float]]) -> None:
        self.now, self.ran, self.ends = 0.0, [], ends
        self.here = measure.Here("gpu", "NVIDIA H200", 1, "pi0", where / "runs", where / "kept", ())
        monkeypatch.setattr(measure.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(measure, "_run", self.run)
        monkeypatch.setattr(measure, "_keep", lambda here, points: [{"step_ms": 200.0}])

    def run(self, here: measure.Here, point: Point, limit_s: float) -> tuple[Tried, str, bool]:
        ended, seconds = self.ends.get(point, (FINISHED, point.guess_s))
        self.ran.append((point, limit_s))
        self.now += seconds
        return Tried(FAILED if ended == "refused" else ended, seconds), "error: why", ended == "refused"


def test_one_that_fails_or_hangs_does_not_end_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c, d = ONE_GPU[:4]
    played = Played(monkeypatch, tmp_path, {a: (CUT_OFF, 360.0), b: (FAILED, 10.0)})
    measure._measure(played.here, [a, b, c, d], 700.0)
    assert [point for point, _ in played.ran] == [a, b, c, d]  # each once
    assert [limit for _, limit in played.ran] == [360.0, 340.0, 330.0, 210.0]  # three times the guess, or what is left
    said = capsys.readouterr().out
    assert "now: strong_scaling mesh=single system=published, about 120 s of the 700 s that are left" in said
    assert "cut off after 360 s: error: why" in said and "failed after 10 s" in said
    assert "finished in 120 s: 200 ms a step" in said

    again = Played(monkeypatch, tmp_path, {})
    again.here.read_journal([a, b, c, d])  # the run folders that played runs have not made are to be made again
    measure._measure(again.here, [a, b, c, d], 1e4)
    assert [point for point, _ in again.ran] == [a, c, d, b]


def test_what_does_not_fit_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c, d = ONE_GPU[:4]
    played = Played(monkeypatch, tmp_path, {})
    measure._measure(played.here, [b, a, c, d], 238.0)
    assert [point for point, _ in played.ran] == [a]
    assert capsys.readouterr().out.splitlines() == [
        "skipped: strong_scaling mesh=single system=sharder takes about 240 s, and 238 s are left",
        "now: strong_scaling mesh=single system=published, about 120 s of the 238 s that are left",
        "finished in 120 s: 200 ms a step",
        "nothing more fits: the shortest takes about 120 s, and 118 s are left",
    ]


def test_when_the_first_is_refused_so_would_be_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = ONE_GPU[:2]
    played = Played(monkeypatch, tmp_path, {a: ("refused", 1.0)})
    with pytest.raises(UserError, match=r"^why$"):
        measure._measure(played.here, [a, b], 1e4)
    assert not played.here.journal.exists()


def test_a_run_is_named_by_all_that_was_typed_and_by_devices_that_have_no_name_here(tmp_path: Path) -> None:
    known = measure.Here("gpu", "NVIDIA H200", 1, "pi0", tmp_path, tmp_path, ("train.steps=9",))
    assert known.run_id(ONE_GPU[0]) == (
        "experiment=strong_scaling,hardware=h200,mesh=single,system=published,tracking=off,train.steps=9"
    )
    other = measure.Here("gpu", "NVIDIA L4", 1, "pi0", tmp_path, tmp_path, ())
    assert other.run_id(ONE_GPU[0]).startswith("NVIDIA_L4,experiment=strong_scaling,hardware=auto,")


@pytest.mark.parametrize(
    "words, says",
    [
        (["minutes=0"], "error: minutes: found '0', allowed: a number above 0"),
        (["minutes"], "error: found 'minutes', allowed: minutes=..."),
        (["minutes=1"], "error: model: found pi0 where jax finds only a CPU"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(tmp_path: Path, words: list[str], says: str) -> None:
    done = subprocess.run(command(tmp_path, *words), capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 2 and done.stderr.startswith(says) and len(done.stderr.splitlines()) == 1


def environment() -> dict[str, str]:
    return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}


def command(where: Path, *words: str) -> list[str]:
    return [sys.executable, str(HERE / "measure.py"), f"run.root={where}/runs", f"kept={where}/kept", *words]


def journal(where: Path) -> Iterator[dict[str, object]]:
    path = where / "runs" / "measure_on_gpu" / "tried.jsonl"
    yield from map(json.loads, path.read_text().splitlines() if path.exists() else ())


@pytest.mark.slow
def test_killed_at_any_moment_it_loses_at_most_the_point_under_way(tmp_path: Path) -> None:
    """The first call is killed, kill -9, in the middle of its second point; the second call measures that one."""
    words = command(tmp_path, "minutes=10", "model=pi0_micro", "train.steps=12")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment()) as first:
        assert first.stdout is not None
        said = ""
        while "now: strong_scaling mesh=single system=sharder" not in said:
            said = first.stdout.readline()
            assert said, "it ended"
        folders = tmp_path / "runs" / "strong_scaling"
        until = time.monotonic() + 300
        while len([one for one in folders.iterdir() if not one.name.startswith(".")]) < 2:
            assert time.monotonic() < until
            time.sleep(0.1)
        first.send_signal(signal.SIGKILL)
    path = tmp_path / "kept" / "strong_scaling" / "measured.csv"
    assert [one["system"] for one in read_table(path, "measured")] == ["published"]

    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment()) as second:
        assert second.stdout is not None
        rest = ""
        for line in second.stdout:
            rest += line
            if line.startswith("finished"):
                second.send_signal(signal.SIGINT)  # it ends what is under way, and tells what it found
    assert second.returncode == 0
    rows = read_table(path, "measured")
    assert [one["system"] for one in rows] == ["published", "sharder"]
    assert all(one["model"] == "pi0_micro" and one["hardware"].startswith("CPU, ") for one in rows)
    assert [one["ended"] for one in journal(tmp_path)] == ["finished", "finished"]
    assert "now: strong_scaling mesh=single system=published" not in rest
    assert "strong_scaling mesh=single system=sharder model=pi0_micro" in rest and "left: 43 of 45 points" in rest
