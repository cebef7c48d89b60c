"""From a profiled window to what its steps spent their time on: a folder in, a Breakdown out, without jax.

<run folder>/profile/process-<index>/
  plugins/profile/<time>/<host>.xplane.pb   the trace of this process's devices
  train_step.hlo.txt.gz                     the program, as XLA scheduled it
  window.json   first_step, steps, wall_ms (of all steps, blocked), waiting_ms {data, peers, pause, host}: while the
                devices had nothing to do, devices (of this process), flop: see training/rates.py, attn, remat, layout
  ablation.json full_ms, without_attention_ms: a step each, medians of the same rounds; when it was asked for
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharder.errors import UserError
from sharder.measure import hlo
from sharder.measure.attribution import Attribution, attribute, collective_by_hlo
from sharder.measure.categories import COLLECTIVES, TRANSFERS
from sharder.measure.timeline import timeline
from sharder.measure.trace import newest_trace_file, read_trace, span

HLO, WINDOW, ABLATION = "train_step.hlo.txt.gz", "window.json", "ablation.json"
WINDOW_NAME = "sharder window"  # the annotation around the steps
WORTH_REMOVING = 0.02  # share of a step from which on a part is worth naming
MS = 1e6  # ns


@dataclass(frozen=True)
class Removable:
    """What a step could do without, or need not wait for."""

    name: str
    ms: float
    cure: str


@dataclass(frozen=True)
class Breakdown:
    window: Mapping[str, Any]  # window.json
    attribution: Attribution
    ablation: Mapping[str, float] | None

    @property
    def complete(self) -> bool:
        return not self.attribution.problems

    @property
    def ablated_share(self) -> float | None:
        """Of a step's time that goes when attention does. Nothing waits there for data: to be held against the share
        of the busy time."""
        if self.ablation is None:
            return None
        return 1 - self.ablation["without_attention_ms"] / self.ablation["full_ms"]

    @property
    def attention_share_of_busy(self) -> float:
        found = self.attribution
        return found.attention.ns / found.busy_ns if found.busy_ns else 0.0

    @property
    def waits_ms(self) -> dict[str, float]:
        """Of a step: while the devices were idle, what the host did. What is left of it, the host was at work."""
        left = self.attribution.idle_ns / MS
        waits = {"data wait": self.attribution.data_wait_ns / MS}
        for name, part in (("peer wait", "peers"), ("saving", "pause")):
            waits[name] = min(self.window["waiting_ms"][part] / self.window["steps"], left)
            left -= waits[name]
        return waits | {"idle": left}

    @property
    def removable(self) -> list[Removable]:
        """The most time first."""
        found, waits = self.attribution, self.waits_ms
        transfers = found.of(TRANSFERS).ns / MS
        exposed = found.of(COLLECTIVES).ns / MS
        parts = [
            Removable(
                "recomputation", found.of(in_pass="recomputation").ns / MS, "a remat that keeps more, if it fits"
            ),
            Removable(
                "communication that nothing hides", exposed, "a larger batch a device, or another layout or mesh"
            ),
            Removable("waiting for data", waits["data wait"], "more data.workers"),
            Removable("waiting for other processes", waits["peer wait"], "a look at the one that comes last"),
            Removable("waiting for a save", waits["saving"], "a larger checkpoint.every_steps"),
            Removable("idle devices", waits["idle"], "a larger batch: the host dispatches too slowly"),
            Removable("transfers between host and device", transfers, "smaller or fewer of them"),
        ]
        return sorted(parts, key=lambda part: -part.ms)

    @property
    def sentences(self) -> list[str]:
        """What the step is bound by, what the devices did most, and the largest part it could do without; or why
        nothing can be said."""
        found, waits = self.attribution, self.waits_ms
        if not self.complete:
            return [f"incomplete, no conclusion: {problem}" for problem in found.problems]
        wall_ms = found.wall_ns / MS
        computing = found.busy_ns - found.of(COLLECTIVES).ns - found.of(TRANSFERS).ns
        parts = {
            "computing": computing / MS,
            "communication that nothing hides": found.of(COLLECTIVES).ns / MS,
            "transfers": found.of(TRANSFERS).ns / MS,
            "waiting for data": waits["data wait"],
            "waiting for other processes": waits["peer wait"],
            "waiting for a save": waits["saving"],
            "idle": waits["idle"],
        }
        bound = max(parts, key=parts.__getitem__)
        told = ", ".join(f"{ms / wall_ms:.0%} {name}" for name, ms in parts.items() if ms >= 0.005 * wall_ms)
        categories = dict.fromkeys(place.category for place in found.table)
        most = max(categories, key=lambda category: found.of(category).ns)
        largest = self.removable[0]
        lines = [
            f"A step took {wall_ms:.2f} ms, bound by {bound}: {told}.",
            f"The devices spent more time on {most} than on anything else: {found.share(found.of(most).ns):.0%} of the "
            "step.",
        ]
        if largest.ms < WORTH_REMOVING * wall_ms:
            return [*lines, f"No part that it could do without takes {WORTH_REMOVING:.0%} of it."]
        cure = f"{largest.name}, {largest.ms / wall_ms:.0%} of it: {largest.cure}"
        return [*lines, f"The largest part that it could do without is {cure}."]

    def rows(self) -> list[dict[str, Any]]:
        """The table: of a step and a device, in ms; the parts that are no op come last, and all add up to the wall."""
        found = self.attribution
        rows = [
            {
                "category": place.category,
                "part": place.part,
                "pass": place.in_pass,
                "ms": spent.ns / MS,
                "share": found.share(spent.ns),
                "hidden_ms": spent.hidden_ns / MS,
                "gflop": spent.flops / 1e9,
                "gb": spent.bytes / 1e9,
            }
            for place, spent in found.table.items()
        ]
        nothing = dict.fromkeys(("hidden_ms", "gflop", "gb"), 0.0)
        for name, ms in (self.waits_ms | {"not in the trace": found.unseen_ns / MS}).items():
            rows.append({"category": name, "part": "", "pass": "", "ms": ms, "share": found.share(ms * MS), **nothing})
        return rows

    def to_json(self) -> dict[str, Any]:
        found = self.attribution
        return {
            "kind": "measured",
            "complete": self.complete,
            "problems": list(found.problems),
            "steps": found.steps,
            "devices": found.device_count,
            "step_ms": found.wall_ns / MS,
            "rows": self.rows(),
            "divided_share": found.share(found.divided_ns),
            "inferred_share": found.share(found.inferred_ns),
            "attention_share": found.share(found.attention.ns),
            "attention_share_of_busy": self.attention_share_of_busy,
            "attention_share_by_ablation": self.ablated_share,
            "communication_ms": {
                kind: {"exposed": spent.ns / MS, "hidden": spent.hidden_ns / MS}
                for kind, spent in found.communication.items()
            },
            "sentences": self.sentences,
            "window": dict(self.window),
        }


def read_breakdown(folder: Path) -> Breakdown:
    """`folder`: <run folder>/profile/process-<index>. UserError names a file that is missing or damaged."""
    window = _json(folder / WINDOW)
    try:
        with gzip.open(folder / HLO, "rt", encoding="utf-8") as file:
            module = hlo.parse(file.read())
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"profile: {folder / HLO} cannot be read ({error}); profile again") from error
    modules = {module.name: module}
    trace = read_trace(newest_trace_file(folder))
    found = timeline(
        trace,
        span(trace, WINDOW_NAME),
        window["steps"],
        round(window["wall_ms"] * MS),
        window["devices"],
        collective_by_hlo(modules),
    )
    attributed = attribute(found, modules, data_wait_ns=round(window["waiting_ms"]["data"] * MS))
    ablation = _json(folder / ABLATION) if (folder / ABLATION).exists() else None
    return Breakdown(window, attributed, ablation)


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"profile: {file} cannot be read ({error}); profile with profile=window") from error
