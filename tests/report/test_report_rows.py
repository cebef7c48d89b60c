"""From run folders whose numbers are chosen to rows of a table."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from made_runs import BATCH, DEPTH, H100, add_breakdown, add_plan, add_run, make_folder, steps, write_json

from sharder.config import ReportConfig
from sharder.errors import UserError
from sharder.report.rows import rows_of
from sharder.tracking.metrics import NOT_FINITE

STACKED_MS = ReportConfig(draw="stacked", y=["MLP", "attention", "vision"], unit="ms")
STACKED_GB = ReportConfig(draw="stacked", y=["weights", "gradients"], unit="GB")


def one(folder: Path, report: ReportConfig | None = None, swept: tuple[str, ...] = ()) -> dict[str, Any]:
    [row] = rows_of(folder, report or ReportConfig(), swept)
    return row


def test_plan_is_predicted_for_the_hardware_that_it_names(tmp_path: Path) -> None:
    row = one(add_plan(make_folder(tmp_path)))
    assert (row["kind"], row["model"], row["hardware"], row["devices"]) == ("predicted", "pi0_made", H100, 2)
    assert (row["batch_size"], row["batch_per_device"]) == (8, 4)
    assert row["tokens"] == 2 * 16 + 48 + 1 + 50  # cameras, prompt, state, actions
    assert (row["step_ms"], row["exposed_step_ms"], row["examples_per_s"]) == (100.0, 120.0, 80.0)
    assert (row["mfu"], row["hfu"], "mfu_6nd" in row) == (0.25, 0.3, False)
    assert row["model_tflop"] == 0.25 * 2 * 1e15 * 0.1 / 1e12  # MFU x devices x peak x time
    assert (row["attention_ms"], row["attention_layer_forward_ms"]) == (30.0, 12.0 / DEPTH)
    assert (row["memory_gb"], row["fits"]) == (20.0, "yes")
    assert (row["payload_gb"], row["sent_gb"], row["collectives"], row["async_share"]) == (4.0, 2.0, 4, 0.75)
    assert (row["jax"], row["commit"], row["date"], row["run"]) == ("0.10.2", "12345e678901", "2026-11-30", "a")


def test_plan_that_the_compiler_refused_has_memory_and_no_time(tmp_path: Path) -> None:
    memory = {"parts": [{"kind": "weights", "bytes": 90e9}], "total_bytes": 90e9, "fits": False}
    folder = add_plan(make_folder(tmp_path), timing=None, traffic=None, memory=memory)
    row = one(folder, STACKED_MS)
    assert (row["memory_gb"], row["fits"]) == (90.0, "no")
    assert not {"step_ms", "mfu", "payload_gb", "attention_ms", "MLP"} & row.keys()


def test_unknown_peak_is_no_mfu_of_zero(tmp_path: Path) -> None:
    folder = add_plan(make_folder(tmp_path))
    written = json.loads((folder / "plan.json").read_text())
    written["plan"]["timing"] |= {"mfu": None, "hfu": None}
    write_json(folder / "plan.json", written)
    assert not {"mfu", "hfu", "mfu_6nd", "model_tflop"} & one(folder).keys()


def test_what_is_stacked_is_divided_by_kind_or_by_category(tmp_path: Path) -> None:
    folder = add_plan(make_folder(tmp_path))
    memory = one(folder, STACKED_GB)
    assert (memory["weights"], memory["gradients"], "MLP" in memory) == (10.0, 5.0, False)
    time = one(folder, STACKED_MS)
    assert (time["MLP"], time["attention"], "weights" in time) == (60.0, 30.0, False)
    assert "vision" not in time  # the plan has none of it, which is not a measured nought


@pytest.mark.parametrize(
    ("device_kind", "devices", "kind", "hardware"),
    [
        (H100, 1, "measured", H100),
        (H100, 4, "measured", H100),
        ("cpu", 1, "measured", "CPU, 2 cores"),
        ("cpu", 4, "simulated", "CPU, 2 cores"),
    ],
)
def test_several_devices_of_one_cpu_are_simulated(
    tmp_path: Path, device_kind: str, devices: int, kind: str, hardware: str
) -> None:
    row = one(add_run(make_folder(tmp_path), steps({"loss": 1.0}), device_kind, devices))
    assert (row["kind"], row["hardware"], row["devices"]) == (kind, hardware, devices)
    assert (row["batch_size"], row["batch_per_device"], row["tokens"]) == (BATCH, BATCH // devices, 131)


def test_times_are_medians_without_what_starts_cost(tmp_path: Path) -> None:
    """The first timed row of each attempt is left out: 900 and 800 here."""
    rows = [
        {"step": 10, "step_ms": 900.0, "loss": 3.0, "mfu": 0.01, "device_peak_mb": 900.0},
        {"step": 20, "step_ms": 100.0, "loss": 2.0, "mfu": 0.30, "device_peak_mb": 1500.0},
        {"step": 30, "attempt": 1, "resumed_at": 20, "step_ms": 800.0, "loss": 1.9, "mfu": 0.02},
        {"step": 40, "attempt": 1, "step_ms": 104.0, "loss": 1.8, "mfu": 0.28},
        {"step": 50, "attempt": 1, "step_ms": 120.0, "loss": 1.7, "mfu": 0.26},
    ]
    row = one(add_run(make_folder(tmp_path), rows))
    assert (row["step_ms"], row["step_ms_low"], row["step_ms_high"]) == (104.0, 100.0, 120.0)
    assert (row["mfu"], row["memory_gb"], row["loss"], row["steps"]) == (0.28, 1.5, 1.7, 50)


def test_only_row_of_a_short_run_counts(tmp_path: Path) -> None:
    assert one(add_run(make_folder(tmp_path), steps({"step_ms": 900.0})))["step_ms"] == 900.0


def test_loss_that_is_no_number_is_told(tmp_path: Path) -> None:
    row = one(add_run(make_folder(tmp_path), steps({"loss": 1.0}, {"loss": "nan"})))
    assert "nan" in NOT_FINITE  # how metrics.jsonl spells it
    assert math.isnan(row["loss"])


def test_success_has_its_interval_where_it_is_known_of_how_many(tmp_path: Path) -> None:
    known = one(add_run(make_folder(tmp_path), steps({"success_rate": 0.5, "success_episodes": 4})))
    assert known["success_rate"] == 0.5
    assert (known["success_rate_low"], known["success_rate_high"]) == pytest.approx((0.15, 0.85), abs=0.001)  # Wilson
    unknown = one(add_run(make_folder(tmp_path, id="b"), steps({"success_rate": 0.5})))
    assert "success_rate_low" not in unknown


def test_goodput_is_the_share_of_time_in_steps_that_stand(tmp_path: Path) -> None:
    """20 steps of 100 ms and 20 of 200 stand: 6 s of the 24 s from the first start to completion."""
    rows = [
        {"step": 20, "step_ms": 100.0},
        {"step": 30, "step_ms": 5000.0},  # lost: the next attempt resumed at 20
        {"step": 40, "attempt": 1, "resumed_at": 20, "step_ms": 200.0},
    ]
    folder = add_run(make_folder(tmp_path), rows)
    told = [{"time": 1000.0, "event": "start"}, {"time": 1010.0, "event": "exit"}, {"time": 1011.0, "event": "start"}]
    events = [json.dumps(event) for event in told]
    (folder / "supervisor.jsonl").write_text("\n".join([*events, '{"time": 1012.0, "ev']))
    row = one(folder)
    assert (row["restarts"], "goodput" in row) == (1, False)  # not complete yet
    (folder / "supervisor.jsonl").write_text(
        "\n".join([*events, '{"ti', json.dumps({"time": 1024.0, "event": "complete"})])
    )
    row = one(folder)
    assert (row["restarts"], row["goodput"]) == (1, 0.25)


def test_breakdown_says_what_attention_took(tmp_path: Path) -> None:
    folder = add_run(make_folder(tmp_path), steps({"step_ms": 90.0}))
    add_breakdown(folder)
    row = one(folder, STACKED_MS)
    assert (row["attention_ms"], row["attention_layer_forward_ms"]) == (24.0, 8.0 / DEPTH)
    assert (row["MLP"], row["attention"]) == (50.0, 24.0)
    add_breakdown(folder, complete=False)  # a trace that was cut off
    assert not {"attention_ms", "MLP"} & one(folder, STACKED_MS).keys()


def test_row_a_step(tmp_path: Path) -> None:
    folder = add_run(make_folder(tmp_path), steps({"loss": 2.0, "mfu": None}, {"loss": 1.5}, {"host_peak_mb": 3.0}))
    add_plan(folder)  # predicts no loss
    rows = list(rows_of(folder, ReportConfig(rows="step"), ()))
    assert [(row["step"], row["loss"]) for row in rows] == [(10, 2.0), (20, 1.5)]
    assert all(row["kind"] == "measured" and "mfu" not in row for row in rows)


def test_what_was_swept_is_in_the_row(tmp_path: Path) -> None:
    overrides = ["mesh=fsdp2", "+model.prompt_tokens=48", "run.root=elsewhere", "optimizer.learning_rate=1e-3"]
    folder = add_plan(make_folder(tmp_path, overrides))
    row = one(folder, swept=("mesh", "model.prompt_tokens", "optimizer.learning_rate"))
    assert (row["mesh"], row["model.prompt_tokens"], row["optimizer.learning_rate"]) == ("fsdp2", "48", "1e-3")
    assert "run.root" not in row


def test_run_and_plan_in_one_folder_are_two_rows(tmp_path: Path) -> None:
    folder = add_run(add_plan(make_folder(tmp_path)), steps({"step_ms": 110.0}))
    rows = list(rows_of(folder, ReportConfig(), ()))
    assert [(row["kind"], row["step_ms"]) for row in rows] == [("predicted", 100.0), ("measured", 110.0)]


def test_nothing_happened_is_no_row(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    assert list(rows_of(folder, ReportConfig(), ())) == []
    add_run(folder, [])
    assert list(rows_of(folder, ReportConfig(), ())) == []
    write_json(folder / "evaluation.json", {"step": 3})
    assert list(rows_of(folder, ReportConfig(), ())) == []


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("plan.json", "{", "plan.json: cannot be read"),
        ("plan.json", '{"plan": {}}', "not as this version writes them"),
        ("plan.json", "[]", "not as this version writes them"),
        (".hydra/config.yaml", "model: [", "is not YAML"),
        (".hydra/overrides.yaml", "a: [", "overrides.yaml: cannot be read"),
    ],
)
def test_damaged_folder_is_one_line(tmp_path: Path, file: str, text: str, said: str) -> None:
    folder = add_plan(make_folder(tmp_path))
    (folder / file).write_text(text)
    with pytest.raises(UserError) as refused:
        list(rows_of(folder, ReportConfig(), ()))
    assert said in str(refused.value) and str(folder) in str(refused.value)


def test_folder_that_went_away_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gone"):
        list(rows_of(tmp_path / "gone", ReportConfig(), ()))
