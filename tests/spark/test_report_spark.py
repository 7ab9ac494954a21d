"""A report computed by Spark equals the report computed by Arrow, for a store and for an export."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from kit.exported import export_with_a_gap
from kit.report_page import check_tiles
from logstore.arrow import export
from logstore.report import report
from logstore.report.page import page

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def compared(found: dict[str, Any]) -> dict[str, Any]:
    """The counted figures, without the time of the reading and the ages in the tail, which depend on it."""
    return {name: value for name, value in found.items() if name not in ("tail", "read_time")}


@pytest.fixture(scope="module")
def by_arrow(mixed: Path) -> dict[str, Any]:
    return report(mixed)


def test_both_count_the_same_in_a_store(spark: SparkSession, mixed: Path, by_arrow: dict[str, Any]) -> None:
    by_spark = report(mixed, spark=spark)
    assert compared(by_spark) == compared(by_arrow)
    check_tiles(page(by_spark))
    assert by_arrow["summary"]["closed"] > 100
    assert len(by_arrow["in_doubt"]) == 2


def test_both_count_the_same_in_an_export(
    spark: SparkSession, mixed: Path, by_arrow: dict[str, Any], tmp_path: Path
) -> None:
    export(mixed, tmp_path / "target")
    found = report(tmp_path / "target")
    by_spark = report(tmp_path / "target", spark=spark)
    assert compared(by_spark) == compared(found)
    check_tiles(page(by_spark))
    same = ("summary", "depth", "written", "latency", "bytes", "deliveries", "times", "oldest")
    assert {name: found[name] for name in same} == {name: by_arrow[name] for name in same}


def test_both_count_the_same_in_an_export_with_a_gap(spark: SparkSession, tmp_path: Path) -> None:
    export_with_a_gap(tmp_path / "store", tmp_path / "target")
    found = report(tmp_path / "target")
    assert None in found["depth"]["total"]
    assert compared(report(tmp_path / "target", spark=spark)) == compared(found)


def test_both_count_the_same_for_some_queues_and_a_part_of_the_time(
    spark: SparkSession, mixed: Path, by_arrow: dict[str, Any]
) -> None:
    first, last = (datetime.fromisoformat(by_arrow[name]) for name in ("first_time", "last_time"))
    asked: dict[str, Any] = {
        "queues": ["audit"],
        "start": first + (last - first) / 4,
        "stop": last - timedelta(milliseconds=1),
        "top": 1,
    }
    narrow = report(mixed, **asked)
    assert compared(report(mixed, spark=spark, **asked)) == compared(narrow)
    assert 0 < narrow["summary"]["records"] < by_arrow["summary"]["records"]
