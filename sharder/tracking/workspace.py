"""The dashboard of a W&B project: which panels it has, as data, and how they are saved there as a workspace.

What a panel shows is a metric that runs log, or a key of what W&B is told of a run (wandb_about.py); a test holds every
one of them against what a run records. Runs are never averaged: a sweep's points are not repetitions of one another.

The workspace has a name of its own in each project, so that saving it again replaces it. Only `save` needs the network,
an account, and the extra `dashboard`.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any, Literal

from sharder.errors import UserError
from sharder.tracking.wandb_breakdown import METRICS as BREAKDOWN

NAME = "Sharder"  # as W&B lists it
STEP = "step"  # of the training: after a restart it goes back
TIME = "WallTime"  # W&B's own word: the clock, which never goes back
DEVICES, KIND = "environment.device_count", "environment.kind"  # of a run's config
PARTS = ("device_ms", "data_wait_ms", "peer_wait_ms", "host_ms")  # add up to step_ms
LEGEND = "${run:group}: ${run:displayName}"
RUNS_SHOWN = 50  # a panel; W&B's default is 10

Draw = Literal["lines", "stacked", "shares", "bars", "points", "columns", "images"]


@dataclass(frozen=True)
class Panel:
    """lines, stacked, shares: metrics against another one. bars: the last value of each, by run. points: the last value
    against a key of the config. columns: a line a run through keys of the config and metrics. images: the newest."""

    title: str
    metrics: tuple[str, ...]
    draw: Draw = "lines"
    against: str = STEP
    config: tuple[str, ...] = ()  # columns, before the metrics
    log: bool = False


SECTIONS: dict[str, tuple[Panel, ...]] = {
    "training": (
        Panel("loss", ("loss",)),
        Panel("norm of the gradient, before it is clipped", ("grad_norm",)),
        Panel("learning rate", ("learning_rate",)),
        Panel("success rate of closed-loop evaluation", ("success_rate",)),
    ),
    "speed": (
        Panel("time of a step (ms)", ("step_ms",)),
        Panel("examples a second, all devices", ("examples_per_s",)),
        Panel("mfu: model FLOPs counted exactly, of the peak", ("mfu",)),
        Panel("hfu: the same and recomputation, of the peak", ("hfu",)),
        Panel("mfu_6nd: 6 x parameters x tokens, of the peak", ("mfu_6nd",)),
        Panel("most memory of a host so far (MB)", ("host_peak_mb",)),
    ),
    "where the time goes": (
        Panel("a step's parts (ms), stacked: show one run", PARTS, "stacked"),
        Panel("a step's parts, shares: show one run", PARTS, "shares"),
        Panel("waiting for data (ms a step)", ("data_wait_ms",)),
        Panel("by category and pass, stacked (profile=window)", ("breakdown_figure",), "images"),
        Panel("by category (ms a step, profile=window)", BREAKDOWN, "bars"),
    ),
    "scaling": (
        Panel("time of a step (ms) by devices", ("step_ms",), "points", DEVICES, log=True),
        Panel("mfu by devices", ("mfu",), "points", DEVICES),
        Panel("examples a second by devices", ("examples_per_s",), "points", DEVICES, log=True),
        Panel(
            "what was chosen, what came of it",
            ("step_ms", "examples_per_s", "mfu"),
            "columns",
            config=(KIND, "layout.name", "attn.name", "remat.name", "work.name", "train.batch_size", DEVICES),
        ),
    ),
    "restarts": (
        Panel("attempt by the clock: a new one with each restart", ("attempt",), against=TIME),
        Panel("step by the clock: what a restart took back", ("step",), against=TIME),
        Panel("where restarts resumed (step), by the clock", ("resumed_at",), against=TIME),
        Panel("restarts so far, by run", ("attempt",), "bars"),
    ),
}


def metrics() -> set[str]:
    """All that the panels show of what runs log."""
    against = {panel.against for panel in _panels() if panel.draw != "points"} - {TIME}
    return {name for panel in _panels() for name in panel.metrics} | against


def config_keys() -> set[str]:
    """All that they show of what W&B is told of a run; nested ones with dots."""
    against = {panel.against for panel in _panels() if panel.draw == "points"}
    return {name for panel in _panels() for name in panel.config} | against | {KIND}


def save(project: str, entity: str | None) -> str:
    """Makes the workspace, or replaces it, and returns its address. `entity` None: the account's own."""
    os.environ.setdefault("WANDB_SILENT", "true")  # it would ask for an account, and tell of what it does
    library = _library()
    try:
        api = library.wandb.Api()
        owner = entity or api.settings["entity"] or api.default_entity
        if owner is None:
            raise UserError("entity: found none, and W&B knows no default of this account; set entity=<user or team>")
        _check_project(library, api, project, owner)
        workspace = make(project, owner)
        workspace._internal_id = _id_of_existing(library, project, owner)
        workspace.save()
    except library.wandb.errors.UsageError as error:
        raise UserError(
            f"W&B: found no login ({error}); allowed: an account; run `wandb login`, or set WANDB_API_KEY"
        ) from error
    except library.failures as error:
        raise UserError(
            f"W&B: the dashboard was not saved ({type(error).__name__}: {error}); allowed: an account that may write "
            "to the project, and a network; check `wandb login`, WANDB_BASE_URL and entity=..."
        ) from error
    return str(workspace.url)


def make(project: str, entity: str) -> Any:
    """The workspace as it would be saved."""
    library = _library()
    ws = library.workspaces
    workspace = library.workspace_class(
        entity=entity,
        project=project,
        name=NAME,
        sections=_sections(library),
        settings=ws.WorkspaceSettings(x_axis=STEP, max_runs=RUNS_SHOWN),
        runset_settings=ws.RunsetSettings(
            groupby=[ws.Metric("Group"), ws.Config(KIND)],
            pinned_columns=["run:displayName", "run:tags", "summary:step", "summary:step_ms", "summary:mfu"],
        ),
    )
    workspace._internal_name = f"nw-{view_id(project, entity)}-v"  # else it gets a name by chance, and so twice
    return workspace


@dataclass(frozen=True)
class _Library:
    """What is imported where it is needed."""

    wandb: Any
    workspaces: Any
    panels: Any  # the library has the same ones for reports and workspaces
    workspace_class: Any
    failures: tuple[type[Exception], ...]


def _library() -> _Library:
    try:
        import wandb_workspaces.reports.v2 as panels
        import wandb_workspaces.workspaces as workspaces
        from wandb_workspaces.workspaces.errors import SpecVersionError
    except ImportError as error:
        raise UserError(
            f"wandb-workspaces: found none that can be imported ({error}); allowed: the extra `dashboard`; "
            "pip install '.[dashboard]'"
        ) from error
    import wandb
    from wandb.sdk.lib.service.service_connection import WandbApiFailedError

    class Workspace(workspaces.Workspace):
        """The runs are listed by group, but drawn one by one, for which the library has no setting."""

        def _to_model(self) -> Any:
            view = super()._to_model()
            section = view.spec.section
            section.settings.use_runs_table_grouping_in_panels = False
            for part in section.panel_bank_config.sections:
                part.local_panel_settings.use_runs_table_grouping_in_panels = False
            return view

    unsaid = (SpecVersionError, OSError, ValueError)  # ValueError: an answer that cannot be read
    return _Library(wandb, workspaces, panels, Workspace, (wandb.Error, WandbApiFailedError, *unsaid))


def _check_project(library: _Library, api: Any, project: str, entity: str) -> None:
    try:
        _ = api.project(project, entity).id
    except ValueError as error:
        if isinstance(error.__cause__, library.failures):  # nobody could be asked
            raise error.__cause__ from None
        raise UserError(
            f"project: found {project!r}, allowed: a project of {entity} on W&B; send a run to it first, with "
            f"tracking=online tracking.project={project} or `wandb sync`, or name its owner: entity=<user or team>"
        ) from error


def _id_of_existing(library: _Library, project: str, entity: str) -> str:
    """W&B's id of the one that will be replaced; empty where there is none."""
    address = f"https://wandb.ai/{entity}/{project}?nw={view_id(project, entity)}"  # only its path is read
    try:
        return str(library.workspaces.Workspace.from_url(address)._internal_id)
    except ValueError as error:
        if type(error) is not ValueError:  # there is one, and it cannot be read
            raise
        return ""


def view_id(project: str, entity: str) -> str:
    """The end of the workspace's address: the same for one project, and another for every other."""
    return "sharder" + hashlib.sha256(f"{entity}/{project}".encode()).hexdigest()[:8]


def _panels() -> list[Panel]:
    return [panel for panels in SECTIONS.values() for panel in panels]


def _sections(library: _Library) -> list[Any]:
    return [
        library.workspaces.Section(
            name=name,
            panels=[_drawn(panel, library.panels) for panel in panels],
            is_open=True,
            layout_settings=library.workspaces.SectionLayoutSettings(columns=3, rows=-(-len(panels) // 3)),
        )
        for name, panels in SECTIONS.items()
    ]


def _drawn(panel: Panel, wr: Any) -> Any:
    if panel.draw == "images":
        return wr.MediaBrowser(title=panel.title, media_keys=list(panel.metrics))
    if panel.draw == "bars":
        return wr.BarPlot(
            title=panel.title, metrics=list(panel.metrics), max_runs_to_show=RUNS_SHOWN, legend_template=LEGEND
        )
    if panel.draw == "points":
        (metric,) = panel.metrics
        return wr.ScatterPlot(
            title=panel.title, x=wr.Config(panel.against), y=wr.SummaryMetric(metric), log_x=True, log_y=panel.log,
            legend_template=LEGEND,
        )  # fmt: skip
    if panel.draw == "columns":
        shown = [*map(wr.Config, panel.config), *map(wr.SummaryMetric, panel.metrics)]
        columns = [wr.ParallelCoordinatesPlotColumn(metric=metric, display_name=metric.name) for metric in shown]
        return wr.ParallelCoordinatesPlot(title=panel.title, columns=columns)
    plot_type = {"lines": "line", "stacked": "stacked-area", "shares": "pct-area"}[panel.draw]
    return wr.LinePlot(
        title=panel.title, x=panel.against, y=list(panel.metrics), plot_type=plot_type, log_y=panel.log,
        max_runs_to_show=RUNS_SHOWN, groupby="None", aggregate=False,
    )  # fmt: skip
