"""Days of an export that pass when a test says so."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from logstore.export import files, upkeep

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

_EPOCH = date(1970, 1, 1)


class Days:
    """The UTC day of each record is the one that this object had when it was logged."""

    def __init__(self, patch: pytest.MonkeyPatch, first: str = "2030-01-01") -> None:
        self._begun: list[tuple[int, int]] = []
        self.begin(first)
        patch.setattr(files, "_days", self._of)
        patch.setattr(upkeep, "_now", self._now)

    def begin(self, day: str) -> None:
        """From now on it is this day."""
        at = time.time_ns() // 1000
        while self._begun and time.time_ns() // 1000 <= at:
            pass  # a microsecond, so that no record is of both days
        self._begun.append((0 if not self._begun else at + 1, (date.fromisoformat(day) - _EPOCH).days))

    def _day(self, time_us: int) -> int:
        return next(day for begun, day in reversed(self._begun) if begun <= time_us)

    def _of(self, times: Any) -> Iterator[tuple[int, int]]:
        days = [self._day(each) for each in times.cast("int64").to_pylist()]
        start = 0
        for at in range(1, len(days) + 1):
            if at == len(days) or days[at] != days[start]:
                yield days[start], at - start
                start = at

    def _now(self) -> datetime:
        """Noon of the day."""
        return datetime.fromtimestamp((self._begun[-1][1] + 0.5) * 86_400, UTC)
