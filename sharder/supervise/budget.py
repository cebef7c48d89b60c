"""Whether a run that failed is started again, how soon and with how many workers. Pure: it is given what has happened.

What is counted is progress, not starts: a worker that dies now and then goes on for ever as long as new steps are
checkpointed in between, and a bug that comes back at the same step ends the run soon, with one message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sharder.config import LaunchConfig
from sharder.errors import EXIT_USER_ERROR, INTERRUPTED, RESUME

LONGEST_BACKOFF_S = 60.0
STUCK, CANNOT_START, STOPPED = "stuck", "cannot start", "stopped on request"  # next to "exit 3" and "SIGKILL"
CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?")  # addresses, times and process ids in otherwise the same words


@dataclass(frozen=True)
class Failure:
    """The first one of an attempt: those that followed from it are not counted."""

    rank: int
    phase: str
    step: int | None
    how: str  # exit 3 | SIGKILL | stuck | cannot start | stopped on request
    words: str  # the last it said
    code: int  # exit code of a run that ends with this

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal when it is the same again."""
        return self.phase, self.step, self.how, CHANGING.sub("#", self.words)

    @property
    def where(self) -> str:
        return f"phase {self.phase}" if self.step is None else f"step {self.step}, phase {self.phase}"

    def __str__(self) -> str:
        return f"worker {self.rank}, {self.where}: {self.how}" + (f": {self.words}" if self.words else "")


@dataclass(frozen=True)
class Attempt:
    processes: int
    saved_before: int | None  # newest checkpointed step when it began
    saved_after: int | None  # and when it had ended
    complete: bool  # the run reached its last step, whatever the exit codes
    failure: Failure | None  # None: it is complete
    told_to_stop: str | None = None  # the signal that the supervisor got and passed on


@dataclass(frozen=True)
class Complete:
    pass


@dataclass(frozen=True)
class Stop:
    """Nothing is wrong: someone wanted it so."""

    message: str
    code: int


@dataclass(frozen=True)
class GiveUp:
    message: str
    code: int


@dataclass(frozen=True)
class Relaunch:
    delay_s: float
    processes: int
    number: int  # since the last new checkpointed step, from 1


Decision = Complete | Stop | GiveUp | Relaunch


def decide(attempts: Sequence[Attempt], launch: LaunchConfig, devices: int) -> Decision:
    """After the last of `attempts`, which are all of this supervisor; `devices` are the mesh's."""
    last = attempts[-1]
    if last.complete:
        return Complete()
    failure = last.failure
    assert failure is not None
    if last.told_to_stop is not None:
        # Whatever else befell it meanwhile, to whoever told it the run is one that goes on.
        code = failure.code if failure.code in (EXIT_USER_ERROR, INTERRUPTED) else RESUME
        return Stop(f"stopped by {last.told_to_stop}: {failure}", code)
    if failure.code == EXIT_USER_ERROR:
        return GiveUp(f"not started again, since the same would come of it: {failure}", failure.code)
    recent = since_progress(attempts)
    processes = _processes(recent, launch, devices)
    if processes == last.processes:
        times = _times(recent, failure)
        if times >= launch.same_failure and failure.how != STOPPED:
            return GiveUp(f"{failure} ({_past(last, times)}; launch.same_failure={launch.same_failure})", failure.code)
    if len(recent) > launch.retries:
        return GiveUp(f"{failure} ({_past(last, len(recent))}; launch.retries={launch.retries})", failure.code)
    delay_s = min(LONGEST_BACKOFF_S, launch.backoff_s * 2.0 ** min(len(recent) - 1, 30))
    return Relaunch(delay_s, processes, len(recent))


def since_progress(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The last attempts, from the one that saved the newest step on: each of them failed once since."""
    newest = max((_number(attempt.saved_before) for attempt in attempts[:1]), default=-1)
    recent: list[Attempt] = []
    for attempt in attempts:
        if _number(attempt.saved_after) > newest:
            newest, recent = _number(attempt.saved_after), []
        recent.append(attempt)
    return recent


def fewer_processes(processes: int, devices: int, at_least: int) -> int | None:
    """The next smaller number of processes that can share the devices out evenly."""
    return next((count for count in range(processes - 1, at_least - 1, -1) if devices % count == 0), None)


def _processes(recent: Sequence[Attempt], launch: LaunchConfig, devices: int) -> int:
    """As many as before, or the next smaller number when there is no room to start so many."""
    now = recent[-1].processes
    if not _cannot_start([attempt.failure for attempt in recent if attempt.processes == now and attempt.failure]):
        return now
    return fewer_processes(now, devices, max(1, launch.min_processes)) or now


def _cannot_start(failures: Sequence[Failure]) -> bool:
    """With this number of processes: one could not be started at all, or the same one died twice while it started."""
    if failures[-1].how == CANNOT_START:
        return True
    last_two = failures[-2:]
    died = all(failure.phase == "start" and failure.how not in (STUCK, STOPPED) for failure in last_two)
    return died and len(last_two) == 2 and last_two[0].rank == last_two[1].rank


def _times(recent: Sequence[Attempt], failure: Failure) -> int:
    now = recent[-1].processes
    return sum(
        attempt.processes == now and attempt.failure is not None and attempt.failure.kind == failure.kind
        for attempt in recent
    )


def _past(last: Attempt, times: int) -> str:
    newest = "no step was ever saved" if last.saved_after is None else f"no progress past step {last.saved_after}"
    return f"{times} {'time' if times == 1 else 'times'}, and {newest}"


def _number(step: int | None) -> int:
    return -1 if step is None else step
