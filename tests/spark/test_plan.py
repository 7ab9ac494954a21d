"""The plan of a query, without Spark: what it looks at, and what its tasks are told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from logstore.inspect import Reader
from logstore.spark import plan
from logstore.spark.options import Options
from logstore.spark.schema import spark_schema
from logstore.spark.source import LogReader

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark


def test_plan_and_tasks_of_a_frame_know_where_the_log_ends(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for the end costs more than the plan, and was made when the frame was."""
    asked: list[int | None] = []

    class Noting(Reader):
        def __init__(self, path: str, **options: Any) -> None:
            asked.append(options["end_lsn"])
            super().__init__(path, **options)

    monkeypatch.setattr(plan, "Reader", Noting)
    with Reader(mixed) as reader:
        base, end = reader.info.base_lsn, reader.info.end_lsn
    snapshot = {"snapshot": json.dumps({str(mixed): [base, end]})}
    for given in ({}, snapshot):
        options = Options.read({"path": str(mixed), "partition_bytes": "1", **given})
        planned = LogReader(spark_schema(["lsn"]), options).partitions()
        assert len(planned) > 1
        assert {one.value.end_lsn for one in planned} == {end}
    assert asked == [None, end]
