"""The examples of README.md and docs/spark.md run as printed, those with Spark too."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kit.pages import python_blocks, run_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ONCE_AND_TWICE = [1, pytest.param(2, marks=pytest.mark.slow)]


def run_page(page: str, places: str, times: int, where: Path) -> list[str]:
    """Run a page without the blocks that need a broker. Returns what the last turn printed."""
    chosen = [block for block in python_blocks(page) if "pika" not in block.text]
    printed = []
    for turn in range(times):
        # The session of these tests has its own idea of where it is.
        printed = run_blocks(
            chosen,
            {},
            changed=lambda text: re.sub(rf"""(?<=['"])({places})(?=['"/])""", rf"{where}/\1", text),
            compare=turn == 0,
        )
    return printed


@pytest.mark.parametrize("times", ONCE_AND_TWICE)
def test_every_example_of_the_page_about_spark_prints_the_output_shown_below_it(
    spark: SparkSession, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        run_page("docs/spark.md", "data|target", times, tmp_path)
    finally:
        spark.catalog.dropTempView("log")
        spark.catalog.dropTempView("followed")


@pytest.mark.parametrize("times", ONCE_AND_TWICE)
def test_the_readmes_lines_of_analysis_show_records_by_queue_and_latency(
    spark: SparkSession, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = run_page("README.md", "store|kept", times, tmp_path)[-1]
    assert "MESSAGE_START" in shown
    assert "orders" in shown
    assert (tmp_path / "kept" / "messages").is_dir()
