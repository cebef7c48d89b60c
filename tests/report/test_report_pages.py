"""What the pages say, and that each is one file that asks for nothing."""

import base64
import re
from html import unescape
from pathlib import Path

import pytest
from made_runs import add_plan, add_run, make_folder, steps, write_json

from sharder.errors import UserError
from sharder.report import html
from sharder.report.experiments_page import ratios
from sharder.report.run_page import run_page as page_of


@pytest.fixture
def experiments(page_of_experiments: Path) -> str:
    return page_of_experiments.read_text()


@pytest.fixture
def run(page_of_a_run: Path) -> Path:
    return page_of_a_run


def text(page: str) -> str:
    """Without tags."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page)))


def references(page: str) -> set[str]:
    """What the page names, beside what it holds."""
    named = re.findall(r'(?:src|href|data|action|srcset)="([^"]*)"', page) + re.findall(r"url\(([^)]*)\)", page)
    return {name for name in named if not name.startswith(("data:", "#"))}


def test_page_of_experiments_needs_no_network(experiments: str) -> None:
    assert all(name.startswith(("strong_scaling/", "memory/")) for name in references(experiments))
    assert len(references(experiments)) == 9  # run folders
    for drawing in re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', experiments):
        drawn = base64.b64decode(drawing).decode()
        assert not references(drawn)
        assert not [name for name in re.findall(r'xlink:href="([^"]*)"', drawn) if not name.startswith(("#", "data:"))]
    assert "<script" not in experiments and "@import" not in experiments


def test_page_of_a_run_needs_no_network(run: Path) -> None:
    assert references(run.read_text()) == set()


def test_experiments_are_compared_with_what_was_published(experiments: str) -> None:
    said = text(experiments)
    where = "mesh=single system=published devices=1 batch_size=8"
    assert f"strong_scaling {where} step_ms 195.6 200 predicted +2.2%" in said
    assert f"strong_scaling {where} step_ms 195.6 204.5 measured +4.6%" in said  # 200 + 3 + median(1.0, 1.5, 2.0)
    assert (
        "1.47 times as fast as the published system's step, strong_scaling on 4 x" in said
    )  # (53 + 1.5) / (35.5 + 1.5)
    assert "37 ms against 54.5, both measured" in said


def test_published_numbers_without_a_partner_are_named(experiments: str) -> None:
    """Nobody ran or planned it on eight GPUs."""
    assert "Published, but neither predicted nor measured here yet: 1 of strong_scaling." in text(experiments)


def test_simulated_times_are_no_ratio() -> None:
    both = [{"hardware": "CPU", "devices": 4, "system": system, "step_ms": 9.0} for system in ("published", "sharder")]
    assert list(ratios([{"kind": "simulated"} | row for row in both])) == []
    assert len(list(ratios([{"kind": "predicted"} | row for row in both]))) == 1
    other_kinds = [{"kind": kind} | row for kind, row in zip(("predicted", "measured"), both, strict=True)]
    assert list(ratios(other_kinds)) == []


def test_run_page_shows_all_of_it(run: Path) -> None:
    said = text(run.read_text())
    assert "100 ms a step, predicted for 2 x NVIDIA H100 80GB HBM3" in said
    assert "115 ms a step, measured on 1 x NVIDIA H100 80GB HBM3" in said  # median of 110, 120, 130, 95
    assert "30.0% MFU, exactly counted, measured on 1 x" in said
    assert "MFU = a formula: 4e+12 FLOP a step, 1 devices, peak 1e+15 FLOP/s in float32 (a source)." in said
    for part in ("By step", "Where the time goes", "most of it is the MLP", "Restarts", "Evaluation", "What it is"):
        assert part in said
    assert "attempt resumed at step 1 40" in said
    assert "Checkpoints kept: 60." in said
    assert "60 90% 79% to 96%" in said  # while training, Wilson's interval of 45 in 50
    assert "random policy 2% 0% to 10%" in said
    assert run.read_text().count("data:video/mp4") == 1


def test_evaluation_has_its_own_page(run: Path) -> None:
    own = (run.parents[2] / "evaluate" / "later" / "report.html").read_text()
    assert "Step 60, scored by itself" in own and own.count("data:video/mp4") == 1
    assert "By step" not in own and "Restarts" not in own


def test_evaluations_of_other_runs_are_not_shown(tmp_path: Path) -> None:
    folder = add_run(make_folder(tmp_path), steps({"loss": 1.0}))
    told = {"checkpoint": "/other/run/checkpoints/60", "step": 60, "success_rate": 0.5, "episodes": 4}
    write_json(make_folder(tmp_path, name="evaluate", id="b") / "evaluation.json", told)
    assert "Evaluation" not in page_of(folder)
    (make_folder(tmp_path, name="evaluate", id="c") / "evaluation.json").write_text("{")
    assert "Left out: " in page_of(folder)


def test_evaluation_against_a_recording_is_shown(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, name="evaluate")
    write_json(folder / "evaluation.json", {"checkpoint": "/a/checkpoints/3", "step": 3, "action_error": 0.125})
    assert "action_error 0.125" in text(page_of(folder))


def test_device_of_unknown_peak_has_no_mfu_and_its_page_says_why(tmp_path: Path) -> None:
    said = text(page_of(add_run(make_folder(tmp_path), steps({"loss": 1.0, "step_ms": 9.0}), "cpu")))
    assert "No MFU: it needs the device's peak, and none is known of 'cpu' in float32" in said
    assert "MFU, exactly counted" not in said


def test_plan_alone_has_no_curves_and_no_restarts(tmp_path: Path) -> None:
    said = text(page_of(add_plan(make_folder(tmp_path))))
    assert "predicted for 2 x" in said and "Predicted, for 2 x" in said
    assert "measured" not in said and "By step" not in said and "Restarts" not in said


def test_restarts_are_those_of_every_attempt(tmp_path: Path) -> None:
    """What attempt 1 logged was done again by attempt 2, but it was a restart."""
    rows = [
        {"step": 10, "loss": 1.0},
        {"step": 20, "loss": 1.0, "attempt": 1, "resumed_at": 10},
        {"step": 20, "loss": 1.0, "attempt": 2, "resumed_at": 10},
    ]
    assert "resumed at step 1 10 2 10 " in text(page_of(add_run(make_folder(tmp_path), rows)))


def test_run_without_times_or_with_a_loss_that_is_no_number_has_a_page(tmp_path: Path) -> None:
    folder = add_run(make_folder(tmp_path), steps({"loss": 1.0}, {"loss": "nan"}, {"loss": "inf"}))
    said = text(page_of(folder))
    assert "inf loss at step 30" in said and "Where the time goes" not in said


def test_same_run_is_the_same_page(tmp_path: Path) -> None:
    folder = add_run(make_folder(tmp_path), steps({"loss": 2.0}, {"loss": 1.0}))
    assert page_of(folder) == page_of(folder)


def test_page_of_a_damaged_run_is_one_line(tmp_path: Path) -> None:
    folder = add_run(make_folder(tmp_path), steps({"loss": 2.0}))
    write_json(folder / "profile" / "breakdown.json", {"complete": False})
    with pytest.raises(UserError, match="not as this version writes them"):
        page_of(folder)


def test_text_is_text() -> None:
    assert html.tag("p", "a < b & c", class_="x") == '<p class="x">a &lt; b &amp; c</p>'
    assert "&lt;script&gt;" in html.table(["<script>"], [["<script>"]])


def test_columns_of_numbers_are_to_the_right() -> None:
    made = html.table(("a", "b", "c"), [("x", 1.5, "90%"), ("2", "", "-3e5")])
    assert "<th>a</th>" in made and '<th class="number">b</th>' in made and '<td class="number">90%</td>' in made


def test_run_of_which_nothing_says_where_it_ran_has_its_plan_and_curves(tmp_path: Path) -> None:
    folder = add_run(
        add_plan(make_folder(tmp_path)), steps({"loss": 2.0, "step_ms": 9.0}, {"loss": 1.0, "step_ms": 8.0})
    )
    (folder / "environment.json").unlink()
    said = text(page_of(folder))
    assert "Predicted, for 2 x" in said and "loss, ms a step, by step" in said
    assert "of a step, mean" not in said  # measured, or simulated: nobody knows


def test_numbers_that_cannot_be_are_one_line_that_names_the_folder(tmp_path: Path) -> None:
    folder = add_run(make_folder(tmp_path), steps({"loss": 10**400, "step_ms": 9.0}))
    with pytest.raises(UserError, match=f"{folder}: its files are not as this version writes them .OverflowError"):
        page_of(folder)


def test_damaged_evaluation_of_another_run_is_none_of_this_one(tmp_path: Path) -> None:
    folder = add_run(make_folder(tmp_path), steps({"loss": 2.0}, {"loss": 1.0}))
    write_json(make_folder(tmp_path, name="evaluate") / "evaluation.json", {"step": 3})
    assert "Evaluation" not in text(page_of(folder))


def test_markup_in_names_is_text(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    folder = add_run(make_folder(tmp_path, [f"data.prompt={name}"], id=name), steps({"loss": 2.0}))
    page = page_of(folder)
    assert name not in page and page.count("&lt;img src=x") == 3  # title, place and override
