"""A request to stop: answered at once where nothing is lost, kept for the training loop where something would be."""

import os
import signal
import subprocess
import sys

import pytest

from sharder.errors import RESUME
from sharder.supervise.presence import AT_ONCE, INTERRUPTED, Presence


@pytest.mark.parametrize("phase", AT_ONCE)
def test_phases_that_lose_nothing_are_left_at_once(phase: str) -> None:
    left: list[int] = []
    presence = Presence(leave=left.append)
    presence.phase(phase)
    presence.request_stop(signal.SIGTERM)
    assert left == [RESUME]


@pytest.mark.parametrize("phase", ["first step", "step", "data wait", "save"])
def test_between_steps_the_loop_is_asked(phase: str) -> None:
    left: list[int] = []
    presence = Presence(leave=left.append)
    presence.phase(phase, 3)
    assert not presence.stop_requested
    presence.request_stop(signal.SIGUSR1)
    assert presence.stop_requested and left == []
    presence.phase("end")  # it came too late for another step, and everything is saved
    assert left == [RESUME]


def test_ctrl_c_before_there_is_anything_to_save_means_to_end() -> None:
    left: list[int] = []
    Presence(leave=left.append).request_stop(signal.SIGINT)
    assert left == [INTERRUPTED]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_is_heard_while_the_main_thread_is_deep_in_c(number: int) -> None:
    """What hears it is another thread."""
    script = """
import ctypes, os
from sharder.supervise.presence import Presence
presence = Presence()
presence.listen()
presence.phase("compile")
print("ready", flush=True)
for _ in range(3):  # each call ends with a signal, and none comes back to Python in between
    ctypes.CDLL(None).sleep(600)
"""
    worker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**os.environ})
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    worker.send_signal(number)
    assert worker.wait(timeout=60) == RESUME
    worker.stdout.close()
