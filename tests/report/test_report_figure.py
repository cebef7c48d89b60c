"""The figure of an experiment: what is drawn how, told from its axes."""

import math
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from sharder.config import ReportConfig
from sharder.report.figure import STYLES, draw, make, title

LINES = ReportConfig(title="Times", x="devices", y=["step_ms", "mfu"], series=["system"])


def row(kind: str, devices: int, step_ms: float, **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "model": "pi0",
        "hardware": "gpu",
        "devices": devices,
        "system": "ours",
        "step_ms": step_ms,
    } | more


def made(report: ReportConfig, rows: list[dict[str, Any]]) -> Figure:
    figure = make(report, rows, report.title)
    assert figure is not None
    return figure


def containers(figure: Figure) -> dict[str, Any]:
    return {one.get_label(): one for one in figure.axes[0].containers}


def test_kinds_are_drawn_apart() -> None:
    figure = made(LINES, [row(kind, devices, 10.0 * devices) for kind in STYLES for devices in (1, 2)])
    drawn = containers(figure)
    assert set(drawn) == {f"system=ours, {kind}" for kind in STYLES}
    lines = {kind: drawn[f"system=ours, {kind}"].lines[0] for kind in STYLES}
    looks = {(line.get_linestyle(), line.get_marker(), to_rgba(line.get_markerfacecolor())) for line in lines.values()}
    assert len(looks) == len({look[0] for look in looks}) == len(STYLES)  # not the mark alone: a line is seen first
    assert to_rgba(lines["published"].get_markerfacecolor()) == to_rgba("white")
    assert len({line.get_color() for line in lines.values()}) == 1  # one series, one colour
    assert list(lines["measured"].get_xdata()) == [1, 2] and list(lines["measured"].get_ydata()) == [10, 20]


def test_only_numbers_that_are_there_have_a_panel() -> None:
    figure = made(LINES, [row("predicted", 1, 5.0)])
    assert [axes.get_ylabel() for axes in figure.axes] == ["ms a step"]
    assert make(ReportConfig(x="devices", y=["goodput"]), [row("predicted", 1, 5.0)], "") is None
    assert make(LINES, [], "") is None
    assert make(ReportConfig(), [row("predicted", 1, 5.0)], "") is None  # a preset without a figure


def test_repeats_are_their_median_with_a_bar_from_the_least_to_the_most() -> None:
    rows = [row("measured", 1, ms, step_ms_low=ms - 1, step_ms_high=ms + 5) for ms in (10.0, 11.0, 30.0)]
    _, caps, bars = containers(made(LINES, rows))["system=ours, measured"].lines
    line = containers(made(LINES, rows))["system=ours, measured"].lines[0]
    assert list(line.get_ydata()) == [11.0]
    assert bars[0].get_segments()[0].tolist() == [[1.0, 9.0], [1.0, 35.0]]
    assert caps


def test_other_models_and_hardware_are_no_repeats() -> None:
    rows = [row("measured", 1, 10.0), row("measured", 1, 500.0, hardware="CPU"), row("published", 1, 9.0)]
    drawn = containers(made(LINES, rows))
    assert {label: list(one.lines[0].get_ydata()) for label, one in drawn.items()} == {
        "system=ours hardware=gpu, measured": [10.0],
        "system=ours hardware=CPU, measured": [500.0],
        "system=ours, published": [9.0],
    }


def test_loss_that_is_no_number_is_left_out() -> None:
    report = ReportConfig(x="step", y=["loss"])
    rows = [row("measured", 1, 1.0, step=step, loss=loss) for step, loss in ((1, 2.0), (2, math.nan), (3, math.inf))]
    assert list(containers(made(report, rows))["measured"].lines[0].get_xdata()) == [1.0]


def test_series_has_one_colour_in_all_panels() -> None:
    """The second panel lacks what comes first in the other."""
    rows = [row("published", 1, 9.0, system="theirs"), row("predicted", 1, 8.0, mfu=0.3)]
    left, right = (
        {one.get_label(): one.lines[0].get_color() for one in axes.containers} for axes in made(LINES, rows).axes
    )
    assert left["system=theirs, published"] != left["system=ours, predicted"] == right["system=ours, predicted"]


def test_bars_have_a_hatching_a_kind_and_the_median_of_repeats() -> None:
    report = ReportConfig(x="attn", y=["step_ms"], series=["remat"], draw="bars")
    rows = [row("predicted", 1, ms, attn="flash", remat="full") for ms in (10.0, 20.0, 60.0)]
    rows += [row("published", 1, 30.0, attn="naive", remat="full")]
    figure = made(report, rows)
    predicted, published = (containers(figure)[f"remat=full, {kind}"].patches for kind in ("predicted", "published"))
    assert [bar.get_height() for bar in predicted] == [20.0]
    assert predicted[0].get_hatch() != published[0].get_hatch()
    assert published[0].get_facecolor() == to_rgba("white")
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["flash", "naive"]


def test_stack_reaches_up_to_the_total() -> None:
    """Published parts are of other categories: what ours do not name is the rest, not forgotten."""
    report = ReportConfig(x="system", y=["MLP", "vision"], unit="ms", draw="stacked")
    rows = [row("published", 1, 200.0, vision="10"), row("predicted", 1, 50.0, MLP="30", vision="20")]
    figure = made(report, rows)
    heights = {label: [bar.get_height() for bar in one.patches] for label, one in containers(figure).items()}
    assert heights == {"MLP": [0.0, 30.0], "vision": [10.0, 20.0], "the rest": [190.0, 0.0]}
    assert [text.get_text() for text in figure.axes[0].texts] == ["200", "50"]
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["ours\npublished", "ours\npredicted"]
    assert len({bar.patches[0].get_facecolor() for bar in figure.axes[0].containers}) == 3


def test_figure_says_which_models_it_is_of() -> None:
    assert title(LINES, [row("predicted", 1, 1.0), {"kind": "published"}], "pi0") == "Times"
    assert title(LINES, [row("predicted", 1, 1.0, model="pi0_micro")], "pi0") == "Times; here of pi0_micro"


@pytest.mark.parametrize("report", [LINES, ReportConfig(title="a " * 70, x="system", y=["step_ms"], draw="bars")])
def test_same_rows_are_the_same_files(tmp_path: Path, report: ReportConfig) -> None:
    rows = [row(kind, devices, 3.0 * devices, mfu=0.2) for kind in STYLES for devices in (1, 2)]
    for name in ("one", "other"):
        assert draw(report, rows, tmp_path / name / "figure", "pi0")
    for ending in ("svg", "png"):
        one, other = ((tmp_path / name / f"figure.{ending}").read_bytes() for name in ("one", "other"))
        assert one == other
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["figure.png", "figure.svg"]


def test_nothing_to_draw_writes_nothing(tmp_path: Path) -> None:
    assert not draw(LINES, [], tmp_path / "figure", "pi0")
    assert list(tmp_path.iterdir()) == []
