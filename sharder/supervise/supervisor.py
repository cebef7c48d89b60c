"""Runs the workers of a run until it is complete: what dies or hangs is ended, and started again from its last save.

    <run folder>/supervisor.jsonl  {"time", "event": start|exit|stuck|stop|give_up|complete, "attempt", ...} a line

Nothing that is needed later lives here or in that file: a supervisor that is killed takes its workers with it, and the
same command goes on from the newest checkpoint. Whether to go on is for budget.py to say, who holds the others up for
progress.py.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sharder.config import Config
from sharder.errors import CRASHED, EXIT_USER_ERROR, INTERRUPTED, RESUME
from sharder.run_folder import completed_step, sealed_steps
from sharder.stop_signals import STOP_SIGNALS
from sharder.supervise.budget import CANNOT_START, STOPPED, STUCK, Attempt, Complete, Failure, Relaunch, Stop, decide
from sharder.supervise.gang import GRACE_S, CannotStart, End, Gang, first_failure, running
from sharder.supervise.heartbeat import Beat, read_heartbeats
from sharder.supervise.output import Output, Terminal
from sharder.supervise.progress import Progress, Standing, limit_name
from sharder.supervise.workers import Forward, Interrupted, exit_code, forwarding

EVENTS = "supervisor.jsonl"
LOOK_S = 0.5  # between two looks at the heartbeats
STACKS_S, QUIET_S = 5.0, 0.5  # for stacks to be written: at most so long, and until nothing has come for this long
KILLED_S = 1.0
NEAR_LIMIT = 0.1  # share of the memory that a worker has or could have
KILLED = "killed"
STOPPING = (0, RESUME, INTERRUPTED, *(-number for number in STOP_SIGNALS))  # how workers end that are told to stop
AFTERMATH = (0, EXIT_USER_ERROR, RESUME, -signal.SIGABRT)  # how workers end because another one did


def run_supervised(command: str, folder: Path, config: Config, lock: int) -> int:
    """Returns 0 once the run is complete; otherwise what it ended with for good: 75 when it was told to stop."""
    with forwarding() as forward, Terminal() as terminal:
        code = _Supervisor(command, folder, config, lock, forward, terminal).run()
    if forward.received:
        raise Interrupted(forward.received[0], code)
    return code


class _Supervisor:
    def __init__(
        self, command: str, folder: Path, config: Config, lock: int, forward: Forward, terminal: Terminal
    ) -> None:
        self._command, self._folder, self._config, self._lock = command, folder, config, lock
        self._forward, self._terminal = forward, terminal
        self._last = ""  # attempt
        self._last_saved: int | None = None

    def run(self) -> int:
        steps, launch = self._config.train.steps, self._config.launch
        if self._complete:
            print(f"complete: step {steps} of train.steps={steps} is done; raise train.steps to go on", flush=True)
            return 0
        attempts: list[Attempt] = []
        processes = launch.processes
        while not self._forward.received:
            attempts.append(self._attempt(processes, len(attempts) + 1))
            decision = decide(attempts, launch, self._config.mesh.size)
            if isinstance(decision, Complete):
                self._event("complete", step=steps)
                return 0
            if isinstance(decision, Stop):
                return self._stop(decision.message, decision.code)
            if not isinstance(decision, Relaunch):
                self._event("give_up", message=decision.message, code=decision.code)
                self._terminal.print(f"given up: {decision.message}; logs: {self._folder}/logs/worker-<rank>.log")
                return decision.code
            processes = decision.processes
            self._terminal.print(
                f"relaunch {decision.number} of {launch.retries} since the last new checkpoint, in "
                f"{decision.delay_s:g} s, {_workers(processes)}, {_from(attempts[-1].saved_after)}"
            )
            self._wait(decision.delay_s)
        name = signal.Signals(self._forward.received[0]).name
        self._event("stop", signal=name)
        return self._stop(f"stopped by {name} while no worker was running", self._resumable)

    @property
    def _complete(self) -> bool:
        """A marker of another number of steps is of an earlier, shorter run."""
        steps = self._config.train.steps
        return completed_step(self._folder) == steps and self._saved() == steps

    @property
    def _resumable(self) -> int:
        """Exit code of a run that was stopped before its workers had anything to add."""
        interrupted = self._forward.received[:1] == [signal.SIGINT]
        return INTERRUPTED if interrupted and self._saved() is None else RESUME

    def _saved(self) -> int | None:
        """The newest step that was saved to its end; what was last known, while the file system is away."""
        with contextlib.suppress(OSError):
            self._last_saved = max(sealed_steps(self._folder), default=None)
        return self._last_saved

    def _stop(self, message: str, code: int) -> int:
        self._terminal.print(f"{message}; the same command goes on {_from(self._saved())}")
        return code

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._forward.received and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(LOOK_S, left))

    def _attempt(self, processes: int, number: int) -> Attempt:
        """Starts workers, and returns when none of them nor anything they started is left."""
        before, stop = self._saved(), None
        try:
            with running(
                self._command, self._folder, self._config, self._lock, processes, self._terminal, self._forward
            ) as gang:
                self._last = gang.attempt
                pids = [worker.pid for worker in gang.workers]
                self._event("start", processes=processes, pids=pids, saved=before)
                seen = self._watch(gang)
            stop = None if seen.stop is None else signal.Signals(seen.stop).name
            failure = self._failure(gang, seen, number)
        except CannotStart as error:
            failure = Failure(error.rank, "start", None, CANNOT_START, error.reason, CRASHED)
            self._last = error.attempt
            self._event("exit", rank=error.rank, how=CANNOT_START, reason=error.reason)
            self._terminal.print(f"attempt {number} ended: {failure}")
        return Attempt(processes, before, self._saved(), failure is None, failure, stop)

    def _watch(self, gang: Gang) -> _Seen:
        """Until all have ended, or one has failed or hangs and the others have had the time that is theirs."""
        launch = self._config.launch
        seen = _Seen(Progress(gang.attempt, len(gang.workers), launch.limits))
        deadline: float | None = None
        while len(seen.ends) < len(gang.workers):
            with contextlib.suppress(queue.Empty):
                end = gang.ended.get(timeout=LOOK_S)
                seen.ends.append(end)
                if end.returned and deadline is None:
                    deadline = time.monotonic() + _patience_s(end.returned, launch.grace_s)
            seen.progress.look(read_heartbeats(self._folder))
            stopping = all(end.returned in STOPPING for end in seen.ends)  # the quickest may have ended already
            if self._forward.received and seen.stop is None and stopping:
                seen.stop = self._forward.received[0]
                deadline = time.monotonic() + launch.grace_s
                self._event("stop", signal=signal.Signals(seen.stop).name)
            if deadline is None:
                alive = set(range(len(gang.workers))) - {end.rank for end in seen.ends}
                seen.stuck = seen.progress.stuck(alive)
                if seen.stuck is not None:
                    self._say_stuck(gang, seen, seen.stuck, alive)
                    break
            elif time.monotonic() > deadline:
                break
        return seen

    def _say_stuck(self, gang: Gang, seen: _Seen, stuck: Standing, alive: set[int]) -> None:
        peers = [seen.progress.standing(rank) for rank in sorted(alive - {stuck.rank})]
        limit, state = seen.progress.limit_s(stuck.phase), _state(gang.workers[stuck.rank].pid)
        self._event(
            "stuck", rank=stuck.rank, phase=stuck.phase, step=stuck.step,
            for_s=round(stuck.for_s, 1), limit_s=limit, process_state=state,
            peers=[{"rank": peer.rank, "phase": peer.phase, "step": peer.step} for peer in peers],
        )  # fmt: skip
        self._terminal.print(
            f"stuck: {stuck} without progress (launch.limits.{limit_name(stuck.phase)}={limit:g}, process {state}); "
            f"{'; '.join(map(str, peers)) or 'it has no peers'}; stacks: {self._folder}/logs/worker-{stuck.rank}.log"
        )
        _dump_stacks(gang, stuck.rank)

    def _failure(self, gang: Gang, seen: _Seen, number: int) -> Failure | None:
        """What this attempt ended with; None: the run is complete. Says so, once the gang is over."""
        seen.progress.look(read_heartbeats(self._folder))  # the last word of each
        self._log_ends(gang, seen)
        words = gang.last_words
        first = seen.stuck or seen.first(len(words))
        if self._complete or first is None:
            return None
        code, said = CRASHED, ""
        if isinstance(first, Standing):
            standing, how, after = first, STUCK, f"{first.for_s:.1f} s without progress"
            if seen.stuck is None:
                how, after, code = KILLED, f"launch.grace_s={self._config.launch.grace_s:g}", exit_code(-signal.SIGKILL)
        else:
            standing, how, after = seen.progress.standing(first.rank), first.how, f"{first.after_s:.1f} s"
            code = self._code(seen, first)
            how, said = (STOPPED, "") if code == RESUME else (how, words[first.rank])
        failure = Failure(first.rank, standing.phase, standing.step, how, said, code)
        self._terminal.print(
            f"attempt {number} ended: worker {failure.rank} first, {failure.where}: {how} after {after}"
            f"{_memory(seen.progress.beat(failure.rank), how)}" + (f": {said}" if said else "")
        )
        return failure

    def _code(self, seen: _Seen, first: End) -> int:
        if seen.stop is not None and first.returned in [-number for number in STOP_SIGNALS]:
            return self._resumable  # it had not come so far as to listen
        return exit_code(first.returned)

    def _log_ends(self, gang: Gang, seen: _Seen) -> None:
        by_themselves = {end.rank: end for end in seen.ends}
        for rank in range(len(gang.workers)):
            end, beat = by_themselves.get(rank), seen.progress.beat(rank)
            self._event(
                "exit", rank=rank, how=KILLED if end is None else end.how,
                after_s=None if end is None else round(end.after_s, 1),
                phase=beat.phase if beat else "start", step=beat.step if beat else None,
                rss_mb=beat.rss_mb if beat else None, available_mb=beat.available_mb if beat else None,
            )  # fmt: skip

    def _event(self, event: str, **details: Any) -> None:
        """A disk that is full does not end the run: what is written here is to be read, not needed."""
        line = json.dumps({"time": time.time(), "event": event, "attempt": self._last, **details})
        with contextlib.suppress(OSError), open(self._folder / EVENTS, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def read_events(folder: Path) -> list[dict[str, Any]]:
    """What was noted in a run folder, in order; nothing where nobody watched. A line that a crash tore is left out."""
    path, told = folder / EVENTS, []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError):
            told.append(json.loads(line))
    return [event for event in told if isinstance(event, dict)]


@dataclass
class _Seen:
    """What came of an attempt until it was ended."""

    progress: Progress
    ends: list[End] = field(default_factory=list)  # by themselves, in that order
    stuck: Standing | None = None
    stop: int | None = None  # the signal that was passed on

    def first(self, count: int) -> End | Standing | None:
        """The end that explains the others, or who did not end; None when all of the `count` workers went well.

        A worker whose peer is gone is aborted, or ends with a line about it and exit code 2, and may do so sooner than
        the peer, who lets the others go first. And a worker that alone was told to stop takes the others along.
        """
        crashed = [end for end in self.ends if end.returned not in AFTERMATH]
        resumed = [end for end in self.ends if end.returned == RESUME]
        if resumed and (self.stop is not None or not crashed):
            return resumed[0]
        first = first_failure(self.ends)
        if first is None and len(self.ends) < count:  # told to stop, and did not
            left = set(range(count)) - {end.rank for end in self.ends}
            return min((self.progress.standing(rank) for rank in left), key=lambda standing: standing.behind)
        return crashed[0] if first is not None and crashed and first.returned in AFTERMATH else first


def _patience_s(returned: int, grace_s: float) -> float:
    """With the others, after the first has ended so: they may be saving, or about to say why; not when it was killed,
    which nobody else can explain."""
    if returned == RESUME:
        return grace_s
    return KILLED_S if returned < 0 and returned != -signal.SIGABRT else GRACE_S


def _dump_stacks(gang: Gang, blamed: int) -> None:
    """Python's stacks go to the log of each: faulthandler writes them from C, whatever holds the interpreter."""
    for worker in gang.workers:
        worker.send_signal(signal.SIGQUIT)
        worker.send_signal(signal.SIGCONT)  # a stopped process hears nothing before
    _wait_until_quiet(gang.outputs[blamed], gang.workers[blamed])


def _wait_until_quiet(output: Output, worker: subprocess.Popen[bytes]) -> None:
    start = changed = time.monotonic()
    first = heard = output.bytes_heard
    while (now := time.monotonic()) < start + STACKS_S and worker.returncode is None:
        if output.bytes_heard != heard:
            heard, changed = output.bytes_heard, now
        if heard != first and now > changed + QUIET_S:
            return
        time.sleep(QUIET_S / 10)


def _memory(beat: Beat | None, how: str) -> str:
    """Whether its memory was near the limit when it was last seen."""
    if beat is None or beat.rss_mb is None or beat.available_mb is None:
        return ""
    near = beat.available_mb < NEAR_LIMIT * (beat.rss_mb + beat.available_mb)
    told = ", probably out of memory" if near and how == "SIGKILL" else ", near the limit" if near else ""
    return f", memory {beat.rss_mb:,.0f} MB with {beat.available_mb:,.0f} MB left{told}"


def _state(pid: int) -> str:
    """In the kernel's word: running, sleeping, stopped, waiting for a disk or device."""
    with contextlib.suppress(OSError, IndexError):
        letter = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        words = {"R": "running", "S": "sleeping", "D": "waiting for a disk or device", "T": "stopped", "Z": "ended"}
        return words.get(letter, letter)
    return "unknown"


def _workers(processes: int) -> str:
    return f"{processes} worker{'' if processes == 1 else 's'}"


def _from(step: int | None) -> str:
    return "from the beginning" if step is None else f"from step {step}"
