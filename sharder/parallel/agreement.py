"""Named points that all processes reach together, on the host and with a time limit.

A process that waits for the others inside a collective waits in silence, and for ever or until something aborts. So
they meet here first: each says in jax's key-value store that it is there, process 0 tells all to go on once everyone
is, and whoever is late is named to all who wait. Meetings are numbered, the same way on every process:

    sharder/meeting/17/at/1    {"at": "batch 7", "text": ""}    process 1 has reached meeting 17
    sharder/meeting/17/go      {"texts": ["", "", ""]}          or {"fault": "..."}: process 0's word to all
    sharder/ended/1            2                                process 1 has ended with exit code 2

Naming the late spoils nothing, they just come later. A meeting's keys are deleted when the next one is held, so the
store does not grow; a meeting costs a process two calls of a fraction of a millisecond, and process 0 a few more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Protocol

from sharder.errors import EXIT_USER_ERROR, RESUME, Fault, Stopped, UserError
from sharder.parallel.processes import named

MEETING, ENDED = "sharder/meeting", "sharder/ended"
LOOK_S = 1.0  # between two looks at who has come or ended meanwhile
TIMEOUT_KEY = "launch.barrier_timeout_s"


class Store(Protocol):
    """Text by key, the same for all processes."""

    def put(self, key: str, text: str) -> None: ...

    def wait_for(self, key: str, seconds: float) -> str | None:
        """None when it is not there within this time."""

    def below(self, folder: str) -> dict[str, str]:
        """What is there now under `folder`/, by the rest of its key."""

    def delete(self, folder: str) -> None: ...


class JaxStore:
    """The key-value store of jax's coordination service, whose client has no public name in jax 0.10 to 0.12."""

    def __init__(self) -> None:
        from jax._src import distributed

        assert distributed.global_state.client is not None
        self._client: Any = distributed.global_state.client

    def put(self, key: str, text: str) -> None:
        self._client.key_value_set(key, text, allow_overwrite=True)

    def wait_for(self, key: str, seconds: float) -> str | None:
        try:
            return self._client.blocking_key_value_get(key, max(1, int(1000 * seconds)))
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise

    def below(self, folder: str) -> dict[str, str]:
        found = self._client.key_value_dir_get(f"{folder}/")
        return {key.removeprefix(f"{folder}/"): text for key, text in found}

    def delete(self, folder: str) -> None:
        self._client.key_value_delete(folder)


class Hosts:
    """All processes of the run, as one of them sees them. With one process everything returns at once."""

    def __init__(
        self,
        index: int = 0,
        count: int = 1,
        store: Store | None = None,
        *,
        timeout_s: float = 1800.0,
        late_after_s: float = 10.0,
        say: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`store` is there when count > 1. `say` gets a line each `late_after_s` while someone is missing."""
        assert (store is not None) == (count > 1)
        self.index, self.count = index, count
        self.timeout_s, self.late_after_s, self.say, self.clock = timeout_s, late_after_s, say, clock
        self.meetings = 0  # held so far, the same number on every process
        self._store = store

    def barrier(self, name: str, timeout_s: float | None = None) -> None:
        """Returns when all processes are at `name`; a Fault names those who are not there in time (seconds)."""
        if self._store is not None:
            _Meeting(self, self._store, name, timeout_s).hold("", only_process_0=True)

    def exchange(self, name: str, text: str, timeout_s: float | None = None) -> list[str]:
        """Everyone's text, in order of process."""
        if self._store is None:
            return [text]
        return _Meeting(self, self._store, name, timeout_s).hold(text, only_process_0=False)

    def decide(self, name: str, text: str | None, timeout_s: float | None = None) -> str:
        """Process 0's text, on every process; what the others give does not count."""
        assert text is not None or self.index != 0
        if self._store is None:
            return text or ""
        own = text if text is not None and self.index == 0 else ""
        return _Meeting(self, self._store, name, timeout_s).hold(own, only_process_0=True)[0]

    def say_ended(self, code: int) -> None:
        """Tells the others not to wait for us: they end too, as soon as they miss us somewhere."""
        if self._store is not None:
            self._store.put(f"{ENDED}/{self.index}", str(code))

    def all_others_ended(self) -> bool:
        return self._store is None or len({*self._store.below(ENDED)} - {str(self.index)}) == self.count - 1


class _Meeting:
    """One use of a named point, held by one process."""

    def __init__(self, hosts: Hosts, store: Store, name: str, timeout_s: float | None):
        hosts.meetings += 1
        self.hosts, self.store, self.name, self.number = hosts, store, name, hosts.meetings
        self.folder = f"{MEETING}/{self.number}"
        self.timeout_s = hosts.timeout_s if timeout_s is None else timeout_s
        self.setting = f" ({TIMEOUT_KEY})" if timeout_s is None else ""
        self.start = hosts.clock()
        self.next_word = self.start + hosts.late_after_s
        self.late: set[int] = set()  # who has been named as missing and has not come yet

    def hold(self, text: str, *, only_process_0: bool) -> list[str]:
        """The texts of all, or process 0's alone: then nothing of size goes around."""
        self.store.put(f"{self.folder}/at/{self.hosts.index}", json.dumps({"at": self.name, "text": text}))
        if self.hosts.index != 0:
            return self._wait_for_go()
        try:
            texts = self._collect()
        except (Fault, UserError) as fault:
            usage = isinstance(fault, UserError)
            self.store.put(f"{self.folder}/go", json.dumps({"fault": str(fault), "usage": usage}))
            raise
        self.store.put(f"{self.folder}/go", json.dumps({"texts": texts[:1] if only_process_0 else texts}))
        # Whoever is here has read what the meeting before this one had to say.
        self.store.delete(f"{MEETING}/{self.number - 1}")
        return texts

    def _collect(self) -> list[str]:
        """Process 0: everyone's text, once all are here."""
        while True:
            here = self._here()
            for index, said in here.items():
                if said["at"] != self.name:
                    raise Fault(
                        f"process {index} is at {said['at']!r} while process 0 is at {self.name!r}: "
                        "their programs have parted ways, which they never should"
                    )
            missing = self._missing(here)
            if not missing:
                return [here[index]["text"] for index in range(self.hosts.count)]
            if self.store.wait_for(f"{self.folder}/at/{min(missing)}", self._patience()) is None:
                self._look_at_the_clock(self._missing(self._here()))

    def _wait_for_go(self) -> list[str]:
        while (word := self.store.wait_for(f"{self.folder}/go", self._patience())) is None:
            self._look_at_the_clock(self._missing(self._here()))
        answer = json.loads(word)
        if "fault" in answer:
            raise (UserError if answer["usage"] else Fault)(answer["fault"])
        if self.late:
            self._note_arrivals(set())
        return answer["texts"]

    def _here(self) -> dict[int, dict[str, str]]:
        return {int(index): json.loads(said) for index, said in self.store.below(f"{self.folder}/at").items()}

    def _missing(self, here: dict[int, dict[str, str]]) -> set[int]:
        missing = set(range(self.hosts.count)) - here.keys()
        self._note_arrivals(missing)
        return missing

    def _note_arrivals(self, missing: set[int]) -> None:
        for index in sorted(self.late - missing):
            waited = self.hosts.clock() - self.start
            self.hosts.say(f"process {index} arrived at {self.name!r} after {waited:.1f} s")
        self.late &= missing

    def _patience(self) -> float:
        until = min(self.next_word, self.start + self.timeout_s)
        return min(LOOK_S, max(0.0, until - self.hosts.clock()))

    def _look_at_the_clock(self, missing: set[int]) -> None:
        """When nobody is missing, process 0 is about to say go."""
        now = self.hosts.clock()
        if missing:
            ended = {int(index): code for index, code in self.store.below(ENDED).items()}
            if gone := sorted(ended.keys() & missing):
                if all(ended[index] == str(RESUME) for index in gone):
                    raise Stopped(f"{named(gone)} was told to stop before reaching {self.name!r}")
                codes = ", ".join(sorted({ended[index] for index in gone}))
                kind = UserError if codes == str(EXIT_USER_ERROR) else Fault
                raise kind(
                    f"{named(gone)} ended with exit code {codes} before reaching {self.name!r}: its log says why"
                )
        if now - self.start >= self.timeout_s:
            have = "have" if len(missing) > 1 else "has"
            raise Fault(
                f"{named(missing or {0})} {have} not reached {self.name!r} after {self.timeout_s:g} s{self.setting}"
            )
        if missing and now >= self.next_word:
            self.hosts.say(f"waiting for {named(missing)} at {self.name!r}: not there after {now - self.start:.0f} s")
            self.late |= missing
            self.next_word = now + self.hosts.late_after_s
