"""`python -m sharder.dashboard`: one command; one line when it cannot be done, a workspace when it can."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharder.dashboard import USAGE, main, parse
from sharder.errors import EXIT_USER_ERROR, UserError
from sharder.tracking.workspace import SECTIONS, view_id

sys.path.append(str(Path(__file__).parent / "tracking"))
from wandb_server import OWNER, PROJECT, Server, serving

ROOT = Path(__file__).parents[1]
LIBRARY = importlib.util.find_spec("wandb_workspaces")  # where it is, for child processes
with_library = pytest.mark.skipif(
    LIBRARY is None, reason="wandb-workspaces is not installed: pip install '.[dashboard]'"
)


def test_what_is_asked_for_is_read() -> None:
    assert parse(["project=sharder"]) == {"project": "sharder"}
    assert parse(["entity=some-team", "project=pi0.5_runs"]) == {"project": "pi0.5_runs", "entity": "some-team"}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "project: found none, allowed: project=<name>, entity=<name>, --help"),
        (["sharder"], "found 'sharder', allowed: project=<name>"),
        (["projct=a"], "found 'projct=a', allowed: project=<name>"),
        (["project=a", "project=b"], "project: found two of them, 'a' and 'b'"),
        (["project="], "project: found '', allowed: a name on W&B"),
        (["project=me/sharder"], "project: found 'me/sharder', allowed: a name on W&B"),
        (["project=a", "entity=a team"], "entity: found 'a team', allowed: a name on W&B"),
    ],
)
def test_what_cannot_be_meant_is_refused(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError):
        parse(argv)
    assert main(argv) == EXIT_USER_ERROR
    error = capsys.readouterr().err
    assert error.startswith(f"error: {said}")
    assert error.count("\n") == 1


def test_help_is_answered_without_wandb() -> None:
    script = (
        "import sys; from sharder.dashboard import main; main(['--help']); "
        "assert not {'wandb', 'wandb_workspaces', 'pydantic', 'jax'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, USAGE + "\n"), done.stderr


def test_without_the_extra_it_says_how_to_get_it() -> None:
    script = (
        "import sys; sys.modules['wandb_workspaces'] = None; "  # as an import that finds none
        "from sharder.dashboard import main; sys.exit(main(['project=sharder']))"
    )
    said = refused(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False))
    assert said.startswith("wandb-workspaces: found none that can be imported")
    assert said.endswith("pip install '.[dashboard]'\n")


def dashboard(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, as a user of `home` runs it; it may ask nobody anything."""
    assert LIBRARY is not None and LIBRARY.origin is not None
    paths = f"{ROOT}{os.pathsep}{Path(LIBRARY.origin).parents[1]}"
    own = {"HOME": str(home), "PYTHONPATH": paths, "WANDB_CACHE_DIR": str(home), "WANDB_CONFIG_DIR": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "sharder.dashboard", *arguments],
        env={**os.environ, **own, **environment}, cwd=home, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (EXIT_USER_ERROR, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("error: ")


@with_library
def test_without_a_login_it_asks_nobody(tmp_path: Path) -> None:
    said = refused(dashboard(tmp_path, "project=sharder"))
    assert said.startswith("W&B: found no login")
    assert "run `wandb login`, or set WANDB_API_KEY" in said


@with_library
def test_without_a_network_it_says_whom_it_could_not_reach(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        key = {"WANDB_API_KEY": "0" * 40, "WANDB_HTTP_TIMEOUT": "2"}
        said = refused(dashboard(tmp_path, "project=sharder", WANDB_BASE_URL=address, **key))
    assert said.startswith("W&B: the dashboard was not saved (AuthenticationError")
    assert address in said


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def at(server: Server) -> dict[str, str]:
    return {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40}


@with_library
def test_it_is_saved_once_however_often_it_is_made(tmp_path: Path, server: Server) -> None:
    for arguments in ([], [f"entity={OWNER}"]):
        done = dashboard(tmp_path, "project=sharder", *arguments, **at(server))
        assert done.returncode == 0, done.stderr
        address = f"{server.url}/{OWNER}/{PROJECT['name']}?nw={view_id('sharder', OWNER)}"
        assert done.stdout == f"saved: {address}\n"
        assert done.stderr == ""
    ((name, view),) = server.views.items()
    assert view["id"] == f"id of {name}"  # of the second time: it replaces the first
    assert (view["entityName"], view["projectName"], view["type"]) == (OWNER, "sharder", "project-view")
    sections = json.loads(view["spec"])["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in sections] == list(SECTIONS)


@with_library
@pytest.mark.parametrize("arguments", [["project=shrader"], ["project=sharder", "entity=nobody"]])
def test_a_project_that_is_not_there_is_named(tmp_path: Path, server: Server, arguments: list[str]) -> None:
    said = refused(dashboard(tmp_path, *arguments, **at(server)))
    assert said.startswith(f"project: found {arguments[0].partition('=')[2]!r}, allowed: a project of ")
    assert server.views == {}
