"""How good the policy of a run was found to be: while it trained, and by `sharder.evaluate` later, with the video.

`sharder.evaluate` has a run folder of its own and notes there which checkpoint it scored. A run's page shows those that
scored a checkpoint in this very folder and lie below the same run.root; a folder that was moved has lost them. The
page of the evaluation's own folder shows it in any case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sharder.errors import UserError
from sharder.report import html
from sharder.report.rows import Row, read_json
from sharder.report.run_statistics import interval, of_success

EVALUATION, FILM = "evaluation.json", "evaluation.mp4"  # in the folder of sharder.evaluate


def evaluations(folder: Path, steps: Sequence[Row]) -> Iterator[str]:
    """Nothing where nothing was evaluated."""
    while_training = [row for row in steps if row.get("success_rate") is not None]
    wrong: list[str] = []
    own = read_json(folder / EVALUATION)
    later = [(folder, own)] if own is not None else list(_of_checkpoints(folder, wrong))
    if while_training or later or wrong:
        yield html.tag("h2", "Evaluation")
    if while_training:
        lines = [(row["step"], *_rate(of_success(row))) for row in while_training]
        yield html.table(("step", "success, while training", "95% interval"), lines)
    for place, found in later:
        yield html.tag("h3", f"Step {found['step']}, scored by itself")
        yield html.tag("p", f"{found['checkpoint']}, in {place}", class_="faint")
        yield (
            html.table(("policy", "success", "95% interval"), _policies(found))
            if "success_rate" in found
            else (
                html.table(
                    ("of", "is"), [(key, value) for key, value in found.items() if isinstance(value, int | float)]
                )
            )
        )
        film = place / FILM
        if film.exists():
            said = "rollouts, side by side; framed in the colour of the disc that was named"
            yield html.embedded(film.read_bytes(), ".mp4", said)
    for problem in wrong:
        yield html.tag("p", f"Left out: {problem}", class_="faint")


def _of_checkpoints(folder: Path, wrong: list[str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every evaluation below the same root that stood on a checkpoint in here; `wrong` gets those that are damaged."""
    checkpoints = folder.absolute() / "checkpoints"
    for file in sorted(folder.absolute().parent.parent.glob(f"*/*/{EVALUATION}")):
        try:
            found = read_json(file)
        except UserError as error:
            wrong.append(str(error))
            continue
        about = found.get("checkpoint") if isinstance(found, dict) else None
        if isinstance(about, str) and Path(about).parent == checkpoints:
            yield file.parent, found


def _policies(found: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The checkpoint's, and those that know nothing, on the same starts."""
    for name, one in (("this checkpoint", found), *found.get("baselines", {}).items()):
        yield (name.replace("_", " "), *_rate(of_success(one | {"success_episodes": one["episodes"]})))


def _rate(row: Row) -> tuple[str, str]:
    return f"{row['success_rate']:.0%}", interval(row)
