"""Tables: how they fit into a width, what is never folded, and how long a large one takes."""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING

import pytest

import logstore
from kit.command import fine
from logstore.terminal.output import facts_lines, lines_that_fit
from logstore.terminal.tables import cells_of, folded_lines, table_lines

if TYPE_CHECKING:
    from pathlib import Path

XID = "1:" + "6f" * 40 + ":" + "64" * 20


def test_a_table_that_fits_has_one_line_for_each_row() -> None:
    lines = table_lines(("id", "queue"), [(1, "orders"), (22, "a b")], width=20, right=("id",))
    assert lines == ["id   queue", "───────────", " 1   orders", "22   a b"]


def test_an_empty_table_is_its_header() -> None:
    assert table_lines(("id", "queue"), [], width=80) == ["id   queue", "──────────"]


@pytest.mark.parametrize("width", [30, 40, 80])
def test_a_table_that_is_too_wide_is_folded_between_words_and_loses_nothing(width: int) -> None:
    text = "consume or purge queue 'orders', or decide the transaction " + "x" * 50
    lines = table_lines(("id", "what would free it"), [(7, text)], width=width, right=("id",))
    assert all(cells_of(line) <= width for line in lines)
    shown = "".join(line[5:] for line in lines[2:]).replace(" ", "")
    assert shown == text.replace(" ", "")
    assert lines[1] == "─" * width


def test_wide_characters_count_as_the_columns_that_they_occupy() -> None:
    lines = table_lines(("queue", "n"), [("語語語", 1), ("abc", 2)], width=80, right=("n",))
    assert lines[2:] == ["語語語   1", "abc      2"]
    assert folded_lines("語語語語", 5) == ["語語", "語語"]


def test_unprintable_characters_are_escaped() -> None:
    assert table_lines(("queue",), [("a\x1b[31m\n",)], width=80)[2:] == ["a\\x1b[31m\\n"]


@pytest.mark.parametrize("width", [20, 80, 140, 10_000])
def test_a_whole_value_stands_on_one_line_at_every_width(width: int) -> None:
    rows = [(XID, 16781800, "in -1, out +1"), ("1:00:", 2, "a word and more words")]
    lines = table_lines(("xid", "id", "queues"), rows, width=width, whole=("xid",))
    assert sum(XID in line for line in lines) == 1
    for line in lines:
        assert XID in line or cells_of(line) <= width


def test_without_room_for_a_whole_value_each_row_becomes_a_block() -> None:
    lines = table_lines(("xid", "state"), [(XID, "prepared"), ("1:00:", "prepared")], width=40, whole=("xid",))
    assert lines == [f"xid: {XID}", "state: prepared", "", "xid: 1:00:", "state: prepared", ""]


def test_a_table_that_is_a_little_too_wide_narrows_its_gaps_before_it_folds() -> None:
    rows = [("1073741824 bytes", "now")]
    assert table_lines(("limit", "age"), rows, width=20)[2:] == ["1073741824 bytes now"]


@pytest.mark.parametrize("width", [29, 36, 40])
def test_a_number_or_a_heading_is_not_folded_in_the_middle(width: int) -> None:
    rows = [("q" * 60, "1073741824 bytes (1 GiB)", 7)]
    words = " ".join(table_lines(("queue", "limit", "acknowledged"), rows, width=width)).split()
    assert {"1073741824", "acknowledged", "limit"} <= set(words)


def test_long_names_are_folded_within_words_before_the_numbers_beside_them_are() -> None:
    columns = ("queue", "consumers", "acknowledged")
    lines = table_lines(columns, [("x" * 20, 1, 22)], width=34, right=columns[1:])
    assert lines == [
        "queue       consumers acknowledged",
        "──────────────────────────────────",
        "xxxxxxxxxxx         1           22",
        "xxxxxxxxx",
    ]


def test_a_fact_with_a_long_name_leaves_the_others_their_place() -> None:
    lines = facts_lines([("orders", "1 would go"), ("n" * 90, "1 would appear")], 80)
    assert lines == ["orders  1 would go", "n" * 90, "        1 would appear"]


def test_a_repeated_display_never_exceeds_the_terminal_and_says_how_much_is_left_out() -> None:
    lines = ["\x1b[1mhead\x1b[0m", "x" * 45, "a", "b"]
    assert lines_that_fit(lines, 20, 6) == lines
    assert lines_that_fit(lines, 20, 5) == [*lines[:2], "… and 2 more lines"]


def test_a_store_of_20000_queues_is_a_table_within_two_seconds_of_a_processor(tmp_path: Path) -> None:
    store_dir = tmp_path / "s"
    logstore.open(store_dir).close()
    with sqlite3.connect(store_dir / "catalog.sqlite") as catalog:
        rows = ((number, f"queue-{number:05d}") for number in range(1, 20_001))
        catalog.executemany("INSERT INTO queues (id, name, arguments) VALUES (?, ?, '{}')", rows)
        catalog.execute("UPDATE store SET next_queue_id = 20001")
    catalog.close()
    fine("queues", store_dir, "--json")  # imports everything
    began_s = time.process_time()
    said = fine("queues", store_dir)
    took_s = time.process_time() - began_s
    assert said.count("queue-") == 20_000
    assert took_s < 2
