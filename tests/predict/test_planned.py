"""What counts as planned before: a sweep that was cut off, or whose files were damaged, plans what is not whole."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sharder import compose
from sharder.predict import planned, planning
from sharder.predict.inputs import Inputs
from sharder.predict.planned import is_planned, write_planned
from sharder.run_folder import PLAN
from sharder.run_folder import PLAN_ENVIRONMENT as ENVIRONMENT


def inputs(*typed: str) -> Inputs:
    (config,) = compose.composed("plan", typed)
    return Inputs(config, ("base_0_rgb",))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def alter(path: Path) -> None:
    path.write_text(path.read_text().replace("1", "2"))


DAMAGE: list[Callable[[Path], None]] = [cut, alter, Path.unlink, lambda path: path.write_bytes(b"\xff")]


def test_what_was_written_is_planned(tmp_path: Path) -> None:
    assert not is_planned(tmp_path, inputs())
    write_planned(tmp_path, {"plan": 1}, inputs())
    assert is_planned(tmp_path, inputs())
    assert json.loads((tmp_path / PLAN).read_text()) == {"plan": 1}


@pytest.mark.parametrize("damage", DAMAGE, ids=["cut", "altered", "gone", "not text"])
@pytest.mark.parametrize("name", [PLAN, ENVIRONMENT])
def test_a_damaged_file_is_planned_again(name: str, damage: Callable[[Path], None], tmp_path: Path) -> None:
    write_planned(tmp_path, {"plan": 11}, inputs())
    damage(tmp_path / name)
    assert not is_planned(tmp_path, inputs())


def test_a_write_that_is_cut_off_leaves_nothing_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_planned(tmp_path, {"plan": 1}, inputs())

    def killed(path: Path, text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(planned, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        write_planned(tmp_path, {"plan": 2}, inputs())
    assert not is_planned(tmp_path, inputs())


def test_what_changes_a_plan_is_planned_again_and_what_does_not_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_planned(tmp_path, {"plan": 1}, inputs())
    assert is_planned(tmp_path, inputs("tracking=off", "report.title=other", "run.root=elsewhere"))
    assert not is_planned(tmp_path, inputs("train.batch_size=64"))
    assert not is_planned(tmp_path, Inputs(inputs().config, ("left_wrist_0_rgb",)))
    monkeypatch.setattr(planned, "INSTALLATION", planned.INSTALLATION | {"code of sharder": "edited"})
    assert not is_planned(tmp_path, inputs())


def test_never_plans_again_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(planning, "planned_for", lambda config, cameras: made.append(config.resume))
    write_planned(tmp_path, {"plan": 1}, inputs())
    planning.write_plan(inputs(), tmp_path)
    assert made == []
    with pytest.raises(AttributeError):  # there is no plan to write
        planning.write_plan(inputs("resume=never"), tmp_path)
    assert made == ["never"]
