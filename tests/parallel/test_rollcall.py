"""The roll call over real sockets of this machine; a process is a thread that keeps what it said and how it ended."""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator

import pytest

from sharder.errors import UserError
from sharder.parallel import rollcall
from sharder.parallel.processes import Membership

PATIENT_S = 60.0  # no test waits this long
HASTY_S = 0.4


class Process(threading.Thread):
    """`told` is what it logged; `fault` is None when it was let go."""

    def __init__(self, index: int, count: int, port: int, *, timeout_s: float = PATIENT_S, attempt: str = "1"):
        super().__init__(daemon=True)
        self.us = Membership(index, count, f"127.0.0.1:{port}", "JAX_ variables", attempt)
        self.timeout_s, self.told, self.fault = timeout_s, [], "still running"
        self.spoke = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            rollcall.call(self.us, timeout_s=self.timeout_s, late_after_s=0.1, say=self.say)
            self.fault = None
        except UserError as error:
            self.fault = str(error)

    def say(self, line: str) -> None:
        self.told.append(line)
        self.spoke.set()

    def ended(self) -> str | None:
        self.join(PATIENT_S)
        return self.fault

    def was_told(self, pattern: str) -> bool:
        """Waits until it logs such a line."""
        while not any(re.fullmatch(pattern, line) for line in self.told):
            self.spoke.clear()
            if not self.spoke.wait(PATIENT_S):
                return False
        return True


@pytest.fixture
def port() -> Iterator[int]:
    with rollcall.reserve_port() as reserved:
        yield reserved.getsockname()[1]


def hello(port: int, **fields: object) -> socket.socket:
    connection = connected(port)
    connection.sendall(json.dumps(fields).encode() + b"\n")
    return connection


def connected(port: int) -> socket.socket:
    while True:
        with contextlib.suppress(ConnectionRefusedError):  # process 0 has not come to listen yet
            return socket.create_connection(("127.0.0.1", port), timeout=PATIENT_S)


def test_everyone_goes_when_everyone_is_there(port: int) -> None:
    everyone = [Process(index, 4, port) for index in (2, 0, 3, 1)]
    assert [process.ended() for process in everyone] == [None] * 4


def test_afterwards_the_port_is_free_for_jax_and_still_reserved(port: int) -> None:
    for _ in range(2):  # the second time stands for jax's service
        pair = [Process(index, 2, port) for index in (0, 1)]
        assert [process.ended() for process in pair] == [None, None]
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", port))


def test_the_late_are_named_to_all_who_wait_and_may_still_come(port: int) -> None:
    early = [Process(index, 4, port) for index in (0, 2)]
    for process in early:
        assert process.was_told(r"waiting for processes 1, 3 of 4: not there after \d+ s")
    third = Process(3, 4, port)
    for process in early:
        assert process.was_told(r"waiting for process 1 of 4: not there after \d+ s")
    first = Process(1, 4, port)
    assert [process.ended() for process in (*early, third, first)] == [None] * 4


def test_who_waits_for_process_0_says_so(port: int) -> None:
    first = Process(1, 2, port)
    assert first.was_told(
        rf"waiting for the coordinator 127\.0\.0\.1:{port}: no answer after \d+ s \(Connection refused\)"
    )
    zeroth = Process(0, 2, port)
    assert (zeroth.ended(), first.ended()) == (None, None)


def test_time_runs_out_and_all_are_told_who_was_missing(port: int) -> None:
    zeroth, second = Process(0, 3, port, timeout_s=1.5), Process(2, 3, port)
    expected = "process 1 of 3 did not come within 1.5 s (launch.start_timeout_s): see their logs, or allow more time"
    assert (zeroth.ended(), second.ended()) == (expected, expected)


def test_nobody_answers(port: int) -> None:
    assert Process(1, 2, port, timeout_s=HASTY_S).ended() == (
        f"nobody answers at the coordinator 127.0.0.1:{port} (Connection refused), tried for 0.4 s "
        "(launch.start_timeout_s): is process 0 running, and can this machine reach it?"
    )


def test_a_process_0_that_dies_in_the_middle_is_nobody(port: int) -> None:
    with socket.create_server(("127.0.0.1", port), reuse_port=True) as listener:
        first = Process(1, 2, port, timeout_s=HASTY_S)
        connection, _ = listener.accept()
        connection.close()
    fault = first.ended()
    assert fault is not None
    assert fault.startswith(f"nobody answers at the coordinator 127.0.0.1:{port}")


def test_counts_that_disagree_end_all(port: int) -> None:
    early = [Process(0, 3, port), Process(1, 3, port)]
    assert early[0].was_told(r"waiting for process 2 of 3: not there after \d+ s")
    third = Process(2, 4, port)
    expected = (
        "process 2 was started as one of 4 processes, process 0 as one of 3: give all of them the same number "
        "(JAX_NUM_PROCESSES)"
    )
    assert [process.ended() for process in (*early, third)] == [expected] * 3


@pytest.mark.parametrize("twice", [0, 1])
def test_the_same_index_twice_ends_all(port: int, twice: int) -> None:
    everyone = [Process(0, 3, port), Process(1, 3, port)]
    with hello(port, index=twice, count=3, attempt="1") as connection, connection.makefile() as answers:
        words = [json.loads(line) for line in answers]
    expected = f"two processes say that they are process {twice}: give each its own number (JAX_PROCESS_ID)"
    assert words[-1] == {"fault": expected}
    assert everyone[0].ended() == expected


def test_an_index_out_of_range_ends_all(port: int) -> None:
    zeroth = Process(0, 2, port)
    hello(port, index=2, count=2, attempt="1").close()
    assert zeroth.ended() == "process 2 is outside 0..1: give each process its own number (JAX_PROCESS_ID)"


def test_a_leftover_of_an_earlier_attempt_ends_and_the_others_go_on(port: int) -> None:
    zeroth, stale = Process(0, 2, port, attempt="2"), Process(1, 2, port, attempt="1")
    expected = (
        f"process 1 belongs to attempt '1' (SHARDER_ATTEMPT), but attempt '2' is being started at 127.0.0.1:{port}; it "
        "is not let in and ends"
    )
    assert stale.ended() == expected
    assert expected in zeroth.told
    first = Process(1, 2, port, attempt="2")
    assert (zeroth.ended(), first.ended()) == (None, None)


@pytest.mark.parametrize(
    "noise",
    [b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n", b"[1]\n", b'{"index": 1}\n', b"\xff\n", b"x" * 200_000],
)
def test_what_is_none_of_ours_is_ignored(port: int, noise: bytes) -> None:
    zeroth = Process(0, 2, port)
    with connected(port) as stranger:
        with contextlib.suppress(OSError):
            stranger.sendall(noise)
        first = Process(1, 2, port)
        assert (zeroth.ended(), first.ended()) == (None, None)


def test_a_process_that_left_is_missing_again(port: int) -> None:
    zeroth = Process(0, 3, port)
    gone = hello(port, index=1, count=3, attempt="1")
    assert zeroth.was_told(r"waiting for process 2 of 3: not there after \d+ s")
    gone.close()
    assert zeroth.was_told(r"waiting for processes 1, 2 of 3: not there after \d+ s")
    others = [Process(index, 3, port) for index in (1, 2)]
    assert [process.ended() for process in (zeroth, *others)] == [None] * 3


def test_a_port_that_another_program_uses_is_waited_for_and_then_reported(port: int) -> None:
    with socket.create_server(("127.0.0.1", port), reuse_port=True):
        zeroth = Process(0, 2, port, timeout_s=HASTY_S)
        assert zeroth.ended() == (
            f"port {port} of 127.0.0.1:{port} was taken by another program for all of 0.4 s (launch.start_timeout_s): "
            "choose another port for the coordinator"
        )
    assert zeroth.told[0] == f"waiting for port {port} of 127.0.0.1:{port}: another program has it"


def test_two_jobs_have_two_ports() -> None:
    with rollcall.reserve_port() as one, rollcall.reserve_port() as other:
        ports = [reserved.getsockname()[1] for reserved in (one, other)]
        assert ports[0] != ports[1]
        everyone = [Process(index, 2, port) for index in (1, 0) for port in ports]
        assert [process.ended() for process in everyone] == [None] * 4


def test_only_this_machine_reaches_a_loopback_coordinator() -> None:
    hosts = ("127.0.0.1", "::1", "localhost", "10.0.0.1", "node1")
    assert [rollcall.is_loopback(host) for host in hosts] == [True, True, True, False, False]


def test_a_coordinator_that_others_reach_listens_on_all_addresses(port: int) -> None:
    """`node1` may be a name that only the other hosts know."""
    listener = rollcall._try_to_listen("node1", port)
    assert listener is not None
    with listener, connected(port) as connection:
        assert connection.getpeername() == ("127.0.0.1", port)
