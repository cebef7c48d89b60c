"""The keyed order: a permutation for every n, another one for every seed and epoch, and the same cost at any step."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharder.data.order import batches_per_epoch, examples_at, step_position
from sharder.errors import UserError


@settings(max_examples=150, deadline=None)
@given(n=st.integers(1, 3000), seed=st.integers(-(2**63), 2**64), epoch=st.integers(0, 10**6))
def test_every_example_once_an_epoch(n, seed, epoch):
    order = examples_at(seed, epoch, np.arange(n), n)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(n))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 2**40), seed=st.integers(0, 2**32), data=st.data())
def test_huge_sets_are_in_range_distinct_and_alike_however_asked(n, seed, data):
    first = data.draw(st.integers(0, n - 1))
    positions = np.arange(first, min(n, first + 64))
    found = examples_at(seed, 3, positions, n)
    assert found.min() >= 0 and found.max() < n
    assert len(set(found.tolist())) == len(positions)
    assert found.tolist() == [int(examples_at(seed, 3, np.array([p]), n)[0]) for p in positions]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 4096, 4097])
def test_around_powers_of_two(n):
    np.testing.assert_array_equal(np.sort(examples_at(0, 0, np.arange(n), n)), np.arange(n))


def test_order_is_pinned():
    """A change here would reshuffle every run that is resumed."""
    assert examples_at(0, 0, np.arange(8), 10).tolist() == PINNED


PINNED = [5, 3, 2, 0, 7, 1, 6, 8]


def test_seed_and_epoch_change_the_order():
    n = 1000
    orders = {tuple(examples_at(seed, epoch, np.arange(n), n).tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    # Two unrelated permutations agree in about one place; a shifted or partly shared one in many.
    agreeing = [
        int((examples_at(0, epoch, np.arange(n), n) == examples_at(1, epoch, np.arange(n), n)).sum())
        for epoch in range(20)
    ]
    assert max(agreeing) <= 8


def test_neighbours_are_not_related():
    n = 10_007
    order = examples_at(5, 2, np.arange(n), n).astype(float)
    for lag in (1, 2, 64):
        assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < 0.05
    assert abs(np.corrcoef(np.arange(n), order)[0, 1]) < 0.05
    # A run of the recording (an episode) must not stay together: few neighbours of a batch are neighbours in time.
    assert (np.abs(np.diff(order)) <= 10).mean() < 0.01


@pytest.mark.parametrize("n", [10, 97])
def test_every_example_is_seen_anywhere_in_an_epoch(n):
    epochs = 2000
    places = [int(np.argmin(examples_at(11, epoch, np.arange(n), n))) for epoch in range(epochs)]
    counts = np.bincount(places, minlength=n)
    chi_squared = ((counts - epochs / n) ** 2 / (epochs / n)).sum()
    assert chi_squared < (n - 1) + 5 * np.sqrt(2 * (n - 1))


def test_a_far_step_costs_nothing():
    n, batch_size = 10**8, 256
    started = time.perf_counter()
    epoch, batch = step_position(1_000_000, batches_per_epoch(n, batch_size))
    found = examples_at(0, epoch, np.arange(batch * batch_size, (batch + 1) * batch_size), n)
    assert time.perf_counter() - started < 0.5
    assert (epoch, batch) == (2, 1_000_000 - 2 * 390_625)
    assert len(set(found.tolist())) == batch_size


def test_steps_and_epochs():
    assert batches_per_epoch(103, 10) == 10
    assert [step_position(step, 10) for step in (0, 9, 10, 35)] == [(0, 0), (0, 9), (1, 0), (3, 5)]


def test_a_batch_larger_than_the_set_is_refused():
    with pytest.raises(UserError, match=r"train\.batch_size=32 .* 31 examples"):
        batches_per_epoch(31, 32)


@pytest.mark.parametrize("positions", [[-1], [10]])
def test_positions_outside_the_epoch_are_refused(positions):
    with pytest.raises(ValueError, match="not all inside"):
        examples_at(0, 0, np.array(positions), 10)
