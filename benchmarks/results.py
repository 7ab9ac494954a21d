"""The results: rows of samples, and ratios of rows whose slices ran in the same turn."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Row:
    """One figure: store, work and mode, and one sample for each turn."""

    suite: str
    engine: str
    work: str
    mode: str
    content_bytes: int
    unit: str = "messages/s"
    sync: str = ""
    samples: list[float] = field(default_factory=list)
    reason: str | None = None  # why there are none
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """The middle half of the samples."""
        if len(self.samples) < 2:
            return self.samples[0], self.samples[0]
        lower, _, upper = statistics.quantiles(self.samples, n=4, method="inclusive")
        return lower, upper


@dataclass
class Quotient:
    """The ratio of two rows, turn by turn, and its target."""

    name: str
    above: str
    below: str
    samples: list[float]
    target: float | None = None
    at_least: bool = True
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.median >= self.target if self.at_least else self.median <= self.target


class Results:
    """Rows in the order of their first use."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, str, str, int], Row] = {}

    def row(self, suite: str, engine: str, work: str, mode: str, content_bytes: int, **given: Any) -> Row:
        """The one with these names; made at the first call."""
        key = (suite, engine, work, mode, content_bytes)
        if key not in self.rows:
            self.rows[key] = Row(suite, engine, work, mode, content_bytes, **given)
        return self.rows[key]

    def find(self, suite: str, engine: str, work: str, mode: str, content_bytes: int) -> Row | None:
        """The row if it was measured."""
        row = self.rows.get((suite, engine, work, mode, content_bytes))
        return row if row is not None and row.samples else None

    def of(self, suite: str) -> list[Row]:
        return [row for row in self.rows.values() if row.suite == suite]

    def as_dict(self) -> list[dict[str, Any]]:
        return [
            asdict(row) | ({"median": row.median, "quartiles": list(row.spread)} if row.samples else {})
            for row in self.rows.values()
        ]

    @classmethod
    def from_dict(cls, rows: list[dict[str, Any]]) -> Results:
        made = cls()
        for row in rows:
            known = {name: row[name] for name in Row.__dataclass_fields__}
            made.rows[(row["suite"], row["engine"], row["work"], row["mode"], row["content_bytes"])] = Row(**known)
        return made
