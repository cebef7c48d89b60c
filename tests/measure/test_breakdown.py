"""What is said of a window: what it was bound by, what most of it is, what it could do without."""

import pytest
from hand_made_breakdown import breakdown


def test_three_sentences():
    assert breakdown().sentences == [
        "A step took 100.00 ms, bound by computing: 80% computing, 10% communication that nothing hides, 4% waiting "
        "for data, 6% idle.",
        "Most of it is MLP: 70%.",
        "The largest part that it could do without is recomputation, 20% of it: a remat that keeps more, if it fits.",
    ]


@pytest.mark.parametrize(
    ("changes", "largest"),
    [
        ({"recomputation_ms": 5.0}, "communication that nothing hides, 10% of it: a larger batch a device"),
        ({"recomputation_ms": 0.0, "gather_ms": 0.0, "data_wait_ms": 60.0}, "waiting for data, 60% of it: more data.w"),
        ({"recomputation_ms": 0.0, "gather_ms": 0.0, "idle_ms": 41.0}, "idle devices, 40% of it: a larger batch"),
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
    assert [row["category"] for row in rows[-3:]] == ["data wait", "idle", "not in the trace"]
    told = breakdown().to_json()
    assert told["communication_ms"] == {"all-gather": {"exposed": pytest.approx(10), "hidden": pytest.approx(30)}}
    assert told["divided_share"] == pytest.approx(0.07)


def test_the_share_by_ablation_is_what_goes_with_attention():
    assert breakdown().ablated_share is None
    assert breakdown(ablation={"full_ms": 100.0, "without_attention_ms": 80.0}).ablated_share == pytest.approx(0.2)
