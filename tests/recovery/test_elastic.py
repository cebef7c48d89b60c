"""A run goes on with other devices, meshes and processes than it began with: `pytest -m multiprocess` (minutes)."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from processes import MICRO, ledger, losses, run, saved, supervised

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

STEPS, SAVED = 8, 4
COMMON = (*MICRO, f"train.steps={STEPS}", f"checkpoint.every_steps={SAVED}", "tracking.ledger=true")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four processes of one device each."""
    where = tmp_path_factory.mktemp("undisturbed")
    done = run(where, "run.id=undisturbed", "mesh=fsdp4", "launch=local", "launch.processes=4", *COMMON)
    assert done.returncode == 0, done.stdout + done.stderr
    return where / "outputs/train/undisturbed"


@pytest.mark.parametrize("mesh", ["single", "fsdp2", "fsdp8", "dp2"])
def test_a_checkpoint_of_four_processes_is_resumed_anywhere(tmp_path: Path, undisturbed: Path, mesh: str) -> None:
    """On 1, 2 and 8 devices of one process and on another kind of mesh: the same examples, losses to float rounding."""
    done = run(tmp_path, "run.id=other", f"mesh={mesh}", f"resume={undisturbed}@{SAVED}", *COMMON)
    assert done.returncode == 0, done.stdout + done.stderr
    other = tmp_path / "outputs/train/other"
    wanted = {step: rows for step, rows in ledger(undisturbed).items() if step >= SAVED}
    assert sorted(wanted) == list(range(SAVED, STEPS))
    assert ledger(other) == wanted
    np.testing.assert_allclose(np.array(losses(other)), np.array(losses(undisturbed))[SAVED:], rtol=1e-5)


NO_ROOM_FOR_FOUR = """
if RANK == 3 and not (Path.cwd() / "room").exists():
    raise MemoryError("no room for a fourth worker")
worker()
"""


def test_a_relaunch_with_fewer_processes_and_one_with_more_end_on_the_same_bits(
    tmp_path: Path, undisturbed: Path
) -> None:
    """What does not fit four times is run twice; the mesh stays, so the bits do too. Later there is room again."""
    folder = tmp_path / "outputs/train/elastic"
    watched = ("run.id=elastic", "mesh=fsdp4", "launch=supervised", "launch.processes=4", "launch.backoff_s=0.1")
    changing = (*watched, "launch.min_processes=2", *COMMON)
    done = run(tmp_path, *changing, f"train.steps={SAVED}", program=NO_ROOM_FOR_FOUR)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [event["processes"] for event in supervised(folder, "start")] == [4, 4, 2]
    (tmp_path / "room").touch()
    shutil.rmtree(folder / "heartbeats")
    done = run(tmp_path, *changing, program=NO_ROOM_FOR_FOUR)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [event["processes"] for event in supervised(folder, "start")] == [4, 4, 2, 4]
    assert ledger(folder) == ledger(undisturbed)
    assert losses(folder) == losses(undisturbed)
    found, wanted = saved(folder, STEPS), saved(undisturbed, STEPS)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
