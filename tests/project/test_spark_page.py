"""The tables in docs/spark.md equal the schemas; test_pages.py and tests/spark/test_pages_spark.py run its code."""

from __future__ import annotations

import re
from typing import Any

from kit.stores import ROOT
from logstore import arrow
from logstore.rows.schema import message_schema, open_schema

PAGE = (ROOT / "docs" / "spark.md").read_text("utf-8")


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
    assert table_below("messages") == schema_of(message_schema(body=True))
    ended = {"end_lsn", "end_time", "outcome"}
    shared = [row for row in table_below("messages") if row[0] not in ended]
    assert sorted([*shared, *table_below("open")]) == sorted(schema_of(open_schema(body=True)))
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
    options = set(re.findall(r"`([a-zA-Z_]+)`", listed)) - {"strict", "permissive"}
    assert options == set(BATCH_OPTIONS) - {"path", "paths", "snapshot"}
    assert {"start", "failOnDataLoss", "maxRecordsPerTrigger"} <= set(STREAM_OPTIONS)
