"""A run goes on whatever becomes of its workers, and ends with one message when going on would not help."""

import json
import os
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from supervised_workers import events, of, run, started, story
from test_workers import SECONDS, gone, within

from sharder.run_folder import mark_complete
from sharder.supervise import gang, supervisor, workers
from sharder.supervise.heartbeat import Beat
from sharder.supervise.supervisor import _memory

pytestmark = pytest.mark.multiprocess

Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the peers of a worker that failed, which here wait for ever."""
    monkeypatch.setattr(supervisor, "GRACE_S", 0.2)


DIES_ONCE = """
if attempt == 1 and rank == 1:
    at("step", 3)
    peer(0, lambda beat: beat.step == 4)
    print("the last it said")
    os.kill(os.getpid(), signal.SIGKILL)
if attempt == 1:
    save(2)
    at("step", 4)
    time.sleep(600)
complete()
"""


def test_what_dies_is_started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Said) -> None:
    assert run(monkeypatch, DIES_ONCE, tmp_path) == 0
    assert story(tmp_path) == ["start", "start", "complete"]
    first, second = events(tmp_path, "start")
    assert (first["processes"], first["saved"], second["saved"]) == (2, None, 2)
    assert first["attempt"] != second["attempt"]
    assert first["pids"] == [int((tmp_path / f"pid-{rank}-1").read_text()) for rank in (0, 1)]
    ends = {(end["attempt"], end["rank"]): end for end in events(tmp_path, "exit")}
    dead, killed = ends[first["attempt"], 1], ends[first["attempt"], 0]
    assert (dead["how"], dead["phase"], dead["step"]) == ("SIGKILL", "step", 3)
    assert (killed["how"], killed["step"]) == ("killed", 4)
    assert dead["rss_mb"] > 0 and dead["available_mb"] > 0
    said = capfd.readouterr().err.splitlines()
    assert re.fullmatch(
        r"attempt 1 ended: worker 1 first, step 3, phase step: SIGKILL after [\d.]+ s, memory [\d,]+ MB with "
        r"[\d,]+ MB left.*: the last it said",
        said[0],
    )
    assert said[1] == "relaunch 1 of 3 since the last new checkpoint, in 0.01 s, 2 workers, from step 2"
    assert len(said) == 2


def test_each_attempt_says_so_in_the_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(monkeypatch, DIES_ONCE, tmp_path)
    attempts = [event["attempt"] for event in events(tmp_path, "start")]
    lines = (tmp_path / "logs" / "worker-1.log").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        f"attempt {attempts[0]}",
        "the last it said",
        f"attempt {attempts[1]}",
    ]


HANGS_ONCE = """
def hanging_here():
    if sys.argv[-1] == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        time.sleep(0.05)
if attempt == 1:
    save(5)
    at("step", 5) if rank == 1 else at("data wait", 6)
    peer(1 - rank, lambda beat: beat.step is not None)
    hanging_here() if rank == 1 else time.sleep(600)
complete()
"""


@pytest.mark.parametrize("how", ["sleeping", "stopped"])
def test_what_hangs_is_named_and_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Said, how: str
) -> None:
    script = HANGS_ONCE.replace("sys.argv[-1]", repr(how))
    assert run(monkeypatch, script, tmp_path, of(step_s=0.5)) == 0
    assert story(tmp_path) == ["start", "stuck", "start", "complete"]
    (stuck,) = events(tmp_path, "stuck")
    assert (stuck["rank"], stuck["phase"], stuck["step"], stuck["limit_s"]) == (1, "step", 5, 0.5)
    assert stuck["for_s"] >= 0.5
    assert stuck["process_state"] == how
    assert stuck["peers"] == [{"rank": 0, "phase": "data wait", "step": 6}]
    for rank in (0, 1):
        assert gone(int((tmp_path / f"pid-{rank}-1").read_text()))
    assert "in hanging_here" in (tmp_path / "logs" / "worker-1.log").read_text()
    said = capfd.readouterr().err.splitlines()
    assert re.fullmatch(
        r"stuck: worker 1: step 5, phase step, for [\d.]+ s without progress \(launch.limits.step_s=0.5, process "
        rf"{how}\); worker 0: step 6, phase data wait, for [\d.]+ s; stacks: {tmp_path}/logs/worker-1.log",
        said[0],
    )
    assert said[1].startswith("attempt 1 ended: worker 1 first, step 5, phase step: stuck after ")


def test_a_worker_that_never_says_anything_is_stuck_in_its_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(supervisor, "STACKS_S", 0.1)
    script = """
if attempt == 1 and rank == 1:
    beating.__exit__(None, None, None)
    (folder / "heartbeats" / "1.json").unlink()
    time.sleep(600)
if attempt == 1:
    at("first step", 0)
    time.sleep(600)
complete()
"""
    assert run(monkeypatch, script, tmp_path, of(start_s=3.0)) == 0
    (stuck,) = events(tmp_path, "stuck")
    assert (stuck["rank"], stuck["phase"], stuck["step"], stuck["limit_s"]) == (1, "start", None, 3.0)


def test_a_usage_error_is_not_retried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Said) -> None:
    script = """
if rank == 1:
    print("error: data.root: found x")
    sys.exit(2)
time.sleep(600)
"""
    assert run(monkeypatch, script, tmp_path) == 2
    assert story(tmp_path) == ["start", "give_up"]
    assert events(tmp_path, "give_up")[0]["code"] == 2
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "worker 1: error: data.root: found x"
    assert said[-1].startswith("given up: not started again, since the same would come of it: worker 1, phase start: ")


def test_peers_that_end_because_of_a_crash_are_no_usage_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A worker that crashed lets the others end first, each with a line about it and exit code 2."""
    script = """
if attempt == 1:
    at("step", 3)
    if rank == 0:
        wait_until(lambda: gone(wait_for("pid-1-1")))
        sys.exit(1)
    print("error: process 0 ended with exit code 1 before reaching 'batch ready'")
    sys.exit(2)
complete()
"""
    script = "gone = lambda pid: not pathlib.Path('/proc', pid).exists()\n" + script
    monkeypatch.setattr(supervisor, "GRACE_S", SECONDS)
    assert run(monkeypatch, script, tmp_path) == 0
    assert story(tmp_path) == ["start", "start", "complete"]


BUG = """
start = saved()
for step in range(start, 9):
    at("step", step)
    if step == 7:
        raise ZeroDivisionError(f"in process {os.getpid()}")
    if rank == 0 and step == 5:
        save(5)
    wait_until(lambda: step < 5 or saved() == 5)
"""


@pytest.mark.parametrize("times", [2, 3])
def test_a_bug_that_comes_back_ends_the_run_with_one_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Said, times: int
) -> None:
    script = "sys.excepthook = lambda *error: (beating.__exit__(None, None, None), sys.__excepthook__(*error))\n" + BUG
    assert run(monkeypatch, script, tmp_path, of(same_failure=times, retries=5)) == 1
    assert story(tmp_path) == ["start"] * times + ["give_up"]
    said = capfd.readouterr().err
    (given_up,) = re.findall("^given up: .*$", said, re.MULTILINE)
    assert "step 7, phase step: exit 1: ZeroDivisionError: in process " in given_up
    assert f"({times} times, and no progress past step 5; launch.same_failure={times})" in given_up


def test_one_that_dies_every_so_often_keeps_going(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = """
if saved() == 9:
    complete()
step = saved() + 3
at("step", step)
if rank == 0:
    save(step)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""
    assert run(monkeypatch, script, tmp_path, of(retries=1)) == 0
    assert [event["saved"] for event in events(tmp_path, "start")] == [None, 3, 6, 9]


def test_without_progress_the_retries_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = """
at("step", attempt)
if rank == 1:
    sys.exit(3)
time.sleep(600)
"""
    assert run(monkeypatch, script, tmp_path, of(retries=2)) == 3
    assert story(tmp_path) == ["start", "start", "start", "give_up"]
    assert events(tmp_path, "give_up")[0]["message"].endswith("no step was ever saved; launch.retries=2)")


def test_the_marker_counts_more_than_an_abort(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Said) -> None:
    script = """
if rank == 0:
    complete()
wait_for("complete.json")
os.abort()
"""
    assert run(monkeypatch, script, tmp_path) == 0
    assert story(tmp_path) == ["start", "complete"]
    assert capfd.readouterr().err == ""


def test_a_complete_run_is_not_started_again_unless_it_is_made_longer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Said
) -> None:
    saved(tmp_path, 9)
    mark_complete(tmp_path, 9)
    assert run(monkeypatch, "sys.exit(5)", tmp_path) == 0
    assert story(tmp_path) == []
    assert capfd.readouterr().out == "complete: step 9 of train.steps=9 is done; raise train.steps to go on\n"

    longer = of()
    longer.train.steps = 12
    assert run(monkeypatch, "save(12)\nmark_complete(folder, 12)\nos.abort()", tmp_path, longer) == 0
    assert story(tmp_path) == ["start", "complete"]


def test_a_marker_without_its_checkpoint_is_not_believed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark_complete(tmp_path, 9)
    assert run(monkeypatch, "complete()", tmp_path) == 0
    assert story(tmp_path) == ["start", "complete"]


def saved(folder: Path, step: int) -> None:
    (folder / "checkpoints" / str(step)).mkdir(parents=True)
    (folder / "checkpoints" / str(step) / "manifest.json").touch()


LISTENING = """
def heard(number, frame):
    with open(folder / f"heard-{rank}", "a") as file:
        file.write(signal.Signals(number).name + "\\n")
    if rank == 0:
        save(4)
    sys.exit(75)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, heard)
at("step", 4)
tell(f"up-{rank}")
while True:
    time.sleep(0.05)
"""


def up(folder: Path) -> bool:
    return all((folder / f"up-{rank}").exists() for rank in (0, 1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_is_passed_on_and_the_run_can_go_on(tmp_path: Path, number: signal.Signals) -> None:
    with started(LISTENING, tmp_path) as command:
        within(lambda: up(tmp_path))
        command.send_signal(number)
        _, said = command.communicate(timeout=SECONDS)
    assert command.returncode == 75
    assert [(tmp_path / f"heard-{rank}").read_text() for rank in (0, 1)] == [f"{number.name}\n"] * 2
    assert story(tmp_path) == ["start", "stop"]
    assert events(tmp_path, "stop")[0]["signal"] == number.name
    assert re.fullmatch(
        f"stopped by {number.name}: worker [01], step 4, phase step: stopped on request; "
        "the same command goes on from step 4",
        said.decode().splitlines()[-1],
    )


def test_a_sweep_hears_of_the_signal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = LISTENING.replace(
        "while True", "if rank == 0:\n    wait_for('up-1')\n    os.kill(os.getppid(), signal.SIGUSR1)\nwhile True"
    )
    with pytest.raises(workers.Interrupted) as stopped:
        run(monkeypatch, script, tmp_path)
    assert (stopped.value.signal_number, stopped.value.code) == (signal.SIGUSR1, 75)


def test_who_does_not_stop_within_the_grace_is_killed(tmp_path: Path) -> None:
    with started(LISTENING.replace("sys.exit(75)", "pass"), tmp_path, grace_s=0.3) as command:
        within(lambda: up(tmp_path))
        command.send_signal(signal.SIGTERM)
        _, said = command.communicate(timeout=SECONDS)
    assert command.returncode == 75  # what is saved is there to go on from
    assert story(tmp_path) == ["start", "stop"]
    assert [end["how"] for end in events(tmp_path, "exit")] == ["killed", "killed"]
    assert re.search(
        "^stopped by SIGTERM: worker [01], step 4, phase step: killed; the same", said.decode(), re.MULTILINE
    )
    for rank in (0, 1):
        assert gone(int((tmp_path / f"pid-{rank}-1").read_text()))


def test_one_that_saved_is_enough_to_go_on(tmp_path: Path) -> None:
    script = LISTENING.replace("sys.exit(75)", "if rank == 0:\n        sys.exit(75)\n    time.sleep(600)")
    with started(script, tmp_path, grace_s=0.5) as command:
        within(lambda: up(tmp_path))
        command.send_signal(signal.SIGTERM)
        command.communicate(timeout=SECONDS)
    assert command.returncode == 75


@pytest.mark.parametrize(
    ("before", "number", "code"),
    [("", signal.SIGTERM, 75), ("", signal.SIGINT, 130), ("save(3)\n", signal.SIGINT, 75)],
)
def test_workers_that_did_not_listen_yet(tmp_path: Path, before: str, number: signal.Signals, code: int) -> None:
    """Whoever sends SIGTERM means to start it again; after Ctrl-C that is so where something was saved."""
    script = before + "tell(f'up-{rank}')\ntime.sleep(600)"
    with started(script, tmp_path) as command:
        within(lambda: up(tmp_path))
        command.send_signal(number)
        command.communicate(timeout=SECONDS)
    assert command.returncode == code
    assert story(tmp_path) == ["start", "stop"]


def test_a_signal_between_two_attempts(tmp_path: Path) -> None:
    script = "save(3)\nat('step', 3)\nsys.exit(1)"
    with started(script, tmp_path, backoff_s=60.0) as command:
        assert command.stderr is not None
        said = b""
        while b"relaunch" not in said:
            said += command.stderr.read(1)
        command.send_signal(signal.SIGTERM)
        command.communicate(timeout=SECONDS)
    assert command.returncode == 75
    assert story(tmp_path) == ["start", "stop"]


def test_a_worker_that_alone_was_told_to_stop_is_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Said
) -> None:
    script = """
if attempt == 1:
    at("step", 4)
    if rank == 1:
        save(4)
        sys.exit(75)
    wait_until(lambda: saved() == 4)
    os.abort()
complete()
"""
    monkeypatch.setattr(supervisor, "GRACE_S", SECONDS)
    assert run(monkeypatch, script, tmp_path) == 0
    assert story(tmp_path) == ["start", "start", "complete"]
    assert "attempt 1 ended: worker 1 first, step 4, phase step: stopped on request" in capfd.readouterr().err


LEAVES_BEHIND = """
if attempt == 1:
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(sleeper)
    daemon = subprocess.Popen(sleeper, start_new_session=True)
    tell(f"left-{rank}", f"{child.pid} {daemon.pid}")
    wait_for(f"left-{1 - rank}")
    os.kill(os.getpid(), signal.SIGKILL)
left = " ".join(wait_for(f"left-{other}") for other in (0, 1)).split()
tell(f"still-there-{rank}", " ".join(pid for pid in left if pathlib.Path("/proc", pid).exists()))
complete()
"""


def test_nothing_is_left_when_workers_are_started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, LEAVES_BEHIND, tmp_path) == 0
    assert [(tmp_path / f"still-there-{rank}").read_text() for rank in (0, 1)] == ["", ""]


def test_no_worker_outlives_the_supervisor_and_the_run_goes_on(tmp_path: Path) -> None:
    script = """
if attempt == 1:
    save(4)
    tell(f"up-{rank}")
    time.sleep(600)
complete()
"""
    with started(script, tmp_path) as command:
        within(lambda: up(tmp_path))
        command.kill()
        command.communicate(timeout=SECONDS)
    for rank in (0, 1):
        within(lambda rank=rank: gone(int((tmp_path / f"pid-{rank}-1").read_text())))
    with started(script, tmp_path) as command:
        command.communicate(timeout=SECONDS)
    assert command.returncode == 0
    assert [event["saved"] for event in events(tmp_path, "start")] == [None, 4]


def refusing(rank: str, count: str) -> Callable[..., object]:
    """The system has no room for this worker."""
    real = gang.start_worker

    def start(command: str, folder: Path, environment: Mapping[str, str], lock: int, output: int | None) -> object:
        if (environment["JAX_PROCESS_ID"], environment["JAX_NUM_PROCESSES"]) == (rank, count):
            raise BlockingIOError(11, os.strerror(11))
        return real(command, folder, environment, lock, output)

    return start


def test_without_room_for_all_workers_there_are_fewer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Said
) -> None:
    monkeypatch.setattr(gang, "start_worker", refusing("3", "4"))
    script = "tell(f'count-{rank}', str(count))\ntime.sleep(600) if count == 4 else complete()"
    assert run(monkeypatch, script, tmp_path, of(4)) == 0
    assert story(tmp_path) == ["start", "complete"]
    refused, *_ = events(tmp_path, "exit")
    assert (refused["rank"], refused["how"], refused["reason"]) == (3, "cannot start", os.strerror(11))
    assert [(tmp_path / f"count-{rank}").read_text() for rank in (0, 1)] == ["2", "2"]
    said = capfd.readouterr().err.splitlines()
    assert said[0] == f"attempt 1 ended: worker 3, phase start: cannot start: {os.strerror(11)}"
    assert said[1] == "relaunch 1 of 3 since the last new checkpoint, in 0.01 s, 2 workers, from the beginning"


def test_a_log_of_events_that_cannot_be_written_ends_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "supervisor.jsonl").mkdir()
    assert run(monkeypatch, DIES_ONCE, tmp_path) == 0
    assert json.loads((tmp_path / "complete.json").read_text()) == {"step": 9}


@pytest.mark.parametrize(
    ("how", "rss_mb", "available_mb", "said"),
    [
        ("SIGKILL", 9000.0, 500.0, ", memory 9,000 MB with 500 MB left, probably out of memory"),
        ("exit 1", 9000.0, 500.0, ", memory 9,000 MB with 500 MB left, near the limit"),
        ("SIGKILL", 9000.0, 5000.0, ", memory 9,000 MB with 5,000 MB left"),
        ("SIGKILL", None, None, ""),
    ],
)
def test_memory_near_the_limit_is_told(how: str, rss_mb: float | None, available_mb: float | None, said: str) -> None:
    assert _memory(Beat(1, 0, "a", "step", 3, 0.0, 0.0, rss_mb, available_mb), how) == said
