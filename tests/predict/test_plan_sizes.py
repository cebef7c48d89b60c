"""Bytes for people."""

import pytest

from sharder.predict.sizes import in_words, unit_of


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (51_809_000_000, "51.809 GB"),
        (10**9, "1.000 GB"),
        (999_999_999, "1000.000 MB"),
        (5_200, "5.200 kB"),
        (0, "0.000 kB"),
    ],
)
def test_a_size_has_the_unit_that_suits_it(count: int, text: str) -> None:
    assert in_words(count) == text


def test_a_column_has_the_unit_of_its_largest() -> None:
    assert unit_of(2 * 10**9).text(3 * 10**6) == "0.003"
