"""Named points that all processes reach together: over a store in memory, with a clock of the test's own where time
matters, and over jax's own store in test_distributed.py."""

import json
import threading
import time
from collections.abc import Callable

import pytest

from sharder.errors import Fault, UserError
from sharder.parallel.agreement import Hosts

PATIENT_S = 60.0


class Shared:
    """A store for processes that are threads."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.changed = threading.Condition()
        self.calls = 0

    def put(self, key: str, text: str) -> None:
        with self.changed:
            self.calls += 1
            self.texts[key] = text
            self.changed.notify_all()

    def wait_for(self, key: str, seconds: float) -> str | None:
        with self.changed:
            self.calls += 1
            self.changed.wait_for(lambda: key in self.texts, seconds)
            return self.texts.get(key)

    def below(self, folder: str) -> dict[str, str]:
        with self.changed:
            self.calls += 1
            return {key[len(folder) + 1 :]: text for key, text in self.texts.items() if key.startswith(f"{folder}/")}

    def delete(self, folder: str) -> None:
        with self.changed:
            self.calls += 1
            for key in self.below(folder):
                del self.texts[f"{folder}/{key}"]


class Scripted(Shared):
    """A store and a clock for one process alone: time passes only while it waits, and the others come when told to."""

    def __init__(self, *events: tuple[float, str, object]) -> None:
        super().__init__()
        self.now, self.events = 0.0, sorted(events, key=lambda event: event[0])
        self.told: list[str] = []

    def wait_for(self, key: str, seconds: float) -> str | None:
        until = self.now + seconds
        while key not in self.texts and self.events and self.events[0][0] <= until:
            self.now, name, value = self.events.pop(0)
            self.texts[name] = json.dumps(value)
        if key in self.texts:
            return self.texts[key]
        self.now = until
        return None

    def hosts(self, index: int, count: int, timeout_s: float = 60.0) -> Hosts:
        return Hosts(
            index, count, self, timeout_s=timeout_s, late_after_s=10.0, say=self.told.append, clock=lambda: self.now
        )


def arrives(at_s: float, index: int, name: str, meeting: int = 1, text: str = "") -> tuple[float, str, object]:
    return at_s, f"sharder/meeting/{meeting}/at/{index}", {"at": name, "text": text}


def in_threads(count: int, work: Callable[[Hosts], object]) -> tuple[list[object], Shared]:
    """What `work` returned, or the Fault it raised, process by process."""
    store, results = Shared(), [None] * count

    def run(index: int) -> None:
        try:
            results[index] = work(Hosts(index, count, store, timeout_s=PATIENT_S))
        except Fault as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENT_S)
    return results, store


def test_one_process_needs_nobody() -> None:
    alone = Hosts()
    alone.barrier("start")
    assert alone.exchange("names", "mine") == ["mine"]
    assert alone.decide("resume", "12") == "12"


def test_nobody_passes_a_barrier_before_all_have_come() -> None:
    came = []

    def work(hosts: Hosts) -> list[int]:
        if hosts.index == 2:
            time.sleep(0.2)
        came.append(hosts.index)
        hosts.barrier("start")
        return sorted(came)

    assert in_threads(4, work)[0] == [[0, 1, 2, 3]] * 4


def test_everyone_hears_everyone_in_order_and_again_under_the_same_name() -> None:
    def work(hosts: Hosts) -> list[list[str]]:
        return [hosts.exchange("turn", f"{hosts.index} in turn {turn}") for turn in range(3)]

    expected = [[f"{index} in turn {turn}" for index in range(3)] for turn in range(3)]
    assert in_threads(3, work)[0] == [expected] * 3


def test_process_0_decides() -> None:
    def work(hosts: Hosts) -> str:
        return hosts.decide("resume", "step 40" if hosts.index == 0 else None)

    assert in_threads(3, work)[0] == ["step 40"] * 3
    assert in_threads(2, lambda hosts: hosts.decide("resume", f"said by {hosts.index}"))[0] == ["said by 0"] * 2


def test_the_store_does_not_grow_and_a_meeting_is_a_few_calls() -> None:
    def work(hosts: Hosts) -> None:
        for step in range(200):
            hosts.barrier(f"batch {step}")

    results, store = in_threads(2, work)
    assert results == [None, None]
    assert sorted(store.texts) == ["sharder/meeting/200/at/0", "sharder/meeting/200/at/1", "sharder/meeting/200/go"]
    assert store.calls <= 200 * 10  # the store's own call within delete counts too


def test_who_waits_names_the_late_again_and_again_and_then_their_arrival() -> None:
    store = Scripted(arrives(0.0, 2, "batch 7"), arrives(30.5, 1, "batch 7"), arrives(12.0, 3, "batch 7"))
    store.hosts(0, 4).barrier("batch 7")
    assert store.told == [
        "waiting for processes 1, 3 at 'batch 7': not there after 10 s",
        "process 3 arrived at 'batch 7' after 12.0 s",
        "waiting for process 1 at 'batch 7': not there after 20 s",
        "waiting for process 1 at 'batch 7': not there after 30 s",
        "process 1 arrived at 'batch 7' after 30.5 s",
    ]


def test_the_others_name_the_late_too() -> None:
    go = (25.5, "sharder/meeting/1/go", {"texts": ["decided"]})
    store = Scripted(arrives(0.0, 2, "resume"), arrives(25.0, 0, "resume", text="decided"), go)
    assert store.hosts(1, 3).decide("resume", None) == "decided"
    assert store.told == [
        "waiting for process 0 at 'resume': not there after 10 s",
        "waiting for process 0 at 'resume': not there after 20 s",
        "process 0 arrived at 'resume' after 25.0 s",
    ]


def test_nobody_is_named_who_comes_soon_enough() -> None:
    store = Scripted(arrives(9.9, 1, "batch 7"))
    store.hosts(0, 2).barrier("batch 7")
    assert store.told == []


@pytest.mark.parametrize(("index", "missing"), [(0, "processes 1, 2 have"), (1, "processes 0, 2 have")])
def test_time_runs_out_and_the_missing_are_named(index: int, missing: str) -> None:
    store = Scripted()
    with pytest.raises(Fault) as caught:
        store.hosts(index, 3, timeout_s=30.0).barrier("restored")
    assert str(caught.value) == f"{missing} not reached 'restored' after 30 s (launch.barrier_timeout_s)"
    assert store.now == 30.0


def test_a_time_limit_of_its_own_names_no_setting() -> None:
    store = Scripted()
    with pytest.raises(Fault) as caught:
        store.hosts(0, 2).barrier("preflight", timeout_s=5.0)
    assert str(caught.value) == "process 1 has not reached 'preflight' after 5 s"


def test_who_comes_after_the_time_limit_hears_of_it() -> None:
    store = Scripted()
    with pytest.raises(Fault):
        store.hosts(0, 2, timeout_s=30.0).barrier("restored")
    with pytest.raises(Fault, match="process 1 has not reached 'restored' after 30 s"):
        store.hosts(1, 2, timeout_s=30.0).barrier("restored")


@pytest.mark.parametrize(("code", "kind"), [(2, UserError), (1, Fault)])
def test_nobody_waits_for_a_process_that_has_ended(code: int, kind: type[Exception]) -> None:
    """A usage error of one is one of all; anything else may be tried again."""
    store = Scripted((3.0, "sharder/ended/1", code))
    with pytest.raises(kind) as caught:
        store.hosts(0, 2).barrier("batch 7")
    assert str(caught.value) == f"process 1 ended with exit code {code} before reaching 'batch 7': its log says why"
    assert store.now < 5.0


def test_ending_is_known_to_the_others() -> None:
    store = Shared()
    hosts = [Hosts(index, 3, store) for index in range(3)]
    hosts[1].say_ended(2)
    assert [one.all_others_ended() for one in hosts] == [False, False, False]
    hosts[2].say_ended(2)
    assert [one.all_others_ended() for one in hosts] == [True, False, False]


def test_processes_whose_programs_have_parted_ways_do_not_wait_for_each_other() -> None:
    results, _ = in_threads(2, lambda hosts: hosts.barrier("saved" if hosts.index else "batch 7"))
    expected = (
        "process 1 is at 'saved' while process 0 is at 'batch 7': their programs have parted ways, which they never "
        "should"
    )
    assert [str(result) for result in results] == [expected] * 2
