"""The open set is in parts by id: a run replaces the parts that it changes, and the whole is as if it were new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.exported import SEGMENT, as_version_1, damage, everything, manifest_of
from kit.killed import and_then_killed
from kit.placed_logs import make_placed_log
from kit.row_histories import epoch
from kit.row_oracle import message_rows
from logstore.codec.placed import PlaceStates
from logstore.codec.records import RecordType
from logstore.export import export, hold_for, open_set
from logstore.export import run as export_run
from logstore.export.manifest import OPEN_FILE, ExportDamaged, Intent, Span
from logstore.export.open_set import part_of, split_rows
from logstore.export.target import Target
from logstore.export.verification import verify
from logstore.holds import hold
from logstore.inspect import Reader

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

if TYPE_CHECKING:
    from pathlib import Path

Rows = list[dict[str, Any]]


def open_rows(target: Path) -> Rows:
    """The rows of all parts, each of which must have the ids of its range, in order."""
    parts = manifest_of(target).open
    rows: Rows = []
    for number, part in enumerate(parts):
        found = pq.read_table(target / part.path, partitioning=None).to_pylist()
        assert len(found) == part.rows
        assert all(part_of(parts, row["id"]) == number for row in found)
        rows += found
    assert [row["id"] for row in rows] == sorted({row["id"] for row in rows})
    return rows


def nameless(rows: Rows) -> Rows:
    """Without the names of queues, which are those of the run that wrote a part, and the states."""
    made = []
    for row in rows:
        kept = {name: value for name, value in row.items() if name not in ("queue", "state")}
        if "places" in kept:
            kept["places"] = nameless(kept["places"])
        made.append(kept)
    return made


@pytest.mark.parametrize(("seed", "part_rows"), [(0, 1), (1, 3), (2, 1), (3, 2), (4, 5)])
def test_parts_that_runs_keep_and_replace_are_together_the_messages_that_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, part_rows: int
) -> None:
    monkeypatch.setattr(open_set, "PART_ROWS", part_rows)
    path, target = tmp_path / "store", tmp_path / "target"
    logstore.open(path, segment_size=SEGMENT).close()
    messages: list[int] = []
    with (
        hold(path, "witness", limit_bytes=1 << 40) as witness,
        hold_for(path, target, limit_bytes=1 << 40) as held,
    ):
        for number in range(6):
            messages = and_then_killed(epoch, path, seed * 1000 + number, messages, 40, [1, 8, 4][seed % 3])
            export(path, target, hold=held, file_bytes=SEGMENT)
            assert nameless(open_rows(target)) == nameless(message_rows(path, hold=witness)[1])
        closed, _ = message_rows(path, hold=witness)
    found = [pq.read_table(target / file.path, partitioning=None) for file in manifest_of(target).of("messages")]
    assert nameless([row for table in found for row in table.to_pylist()]) == nameless(closed)
    assert verify(target).problems == ()


@pytest.mark.parametrize("seed", [0, 1])
def test_states_of_places_reach_messages_in_parts_that_no_other_record_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(open_set, "PART_ROWS", 2)
    monkeypatch.setattr(export_run.Run, "chunk_bytes", 1)
    commits = []
    real = Target.commit
    monkeypatch.setattr(Target, "commit", lambda *given: (commits.append(given), real(*given)))
    path, target = tmp_path / "store", tmp_path / "target"
    make_placed_log(path, seed, recycles=bool(seed))
    export(path, target, file_bytes=1)
    closed, still_open = message_rows(path)
    assert nameless(open_rows(target)) == nameless(still_open)
    assert sum(file.rows for file in manifest_of(target).of("messages")) == len(closed)
    assert len(commits) > 1


def test_states_of_places_change_the_messages_that_they_name(tmp_path: Path) -> None:
    path = tmp_path / "store"
    make_placed_log(path, 0, recycles=False)
    with Reader(path) as reader:
        records = list(reader.records(only=RecordType.PLACE_STATES))
    assert len(records) > 3
    for record in records:
        span = Span(record.lsn, record.lsn + 1)
        found = [ids or set() for ids in open_set._changed_ids(path, 1 << 62, span, None, None)]
        assert isinstance(record.body, PlaceStates)
        assert set().union(*found) == {row.id for row in record.body.rows}


@pytest.fixture
def parted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The target of an export with 100 open messages in ten parts; the store is `store` beside it."""
    monkeypatch.setattr(open_set, "PART_ROWS", 10)
    path, target = tmp_path / "store", tmp_path / "target"
    with logstore.open(path, segment_size=SEGMENT) as store:
        store.publish_many(store.declare_queue("orders"), [b"x"] * 100)
    export(path, target)
    assert [part.rows for part in manifest_of(target).open] == [10] * 10
    return target


def test_a_run_with_a_new_message_neither_reads_nor_writes_the_other_parts(parted: Path) -> None:
    path, before = parted.parent / "store", manifest_of(parted).open
    with logstore.open(path) as store:
        store.publish("orders", b"new")
    for part in before[:-1]:
        damage(parted / part.path)
    whole = everything(parted)
    export(path, parted)
    after = manifest_of(parted).open
    assert after[:9] == before[:9]
    assert sum(part.rows for part in after) == 101
    found = everything(parted)
    assert all(found[part.path] == whole[part.path] for part in before[:-1])


def test_a_damaged_part_that_a_run_changes_is_refused_and_nothing_is_written(parted: Path) -> None:
    path, before = parted.parent / "store", manifest_of(parted).open
    third = open_rows(parted)[25]["id"]
    with logstore.open(path) as store:
        store.dequeue(third, store.queue("orders"))
    whole = (parted / before[2].path).read_bytes()
    damage(parted / before[2].path)
    broken = everything(parted)
    with pytest.raises(ExportDamaged, match=before[2].path):
        export(path, parted)
    assert everything(parted) == broken
    (parted / before[2].path).write_bytes(whole)
    (parted / before[5].path).unlink()
    with pytest.raises(ExportDamaged, match=before[5].path):
        export(path, parted)


def test_parts_with_few_messages_are_merged_and_an_empty_set_is_one_file(parted: Path) -> None:
    path = parted.parent / "store"
    ids = [row["id"] for row in open_rows(parted)]
    for number in range(9):  # the first of every ten remains
        with logstore.open(path) as store:
            store.dequeue_many([each for at, each in enumerate(ids) if at % 10 == 9 - number], store.queue("orders"))
        export(path, parted)
    with logstore.open(path) as store:
        store.dequeue_many([ids[0], ids[50]], store.queue("orders"))
    export(path, parted)
    assert sum(part.rows for part in manifest_of(parted).open) == 8
    assert len(manifest_of(parted).open) <= 4
    assert open_rows(parted) != []
    with logstore.open(path) as store:
        store.dequeue_many([each for each in ids[10::10] if each != ids[50]], store.queue("orders"))
    export(path, parted)
    assert [part.rows for part in manifest_of(parted).open] == [0]
    assert [path.parent.name for path in parted.rglob("open-*.parquet")] == ["open"]
    assert verify(parted).problems == ()


def test_a_deleted_queue_changes_every_part(parted: Path) -> None:
    with logstore.open(parted.parent / "store") as store:
        store.delete_queue("orders")
    export(parted.parent / "store", parted)
    assert open_rows(parted) == []
    assert sum(file.rows for file in manifest_of(parted).of("messages")) == 100


def test_the_one_file_of_an_older_export_is_replaced_by_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    with logstore.open(path, segment_size=SEGMENT) as store:
        store.publish_many(store.declare_queue("orders"), [b"x"] * 25)
    export(path, target)
    as_version_1(target)
    assert [part.path for part in manifest_of(target).open] == [OPEN_FILE]
    monkeypatch.setattr(open_set, "PART_ROWS", 10)
    with logstore.open(path) as store:
        store.publish("orders", b"new")
    export(path, target)
    assert not (target / OPEN_FILE).exists()
    assert [part.rows for part in manifest_of(target).open] == [10, 10, 6]
    assert nameless(open_rows(target)) == nameless(message_rows(path)[1])
    assert verify(target).problems == ()


def test_duckdb_and_polars_read_the_parts_as_one_table(parted: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: pip install duckdb")
    polars = pytest.importorskip("polars", reason="polars is not installed: pip install polars")
    pattern = f"{parted}/open/*.parquet"
    assert duckdb.sql(f"SELECT count(*), count(DISTINCT id) FROM '{pattern}'").fetchall() == [(100, 100)]
    assert polars.scan_parquet(pattern).select(polars.len()).collect().item() == 100


def test_an_intent_removes_nothing_but_files_of_an_export() -> None:
    for path in ("records/day=2026-01-01/records-0-1.parquet", "../open/open.parquet", "open/x.parquet", 7):
        raw = Intent("0" * 16, (), (path,)).encode()  # type: ignore[arg-type] - a manipulated file
        with pytest.raises(ExportDamaged, match="a file to remove is no file of an export"):
            Intent.decode(raw, "here")


def test_rows_are_split_at_unchanged_parts_and_at_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_set, "PART_ROWS", 2)

    def split(ids: list[int], *starts: int) -> list[tuple[int, list[int]]]:
        table = pa.table({"id": pa.array(ids, pa.int64())})
        return [(first, part["id"].to_pylist()) for first, part in split_rows(table.to_batches(), table.schema, starts)]

    assert split([], 0) == [(0, [])]
    assert split([5, 6, 7], 0) == [(0, [5, 6]), (7, [7])]
    assert split([5, 6, 9], 0, 8, 20) == [(0, [5, 6]), (8, [9]), (20, [])]
    assert split([3, 5], 4) == [(3, [3, 5])]  # an id below all others widens the first part
