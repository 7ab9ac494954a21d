"""What docs/spark.md says of Spark runs as it stands there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_spark_page import BLOCKS, run_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_every_piece_of_python_prints_what_stands_below_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        run_blocks(BLOCKS, {})
    finally:
        spark.catalog.dropTempView("log")
        spark.catalog.dropTempView("followed")
