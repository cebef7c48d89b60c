"""Measures on the GPU that is here what the experiments predict, the worthiest first, for as long as you have it.

    python experiments/measure_on_gpu/measure.py [minutes=10] [model=pi0] [run.root=outputs] [kept=...] [key=value ...]

Each point is a training of its own, started as a user would; the same command again goes on with what is not finished.
See README.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from beside import as_table, beside
from points import CUT_OFF, FAILED, FINISHED, Point, Tried, expected_s, fitting, hardware_named, in_order, scale, to_do
from rich.console import Console

from sharder.errors import EXIT_USER_ERROR, UserError, ended
from sharder.provenance import MEASURED
from sharder.report import tables
from sharder.report.experiment import collect, experiment
from sharder.report.rows import PREDICTED, PUBLISHED, Row
from sharder.run_folder import completed_step, sweep_id
from sharder.supervise.workers import PARENT_VARIABLE
from sharder.table import print_table

EXPERIMENTS = Path(__file__).parents[1]  # where predicted and published numbers lie
OURS = {"minutes": "10", "model": "pi0", "run.root": "outputs", "kept": str(EXPERIMENTS)}
JOURNAL = "tried.jsonl"  # in <run.root>/measure_on_gpu: a line a point that was tried
MEMORY = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"}  # of the GPU, unless the user has set it
LOOK = (
    "import json, jax; found = jax.devices(); print(json.dumps([found[0].platform, found[0].device_kind, len(found)]))"
)
TRAIN = (  # the command, which ends when this process ends, by kill -9 too
    "import runpy; from sharder.supervise.workers import die_with_parent; die_with_parent(); "
    "runpy.run_module('sharder.train', run_name='__main__', alter_sys=True)"
)
LOOK_LIMIT_S = 120.0
LEAST_LIMIT_S = 180.0  # a point may take three times what is expected, and as long at least
GONE_S = 10.0  # for what was killed to be gone


@dataclass
class Here:
    """This machine, what was typed, and what was tried on it."""

    platform: str
    device_kind: str
    devices: int
    model: str
    root: Path
    kept: Path
    typed: tuple[str, ...]
    tried: dict[Point, Tried] = field(default_factory=dict)

    @property
    def hardware(self) -> str | None:
        """The option that insists on it: with `auto` a run would not notice that it fell back to the CPU."""
        return "cpu" if self.platform == "cpu" else hardware_named(self.device_kind)

    def overrides(self, point: Point) -> list[str]:
        model = [] if self.model == OURS["model"] else [f"model={self.model}"]
        hardware = f"hardware={self.hardware or 'auto'}"
        return [f"experiment={point.preset}", *point.overrides, *model, hardware, "tracking=off", *self.typed]

    def run_id(self, point: Point) -> str:
        """As a sweep with the same words names it, so that it finds the folder too; other devices have another."""
        unknown = None if self.hardware else re.sub(r"\W+", "_", self.device_kind)
        return sweep_id(self.overrides(point), unknown)

    def folder(self, point: Point) -> Path:
        return self.root / point.preset / self.run_id(point)

    @property
    def journal(self) -> Path:
        return self.root / "measure_on_gpu" / JOURNAL

    def read_journal(self, points: Iterable[Point]) -> None:
        """What the run folders say of `points`; and what only the journal knows, how long they took."""
        told: dict[str, Tried] = {}
        for line in self.journal.read_text().splitlines() if self.journal.exists() else []:
            with contextlib.suppress(ValueError, KeyError):  # torn when this was killed
                one = json.loads(line)
                told[one["folder"]] = Tried(one["ended"], one["seconds"])
        for point in points:
            before = told.get(str(self.folder(point)))
            if completed_step(self.folder(point)) is not None:
                self.tried[point] = Tried(FINISHED, before.seconds if before and before.ended == FINISHED else None)
            elif before is not None and before.ended != FINISHED:  # finished, and its folder is gone: to be done again
                self.tried[point] = before

    def write_down(self, point: Point, found: Tried, said: str) -> None:
        self.tried[point] = found
        self.journal.parent.mkdir(parents=True, exist_ok=True)
        about = {
            "folder": str(self.folder(point)),
            "ended": found.ended,
            "seconds": found.seconds,
            "said": said,
        }
        with self.journal.open("a") as file:
            file.write(json.dumps(about) + "\n")


def main(argv: Sequence[str]) -> int:
    return ended(lambda: _main(argv))


def _main(argv: Sequence[str]) -> int:
    began = time.monotonic()
    console = Console()
    told, typed = _typed(argv)
    here = _here(told, typed)
    points = in_order(here.devices if here.platform != "cpu" else 1)
    here.read_journal(points)
    _say(f"{here.devices} x {here.device_kind}, {len(points)} points, {len(to_do(points, here.tried))} to do")
    with contextlib.suppress(KeyboardInterrupt):
        _measure(here, points, began + 60 * float(told["minutes"]))
    _conclude(here, points, console)
    return 0


def _typed(argv: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Our own words, and those for every point."""
    told, rest = dict(OURS), []
    for text in argv:
        key, equals, value = text.partition("=")
        if not equals or not value:
            raise UserError(
                f"found {text!r}, allowed: minutes=..., kept=<folder> and what sharder.train takes, each key=value; "
                "correct it"
            )
        if key in OURS:
            told[key] = value
        else:
            rest.append(text)
    try:
        enough = float(told["minutes"]) > 0
    except ValueError:
        enough = False
    if not enough:
        raise UserError(f"minutes: found {told['minutes']!r}, allowed: a number above 0; set minutes=10")
    return told, tuple(rest)


def _here(told: Mapping[str, str], typed: tuple[str, ...]) -> Here:
    """Asked in a process of its own: whoever asks holds the GPU."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=LOOK_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"jax: found no device in {LOOK_LIMIT_S:.0f} s; allowed: a GPU that answers; see nvidia-smi"
        ) from error
    if done.returncode:
        raise UserError(f"jax: {(done.stderr.strip() or 'said nothing').splitlines()[-1]}; see that it finds the GPU")
    platform, device_kind, devices = json.loads(done.stdout.splitlines()[-1])
    if platform == "cpu" and told["model"] == OURS["model"]:
        raise UserError(
            "model: found pi0 where jax finds only a CPU, allowed there: a small one; install '.[cuda12]' or "
            "'.[cuda13]' where there is a GPU, or try it with model=pi0_nano kept=<folder>"
        )
    return Here(platform, device_kind, devices, told["model"], Path(told["run.root"]), Path(told["kept"]), typed)


def _measure(here: Here, points: Sequence[Point], deadline: float) -> None:
    """Until nothing fits any more. What failed is not tried again in the same call."""
    untried, told = list(points), set()
    while left := to_do(untried, here.tried):
        factor, left_s = scale(points, here.tried, here.model), deadline - time.monotonic()
        *skipped, (chosen, expected, fits) = fitting(left, here.tried, factor, left_s)
        if not fits:
            shortest = min(seconds for _, seconds, _ in (*skipped, (chosen, expected, fits)))
            _say(f"nothing more fits: the shortest takes about {shortest:.0f} s, and {max(0.0, left_s):.0f} s are left")
            return
        for point, seconds, _ in skipped:
            if point not in told:
                _say(f"skipped: {point} takes about {seconds:.0f} s, and {left_s:.0f} s are left")
                told.add(point)
        untried.remove(chosen)
        _say(f"now: {chosen}, about {expected:.0f} s of the {left_s:.0f} s that are left")
        found, words, refused = _run(here, chosen, min(left_s, max(3 * expected, LEAST_LIMIT_S)))
        if refused and not any(_is(here, point, FINISHED) for point in points):
            raise UserError(words.removeprefix("error: "))  # so would all the others be
        here.write_down(chosen, found, words)
        if found.ended == FINISHED:
            rows = _keep(here, [chosen])
            timed = [f"{row['step_ms']:.4g} ms a step" for row in rows if "step_ms" in row]
            _say(f"{FINISHED} in {found.seconds:.0f} s: {''.join(timed) or 'no step was timed'}")
        else:
            _say(f"{found.ended} after {found.seconds:.0f} s: {words} (all of it: {_log(here, chosen)})")


def _run(here: Here, point: Point, limit_s: float) -> tuple[Tried, str, bool]:
    """One training in a process of its own: what became of it, its last words, was it refused before it began."""
    began, log = time.monotonic(), _log(here, point)
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [*here.overrides(point), "hydra.mode=RUN", f"run.root={here.root}", f'run.id="{here.run_id(point)}"']
    environment = {**MEMORY, **os.environ, PARENT_VARIABLE: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
    with log.open("w") as file:
        child = subprocess.Popen(
            [sys.executable, "-c", TRAIN, *words],
            env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, process_group=0,
        )  # fmt: skip
        try:
            experiment(point.preset)  # composed meanwhile, for its rows
            left_s = max(0.0, began + limit_s - time.monotonic())
            ended = FINISHED if child.wait(left_s) == 0 else FAILED
        except subprocess.TimeoutExpired:
            ended = CUT_OFF
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # not asked to stop: it would save
            child.wait()
            _until_free(here.folder(point) / "lock")
    return Tried(ended, round(time.monotonic() - began, 1)), _last_words(log), child.returncode == EXIT_USER_ERROR


def _until_free(lock: Path) -> None:
    """The last process of a run lets go of its lock, and of the GPU, when it is gone."""
    until = time.monotonic() + GONE_S
    with contextlib.suppress(OSError), lock.open() as file:
        while time.monotonic() < until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.1)


def _log(here: Here, point: Point) -> Path:
    return here.journal.parent / f"{point.preset},{here.run_id(point)}.log"


def _last_words(log: Path) -> str:
    """The line that says why, of a run that failed: the last one of an exception, or of all."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    wrong = [line for line in lines if re.match(r"(error: |[\w.]*(Error|Exception)\b)|RESOURCE_EXHAUSTED", line)]
    return (wrong or lines or ["it said nothing"])[-1][:500]


def _keep(here: Here, points: Sequence[Point]) -> list[Row]:
    """The rows of finished points of one preset. If they are not all in its measured.csv, up to their last step, the
    table and the figure are made again."""
    preset = points[0].preset
    path = here.kept / preset / f"{MEASURED}.csv"
    ends = {here.run_id(point): completed_step(here.folder(point)) for point in points}
    if not ends.items() <= {(row["run"], row["steps"]) for row in tables.read_table(path, MEASURED)}:
        collect(experiment(preset), here.root, here.kept)
    return [row for row in tables.read_table(path, MEASURED) if row["run"] in ends]


def _conclude(here: Here, points: Sequence[Point], console: Console) -> None:
    """The table, and what is left."""
    numbers = []
    finished = [point for point in points if _is(here, point, FINISHED)]
    for preset in dict.fromkeys(point.preset for point in finished):
        rows = _keep(here, [point for point in finished if point.preset == preset])
        for kind in (PREDICTED, PUBLISHED):
            rows += tables.read_table(EXPERIMENTS / preset / f"{kind}.csv", kind)
        numbers += beside(preset, rows, experiment(preset).keys)
    print_table(as_table(numbers), console)
    left, factor = to_do(points, here.tried), scale(points, here.tried, here.model)
    failed = [point for point in left if _is(here, point, FAILED)]
    minutes = sum(expected_s(point, here.tried, factor) for point in left) / 60
    for point in failed:
        _say(f"failed: {point}, see {_log(here, point)}")
    if left:
        _say(
            f"left: {len(left)} of {len(points)} points, about {minutes:.0f} minutes; the same command goes on with "
            f"{left[0]}"
        )
    else:
        _say(f"all {len(points)} points are measured")


def _is(here: Here, point: Point, ended: str) -> bool:
    return point in here.tried and here.tried[point].ended == ended


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
