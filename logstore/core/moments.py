"""Times as the log has them, in µs since 1970, for people."""

from __future__ import annotations

from datetime import UTC, datetime

TIME_US_LIMIT = 253_402_300_800_000_000  # the year 10000


def time_text(time_us: int) -> str:
    """A time in UTC with milliseconds; a number that is no time is shown as it is."""
    if not 0 < time_us < TIME_US_LIMIT:
        return f"{time_us} µs"
    return f"{datetime.fromtimestamp(time_us / 1e6, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"
