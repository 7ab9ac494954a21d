"""The thirds of the proof that commits take in turn."""

from __future__ import annotations

import pytest

from tools.thirds import THIRDS, span, third_of_this_commit


@pytest.mark.parametrize("count", [1, 2, 162, 200, 290, 300])
def test_the_thirds_together_have_each_number_once(count: int) -> None:
    numbers = [
        number
        for third in range(THIRDS)
        for first, many in [span(count, third)]
        for number in range(first, first + many)
    ]
    assert numbers == list(range(count))
    assert span(count, None) == (0, count)


def test_a_commit_has_one_of_the_thirds() -> None:
    assert third_of_this_commit() in range(THIRDS)
