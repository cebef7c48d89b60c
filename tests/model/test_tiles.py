"""Which scores attn=flash computes: all that anyone may see, and of the others only what tiles bring along."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharder.model.tiles import LONGEST, ROUND, Tiles, runs, scored, tiles

PREFIX, SUFFIX = 816, 51  # pi0: three cameras of 256 tokens and a prompt of 48; the state and 50 actions
PI0 = np.repeat([0, 1, 2], [PREFIX, 1, 50])


def test_pi0s_prefix_does_not_meet_the_suffix() -> None:
    prefix, suffix = runs(PI0, PI0)
    assert (prefix.first, prefix.queries, prefix.keys, prefix.all_seen) == (0, PREFIX, PREFIX, True)
    assert (suffix.first, suffix.queries, suffix.keys, suffix.all_seen) == (PREFIX, SUFFIX, PREFIX + SUFFIX, False)
    assert scored(PI0, PI0).tolist() == [PREFIX] * PREFIX + [PREFIX + SUFFIX] * SUFFIX


def test_for_a_few_scores_nothing_is_cut() -> None:
    """Here 20 x 6 of the prefix with the suffix, and of the state with the actions 5."""
    blocks = np.repeat([0, 1, 2], [20, 1, 5])
    (run,) = runs(blocks, blocks)
    assert (run.queries, run.keys, run.all_seen) == (26, 26, False)
    assert [run.queries for run in runs(blocks, blocks, spared=120)] == [20, 6]
    assert [run.queries for run in runs(blocks, blocks, spared=1)] == [20, 1, 5]


def test_queries_that_read_a_cache_are_fewer_than_keys() -> None:
    (run,) = runs(PI0[PREFIX:], PI0)
    assert (run.first, run.queries, run.keys) == (0, SUFFIX, PREFIX + SUFFIX)


def test_what_fits_a_tile_is_not_filled_up_and_what_does_not_is_cut_evenly() -> None:
    assert tiles(867, LONGEST) == Tiles(1, 867)
    assert tiles(2048, LONGEST) == Tiles(2, 1024)
    assert tiles(2099, LONGEST) == Tiles(3, 704)
    assert tiles(2099, LONGEST).length == 2112


def test_what_fills_a_tile_is_multiplied_too() -> None:
    """1100 queries and keys, each in two tiles of 560."""
    one_block = np.zeros(1100, int)
    assert scored(one_block, one_block).tolist() == [1120] * 1099 + [21 * 1120]


@pytest.mark.parametrize("longest", [16, 1024])
@given(st.data())
def test_every_visible_score_is_computed(longest: int, data: st.DataObject) -> None:
    blocks = st.lists(st.integers(0, 3), min_size=1, max_size=90).map(np.array)
    query_block, key_block = data.draw(blocks), data.draw(blocks)
    found = runs(query_block, key_block, longest, data.draw(st.integers(1, 500)))
    covered = [query for run in found for query in range(run.first, run.first + run.queries)]
    assert covered == list(range(len(query_block)))
    for run in found:
        visible = key_block[None, :] <= query_block[run.first : run.first + run.queries, None]
        assert not visible[:, run.keys :].any()
        assert run.all_seen == visible[:, : run.keys].all()
        for cut, length in ((run.query_tiles, run.queries), (run.key_tiles, run.keys)):
            assert cut.size <= longest
            assert length <= cut.length < length + ROUND * cut.count
