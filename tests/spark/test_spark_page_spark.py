"""The Spark examples of docs/spark.md run as printed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kit.spark_page import BLOCKS, run_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_every_python_example_prints_the_output_shown_below_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # The session of these tests has its own idea of where it is.
    there = [(re.sub(r"""(?<=['"])(data|target)(?=['"/])""", rf"{tmp_path}/\1", code), said) for code, said in BLOCKS]
    try:
        run_blocks(there, {})
    finally:
        spark.catalog.dropTempView("log")
        spark.catalog.dropTempView("followed")
