"""Times in µs as people read them, to the last one before the year 10000."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from logstore.core.moments import TIME_US_LIMIT, moment, time_text
from logstore.terminal.output import iso_time
from logstore.terminal.records import time_word


def test_the_last_microsecond_of_the_year_9999_is_told_in_every_form() -> None:
    last = TIME_US_LIMIT - 1
    assert moment(last) == datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert time_text(last) == "9999-12-31 23:59:59.999 UTC"
    assert iso_time(last) == "9999-12-31T23:59:59.999+00:00"
    assert time_word(last) == "9999-12-31T23:59:59.999999Z"


@pytest.mark.parametrize("number", [0, TIME_US_LIMIT])
def test_a_number_that_is_no_time_stays_a_number(number: int) -> None:
    assert time_text(number) == f"{number} µs"
    assert iso_time(number) is None
    assert time_word(number) == str(number)
