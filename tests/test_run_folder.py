"""Names, claims, locks and configs of run folders."""

import multiprocessing
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sharder import run_folder
from sharder.config import Config
from sharder.errors import UserError
from sharder.run_folder import Resume, parse_resume


def config_in(root: Path, run_id: str = "one") -> Config:
    config = Config()
    config.run.root, config.run.id = str(root), run_id
    return config


@pytest.mark.parametrize(
    ("text", "resume"),
    [
        ("auto", Resume("auto")),
        ("never", Resume("never")),
        ("outputs/train/x", Resume("folder", Path("outputs/train/x"))),
        ("outputs/train/x@30", Resume("folder", Path("outputs/train/x"), 30)),
        ("outputs/train/x/checkpoints/30", Resume("folder", Path("outputs/train/x"), 30)),
        ("outputs/a@b/x", Resume("folder", Path("outputs/a@b/x"))),
        ("a@b@7", Resume("folder", Path("a@b"), 7)),
    ],
)
def test_resume_is_read(text: str, resume: Resume) -> None:
    told = parse_resume(text)
    assert (told.kind, told.step) == (resume.kind, resume.step)
    assert told.folder == (resume.folder and resume.folder.absolute())


@pytest.mark.parametrize("text", ["x@", "x@newest", "x@-1", "x@1.5"])
def test_resume_with_a_bad_step_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^resume: found .* allowed after @: the number of a step"):
        parse_resume(text)


def test_resume_needs_checkpoints(tmp_path: Path) -> None:
    for step in (5, 20):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    (tmp_path / "checkpoints" / "30.orbax-checkpoint-tmp").mkdir()
    assert run_folder.checkpoint_steps(tmp_path) == [5, 20]
    other = tmp_path / "other"
    run_folder.check_resume(Resume("folder", tmp_path, 20), other)
    run_folder.check_resume(Resume("never"), other)
    run_folder.check_resume(Resume("auto"), tmp_path)
    with pytest.raises(UserError, match=r"step 30 of .*, allowed: 5, 20"):
        run_folder.check_resume(Resume("folder", tmp_path, 30), other)
    with pytest.raises(UserError, match=r"has no checkpoints/<step>"):
        run_folder.check_resume(Resume("folder", other), tmp_path / "new")


def test_a_run_with_checkpoints_of_its_own_needs_those_it_began_from_no_more(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "checkpoints" / "5").mkdir(parents=True)
    run_folder.check_resume(Resume("folder", tmp_path / "gone"), own)
    run_folder.check_resume(Resume("folder", tmp_path / "gone", 2), own)


def test_only_a_step_s_own_name_is_a_step(tmp_path: Path) -> None:
    for name in ("7", "0007", "8.damaged-1", "9.orbax-checkpoint-tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "7" / "manifest.json").touch()
    (tmp_path / "checkpoints" / "12").mkdir()
    assert run_folder.checkpoint_steps(tmp_path) == [7, 12]
    assert run_folder.sealed_steps(tmp_path) == [7]
    with pytest.raises(UserError, match=r"found never, but .* has checkpoints"):
        run_folder.check_resume(Resume("never"), tmp_path)


def test_claiming_writes_a_config_that_reads_back_equal(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    config.data.episodes = [3, 1]
    config.data.cameras.base_0_rgb = "observation.images.top"
    config.optimizer.ema_decay = None
    config.tracking.mode = "off"
    claimed = run_folder.claim(config, ["train.steps=3", "tracking=off"])
    assert claimed.path == tmp_path / "train" / "one"
    assert run_folder.load_config(claimed.path) == config
    assert (claimed.path / run_folder.OVERRIDES).read_text() == "- train.steps=3\n- tracking=off\n"
    assert [entry.name for entry in claimed.path.parent.iterdir()] == ["one"]
    claimed.release()


def test_a_new_attempt_rewrites_the_config_and_keeps_the_rest(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    first = run_folder.claim(config, [])
    (first.path / "metrics.jsonl").write_text("kept")
    first.release()
    config.train.log_every = 7
    second = run_folder.claim(config, ["train.log_every=7"])
    assert run_folder.load_config(second.path).train.log_every == 7
    assert (second.path / "metrics.jsonl").read_text() == "kept"
    assert sorted(entry.name for entry in (second.path / ".hydra").iterdir()) == ["config.yaml", "overrides.yaml"]
    second.release()


def test_undoing_a_refused_attempt_removes_a_new_folder_and_restores_an_old_ones_config(tmp_path: Path) -> None:
    claimed = run_folder.claim(config_in(tmp_path), [])
    claimed.undo()
    claimed.release()
    assert not claimed.path.exists()
    run_folder.claim(config_in(tmp_path), ["first"]).release()
    other = config_in(tmp_path)
    other.train.seed = 9
    again = run_folder.claim(other, ["second"])
    again.undo()
    again.release()
    assert run_folder.load_config(claimed.path).train.seed == 0
    assert (claimed.path / run_folder.OVERRIDES).read_text() == "- first\n"


@pytest.mark.parametrize("trace", ["metrics.jsonl", "environment.json", "checkpoints/10/about"])
def test_nothing_that_a_run_has_made_is_ever_undone(tmp_path: Path, trace: str) -> None:
    claimed = run_folder.claim(config_in(tmp_path), [])
    (claimed.path / trace).parent.mkdir(parents=True, exist_ok=True)
    (claimed.path / trace).write_text("")
    claimed.undo()
    claimed.release()
    assert (claimed.path / trace).exists()


def test_a_folder_in_use_is_refused_and_its_config_untouched(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    first = run_folder.claim(config, [])
    config.train.steps = 7
    with pytest.raises(UserError, match=rf"^run.id: found 'one', but process {os.getpid()} on .* is running"):
        run_folder.claim(config, [])
    assert run_folder.load_config(first.path).train.steps == Config().train.steps
    first.release()
    run_folder.claim(config, []).release()


def test_the_lock_outlives_the_command_while_its_worker_lives(tmp_path: Path) -> None:
    claimed = run_folder.claim(config_in(tmp_path), [])
    script = "import sys; print('up', flush=True); sys.stdin.read()"
    worker = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(claimed.lock,)
    )
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdout.readline()
    claimed.release()
    with pytest.raises(UserError, match="is running in"):
        run_folder.claim(config_in(tmp_path), [])
    worker.communicate()
    run_folder.claim(config_in(tmp_path), []).release()


def test_the_same_command_again_waits_for_the_workers_of_the_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    claimed = run_folder.claim(config_in(tmp_path), [])
    os.ftruncate(claimed.lock, 0)
    os.pwrite(claimed.lock, f"{killed.pid} on {platform.node()}\n".encode(), 0)
    script = "import sys, time; sys.stdin.readline(); time.sleep(0.3)"
    worker = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, pass_fds=(claimed.lock,))
    claimed.release()
    monkeypatch.setattr(run_folder, "ORPHANS_S", 0.0)
    with pytest.raises(UserError, match=f"process {killed.pid} on .* is running in"):
        run_folder.claim(config_in(tmp_path), [])
    monkeypatch.setattr(run_folder, "ORPHANS_S", 60.0)
    assert worker.stdin is not None
    worker.stdin.write(b"end\n")
    worker.stdin.close()
    run_folder.claim(config_in(tmp_path), []).release()
    assert worker.wait() == 0


def _claim(root: str, start: Any, done: Any, answers: Any) -> None:
    start.wait(60)
    try:
        run_folder.claim(config_in(Path(root)), [])
        answers.put("claimed")
    except Exception as error:
        answers.put(str(error))
    done.wait(60)  # the winner holds its lock until both have answered


def test_of_two_runs_that_claim_one_folder_at_once_one_gets_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, done, answers = context.Event(), context.Event(), context.Queue()
    arguments = (str(tmp_path / "runs"), start, done, answers)
    rivals = [context.Process(target=_claim, args=arguments, daemon=True) for _ in range(2)]
    for rival in rivals:
        rival.start()
    start.set()
    told = sorted(answers.get(timeout=60) for _ in rivals)
    done.set()
    for rival in rivals:
        rival.join(60)
    assert told[0] == "claimed"
    assert told[1].startswith("run.id: found 'one', but process")


@pytest.mark.parametrize("make", ["file", "below_a_file"])
def test_a_root_that_cannot_be_written_is_named(tmp_path: Path, make: str) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    config = config_in(blocked if make == "file" else blocked / "below")
    with pytest.raises(UserError, match=r"^run.root: found .*blocked"):
        run_folder.claim(config, [])
    with pytest.raises(UserError, match=r"^run.root: found .*is not a folder"):
        run_folder.check_root(run_folder.folder_of(config), config)


def test_ids_made_in_one_second_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda _: "20260102-030405")
    ids = {run_folder.new_id() for _ in range(20)}
    assert len(ids) > 15
    assert all(name.startswith("20260102-030405-") for name in ids)


def test_a_sweep_jobs_id_is_its_overrides() -> None:
    assert run_folder.sweep_id(["train.seed=1", "model=pi0_micro"], None) == "model=pi0_micro,train.seed=1"
    assert run_folder.sweep_id(["model=pi0_micro", "train.seed=1"], None) == "model=pi0_micro,train.seed=1"
    assert run_folder.sweep_id(["run.id=x", "run.root=/a", "train.seed=1", "resume=never"], "x") == "x,train.seed=1"
    assert run_folder.sweep_id(["data.root=/a b/c"], None) == "data.root=_a_b_c"
    assert run_folder.sweep_id([], None) == "default"


def test_long_overrides_are_shortened_and_stay_apart() -> None:
    one, two = (run_folder.sweep_id([f"data.prompt={'x' * 300}{end}"], None) for end in "ab")
    assert one != two
    assert len(one) == run_folder.LONGEST_ID


def test_a_config_of_another_version_is_refused_by_key(tmp_path: Path) -> None:
    claimed = run_folder.claim(config_in(tmp_path), [])
    file = claimed.path / run_folder.CONFIG
    file.write_text(file.read_text().replace("log_every:", "log_evry:"))
    with pytest.raises(UserError, match=r"key train.log_evry does not fit"):
        run_folder.load_config(claimed.path)
    file.write_text("a: [")
    with pytest.raises(UserError, match="is not YAML"):
        run_folder.load_config(claimed.path)
    with pytest.raises(UserError, match="cannot be read"):
        run_folder.load_config(tmp_path / "nowhere")
    claimed.release()


def test_a_process_that_is_not_the_first_has_a_passing_folder_for_its_config(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    follower = run_folder.follow(config, ["run.id=one"])
    assert run_folder.folder_of(run_folder.load_config(follower.path)) == tmp_path / "train" / "one"
    assert not (tmp_path / "train").exists()
    follower.undo()
    follower.release()
    assert not follower.path.exists()
