"""The pipeline: the same examples in the same order however it is run, resumed or sliced; no process left behind."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from fake_recording import FakeRecording, HugeRecording, SlowSource, transform_of

from sharder.data.pipeline import BatchSource, Loader
from sharder.errors import UserError

ROWS, BATCH_SIZE, STEPS = 103, 10, 35  # three epochs and a half, three examples left over in each


def source_of(recording=None, *, seed=7, slice=None, frame_cache_mib=1, **transform):
    recording = recording or FakeRecording(ROWS)
    return BatchSource(
        recording,
        transform_of(recording, **transform),
        seed=seed,
        batch_size=BATCH_SIZE,
        slice=slice,
        frame_cache_mib=frame_cache_mib,
    )


def leaves(batch, path=""):
    if not isinstance(batch, dict):
        return {path: batch}
    return {name: leaf for key in batch for name, leaf in leaves(batch[key], f"{path}/{key}").items()}


def assert_same(batch, expected):
    batch, expected = leaves(batch), leaves(expected)
    assert batch.keys() == expected.keys()
    for name, leaf in batch.items():
        assert leaf.dtype == expected[name].dtype, name
        np.testing.assert_array_equal(leaf, expected[name], name)


@pytest.fixture(scope="module")
def uninterrupted():
    source = source_of(frame_cache_mib=0)
    return [source.batch(step) for step in range(STEPS)]


def test_the_shapes_of_a_batch(uninterrupted):
    found = {name: (leaf.shape, str(leaf.dtype)) for name, leaf in leaves(uninterrupted[0]).items()}
    assert found == {
        "/images/base_0_rgb": ((10, 16, 16, 3), "uint8"),
        "/images/left_wrist_0_rgb": ((10, 16, 16, 3), "uint8"),
        "/image_masks/base_0_rgb": ((10,), "bool"),
        "/image_masks/left_wrist_0_rgb": ((10,), "bool"),
        "/tokens": ((10, 24), "int32"),
        "/token_mask": ((10, 24), "bool"),
        "/state": ((10, 8), "float32"),
        "/actions": ((10, 4, 8), "float32"),
        "/example": ((10,), "int64"),
    }


def test_a_batch_holds_the_rows_it_names(uninterrupted):
    for batch in (uninterrupted[0], uninterrupted[17]):
        np.testing.assert_array_equal(batch["images"]["base_0_rgb"][:, 8, 8, 0], batch["example"])
        assert batch["images"]["left_wrist_0_rgb"][:, 8, 8, 2].tolist() == [1] * BATCH_SIZE


def test_no_example_twice_in_an_epoch_and_another_order_in_each(uninterrupted):
    ledger = [batch["example"] for batch in uninterrupted]
    epochs = [np.concatenate(ledger[start : start + 10]) for start in (0, 10, 20)]
    assert [len(set(epoch.tolist())) for epoch in epochs] == [100, 100, 100]
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3
    assert len(set(np.concatenate(ledger[30:]).tolist())) == 50


def test_resumed_anywhere_with_any_workers_it_is_the_same_run(uninterrupted):
    stops, workers = [0, 7, 10, 18, 30, STEPS], [2, 0, 1, 0, 2]  # 10 and 30 are ends of epochs
    resumed = []
    for first, stop, count in zip(stops, stops[1:], workers, strict=False):
        # The process is stopped at `stop`, having been asked for all the steps: what it prefetched is lost.
        with Loader(source_of(), first_step=first, last_step=STEPS, workers=count, prefetch=3) as loader:
            resumed += [next(loader) for _ in range(stop - first)]
    assert len(resumed) == STEPS
    for batch, expected in zip(resumed, uninterrupted, strict=True):
        assert_same(batch, expected)


def test_random_resumes_have_the_same_ledger(uninterrupted):
    for first in np.random.default_rng(0).integers(0, STEPS, 6).tolist():
        with Loader(source_of(), first_step=first, last_step=STEPS, workers=0, prefetch=2) as loader:
            assert [b["example"].tolist() for b in loader] == [b["example"].tolist() for b in uninterrupted[first:]]


def test_slices_side_by_side_are_the_global_batch(uninterrupted):
    parts = [source_of(slice=slice) for slice in ((0, 4), (4, 10))]
    for step in (0, 9, 10, 31):
        left, right = (leaves(part.batch(step)) for part in parts)
        joined = {name: np.concatenate([left[name], right[name]]) for name in left}
        assert_same(joined, leaves(uninterrupted[step]))
    assert parts[0].recording.image_calls <= 2 * 4 * 4


@pytest.mark.parametrize("slice", [(-1, 4), (4, 4), (4, 11)])
def test_a_slice_outside_the_batch_is_refused(slice):
    with pytest.raises(ValueError, match="not part of a batch of 10"):
        source_of(slice=slice)


def test_another_seed_is_another_order(uninterrupted):
    assert source_of(seed=8).examples(0).tolist() != uninterrupted[0]["example"].tolist()


def test_a_far_step_of_a_huge_set_decodes_nothing_before_it():
    recording = HugeRecording(10**8)
    source = BatchSource(recording, transform_of(FakeRecording(50)), seed=0, batch_size=32)
    started = time.perf_counter()
    with Loader(source, first_step=1_000_000, last_step=1_000_001, workers=0, prefetch=1) as loader:
        (batch,) = loader
    assert time.perf_counter() - started < 2
    assert recording.image_calls == 32 * len(recording.cameras)
    assert batch["example"].max() > 10**7


def test_a_set_smaller_than_the_batch_is_refused():
    with pytest.raises(UserError, match=r"train\.batch_size=10 .* 9 examples"):
        source_of(FakeRecording(9))


def test_frames_are_decoded_once_when_they_fit():
    source = source_of()
    for step in range(30):
        source.batch(step)
    seen = {row for step in range(30) for row in source.examples(step).tolist()}
    assert source.recording.image_calls == 2 * len(seen)
    assert source_of(frame_cache_mib=0).batch(0).keys() == source.batch(0).keys()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_poisoned_example_is_named_at_its_step(workers):
    poisoned = int(source_of().examples(3)[4])
    source = source_of(FakeRecording(ROWS, poisoned=poisoned))
    with Loader(source, first_step=1, last_step=STEPS, workers=workers, prefetch=4) as loader:
        assert len([next(loader), next(loader)]) == 2
        with pytest.raises(RuntimeError, match=rf"step 3, row {poisoned} of .*OSError: the video is truncated"):
            next(loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_user_errors_stay_user_errors(workers):
    with (
        Loader(source_of(prompt_tokens=8), first_step=5, last_step=6, workers=workers, prefetch=1) as loader,
        pytest.raises(UserError, match=r"^step 5, row \d+ .*model\.prompt_tokens=8"),
    ):
        next(loader)


def test_ready_tells_whether_the_next_batch_is_there():
    with Loader(SlowSource(0.3, first_slow_step=1), first_step=0, last_step=2, workers=0, prefetch=1) as loader:
        wait_for(loader.ready)
        next(loader)
        assert not loader.ready()
        assert next(loader)["example"] == 1
        assert not loader.ready()
        with pytest.raises(StopIteration):
            next(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_to_do_starts_nothing(workers):
    with Loader(SlowSource(0), first_step=5, last_step=5, workers=workers, prefetch=2) as loader:
        assert list(loader) == [] and loader.pids == []


def test_a_killed_worker_is_an_error_and_not_a_hang():
    with Loader(SlowSource(600, first_slow_step=2), first_step=0, last_step=9, workers=2, prefetch=4) as loader:
        assert [next(loader)["example"][0] for _ in range(2)] == [0, 1]
        os.kill(loader.pids[0], signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"step 2: data worker 0 \(process \d+\) was killed by signal 9"):
            next(loader)
        pids = loader.pids
    assert not any(alive(pid) for pid in pids)


def test_signals_meant_for_the_parent_do_not_end_a_worker():
    """Slurm signals every process of a step; the training process still wants its batch, to finish and save."""
    with Loader(SlowSource(0.01), first_step=0, last_step=40, workers=1, prefetch=1) as loader:
        (pid,) = loader.pids
        for _ in range(3):  # while it starts
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        next(loader)
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        assert [batch["example"][0] for batch in loader] == list(range(1, 40))
    assert not alive(pid)
    loader.close()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@contextmanager
def script(what):
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(here / "loader_script.py"), what],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    try:
        yield process
    finally:
        process.kill()
        process.stdout.close()  # an orphan would hold it open: no waiting for its end
        process.wait()


def test_workers_end_when_their_parent_is_killed():
    with script("wait") as parent:
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        parent.wait()
        wait_for(lambda: not alive(pid))


def test_a_process_that_never_closed_its_loader_can_still_end():
    with script("exit") as parent:
        pid = int(parent.stdout.readline())
        assert parent.wait(timeout=10) == 0
        wait_for(lambda: not alive(pid))


def test_workers_do_not_import_jax():
    with script("module") as parent:
        assert parent.stdout.readline() == "False\n"
        assert parent.wait(timeout=10) == 0
