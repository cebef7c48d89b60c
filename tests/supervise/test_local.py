"""Several workers of one run on this machine: what each is told, what is seen of them, and who is blamed."""

import json
import os
import signal
from pathlib import Path

import pytest
from local_workers import of, run, started
from test_workers import SECONDS, gone, within

from sharder.errors import UserError
from sharder.supervise import local, workers
from sharder.supervise.local import End, first_failure, summary

pytestmark = pytest.mark.multiprocess

ABOUT = """
about = {**os.environ, "group": os.getpgid(0), "pid": os.getpid(), "stdin": sys.stdin.read()}
about["open"] = [os.path.realpath(f"/proc/self/fd/{file}") for file in os.listdir("/proc/self/fd")]
tell(f"about-{rank}", json.dumps(about))
"""


def abouts(folder: Path) -> list[dict[str, object]]:
    return [json.loads((folder / f"about-{rank}").read_text()) for rank in (0, 1)]


def test_each_worker_is_told_its_rank_and_where_to_meet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert run(monkeypatch, ABOUT, tmp_path) == 0
    first, second = abouts(tmp_path)
    assert [about["JAX_PROCESS_ID"] for about in (first, second)] == ["0", "1"]
    for about in (first, second):
        assert about["JAX_NUM_PROCESSES"] == "2"
        assert about["XLA_FLAGS"] == "--xla_force_host_platform_device_count=2"
        assert about[workers.PARENT_VARIABLE] == str(os.getpid())
        assert about["group"] == about["pid"]
        assert about["stdin"] == ""
        assert str(tmp_path / "lock") in about["open"]
    host, port = str(first["JAX_COORDINATOR_ADDRESS"]).split(":")
    assert host == "127.0.0.1" and int(port) > 0
    assert first["JAX_COORDINATOR_ADDRESS"] == second["JAX_COORDINATOR_ADDRESS"]
    assert first["SHARDER_ATTEMPT"] == second["SHARDER_ATTEMPT"]

    assert run(monkeypatch, ABOUT, tmp_path) == 0
    assert abouts(tmp_path)[0]["SHARDER_ATTEMPT"] != first["SHARDER_ATTEMPT"]


@pytest.mark.parametrize(
    ("kind", "given", "seen"),
    [
        ("auto", "4,5,6,7", ["4,5", "6,7"]),
        ("auto", "GPU-a, GPU-b", ["GPU-a", "GPU-b"]),
        ("auto", "", ["", ""]),
        ("cpu", "4,5,6", ["4,5,6", "4,5,6"]),
    ],
)
def test_named_gpus_are_split(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, given: str, seen: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    config = of()
    config.hardware.kind = kind
    assert run(monkeypatch, ABOUT, tmp_path, config) == 0
    assert [about["CUDA_VISIBLE_DEVICES"] for about in abouts(tmp_path)] == seen


def test_gpus_that_do_not_divide_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(UserError, match=r"CUDA_VISIBLE_DEVICES: found 0,1,2 \(3 for launch.processes=2\)"):
        run(monkeypatch, "", tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["lock"]


def failed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], script: str, folder: Path
) -> tuple[int, list[str]]:
    code = run(monkeypatch, script, folder, of(3))
    return code, capfd.readouterr().err.splitlines()


def test_the_first_failure_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "GRACE_S", SECONDS)
    script = """
if rank == 1:
    print("the disk is on fire\\n\\n")
    sys.exit(3)
ended_and_noticed(1)
sys.exit(4 if rank == 0 else 0)
"""
    code, said = failed(monkeypatch, capfd, script, tmp_path)
    assert code == 3
    assert said[0].startswith("worker 1 failed first: exit 3 after ")
    assert said[0].endswith(" s: the disk is on fire")
    others = sorted(said[1:3])
    assert others[0].startswith("worker 0: exit 4 after ") and others[0].endswith(" s: (it said nothing)")
    assert others[1].startswith("worker 2: exit 0 after ") and others[1].endswith(" s")
    assert said[3:] == [f"logs: {tmp_path}/logs/worker-<rank>.log"]


def test_who_aborts_because_of_a_peer_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "GRACE_S", SECONDS)
    script = """
if rank == 1:
    os.abort()
ended_and_noticed(1)
if rank == 2:
    print("error: they disagree")
    print("and more from a library")
    sys.exit(2)
"""
    code, said = failed(monkeypatch, capfd, script, tmp_path)
    assert code == 2
    assert said[0] == "worker 2: error: they disagree"
    assert said[1].startswith("worker 2 failed first: exit 2 after ")
    assert said[1].endswith(" s: error: they disagree")
    assert any(line.startswith("worker 1: SIGABRT after ") for line in said[2:])


@pytest.mark.parametrize(
    ("returned", "blamed"),
    [
        ([0, 3, 2], 1),  # a failure of its own stays the first
        ([-signal.SIGKILL, 2], 0),  # killed from outside: nobody's peer did that
        ([-signal.SIGABRT, 0, 3], 0),
        ([-signal.SIGABRT, 3, 2, 2], 2),
    ],
)
def test_the_failure_that_explains_the_others(returned: list[int], blamed: int) -> None:
    ends = [End(rank, code, after_s=rank) for rank, code in enumerate(returned)]
    assert first_failure(ends) is ends[blamed]


def test_no_failure() -> None:
    assert first_failure([End(0, 0, 1.0), End(1, 0, 1.0)]) is None


def test_the_summary_has_a_line_for_each_worker() -> None:
    ends = [End(2, -signal.SIGSEGV, 12.34), End(0, 1, 13.0), End(3, 0, 14.0)]
    assert summary(ends[0], ends, ["x", "", "last", ""]) == [
        "worker 2 failed first: SIGSEGV after 12.3 s: last",
        "worker 0: exit 1 after 13.0 s: x",
        "worker 3: exit 0 after 14.0 s",
        "worker 1: killed after it",
    ]


def test_what_all_found_is_said_once() -> None:
    ends = [End(0, 2, 1.0), End(1, 2, 1.0)]
    assert summary(ends[0], ends, ["error: they differ", "error: they differ"]) == [
        "worker 0 failed first: exit 2 after 1.0 s: error: they differ",
        "worker 1: exit 2 after 1.0 s: the same",
    ]


WITH_CHILDREN = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
tell(f"child-{rank}", str(child.pid))
if rank == 1:
    wait_for("child-0")
    os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


def test_nobody_outlives_the_grace_nor_does_what_they_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "GRACE_S", 0.1)
    assert run(monkeypatch, WITH_CHILDREN, tmp_path) == 128 + signal.SIGKILL
    for name in ("pid-0", "child-0", "pid-1", "child-1"):
        assert not Path("/proc", (tmp_path / name).read_text()).exists(), name
    said = capfd.readouterr().err.splitlines()
    assert said[0].startswith("worker 1 failed first: SIGKILL after ")
    assert said[1] == "worker 0: killed after it"


LISTENING = """
def heard(number, frame):
    with open(folder / f"heard-{rank}", "a") as file:
        file.write(signal.Signals(number).name + "\\n")
    if number == signal.SIGTERM:
        sys.exit(7)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, heard)
tell(f"up-{rank}")
while True:
    time.sleep(0.05)
"""


def all_say(folder: Path, name: str, lines: int = 0) -> bool:
    files = [folder / f"{name}-{rank}" for rank in (0, 1)]
    return all(file.exists() and len(file.read_text().split()) == lines for file in files)


def test_signals_reach_every_worker_once_each(tmp_path: Path) -> None:
    with started(LISTENING, tmp_path) as command:
        within(lambda: all_say(tmp_path, "up"))
        for count, number in enumerate((signal.SIGUSR1, signal.SIGINT, signal.SIGUSR2), start=1):
            command.send_signal(number)
            within(lambda count=count: all_say(tmp_path, "heard", count))
        command.send_signal(signal.SIGTERM)
        command.communicate(timeout=SECONDS)
        assert command.returncode == 7
        for rank in (0, 1):
            assert (tmp_path / f"heard-{rank}").read_text().split() == ["SIGUSR1", "SIGINT", "SIGUSR2", "SIGTERM"]
        assert (tmp_path / "unwound").exists()


def test_a_run_that_was_told_to_stop_says_so_to_a_sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = """
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(9 * rank))
tell(f"up-{rank}")
if rank == 0:
    wait_for("up-1")
    os.kill(os.getppid(), signal.SIGTERM)
time.sleep(600)
"""
    with pytest.raises(workers.Interrupted) as stopped:
        run(monkeypatch, script, tmp_path)
    assert (stopped.value.signal_number, stopped.value.code) == (signal.SIGTERM, 9)


def test_all_workers_end_when_their_command_is_killed(tmp_path: Path) -> None:
    with started(LISTENING, tmp_path) as command:
        within(lambda: all_say(tmp_path, "up"))
        command.kill()
        command.communicate(timeout=SECONDS)
        for rank in (0, 1):
            pid = int((tmp_path / f"pid-{rank}").read_text())
            within(lambda pid=pid: gone(pid))


@pytest.mark.parametrize("command", ["evaluate", "convert"])
def test_what_runs_as_one_process_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str) -> None:
    assert local.run_launched(command, tmp_path, of(), lock=0) == 2
    said = capfd.readouterr().err
    assert said == f"error: launch: found local, allowed for {command}: inline; it runs as one process\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["inline", "local"])
def test_launch_chooses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    calls: list[str] = []
    monkeypatch.setattr(local, "run_inline", lambda *told: calls.append("inline") or 5)
    monkeypatch.setattr(local, "run_local", lambda *told: calls.append("local") or 5)
    config = of()
    config.launch.name = name
    assert local.run_launched("train", tmp_path, config, lock=0) == 5
    assert calls == [name]
