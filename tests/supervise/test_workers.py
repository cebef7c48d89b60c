"""A worker and the command that started it: codes, signals, environment, and who ends with whom."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sharder.config import Config
from sharder.stop_signals import STOP_SIGNALS
from sharder.supervise import workers

pytestmark = pytest.mark.multiprocess
SECONDS = 20.0  # for what takes a fraction of one on an idle machine


def within(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Ended, or a zombie that nobody has asked for its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def run(monkeypatch: pytest.MonkeyPatch, script: str, folder: Path, config: Config | None = None) -> int:
    monkeypatch.setattr(
        workers, "worker_command", lambda command, folder: [sys.executable, "-c", script, command, str(folder)]
    )
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        return workers.run_inline("train", folder, config or Config(), lock)
    finally:
        os.close(lock)


def test_the_real_worker_is_a_module_of_ours(tmp_path: Path) -> None:
    assert workers.worker_command("train", tmp_path) == [sys.executable, "-m", "sharder.worker", "train", str(tmp_path)]


@pytest.mark.parametrize(("script", "code"), [("", 0), ("import sys; sys.exit(2)", 2), ("import os; os.abort()", 134)])
def test_the_exit_code_is_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, code: int) -> None:
    assert run(monkeypatch, script, tmp_path) == code


def test_the_worker_has_an_environment_and_a_group_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_mine=1")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    config = Config()
    config.hardware.kind = "cpu"
    script = """
import json, os, pathlib, sys
about = {**os.environ, "group": os.getpgid(0), "pid": os.getpid(), "stdin": sys.stdin.read()}
pathlib.Path(sys.argv[2], "about.json").write_text(json.dumps(about))
"""
    assert run(monkeypatch, script, tmp_path, config) == 0
    about = json.loads((tmp_path / "about.json").read_text())
    assert about["JAX_PLATFORMS"] == "cpu"
    assert about["XLA_FLAGS"] == "--xla_mine=1"
    assert about[workers.PARENT_VARIABLE] == str(os.getpid())
    assert about["group"] == about["pid"]
    assert about["stdin"] == ""
    assert "JAX_PLATFORMS" not in os.environ


COMMAND = """
import os, sys
from pathlib import Path
from sharder.config import Config
from sharder.stop_signals import STOP_SIGNALS
from sharder.supervise import workers
workers.worker_command = lambda command, folder: [sys.executable, "-c", {worker!r}, command, str(folder)]
folder = Path(sys.argv[1])
lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
try:
    sys.exit(workers.run_inline("train", folder, Config(), lock))
finally:
    (folder / "unwound").touch()
"""
# Says when it is up, and writes down each signal; SIGTERM ends it with 7 as a worker that saved first might.
LISTENING = """
import os, pathlib, signal, subprocess, sys, time
folder = pathlib.Path(sys.argv[2])
def heard(number, frame):
    with open(folder / "heard", "a") as file:
        file.write(signal.Signals(number).name + "\\n")
    if number == signal.SIGTERM:
        sys.exit(7)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, heard)
(folder / "pid").write_text(str(os.getpid()))
while True:
    time.sleep(0.05)
"""
FAITHFUL = "from sharder.supervise.workers import die_with_parent; die_with_parent()\n" + LISTENING
WITH_CHILD = """
import pathlib, subprocess, sys
folder = pathlib.Path(sys.argv[2])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(folder / "child").write_text(str(child.pid))
"""


def start(worker: str, folder: Path, wait_for: str = "pid") -> "subprocess.Popen[bytes]":
    script = COMMAND.format(worker=worker)
    command = subprocess.Popen([sys.executable, "-c", script, str(folder)])
    within(lambda: (folder / wait_for).exists() and (folder / wait_for).read_text() != "")
    return command


def test_signals_reach_the_worker_once_each(tmp_path: Path) -> None:
    command = start(LISTENING, tmp_path)
    for count, number in enumerate((signal.SIGUSR1, signal.SIGINT, signal.SIGUSR2), start=1):
        command.send_signal(number)
        within(lambda count=count: (tmp_path / "heard").exists() and len(heard(tmp_path)) == count)
    command.send_signal(signal.SIGTERM)
    assert command.wait(SECONDS) == 7
    assert heard(tmp_path) == ["SIGUSR1", "SIGINT", "SIGUSR2", "SIGTERM"]
    assert (tmp_path / "unwound").exists()


def heard(folder: Path) -> list[str]:
    return (folder / "heard").read_text().split()


def test_three_ctrl_c_end_a_worker_that_does_not_listen(tmp_path: Path) -> None:
    command = start(LISTENING, tmp_path)
    for count in (1, 2):
        command.send_signal(signal.SIGINT)
        within(lambda count=count: (tmp_path / "heard").exists() and len(heard(tmp_path)) == count)
    command.send_signal(signal.SIGINT)
    assert command.wait(SECONDS) == 128 + signal.SIGKILL


def test_the_worker_ends_when_its_command_is_killed(tmp_path: Path) -> None:
    command = start(FAITHFUL, tmp_path)
    worker = int((tmp_path / "pid").read_text())
    assert not gone(worker)
    command.kill()
    command.wait(SECONDS)
    within(lambda: gone(worker))


def test_a_worker_whose_command_is_already_gone_does_not_start(tmp_path: Path) -> None:
    script = "from sharder.supervise.workers import die_with_parent; die_with_parent(); print('started')"
    environment = {**os.environ, workers.PARENT_VARIABLE: "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (workers.ORPHANED, "")


def test_a_worker_started_by_hand_runs() -> None:
    script = "from sharder.supervise.workers import die_with_parent; die_with_parent(); print('started')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "started\n"


def test_nothing_a_worker_started_outlives_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, WITH_CHILD, tmp_path) == 0
    child = int((tmp_path / "child").read_text())
    within(lambda: gone(child))


def test_handlers_are_put_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    run(monkeypatch, "", tmp_path)
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_a_stopped_sweep_starts_no_further_point(tmp_path: Path) -> None:
    script = f"""
import functools, sys
from sharder.compose import main
from sharder.stop_signals import STOP_SIGNALS
from sharder.supervise import workers
workers.worker_command = lambda command, folder: [sys.executable, "-c", {LISTENING!r}, command, str(folder)]
sys.exit(main("train", functools.partial(workers.run_inline, "train")))
"""
    argv = [sys.executable, "-c", script, "-m", "train.seed=1,2,3"]
    command = subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    within(lambda: any(path.read_text() for path in tmp_path.glob("outputs/train/*/pid")))
    command.send_signal(signal.SIGTERM)
    _, error = command.communicate(timeout=SECONDS)
    assert command.returncode == 7  # what its worker ended with
    assert "sweep: stopped by SIGTERM" in error
    assert len(list(tmp_path.glob("outputs/train/*/pid"))) == 1
