"""A breakdown as people see it: a table, a figure, a file, and all of them in W&B."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import wandb_files
from hand_made_breakdown import breakdown

from sharder.config import Config
from sharder.tracking.breakdown import by_category, publish, text
from sharder.tracking.sinks import open_tracker


def test_the_table_has_a_row_a_category_and_a_column_a_pass() -> None:
    said = text(breakdown(ablation={"full_ms": 100.0, "without_attention_ms": 80.0}))
    assert "a step of 100.00 ms" in said
    row = next(line for line in said.splitlines() if "MLP" in line)
    assert row.replace("│", "").split() == ["MLP", "16.67", "33.33", "20.00", "70.00", "70.0%"]
    assert "7.0% of the time was divided among what XLA fused" in " ".join(said.split())
    assert "attention: 0.0% of the busy time by attribution, 20.0% of a step by leaving it out" in said


def test_categories_come_by_time_and_what_is_no_op_last() -> None:
    assert list(by_category(breakdown())) == [
        "MLP",
        "optimizer",
        "collectives",
        "data wait",
        "peer wait",
        "saving",
        "idle",
        "not in the trace",
    ]


def test_the_figure_says_when_the_trace_is_incomplete(tmp_path: Path) -> None:
    said: list[str] = []
    publish(breakdown(problems=("the plane 'x' is missing",)), tmp_path, said.append)
    svg = tmp_path / "breakdown.svg"
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert "INCOMPLETE TRACE" in svg.read_text()
    assert json.loads((tmp_path / "breakdown.json").read_text())["complete"] is False
    assert said[-2:] == [
        "incomplete, no conclusion: the plane 'x' is missing",
        f"table and figure: {tmp_path}/breakdown.json, {tmp_path}/breakdown.svg, .png",
    ]


@pytest.mark.multiprocess
def test_w_and_b_has_the_table_and_the_figure(tmp_path: Path) -> None:
    folder = tmp_path / "train" / "one"
    folder.mkdir(parents=True)
    config = Config()
    config.tracking.mode = "offline"
    with open_tracker(config, folder, 0) as tracker:
        tracker.log({"step": 1, "loss": 0.5, "step_ms": 100.0, "examples_per_s": 80.0, "host_peak_mb": 700.0})
        publish(breakdown(), folder / "profile", lambda line: None)
    (file,) = wandb_files.files(folder)
    assert wandb_files.rows(file)[0]["step_ms"] == 100.0
    logged = {
        "/".join(item.nested_key): json.loads(item.value_json)
        for record in wandb_files.records(file)
        for item in record.history.item
    }
    assert logged["breakdown/_type"] == "table-file"
    assert logged["breakdown/nrows"] == len(breakdown().rows())
    assert logged["breakdown_figure/_type"] == "image-file"
    for name in ("breakdown", "breakdown_figure"):
        assert (file.parent / "files" / logged[f"{name}/path"]).is_file()
