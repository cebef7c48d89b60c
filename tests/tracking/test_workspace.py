"""The dashboard of a W&B project shows what runs record, and nothing else."""

import dataclasses
import importlib.util
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import processes
import pytest
import wandb_files
from hand_made_breakdown import breakdown

from sharder.compose import composed
from sharder.config import Config
from sharder.measure.mfu import machine
from sharder.parallel.mesh import make_mesh
from sharder.tracking import workspace
from sharder.tracking.metrics import METRICS, MetricsFile, raw_rows
from sharder.tracking.sinks import Tracker
from sharder.tracking.wandb_breakdown import METRICS as BREAKDOWN_METRICS
from sharder.tracking.wandb_breakdown import metrics as breakdown_metrics
from sharder.tracking.workspace import SECTIONS, Panel
from sharder.training import evaluation
from sharder.training.clock import Clock
from sharder.training.program import Program, make_program
from sharder.training.rates import make_rates
from sharder.training.step import make_train_step
from sharder.training.under_way import UnderWay

FROM_THE_BREAKDOWN = {"breakdown", "breakdown_figure", *BREAKDOWN_METRICS}  # W&B's process adds them: wandb_child.py


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The keys of metrics.jsonl of a run that resumed and was evaluated, on a device whose peak is known: written by
    the training's own parts, around steps that are not computed."""
    file = tmp_path_factory.mktemp("run") / METRICS
    (config,) = composed("train", ["model=pi0_micro", "model.action_dim=4", "model.prompt_tokens=24"])
    config.train.log_every = 1
    program = make_program(config, make_mesh(config.mesh), ("base_0_rgb",))
    rates = make_rates(program, machine("NVIDIA H100 80GB HBM3", 1, config.model.compute_dtype, 1e18))
    clock = Clock(now=itertools.count().__next__)
    with Tracker([MetricsFile(file, first_step=1)]) as tracker:
        under_way = UnderWay(program, file.parent, clock, tracker, rates, batches_per_epoch=1)
        for step in (1, 2, 3):
            with clock.dispatching():
                pass
            under_way.dispatched(step, ones(program), {}, None)
            under_way.finish(program.state)
        evaluate(config, tracker)
    return {name for row in raw_rows(file) for name in row}


def ones(program: Program) -> dict[str, jax.Array]:
    """The metrics of a train step, by name."""
    train_step = make_train_step(program.config, program.execution, program.mesh, program.layout)
    _, metrics = jax.eval_shape(train_step, program.state, program.batch)
    return {name: jnp.ones(metric.shape, metric.dtype) for name, metric in metrics.items()}


def evaluate(config: Config, tracker: Tracker) -> None:
    """An evaluation in which nobody rolls anything out."""
    alone = SimpleNamespace(index=0, barrier=lambda name: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "closed_loop", lambda *_: evaluation.Success(1, 2))
        it = SimpleNamespace(_config=config, _mesh=SimpleNamespace(size=1), _hosts=alone, _sampler=None)
        evaluation.Evaluation.__call__(it, {}, tracker, 3, "after training")  # type: ignore[arg-type]


def unknown(metrics: set[str], logged: set[str]) -> set[str]:
    return metrics - logged - FROM_THE_BREAKDOWN


def test_every_metric_that_is_shown_is_logged(logged: set[str]) -> None:
    assert unknown(workspace.metrics(), logged) == set()


def test_a_metric_that_no_run_logs_is_found(logged: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(workspace.SECTIONS, "wrong", (Panel("a panel that stays empty", ("losses",)),))
    assert unknown(workspace.metrics(), logged) == {"losses"}


def test_what_matters_is_shown(logged: set[str]) -> None:
    shown = workspace.metrics()
    parts = {name for name in logged if name.endswith("_ms")} - {"step_ms", "dispatch_ms"}  # as training/clock.py adds
    assert parts == set(workspace.PARTS)
    assert {"loss", "mfu", "hfu", "mfu_6nd", "success_rate", "attempt", "resumed_at"} <= shown


def test_every_key_of_the_config_that_is_shown_is_told() -> None:
    told = dataclasses.asdict(Config()) | {"environment": {"device_count": 1, "kind": "measured"}}
    for key in workspace.config_keys():
        found: Any = told
        for part in key.split("."):
            assert part in found, key
            found = found[part]


def test_every_row_of_a_breakdown_has_a_metric() -> None:
    told = breakdown(attention_ms=5.0).to_json()
    found = breakdown_metrics(told)
    assert found.keys() <= set(BREAKDOWN_METRICS)
    assert found["breakdown_ms/attention"] == 5.0
    assert found["breakdown_ms/optimizer"] == 10.0
    assert sum(found.values()) == pytest.approx(told["step_ms"])
    assert breakdown_metrics(breakdown(problems=("a plane is missing",)).to_json()) == {}


def test_a_project_has_one_dashboard() -> None:
    assert workspace.view_id("sharder", "a") == workspace.view_id("sharder", "a")
    assert len({workspace.view_id(*owned) for owned in (("sharder", "a"), ("sharder", "b"), ("other", "a"))}) == 3


with_library = pytest.mark.skipif(
    importlib.util.find_spec("wandb_workspaces") is None,
    reason="wandb-workspaces is not installed: pip install '.[dashboard]'",
)


@with_library
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the library itself, with pydantic
class TestSent:
    @pytest.fixture
    def spec(self) -> dict[str, Any]:
        """What would be sent, as W&B reads it."""
        made = workspace.make("sharder", "someone")
        return json.loads(made._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))["section"]

    def test_a_section_a_subject_and_a_panel_a_figure(self, spec: dict[str, Any]) -> None:
        sections = spec["panelBankConfig"]["sections"]
        assert [section["name"] for section in sections] == list(SECTIONS)
        assert all(section["isOpen"] for section in sections)
        titles = [[panel["config"]["chartTitle"] for panel in section["panels"]] for section in sections]
        assert titles == [[panel.title for panel in panels] for panels in SECTIONS.values()]

    def panel(self, spec: dict[str, Any], section: str, number: int) -> tuple[str, dict[str, Any]]:
        (found,) = [part for part in spec["panelBankConfig"]["sections"] if part["name"] == section]
        return found["panels"][number]["viewType"], found["panels"][number]["config"]

    def test_lines_are_by_the_step_of_the_training(self, spec: dict[str, Any]) -> None:
        kind, config = self.panel(spec, "training", 0)
        assert kind == "Run History Line Plot"
        assert (config["xAxis"], config["metrics"], config["plotType"]) == ("step", ["loss"], "line")

    def test_a_steps_parts_are_stacked(self, spec: dict[str, Any]) -> None:
        for number, plot_type in enumerate(("stacked-area", "pct-area")):
            _, config = self.panel(spec, "where the time goes", number)
            assert (config["metrics"], config["plotType"]) == (list(workspace.PARTS), plot_type)

    def test_the_breakdown_is_a_figure_and_bars(self, spec: dict[str, Any]) -> None:
        kind, config = self.panel(spec, "where the time goes", 3)
        assert (kind, config["mediaKeys"]) == ("Media Browser", ["breakdown_figure"])
        kind, config = self.panel(spec, "where the time goes", 4)
        assert (kind, config["metrics"]) == ("Bar Chart", list(BREAKDOWN_METRICS))

    def test_scaling_is_against_devices(self, spec: dict[str, Any]) -> None:
        kind, config = self.panel(spec, "scaling", 0)
        assert kind == "Scatter Plot"
        assert (config["xAxis"], config["yAxis"]) == ("config:environment.value.device_count", "summary:step_ms")
        assert config["xAxisLogScale"] and config["yAxisLogScale"]
        kind, config = self.panel(spec, "scaling", 3)
        accessors = [column["accessor"] for column in config["columns"]]
        assert kind == "Parallel Coordinates Plot"
        assert accessors[:2] == ["config:environment.value.kind", "config:layout.value.name"]
        assert accessors[-1] == "summary:mfu"

    def test_restarts_are_by_what_never_goes_back(self, spec: dict[str, Any]) -> None:
        for number, metric in enumerate(("attempt", "step", "resumed_at")):
            _, config = self.panel(spec, "restarts", number)
            assert (config["xAxis"], config["metrics"]) == ("_timestamp", [metric])

    def test_runs_are_grouped_by_experiment_and_not_averaged(self, spec: dict[str, Any]) -> None:
        (runs,) = spec["runSets"]
        grouping = [(key["section"], key["name"]) for key in runs["grouping"]]
        assert grouping == [("run", "group"), ("config", "environment.value.kind")]
        assert spec["settings"]["useRunsTableGroupingInPanels"] is False
        for section in spec["panelBankConfig"]["sections"]:
            assert section["localPanelSettings"]["useRunsTableGroupingInPanels"] is False


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_real_run_that_was_profiled_and_resumed_records_all_that_is_shown(tmp_path: Path) -> None:
    """From the files that `wandb sync` sends: every metric and key of the config, the group and the tags."""
    chosen = (
        *("run.id=a", "mesh=fsdp2", "tracking=offline", "evaluation.at_end=true", "evaluation.episodes=2"),
        *("hardware.peak_flops_per_s=1e12", "profile=window", "profile.after_steps=1", "profile.steps=2"),
    )
    for steps in (5, 7):
        done = processes.run(tmp_path, *processes.MICRO, *chosen, f"train.steps={steps}", JAX_PLATFORMS="cpu")
        assert done.returncode == 0, done.stdout + done.stderr
    files = wandb_files.files(tmp_path / "outputs" / "train" / "a")
    records = [record for file in files for record in wandb_files.records(file)]
    recorded = {item.key or item.nested_key[0] for record in records for item in record.history.item}
    in_trace = {name for name in recorded if name.startswith("breakdown_ms/")}
    assert {"breakdown_ms/MLP", "breakdown_ms/attention", "breakdown_ms/idle"} <= in_trace <= set(BREAKDOWN_METRICS)
    assert workspace.metrics() - set(BREAKDOWN_METRICS) <= recorded
    run = next(record.run for record in reversed(records) if record.WhichOneof("record_type") == "run")
    assert (run.run_group, run.job_type) == ("train", "train")
    assert {"model=pi0_micro", "mesh=fsdp2", "hardware=cpu", "simulated"} <= set(run.tags)
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (config["environment"]["device_count"], config["environment"]["kind"]) == (2, "simulated")
