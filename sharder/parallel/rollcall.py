"""Everyone answers before jax starts: what is wrong with a launch is then one line, on every process it concerns.

jax by itself waits without a word for a process that does not come, and then aborts. So process 0 first listens on the
coordinator's port itself; every other process connects, says in one line of JSON who it is and of how many in which
attempt, and is held until all are there. Then all go on, and jax's own service takes the port.

    process 1 -> {"index": 1, "count": 4, "attempt": "2"}
    process 0 -> {"waiting": "waiting for process 3 of 4: not there after 10 s"}     now and then
    process 0 -> {"go": true} or {"fault": "..."}                                    the last word
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from sharder.errors import UserError
from sharder.parallel.processes import ATTEMPT_VARIABLE, COUNT, INDEX, Membership, named, split_address

RETRY_S = 0.2  # between two tries to connect, or to get the port
CONNECT_S = 5.0  # a host that is down answers nothing at all
ANSWER_S = 10.0  # longer than process 0's own time-out, so that its word comes first
LONGEST_LINE = 1 << 16  # bytes
TIMEOUT_KEY = "launch.start_timeout_s"


def call(membership: Membership, *, timeout_s: float, late_after_s: float, say: Callable[[str], None]) -> None:
    """Returns once every process is there; otherwise a UserError. `say` gets a line each `late_after_s` meanwhile."""
    assert membership.coordinator is not None
    assert membership.count > 1
    if membership.index == 0:
        _Caller(membership, timeout_s, late_after_s, say).call()
    else:
        _Answerer(membership, timeout_s, late_after_s, say).answer()


def reserve_port(host: str = "127.0.0.1") -> socket.socket:
    """A free port that nobody else gets while the returned socket is open: whoever starts the workers keeps it so.

    The socket is bound but does not listen. The kernel gives the port to no one else who asks for any free one, while
    those who name it and set SO_REUSEPORT, as process 0 and then jax's service do, may listen there. It is
    `.getsockname()[1]`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reserved = socket.socket(family, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind((host, 0))
    return reserved


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it: then nothing of ours needs to listen to the network."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Caller:
    """Process 0."""

    def __init__(self, membership: Membership, timeout_s: float, late_after_s: float, say: Callable[[str], None]):
        self.us, self.timeout_s, self.late_after_s, self.say = membership, timeout_s, late_after_s, say
        self.start = time.monotonic()
        self.next_word = self.start + late_after_s
        self.present: dict[int, socket.socket] = {}
        self.heard: dict[socket.socket, bytes] = {}  # connections, and what they have said so far

    def call(self) -> None:
        with contextlib.closing(self._listener()) as listener, selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            try:
                while missing := set(range(1, self.us.count)) - self.present.keys():
                    self._look_at_the_clock(missing)
                    for key, _ in selector.select(max(0.0, self.next_word - time.monotonic())):
                        if key.fileobj is listener:
                            self._accept(listener, selector)
                        else:
                            self._read(key.fileobj, selector)  # type: ignore[arg-type]
            except UserError as fault:
                self._tell_all({"fault": str(fault)})
                raise
            else:
                self._tell_all({"go": True})
            finally:
                for connection in self.heard:
                    connection.close()

    def _look_at_the_clock(self, missing: set[int]) -> None:
        waited = time.monotonic() - self.start
        who = f"{named(missing)} of {self.us.count}"
        if waited >= self.timeout_s:
            raise UserError(
                f"{who} did not come within {self.timeout_s:g} s ({TIMEOUT_KEY}): see their logs, or allow more time"
            )
        if time.monotonic() >= self.next_word:
            line = f"waiting for {who}: not there after {waited:.0f} s"
            self.say(line)
            self._tell_all({"waiting": line})
            self.next_word += self.late_after_s
        self.next_word = min(self.next_word, self.start + self.timeout_s)

    def _accept(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        with contextlib.suppress(OSError):  # gone again already
            connection, _ = listener.accept()
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ)
            self.heard[connection] = b""

    def _read(self, connection: socket.socket, selector: selectors.BaseSelector) -> None:
        try:
            data = connection.recv(LONGEST_LINE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.heard[connection] += data
        line, newline, _ = self.heard[connection].partition(b"\n")
        if newline and connection not in self.present.values():
            welcome = self._note(connection, line)
        else:
            welcome = bool(data) and len(line) < LONGEST_LINE
        if not welcome:  # it has left, or is none of ours: a port scanner, or a leftover of an earlier attempt
            selector.unregister(connection)
            del self.heard[connection]
            connection.close()
            self.present = {index: other for index, other in self.present.items() if other is not connection}

    def _note(self, connection: socket.socket, line: bytes) -> bool:
        """Whether this is one of us, noted down; UserError for a launch that cannot go well."""
        try:
            hello = json.loads(line)
            index, count, attempt = int(hello["index"]), int(hello["count"]), str(hello["attempt"])
        except (ValueError, TypeError, KeyError, OverflowError):
            return False
        if attempt != self.us.attempt:
            fault = (
                f"process {index} belongs to attempt {attempt!r} ({ATTEMPT_VARIABLE}), but attempt {self.us.attempt!r} "
                f"is being started at {self.us.coordinator}; it is not let in and ends"
            )
            self.say(fault)
            _tell(connection, {"fault": fault})
            return False
        if count != self.us.count:
            raise UserError(
                f"process {index} was started as one of {count} processes, process 0 as one of {self.us.count}: "
                f"give all of them the same number ({COUNT})"
            )
        if not 0 <= index < count:
            raise UserError(f"process {index} is outside 0..{count - 1}: give each process its own number ({INDEX})")
        if index == 0 or (index in self.present and not _has_left(self.present[index])):
            raise UserError(f"two processes say that they are process {index}: give each its own number ({INDEX})")
        self.present[index] = connection
        return True

    def _tell_all(self, word: dict[str, Any]) -> None:
        for connection in self.heard:
            _tell(connection, word)

    def _listener(self) -> socket.socket:
        """The port, as soon as it is ours: a process 0 of an earlier attempt may still be about to leave it."""
        assert self.us.coordinator is not None
        host, port = split_address(self.us.coordinator)
        while (listener := _try_to_listen(host, port)) is None:
            waited = time.monotonic() - self.start
            if waited >= self.timeout_s:
                raise UserError(
                    f"port {port} of {self.us.coordinator} was taken by another program for all of "
                    f"{self.timeout_s:g} s ({TIMEOUT_KEY}): choose another port for the coordinator"
                )
            if time.monotonic() >= self.next_word:
                self.say(f"waiting for port {port} of {self.us.coordinator}: another program has it")
                self.next_word += self.late_after_s
            time.sleep(RETRY_S)
        return listener


class _Answerer:
    """Every other process."""

    def __init__(self, membership: Membership, timeout_s: float, late_after_s: float, say: Callable[[str], None]):
        self.us, self.timeout_s, self.late_after_s, self.say = membership, timeout_s, late_after_s, say
        self.start = time.monotonic()
        self.next_word = self.start + late_after_s

    def answer(self) -> None:
        hello = json.dumps({"index": self.us.index, "count": self.us.count, "attempt": self.us.attempt}) + "\n"
        assert self.us.coordinator is not None
        host, port = split_address(self.us.coordinator)
        while True:
            try:
                with socket.create_connection((host, port), timeout=min(CONNECT_S, self.timeout_s)) as connection:
                    connection.sendall(hello.encode())
                    if self._waited_for_go(connection):
                        return
                reason = "the line was cut, or another program answers there"
            except OSError as error:
                reason = error.strerror or str(error)
            waited = time.monotonic() - self.start
            where = f"the coordinator {self.us.coordinator}"
            if waited >= self.timeout_s:
                raise UserError(
                    f"nobody answers at {where} ({reason}), tried for {self.timeout_s:g} s ({TIMEOUT_KEY}): is process "
                    "0 running, and can this machine reach it?"
                )
            if time.monotonic() >= self.next_word:
                self.say(f"waiting for {where}: no answer after {waited:.0f} s ({reason})")
                self.next_word += self.late_after_s
            time.sleep(RETRY_S)

    def _waited_for_go(self, connection: socket.socket) -> bool:
        """Process 0 watches the time from here on. False: the connection ended without its last word."""
        deadline = time.monotonic() + self.timeout_s + ANSWER_S
        for word in _words(connection, deadline):
            if "waiting" in word:
                self.say(str(word["waiting"]))
            elif "fault" in word:
                raise UserError(word["fault"])
            elif "go" in word:
                return True
        return False


def _words(connection: socket.socket, deadline: float) -> Iterator[dict[str, Any]]:
    """What process 0 says, word by word, until it hangs up, the deadline, or something that no process 0 would say."""
    heard = b""
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        data = connection.recv(LONGEST_LINE)
        if not data:
            return
        *lines, heard = (heard + data).split(b"\n")
        for line in lines:
            try:
                word = json.loads(line)
            except ValueError:
                return
            if not isinstance(word, dict):
                return
            yield word


def _tell(connection: socket.socket, word: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # it has left, which reading from it will show
        connection.sendall(json.dumps(word).encode() + b"\n")


def _has_left(connection: socket.socket) -> bool:
    """A process started again may be heard before the end of its predecessor's connection is."""
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _try_to_listen(host: str, port: int) -> socket.socket | None:
    """Alone on the port where possible; beside a reservation of it otherwise, but never beside one who listens."""
    with contextlib.suppress(OSError):
        return _listen(host, port, shared=False)
    loopback = host if is_loopback(host) else "127.0.0.1"
    with contextlib.suppress(OSError), socket.create_connection((loopback, port), timeout=CONNECT_S):
        return None
    try:
        return _listen(host, port, shared=True)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise UserError(f"cannot listen on port {port} for {host}: {error.strerror}") from error


def _listen(host: str, port: int, *, shared: bool) -> socket.socket:
    """On all addresses of this machine, as jax's service does: the coordinator's name may be another's idea of us."""
    if is_loopback(host):
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    elif socket.has_dualstack_ipv6():
        family, address = socket.AF_INET6, ("::", port)
    else:
        family, address = socket.AF_INET, ("", port)
    dual = family == socket.AF_INET6 and not is_loopback(host)
    return socket.create_server(
        address, family=family, backlog=socket.SOMAXCONN, reuse_port=shared, dualstack_ipv6=dual
    )
