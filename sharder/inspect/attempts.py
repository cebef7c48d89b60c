"""What supervisor.jsonl tells of a watched run: when its workers were started, and why they ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharder.supervise.gang import End
from sharder.supervise.supervisor import AFTERMATH, KILLED, read_events

Event = dict[str, Any]
CONSEQUENCES = {End(0, returned, 0.0).how for returned in AFTERMATH}  # how workers end because another one did


@dataclass(frozen=True)
class Attempt:
    started_s: float | None  # Unix time; None: its workers could not be started
    workers: int | None
    saved: int | None  # the newest checkpointed step when it began
    end: str


def read_attempts(folder: Path) -> list[Attempt]:
    """In order; none for a run that was not watched."""
    by_attempt: dict[str, list[Event]] = {}
    told = [event for event in read_events(folder) if {"event", "attempt", "time"} <= event.keys()]
    for event in told:
        by_attempt.setdefault(event["attempt"], []).append(event)
    return [_attempt(events, attempt == told[-1]["attempt"]) for attempt, events in by_attempt.items()]


def _attempt(events: list[Event], newest: bool) -> Attempt:
    end = _end(events) or ("it goes on, or " if newest else "") + "its supervisor was killed"
    start = next((event for event in events if event["event"] == "start"), None)
    if start is None:
        return Attempt(None, None, None, end)
    return Attempt(start["time"], start.get("processes"), start.get("saved"), end)


def _end(events: list[Event]) -> str:
    """The event that explains the others, and that the supervisor gave up where it did; empty when none was written."""
    last = {event["event"]: event for event in events}
    if "complete" in last:
        return f"complete at step {last['complete'].get('step')}"
    first = _first_failure([event for event in events if event["event"] == "exit"])
    if "stuck" in last:
        stuck = last["stuck"]
        end = f"{_who(stuck)}: stuck for {stuck.get('for_s')} s, limit {stuck.get('limit_s')} s"
    elif first is not None:
        end = f"{_who(first)}: {first.get('how')}{_after(first)}"
    else:
        end = "exit 0" if "exit" in last else ""
    stopped = f"stopped by {last['stop'].get('signal')}" if "stop" in last else ""
    given_up = f"given up: {last['give_up'].get('message')}" if "give_up" in last else ""
    return "; ".join(filter(None, (stopped, end, given_up)))


def _first_failure(exits: list[Event]) -> Event | None:
    """A worker that crashed rather than one that ended because of it; of several, the first."""
    failed = [event for event in exits if event.get("how") not in ("exit 0", KILLED)]
    return min(failed, key=lambda event: (event.get("how") in CONSEQUENCES, event.get("after_s") or 0.0), default=None)


def _who(event: Event) -> str:
    phase, step = event.get("phase"), event.get("step")
    where = (f", step {step}" if step is not None else "") + (f", phase {phase}" if phase else "")
    return f"worker {event.get('rank')}{where}"


def _after(event: Event) -> str:
    if event.get("reason"):
        return f" ({event['reason']})"
    return "" if event.get("after_s") is None else f" after {event['after_s']} s"
