"""What is said of a window: what it was bound by, what most of it is, what it could do without."""

import pytest
from hand_made_breakdown import breakdown


def test_three_sentences():
    assert breakdown().sentences == [
        "A step took 100.00 ms, bound by computing: 80% computing, 10% communication that nothing hides, 4% waiting "
        "for data, 1% waiting for other processes, 2% waiting for a save, 3% idle.",
        "The devices spent more time on MLP than on anything else: 70% of the step.",
        "The largest part that it could do without is recomputation, 20% of it: a remat that keeps more, if it fits.",
    ]


@pytest.mark.parametrize(
    ("changes", "largest"),
    [
        ({"recomputation_ms": 5.0}, "communication that nothing hides, 10% of it: a larger batch a device"),
        ({"recomputation_ms": 0.0, "gather_ms": 0.0, "data_wait_ms": 60.0}, "waiting for data, 60% of it: more data.w"),
        ({"recomputation_ms": 0.0, "gather_ms": 0.0, "idle_ms": 41.0}, "idle devices, 38% of it: a larger batch"),
    ],
)
def test_the_largest_part_that_it_could_do_without(changes, largest):
    assert f"could do without is {largest}" in breakdown(**changes).sentences[2]


def test_where_nothing_is_worth_removing():
    said = breakdown(recomputation_ms=1.0, gather_ms=1.0, idle_ms=1.0, data_wait_ms=1.0).sentences
    assert said[2] == "No part that it could do without takes 2% of it."


def test_nothing_is_concluded_from_a_trace_that_misses_something():
    found = breakdown(problems=("the plane 'x' is missing", "2 devices took part, the trace has 1"))
    assert not found.complete
    assert found.sentences == [
        "incomplete, no conclusion: the plane 'x' is missing",
        "incomplete, no conclusion: 2 devices took part, the trace has 1",
    ]


def test_the_rows_add_up_to_the_step():
    rows = breakdown().rows()
    assert sum(row["ms"] for row in rows) == pytest.approx(100)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    rest = {row["category"]: row["ms"] for row in rows[-5:]}
    assert rest == pytest.approx({"data wait": 4, "peer wait": 1, "saving": 2, "idle": 3, "not in the trace": 0})
    assert len({tuple(row) for row in rows}) == 1  # the same columns in the same order, as W&B's table takes them
    told = breakdown().to_json()
    assert told["communication_ms"] == {"all-gather": {"exposed": pytest.approx(10), "hidden": pytest.approx(30)}}
    assert told["divided_share"] == pytest.approx(0.07)


def test_the_share_by_ablation_is_what_goes_with_attention():
    assert breakdown().ablated_share is None
    assert breakdown(ablation={"full_ms": 100.0, "without_attention_ms": 80.0}).ablated_share == pytest.approx(0.2)


def test_attention_is_of_the_busy_time_where_it_is_held_against_the_ablation():
    """There nothing waits for data: however slow the loader was in the window, the share stays."""
    slow = breakdown(attention_ms=9.0, recomputation_ms=0.0, gather_ms=0.0, data_wait_ms=64.0, idle_ms=6.0)
    assert slow.to_json()["attention_share"] == pytest.approx(0.09)
    assert slow.attention_share_of_busy == pytest.approx(0.3)
