"""Whatever befalls a run at whatever moment, it completes, on the bits of the run that nothing befell.

Real supervised runs of 2 and 4 workers, 50 and more faults of every kind: `pytest -m chaos -s` (half an hour on two
cores); the table of what was done is printed, and lies in `chaos.md` of the folder it names.
"""

import random
from pathlib import Path

import numpy as np
import pytest
from faults import FAULTS, Run
from processes import MICRO, ledger, run, saved, start

from sharder.run_folder import completed_step

pytestmark = pytest.mark.chaos

STEPS = 240
COMMON = (
    *(*MICRO, f"train.steps={STEPS}", "checkpoint.every_steps=20", "data.workers=1", "tracking.ledger=true"),
    *("launch.retries=20", "launch.same_failure=20", "launch.backoff_s=0.1", "launch.grace_s=30"),
    *("launch.limits.step_s=20", "launch.limits.first_step_s=60", "launch.limits.data_wait_s=20"),
    *("launch.barrier_timeout_s=120", "launch.late_after_s=5", "launch.limits.save_s=30"),
    *("launch.limits.start_s=40", "launch.limits.restore_s=40", "launch.limits.compile_s=90"),
)
STARTS = 40  # of the same command, at most


def befall(where: Path, run_id: str, placement: tuple[str, ...], kinds: list[str], seed: int, cache: str) -> list[str]:
    """Runs the command, again whenever it ended early, with one fault of each kind in turn; what was done to it."""
    draw, folder, done = random.Random(seed), where / "outputs/train" / run_id, []
    kinds = list(kinds)
    for _ in range(STARTS):
        command = start(where, f"run.id={run_id}", *placement, *COMMON, XDG_CACHE_HOME=cache)
        under_way = Run(command, folder, draw)
        while command.poll() is None and kinds:
            under_way.wait_for_a_moment()
            if command.poll() is None and (what := FAULTS[kinds[0]](under_way)):
                done.append(f"| {run_id} | {kinds.pop(0).replace('_', ' ')} | {what} |")
        said, _ = command.communicate(timeout=1800)
        if completed_step(folder) == STEPS:
            return done
        assert command.returncode in (75, 130, -9, 0), said
    raise AssertionError(f"{run_id}: not complete after {STARTS} starts")


@pytest.mark.parametrize(("mesh", "processes"), [("fsdp2", 2), ("hsdp2x2", 4)], ids=["two", "four"])
def test_nothing_is_lost(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, mesh: str, processes: int) -> None:
    cache = str(tmp_path_factory.getbasetemp() / "cache")
    placement = (f"mesh={mesh}", "launch=supervised", f"launch.processes={processes}")
    undisturbed = run(tmp_path, "run.id=undisturbed", f"mesh={mesh}", *COMMON, XDG_CACHE_HOME=cache)
    assert undisturbed.returncode == 0, undisturbed.stdout + undisturbed.stderr
    wanted = saved(tmp_path / "outputs/train/undisturbed", STEPS)
    table = []
    for seed in range(3):
        kinds = list(FAULTS)
        random.Random(seed).shuffle(kinds)
        run_id = f"{mesh}-{seed}"
        table += befall(tmp_path, run_id, placement, kinds, seed, cache)
        folder = tmp_path / "outputs/train" / run_id
        found = saved(folder, STEPS)
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array, err_msg=f"{run_id}: {name}")
        assert ledger(folder) == ledger(tmp_path / "outputs/train/undisturbed")
    text = "\n".join(["| run | fault | done |", "| --- | --- | --- |", *table])
    (tmp_path / "chaos.md").write_text(text + "\n")
    print(f"\n{text}\n{len(table)} faults; {tmp_path / 'chaos.md'}")
    assert len(table) >= 30  # of each half: 50 and more in all
