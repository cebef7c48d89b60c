"""For a given mesh, how devices are dealt out to processes changes nothing, to the bit; and no mesh changes the losses.

50 steps of pi0_nano on the embedded data, by the command, with real processes: `pytest -m multiprocess` (15 minutes).
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from processes import QUICK, ledger, losses, run, saved

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

STEPS = 50
Runs = Callable[..., Path]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The run folder of 50 steps on a mesh, each made once."""
    where, cache = tmp_path_factory.mktemp("runs"), str(tmp_path_factory.getbasetemp() / "cache")

    def of(mesh: str, *, processes: int = 1, layout: str = "gather") -> Path:
        run_id = f"{mesh}-{processes}-{layout}"
        folder = where / "outputs" / "train" / run_id
        if not folder.exists():
            launch = ["launch=local", f"launch.processes={processes}"] if processes > 1 else []
            done = run(
                where, f"mesh={mesh}", f"layout={layout}", f"train.steps={STEPS}", "train.log_every=1",
                "tracking.ledger=true", f"run.id={run_id}", *launch, *QUICK, XDG_CACHE_HOME=cache,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
        return folder

    return of


@pytest.mark.parametrize("mesh", ["fsdp4", "hsdp2x2", "dp4"])
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_change_no_bit(trained: Runs, mesh: str, processes: int) -> None:
    one, several = trained(mesh), trained(mesh, processes=processes)
    assert len(losses(one)) == STEPS
    assert losses(several) == losses(one)
    wanted, found = saved(one, STEPS), saved(several, STEPS)
    assert len(wanted) > 100 and wanted.keys() == found.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("mesh", ["fsdp4", "hsdp2x2", "dp4"])
@pytest.mark.parametrize("processes", [2, 4])
def test_each_process_reads_its_part_of_every_batch_and_nothing_else(trained: Runs, mesh: str, processes: int) -> None:
    several = trained(mesh, processes=processes)
    assert len(list(several.glob("ledger-*.jsonl"))) == processes
    assert ledger(several) == ledger(trained("single"))
    assert sorted(ledger(several)) == list(range(STEPS))


@pytest.mark.parametrize("mesh", ["fsdp4", "hsdp2x2", "dp4"])
@pytest.mark.parametrize("layout", ["gather", "auto", "published"])
def test_no_mesh_and_no_layout_changes_the_losses(trained: Runs, mesh: str, layout: str) -> None:
    wanted, found = losses(trained("single")), losses(trained(mesh, layout=layout))
    np.testing.assert_allclose([loss for loss, _ in found], [loss for loss, _ in wanted], rtol=1e-5)
