"""Every attn x remat x layout x work, with every subset of the cameras: the loss and all gradients of one reference.

every_way.py runs them in a process of its own, where a CPU is four devices.
"""

import pytest
from test_gathered import child

ROUNDING = 3e-5  # of a leaf's largest gradient, in float32; the largest seen is 1.5e-5
LOSS_ROUNDING = 1e-6  # of a loss: some 8 of its last places; the largest seen is 2


def assert_all_like_the_reference(ways: dict[str, dict]) -> None:
    for way, found in ways.items():
        assert found["loss"] == pytest.approx(found["wanted"], rel=LOSS_ROUNDING), way
        assert found["off"]
        for path, off in found["off"].items():
            assert off < ROUNDING, f"{way}: {path}"


def test_some_ways_that_have_every_choice_between_them() -> None:
    ways = child("quick", "every_way.py")
    assert len(ways) == 5
    losses = {found["wanted"] for found in ways.values()}
    assert len(losses) == 4  # the cameras matter
    assert_all_like_the_reference(ways)


@pytest.mark.slow
def test_every_way() -> None:
    ways = child("slow", "every_way.py")
    assert len(ways) == 4 * 4 * 3 * 3
    assert_all_like_the_reference(ways)
