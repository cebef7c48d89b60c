"""What is kept and shown of what several workers say."""

from pathlib import Path

import pytest
from local_workers import log, run, started
from test_workers import SECONDS

pytestmark = pytest.mark.multiprocess


def test_every_attempt_adds_to_the_log_of_each_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = "print('out', rank); print('err', rank, file=sys.stderr); tell(f'{rank}', os.environ['SHARDER_ATTEMPT'])"
    for attempt in (1, 2):
        assert run(monkeypatch, script, tmp_path) == 0
        for rank in (0, 1):
            lines = log(tmp_path, rank)
            assert len(lines) == 3 * attempt
            assert lines[-3].startswith(f"attempt {(tmp_path / str(rank)).read_text()}, 20")
            assert lines[-2:] == [f"out {rank}", f"err {rank}"]


def test_the_terminal_shows_worker_0_and_errors_of_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    script = r"""
os.write(rank + 1, b"\rstep 1\rstep 2 \xff half a line")  # of worker 0 to stdout, of worker 1 to stderr
if rank == 1:
    print("\n not an error: this\nerror: with\ttab \nmore")
"""
    assert run(monkeypatch, script, tmp_path) == 0
    seen = capfdbinary.readouterr()
    assert seen.out == b"\rstep 1\rstep 2 \xff half a line"
    assert seen.err.strip(b"\n") == b"worker 1: error: with\ttab"
    assert "more" in log(tmp_path, 1)


def test_what_worker_0_says_is_seen_when_it_says_it(tmp_path: Path) -> None:
    script = """
print(end="loss 1\\r")
wait_for("seen")
print("done")
"""
    with started(script, tmp_path) as command:
        assert command.stdout is not None
        assert command.stdout.read(100) == b"loss 1\r"
        (tmp_path / "seen").touch()
        assert command.communicate(timeout=SECONDS) == (b"done\n", b"")
        assert command.returncode == 0


def test_a_terminal_that_is_gone_does_not_end_the_run(tmp_path: Path) -> None:
    script = "wait_for('closed')\nprint('one')\nprint('error: two')\nsys.exit(3 * rank)"
    with started(script, tmp_path) as command:
        assert command.stdout is not None and command.stderr is not None
        command.stdout.close()
        command.stderr.close()
        (tmp_path / "closed").touch()
        assert command.wait(SECONDS) == 3
        assert log(tmp_path, 0)[1:] == ["one", "error: two"]


def test_a_full_disk_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/worker-1.log").symlink_to("/dev/full")
    assert run(monkeypatch, "print('x' * 1_000_000)", tmp_path) == 0
    assert capfd.readouterr().err.strip() == "worker 1: its log cannot be written: No space left on device"
    assert [len(line) for line in log(tmp_path, 0)[1:]] == [1_000_000]


def test_nothing_is_said_of_a_run_without_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "", tmp_path) == 0
    assert capfd.readouterr() == ("", "")
