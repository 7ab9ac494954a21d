"""A pass over the log gives one row for each message that has ended, the same however it is cut into passes."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from kit.replicated import golden_copy
from kit.row_histories import make_history
from kit.row_oracle import message_rows
from logstore import arrow
from logstore.errors import OptionError, StoreError
from logstore.inspect import LogRecycled, Reader
from logstore.rows.messages import MessageScan

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

if TYPE_CHECKING:
    from pathlib import Path

Rows = list[dict[str, Any]]
SEEDS = range(3)


@pytest.fixture(scope="module", params=SEEDS)
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A store with a history, and its writer's record of it."""
    path = tmp_path_factory.mktemp("history") / "store"
    make_history(path, request.param, weight=[1, 8, 4][request.param % 3])
    return path, request.param


def scan(path: Path, **options: Any) -> tuple[Rows, Any]:
    """The rows of ended messages, and the table of open ones."""
    options.setdefault("queue_names", arrow.queue_names(path))
    rows: Rows = []
    with MessageScan(path, **options) as messages:
        for batch in messages:
            assert 0 < batch.num_rows <= options.get("batch_rows", 1 << 16)
            assert batch.schema == messages.schema
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


def in_passes(path: Path, borders: list[int]) -> tuple[Rows, Any]:
    """The rows of passes from border to border, each seeded with the open set of the one before."""
    rows: Rows = []
    start, left = None, None
    for border in [*borders, None]:
        more, left = scan(path, start_lsn=start, stop_lsn=border, seed=left)
        rows += more
        start = border
    return rows, left


def test_every_row_is_the_one_that_the_oracle_works_out(history: tuple[Path, int]) -> None:
    path, _ = history
    closed, still_open = message_rows(path)
    for batch_rows in (1 << 16, 3):
        rows, left = scan(path, batch_rows=batch_rows)
        same(rows, closed)
        same(open_rows(left), still_open)
    assert left.schema == arrow.OPEN


def test_a_copy_of_a_replicated_store_gives_the_messages_of_the_oracle(tmp_path: Path) -> None:
    path = golden_copy(tmp_path / "store")
    closed, still_open = message_rows(path)
    rows, left = scan(path)
    same(rows, closed)
    same(open_rows(left), still_open)
    assert [row["id"] for row in still_open] == sorted(row["id"] for row in still_open)
    assert len(still_open) == 3


def test_a_log_that_is_read_in_passes_gives_the_rows_of_one_pass(history: tuple[Path, int]) -> None:
    path, seed = history
    rows, left = scan(path)
    lsns = lsns_of(path)
    chance = random.Random(seed)
    for count in (1, 1, 2, 7):
        found, found_left = in_passes(path, sorted(chance.sample(lsns, count)))
        same(found, rows)
        assert found_left.equals(left, check_metadata=True)


def test_a_pass_that_begins_late_gives_all_that_the_rest_of_the_log_has(history: tuple[Path, int]) -> None:
    path, seed = history
    for start in random.Random(seed).sample(lsns_of(path), 4):
        rows, left = scan(path, start_lsn=start)
        closed, still_open = message_rows(path, start_lsn=start)
        same(rows, closed)
        same(open_rows(left), still_open)


def test_every_border_of_a_log_can_be_where_a_pass_ends(tmp_path: Path) -> None:
    make_history(tmp_path / "store", 77, epochs=2, steps=24, weight=4)
    rows, left = scan(tmp_path / "store")
    for border in lsns_of(tmp_path / "store"):
        found, found_left = in_passes(tmp_path / "store", [border])
        same(found, rows)
        assert found_left.equals(left, check_metadata=True)


def test_an_open_set_goes_through_parquet_unharmed(history: tuple[Path, int], tmp_path: Path) -> None:
    from pyarrow import parquet

    path, seed = history
    border = random.Random(seed).choice(lsns_of(path))
    before, left = scan(path, stop_lsn=border)
    parquet.write_table(left, tmp_path / "open.parquet")
    after, _ = scan(path, start_lsn=border, seed=parquet.read_table(tmp_path / "open.parquet"))
    same(before + after, scan(path)[0])


def test_batches_outlive_the_scan_that_gave_them(history: tuple[Path, int]) -> None:
    path, _ = history
    with MessageScan(path, queue_names={}) as messages:
        batches = list(messages)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["id"] for row in rows] == [row["id"] for row in message_rows(path)[0]]
    assert {row["queue"] for row in rows} == {None}  # the store has no names


def test_a_state_with_any_byte_changed_is_refused_by_the_messages_name(tmp_path: Path) -> None:
    make_history(tmp_path / "store", 3, epochs=1, steps=120)
    lsns = lsns_of(tmp_path / "store")
    border = lsns[len(lsns) * 2 // 3]
    _, left = scan(tmp_path / "store", stop_lsn=border)
    seen: Counter[str] = Counter()
    chance = random.Random(3)
    names = arrow.queue_names(tmp_path / "store")
    for row in left.to_pylist():
        state = row["state"]
        at = chance.randrange(len(state))
        for damaged in (
            state[:at] + bytes([state[at] ^ 1 << chance.randrange(8)]) + state[at + 1 :],
            state[:at],
            state + b"\0",
            b"",
        ):
            table = pa.Table.from_pylist([row | {"state": damaged}], schema=left.schema)
            with pytest.raises(OptionError, match=f"cannot resume open message {row['id']}: ") as error:
                MessageScan(tmp_path / "store", start_lsn=border, seed=table, queue_names=names)
            seen[str(error.value).split(": ")[1].split(". ")[0]] += 1
    assert {"it is something else", "its checksum differs", "it is cut short"} <= set(seen)


def test_an_invalid_seed_is_refused(tmp_path: Path) -> None:
    make_history(tmp_path / "store", 4, epochs=1, steps=60)
    lsns = lsns_of(tmp_path / "store")
    border = lsns[len(lsns) // 2]
    _, left = scan(tmp_path / "store", stop_lsn=border)
    twice = pa.concat_tables([left, left])
    bare = left.replace_schema_metadata({b"logstore.scan": b"no hex"})
    short = left.replace_schema_metadata({b"logstore.scan": left.schema.metadata[b"logstore.scan"][:-2]})
    refused: list[tuple[dict[str, Any], str]] = [
        ({"start_lsn": border, "seed": twice}, "the message is there twice"),
        ({"start_lsn": lsns[1], "seed": left}, "impossible|behind where this pass does"),
        ({"start_lsn": border, "seed": left.drop_columns(["state"])}, "lacks state"),
        ({"start_lsn": border, "seed": bare}, "is not what a pass left"),
        ({"start_lsn": border, "seed": short}, "cannot resume behind the last run"),
        ({"start_lsn": -1}, "start_lsn is a number from 0"),
        ({"stop_lsn": 1 << 63}, "stop_lsn is a number from 0"),
        ({"batch_rows": 0}, "batch_rows is a number from 1 to"),
        ({"batch_rows": True}, "batch_rows is a number from 1 to"),
    ]
    for options, words in refused:
        with pytest.raises(OptionError, match=words):
            MessageScan(tmp_path / "store", queue_names={}, **options)


def test_a_pass_does_not_begin_in_a_recycled_part(tmp_path: Path) -> None:
    make_history(tmp_path / "store", 8, epochs=2, steps=200, weight=12)
    with Reader(tmp_path / "store") as reader:
        first_lsn = reader.segments()[0].first_lsn
    assert first_lsn > 2 * (512 << 10)  # a part was recycled
    with pytest.raises(LogRecycled, match="the log from LSN 524288 to .* was recycled"):
        scan(tmp_path / "store", start_lsn=512 << 10)
    assert scan(tmp_path / "store", start_lsn=first_lsn)[0] == scan(tmp_path / "store")[0]


def test_open_messages_are_returned_only_at_the_end(tmp_path: Path) -> None:
    make_history(tmp_path / "store", 5, epochs=1, steps=30)
    with MessageScan(tmp_path / "store", queue_names={}) as messages:
        with pytest.raises(StoreError, match="only after the last row"):
            messages.open_rows()
        assert sum(batch.num_rows for batch in messages) > 0
        assert list(messages) == []
        assert messages.open_rows().num_rows > 0
    with pytest.raises(StoreError, match="this scan is closed"):
        next(iter(messages))
