"""Logs with states of places give the rows that the second implementation gives, in whatever parts they are read."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from xxhash import xxh64_intdigest

from kit.placed_logs import make_placed_log
from kit.row_oracle import EPOCH, message_rows, record_rows
from kit.written_log import SEGMENT, golden_places
from logstore import arrow
from logstore.errors import OptionError
from logstore.inspect import Reader
from logstore.rows.messages import MessageScan

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

if TYPE_CHECKING:
    from pathlib import Path

Rows = list[dict[str, Any]]
NEW_TYPES = {
    *("MESSAGE_PLACE", "MESSAGE_MOVE", "MESSAGE_START_PLACED", "MESSAGE_RELOCATED_PLACED", "PLACE_STATES"),
}
YEAR_9999 = datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)


@pytest.fixture(scope="module", params=range(6))
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A log with every record that carries states; in half of them a part was recycled."""
    path = tmp_path_factory.mktemp("placed") / "store"
    make_placed_log(path, request.param, recycles=request.param % 2 == 1)
    return path, request.param


def rows_of(path: Path, **options: Any) -> Rows:
    return arrow.read(path, strings="plain", **options).read_all().to_pylist()  # type: ignore[no-any-return]  # pyarrow is untyped


def scan(path: Path, **options: Any) -> tuple[Rows, Any]:
    """The rows of ended messages, and the table of open ones."""
    rows: Rows = []
    with MessageScan(path, queue_names=arrow.queue_names(path), **options) as messages:
        for batch in messages:
            batch.validate(full=True)
            rows += batch.to_pylist()
        left = messages.open_rows()
    left.validate(full=True)
    return rows, left


def open_rows(table: Any) -> Rows:
    return table.drop_columns(["state"]).to_pylist()  # type: ignore[no-any-return]  # pyarrow is untyped


def same(found: Rows, wanted: Rows) -> None:
    for one, other in zip(found, wanted, strict=False):
        assert one == other
    assert len(found) == len(wanted)


def lsns_of(path: Path) -> list[int]:
    with Reader(path) as reader:
        return [record.lsn for record in reader.records()]


# ---- records


def test_every_record_has_the_row_that_the_oracle_works_out(history: tuple[Path, int]) -> None:
    path, _ = history
    wanted = record_rows(path, body=11)
    assert {row["type"] for row in wanted} >= NEW_TYPES
    for batch_rows in (1 << 15, 7):
        same(rows_of(path, body=11, batch_rows=batch_rows), wanted)


def test_every_part_of_the_log_has_the_rows_that_it_has_in_the_whole(history: tuple[Path, int]) -> None:
    path, seed = history
    wanted = record_rows(path)
    borders = sorted(random.Random(seed).sample([row["lsn"] for row in wanted], 12))
    pieces = [rows_of(path, start_lsn=a, stop_lsn=b) for a, b in zip([None, *borders], [*borders, None], strict=True)]
    same([row for piece in pieces for row in piece], wanted)


def test_a_query_may_have_the_columns_of_states_alone_and_the_records_of_states_alone(
    history: tuple[Path, int],
) -> None:
    path, _ = history
    wanted = record_rows(path)
    names = ["note", "expires", "from_queue_id", "not_before", "enqueue_lsn", "type"]
    same(rows_of(path, columns=names), [{name: row[name] for name in names} for row in wanted])
    for kind in NEW_TYPES:
        found = rows_of(path, where=arrow.Where(types=[kind]))
        same(found, [row for row in wanted if row["type"] == kind])
    found = rows_of(path, where=arrow.Where(queue_ids=[2, 3]))
    same(found, [row for row in wanted if row["queue_id"] in (2, 3)])


def test_a_move_tells_where_the_place_that_it_ends_became_visible(history: tuple[Path, int]) -> None:
    path, _ = history
    rows = rows_of(path)
    moves = [row for row in rows if row["type"] == "MESSAGE_MOVE"]
    assert all(row["enqueue_lsn"] is None for row in moves if row["from_queue_id"] is None)
    from_known = [row for row in moves if row["from_queue_id"] is not None and row["enqueue_lsn"] is not None]
    assert len(from_known) > len(moves) // 3
    effects = {row["effect_lsn"] for row in rows if row["type"] != "BATCH"}
    first_lsn = rows[0]["lsn"]
    assert all(row["enqueue_lsn"] < first_lsn or row["enqueue_lsn"] in effects for row in from_known)


# ---- messages


def test_every_message_has_the_row_that_the_oracle_works_out(history: tuple[Path, int]) -> None:
    path, _ = history
    closed, still_open = message_rows(path)
    for batch_rows in (1 << 16, 3):
        rows, left = scan(path, batch_rows=batch_rows)
        same(rows, closed)
        same(open_rows(left), still_open)
    assert left.schema == arrow.OPEN
    places = [place for row in (*closed, *still_open) for place in row["places"]]
    for column in ("note", "not_before", "expires", "header_bytes", "delivery_count"):
        assert any(place[column] is not None for place in places)


def test_a_pass_that_begins_late_knows_states_from_relocations(history: tuple[Path, int]) -> None:
    path, seed = history
    for start in random.Random(seed).sample(lsns_of(path), 5):
        rows, left = scan(path, start_lsn=start)
        closed, still_open = message_rows(path, start_lsn=start)
        same(rows, closed)
        same(open_rows(left), still_open)


def test_a_relocation_gives_the_places_that_the_whole_history_gives(history: tuple[Path, int]) -> None:
    path, _ = history
    lsns = lsns_of(path)
    whole = {row["id"]: row for row in open_rows(scan(path)[1])}
    late = open_rows(scan(path, start_lsn=lsns[len(lsns) // 3])[1])

    def waiting(row: dict[str, Any]) -> Rows:
        skipped = {"enqueue_tx", "queue"}
        found = [place for place in row["places"] if place["dequeue_lsn"] is None]
        kept = [{name: value for name, value in place.items() if name not in skipped} for place in found]
        return sorted(kept, key=lambda place: place["queue_id"])

    adopted = [row for row in late if not row["whole"] and whole[row["id"]]["whole"]]
    for row in adopted:
        assert waiting(row) == waiting(whole[row["id"]])
    if whole[late[0]["id"]]["whole"]:
        assert adopted


def test_a_log_that_is_read_in_passes_gives_the_rows_of_one_pass(history: tuple[Path, int]) -> None:
    path, seed = history
    rows, left = scan(path)
    for border in random.Random(seed).sample(lsns_of(path), 25):
        before, seed_table = scan(path, stop_lsn=border)
        after, found_left = scan(path, start_lsn=border, seed=seed_table)
        same(before + after, rows)
        assert found_left.equals(left, check_metadata=True)


def versions(table: Any) -> dict[int, int]:
    """The version of each open message's state, by id."""
    return {row["id"]: int.from_bytes(row["state"][4:8], "little") for row in table.to_pylist()}


def test_only_messages_with_states_have_a_state_that_older_programs_refuse(tmp_path: Path) -> None:
    make_placed_log(tmp_path / "plain", 5, states=False)
    assert set(versions(scan(tmp_path / "plain")[1]).values()) == {1}
    make_placed_log(tmp_path / "store", 5, recycles=False)
    left = scan(tmp_path / "store")[1]
    found = versions(left)
    for row in left.to_pylist():
        names = "note", "not_before", "expires", "header_bytes"
        stated = any(place[name] is not None for place in row["places"] for name in names)
        assert found[row["id"]] == 2 or not stated
    assert set(found.values()) == {1, 2}


def test_a_state_with_impossible_contents_is_refused_even_if_its_checksum_is_right(tmp_path: Path) -> None:
    path = tmp_path / "store"
    make_placed_log(path, 3, steps=200, recycles=False)
    lsns = lsns_of(path)
    border = lsns[len(lsns) * 2 // 3]
    _, left = scan(path, stop_lsn=border)
    chance, refused = random.Random(3), 0
    for row in left.to_pylist() * 8:
        state = bytearray(row["state"])
        if state[4] == 1:
            continue
        at = chance.randrange(16, len(state))
        state[at] ^= 1 << chance.randrange(8)
        state[8:16] = xxh64_intdigest(bytes(state[16:]), row["id"]).to_bytes(8, "little")
        table = pa.Table.from_pylist([row | {"state": bytes(state)}], schema=left.schema)
        try:
            scan(path, start_lsn=border, seed=table)
        except OptionError as error:
            refused += 1
            assert f"cannot resume open message {row['id']}: " in str(error)
    assert refused > 20


# ---- the golden segment, value by value


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    golden_places(tmp_path / "store")
    return tmp_path / "store"


def at(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def test_the_golden_segment_gives_the_rows_that_its_page_describes(golden: Path) -> None:
    hour = at(1_700_003_600_000_000)
    rows = [row for row in rows_of(golden) if row["type"] in NEW_TYPES]
    names = "type", "queue_ids", "from_queue_id", "delivery_count", "not_before", "expires", "reason", "note", "header"
    letters = bytes(97 + i % 26 for i in range(255))
    count = 2**31 - 1
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("MESSAGE_START_PLACED", [1], None, None, hour, None, None, None, b"h"),
        ("MESSAGE_START_PLACED", [1, 2, 3], None, None, at(1), YEAR_9999, None, letters, b""),
        ("PLACE_STATES", [1, 3], None, 1, None, hour, None, None, None),
        ("MESSAGE_PLACE", [1], None, None, None, None, None, b"seen by the billing job", None),
        ("MESSAGE_PLACE", [1], None, None, None, None, None, b"", None),
        ("MESSAGE_MOVE", [4], 1, 7, None, None, "dead_lettered", b"why", b"x-death: 1"),
        ("MESSAGE_MOVE", [4], 4, 8, None, None, None, None, None),
        ("MESSAGE_MOVE", [5], None, None, None, hour, None, None, b""),
        ("MESSAGE_MOVE", [6], 2, None, None, None, None, None, None),
        ("MESSAGE_PLACE", [3], None, None, None, None, None, b"in a transaction", None),
        ("MESSAGE_START_PLACED", [7], None, None, None, None, None, b"n", b""),
        ("MESSAGE_RELOCATED_PLACED", [1, 2], None, None, None, None, None, None, None),
        ("MESSAGE_RELOCATED_PLACED", [3, 1, 2], None, None, None, None, None, None, None),
    ]
    assert rows[2]["id"] is None
    assert (rows[2]["queue_count"], rows[2]["queue_id"], rows[2]["stream"]) == (2, 1, "log")
    assert (rows[8]["outcome"], rows[8]["tx_id"]) == ("committed", rows[9]["tx_id"])
    assert (rows[6]["enqueue_lsn"], rows[5]["enqueue_lsn"]) == (rows[5]["lsn"], rows[0]["lsn"])
    later, both, own, moved = open_rows(scan(golden)[1])[1:] + open_rows(scan(golden)[1])[:1]
    columns = "queue_id", "delivery_count", "not_before", "expires", "note", "header_bytes", "reason"
    places = [tuple(place[name] for name in columns) for place in later["places"]]
    assert places == [
        (1, 1, None, hour, None, None, "dead_lettered"),
        (4, 7, None, None, b"why", 10, None),
        (4, 8, None, None, b"why", 10, None),
        (5, None, None, hour, None, 0, None),
    ]
    assert [place["dequeue_lsn"] is None for place in later["places"]] == [False, False, True, True]
    assert (later["record_count"], later["delivery_count"]) == (6, 8)
    places = [tuple(place[name] for name in columns) for place in both["places"]]
    assert places == [
        (1, None, at(1), YEAR_9999, letters, None, None),
        (2, None, at(1), YEAR_9999, letters, None, None),
        (3, count, None, None, b"in a transaction", None, None),
        (6, None, None, None, None, None, None),
    ]
    assert [tuple(place[name] for name in columns) for place in own["places"]] == [
        (7, None, None, None, b"n", None, None)
    ]
    assert [tuple(place[name] for name in columns) for place in moved["places"]] == [
        (2, None, hour, None, b"abcde", None, None),
        (1, 4, None, None, None, None, None),
    ]
    assert (moved["pending"], moved["whole"], moved["id"] < SEGMENT * 5) == (3, False, True)
    same(rows_of(golden), record_rows(golden))
    closed, still_open = message_rows(golden)
    same(open_rows(scan(golden)[1]), still_open)
    assert closed == []
