"""The search for the largest batch, with a made-up compiler."""

from hypothesis import given
from hypothesis import strategies as st

from sharder.predict.batch_search import Tried, largest_that_fits


def search(limit: int, fixed: int, each: int, start: int, unit: int = 1, most: int = 2**24) -> tuple[int, int]:
    """(the batch found, 0 for none; how many were compiled), where a batch of b takes fixed + each * b bytes."""

    def tried(batch: int) -> Tried:
        assert batch % unit == 0 and unit <= batch <= most
        return Tried(batch, fixed + each * batch, fixed + each * batch <= limit)

    largest, seen = largest_that_fits(tried, start, unit, most, limit)
    assert len({one.batch_size for one in seen}) == len(seen), "nothing is compiled twice"
    return (0 if largest is None else largest.batch_size), len(seen)


@given(st.integers(0, 10**6), st.integers(1, 10**4), st.integers(1, 100), st.integers(1, 8), st.integers(10, 10**6))
def test_the_largest_is_found_wherever_it_starts(fixed: int, each: int, start: int, unit: int, limit: int) -> None:
    right = max(0, (limit - fixed) // each // unit * unit)
    found, compiled = search(limit, fixed, each, start * unit, unit)
    assert found == right
    assert compiled < 60


def test_a_straight_line_takes_few_compiles() -> None:
    assert search(limit=63_700, fixed=23_000, each=137, start=16, unit=4)[0] == 296
    assert search(limit=63_700, fixed=23_000, each=137, start=16, unit=4)[1] <= 10


def test_there_is_a_largest_that_may_be_typed() -> None:
    assert search(limit=10**9, fixed=0, each=1, start=4, unit=4, most=100) == (100, 6)


def test_not_even_one_fits() -> None:
    assert search(limit=10, fixed=11, each=1, start=16, unit=4) == (0, 3)


def test_memory_that_is_no_line_still_ends_at_an_edge() -> None:
    """What fits and what does not may alternate; the answer fits and its next does not."""
    sizes = {1: 1, 2: 9, 3: 2, 4: 2, 5: 9, 6: 1, 7: 1, 8: 9}
    largest, seen = largest_that_fits(lambda b: Tried(b, sizes[b], sizes[b] < 5), 4, 1, 8, 5)
    assert largest is not None and sizes[largest.batch_size] < 5
    assert sizes[largest.batch_size + 1] >= 5
    assert seen[0].batch_size == 4
