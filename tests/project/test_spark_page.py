"""The code in docs/spark.md runs unchanged, and its tables equal the schemas.

tests/spark/test_spark_page_spark.py runs the pieces that need Spark.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from kit.spark_page import BLOCKS, PAGE, run_blocks
from logstore import arrow

if TYPE_CHECKING:
    from pathlib import Path


def without_spark() -> list[tuple[str, str]]:
    """The pieces above the chapter about Spark."""
    return [block for block in BLOCKS if PAGE.index(block[0]) < PAGE.index("\n## Spark\n")]


def test_every_piece_of_python_without_spark_prints_the_output_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needed in ("duckdb", "polars"):
        try:
            __import__(needed)
        except ModuleNotFoundError:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"SKIPPED LOUDLY: {needed} is not installed; the examples of docs/spark.md were NOT run")
    assert len(BLOCKS) == PAGE.count("```python\n"), "a piece without its output"
    assert len(without_spark()) >= 5
    monkeypatch.chdir(tmp_path)
    run_blocks(without_spark(), {})


def table_below(title: str) -> list[tuple[str, str, str]]:
    section = PAGE.split(f"\n### {title}", 1)[1].split("\n#", 1)[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (yes|no) \|", section, re.MULTILINE)
    return [(name, kind.strip(), null) for name, kind, null in rows]


def schema_of(fields: Any) -> list[tuple[str, str, str]]:
    found = []
    for field in fields:
        kind = re.sub(r"^list<element: struct<.*", "list<element: struct> not null>", str(field.type))
        found.append((field.name, kind.replace("struct> not null>", "struct>"), "yes" if field.nullable else "no"))
    return found


def test_the_table_of_records_is_their_schema() -> None:
    assert table_below("records") == schema_of(arrow.schema(body=True))


def test_the_tables_of_messages_are_their_schemas() -> None:
    assert table_below("messages") == schema_of(arrow.MESSAGES)
    ended = {"end_lsn", "end_time", "outcome"}
    shared = [row for row in table_below("messages") if row[0] not in ended]
    assert sorted([*shared, *table_below("open")]) == sorted(schema_of(arrow.OPEN))
    places = re.search(r"every place it ever had: (.*?) \|", PAGE)
    assert places is not None
    element = arrow.MESSAGES.field("places").type.value_type
    assert re.findall(r"`(\w+)`", places[1]) == [element.field(index).name for index in range(element.num_fields)]


def test_every_analysis_and_option_that_the_page_names_is_one_that_there_is() -> None:
    import logstore.spark
    from logstore.spark import analyses as spark_analyses
    from logstore.spark.options import BATCH_OPTIONS, STREAM_OPTIONS

    named = set(re.findall(r"^\| `(\w+)\(.*?\)`", PAGE, re.MULTILINE)) | {"merge_latency", "everything"}
    assert named | {"places", "settled"} == set(spark_analyses.__all__)
    assert set(spark_analyses.__all__) <= set(logstore.spark.__all__)
    listed = PAGE.split("* **Options**:", 1)[1].split("\n* ", 1)[0]
    options = set(re.findall(r"`([a-z_]+)`", listed)) - {"strict", "permissive"}
    assert options == set(BATCH_OPTIONS) - {"path", "paths", "snapshot"}
    assert {"start", "failondataloss", "maxrecordspertrigger"} <= set(STREAM_OPTIONS)
