"""The CSV files of an experiment: nothing is lost in them, and what is damaged is said in a line."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharder.errors import UserError
from sharder.report.tables import Compared, compared, merged, read, read_table, write

H100 = "NVIDIA H100 80GB HBM3"


def row(kind: str = "predicted", run: str = "a", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "model": "pi0", "hardware": H100, "devices": 1, **more, "run": run}


def test_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """Names that look like numbers stay names: a commit, a swept value, a run's id."""
    rows = [
        row(run="lr=1e-3,mesh=fsdp2", mesh="fsdp2", step_ms=1.25, fits="yes", commit="12345e678901", weights="0.50"),
        row(run="b", **{"optimizer.learning_rate": "1e-3"}, mfu=0.3, devices=2, jax="0.10"),
    ]
    write(tmp_path / "predicted.csv", rows, ["mesh", "optimizer.learning_rate"])
    assert read_table(tmp_path / "predicted.csv", "predicted") == rows
    head = (tmp_path / "predicted.csv").read_text().splitlines()[0]
    assert head == (
        "kind,model,hardware,devices,mesh,optimizer.learning_rate,step_ms,mfu,fits,weights,jax,commit,run"
    )  # no column without a value; where from, what was swept, numbers, where to find it


@given(
    st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"])).filter(bool), st.floats(allow_nan=False)
)
def test_any_text_and_number_come_back(tmp_path_factory: pytest.TempPathFactory, text: str, number: float) -> None:
    path = tmp_path_factory.mktemp("table") / "predicted.csv"
    rows = [row(run=text, mesh=text, step_ms=number)]
    write(path, rows, ["mesh"])
    assert read_table(path, "predicted") == rows


def test_no_file_is_no_row(tmp_path: Path) -> None:
    assert read(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind,hardware,devices,step_ms\npredicted,gpu,1,fast\n", "line 2 has step_ms 'fast', allowed: a number"),
        (
            "kind,hardware,devices\npredicted,gpu,1\nmeasured,gpu,1\n",
            "line 3 says kind measured, allowed there: predicted",
        ),
        ("kind,hardware,devices\npredicted,gpu,1,2\n", "line 2 has not as many cells as the head"),
        ("kind,hardware,devices\npredicted,gpu\n", "line 2 has not as many cells as the head"),
        ("kind,devices\npredicted,1\n", "line 2 has no hardware"),
        ('kind,hardware,devices\npredicted,"gpu,1\n', "cannot be read"),
        (b"kind\xff\n", "cannot be read"),
    ],
)
def test_damaged_table_is_one_line(tmp_path: Path, text: str | bytes, said: str) -> None:
    path = tmp_path / "predicted.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as refused:
        read(tmp_path)
    assert said in str(refused.value) and str(path) in str(refused.value)


def test_kind_of_a_file_is_that_of_its_rows(tmp_path: Path) -> None:
    (tmp_path / "published.csv").write_text("hardware,devices,step_ms\ngpu,1,195.60\n")
    assert read(tmp_path) == [{"kind": "published", "hardware": "gpu", "devices": 1, "step_ms": 195.6}]


def test_run_is_as_it_was_found_last_and_other_machines_rows_stay() -> None:
    before = [
        row(run="a", step_ms=1.0),
        row(run="a", step_ms=2.0) | {"hardware": "TPU"},
        row(run="b", step_ms=3.0),
        row(run="c", step=10, loss=9.0),
        row(run="c", step=15, loss=9.0),
    ]
    found = [row(run="a", step_ms=1.5), row(run="c", step=20, loss=1.0)]
    together = merged(before, found)
    assert [(one["run"], one["hardware"], one.get("step_ms"), one.get("step")) for one in together] == [
        ("a", "TPU", 2.0, None),
        ("b", H100, 3.0, None),
        ("a", H100, 1.5, None),
        ("c", H100, None, 20),  # all its old steps are gone
    ]


def published(**more: Any) -> dict[str, Any]:
    return {key: value for key, value in row("published", **more).items() if key != "run"}


def test_published_numbers_stand_beside_the_same_point() -> None:
    rows = [
        published(mesh="single", system="published", batch_size=4, step_ms=200.0),
        published(mesh="fsdp2", system="published", batch_size=4, step_ms=100.0),
        row(mesh="single", system="published", batch_size=4, step_ms=190.0),
        row("measured", mesh="single", system="published", batch_size=4, step_ms=210.0, memory_gb=3.0),
        row(mesh="single", system="sharder", batch_size=4, step_ms=120.0),
    ]
    point = {
        "mesh": "single",
        "system": "published",
        "model": "pi0",
        "hardware": H100,
        "devices": "1",
        "batch_size": "4",
    }
    found = compared(rows, ["mesh", "system"])
    assert found == [
        Compared(point, "step_ms", 200.0, 190.0, "predicted"),
        Compared(point, "step_ms", 200.0, 210.0, "measured"),
    ]
    assert [round(one.error, 9) for one in found] == [-0.05, 0.05]


@pytest.mark.parametrize(
    "other",
    [
        {"hardware": "CPU, 2 cores"},
        {"model": "pi0_nano"},
        {"devices": 2},
        {"batch_size": 8},
        {"mesh": "fsdp2"},
        {"attn": "flash"},  # swept, and not said by those who published
        {"kind": "simulated"},
    ],
)
def test_another_point_is_not_compared(other: dict[str, Any]) -> None:
    there = published(mesh="single", batch_size=4, step_ms=200.0)
    same = row(mesh="single", batch_size=4, step_ms=190.0)
    assert len(compared([there, same], ["mesh", "attn"])) == 1
    assert compared([there, same | other], ["mesh", "attn"]) == []
