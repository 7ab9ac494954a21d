"""Times as the log has them, in µs since 1970, for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME_US_LIMIT = 253_402_300_800_000_000  # the year 10000


def moment(time_us: int) -> datetime:
    """The time in UTC, exactly: from seconds with a fraction the last µs of 9999 would be rounded into another year."""
    return EPOCH + timedelta(microseconds=time_us)


def time_text(time_us: int) -> str:
    """A time in UTC with milliseconds; a number that is no time is shown as it is."""
    if not 0 < time_us < TIME_US_LIMIT:
        return f"{time_us} µs"
    return f"{moment(time_us):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"
