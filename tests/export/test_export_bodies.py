"""An export with bodies has those of messages, too: the first bytes of the whole content, whatever was recycled."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.body_oracle import Contents, contents, with_bodies
from kit.exported import SEGMENT, everything, manifest_of
from kit.killed import and_then_killed
from kit.row_histories import epoch
from kit.row_oracle import message_rows
from kit.stores import ROOT
from logstore import arrow
from logstore.errors import OptionError
from logstore.export import export, files, hold_for, open_set, upkeep
from logstore.export import run as export_run
from logstore.export.target import Target
from logstore.export.verification import verify
from logstore.holds import hold
from logstore.inspect import Reader
from logstore.report.sql import Database
from logstore.rows.messages import MessageScan

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install '/path/to/checkout[arrow]'")

if TYPE_CHECKING:
    from pathlib import Path

Rows = list[dict[str, Any]]


def rows_of(target: Path, dataset: str) -> Rows:
    files = manifest_of(target).of(dataset)
    return [row for file in files for row in pq.read_table(target / file.path, partitioning=None).to_pylist()]


def bodies_of(rows: Rows) -> dict[int, bytes | None]:
    return {row["id"]: row["body"] for row in rows}


def of_oracle(rows: Rows, of: dict[int, bytes | None], limit: int) -> dict[int, bytes | None]:
    return bodies_of(with_bodies(rows, of, limit))


@pytest.mark.parametrize(("seed", "limit", "part_bodies"), [(0, 30, 1), (1, 3000, 20_000), (2, 1 << 20, 100_000)])
def test_runs_that_continue_each_other_give_the_bodies_of_the_whole_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, limit: int, part_bodies: int
) -> None:
    monkeypatch.setattr(open_set, "PART_BODIES", part_bodies)
    path, target = tmp_path / "store", tmp_path / "target"
    logstore.open(path, segment_size=SEGMENT).close()
    messages: list[int] = []
    with (
        hold(path, "witness", limit_bytes=1 << 40) as witness,
        hold_for(path, target, limit_bytes=1 << 40) as held,
    ):
        for number in range(4):
            messages = and_then_killed(epoch, path, seed * 1000 + number, messages, 40, [1, 8, 4][seed])
            export(path, target, hold=held, file_bytes=SEGMENT, body=limit)
        closed, still_open = message_rows(path, hold=witness)
        of = contents(path, limit, hold=witness)
    assert bodies_of(rows_of(target, "messages")) == of_oracle(closed, of, limit)
    assert bodies_of(rows_of(target, "open")) == of_oracle(still_open, of, limit)
    parts = manifest_of(target).open
    assert len(parts) > 1 or limit > part_bodies
    assert verify(target).problems == ()


def test_the_bodies_do_not_depend_on_how_a_run_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, whole, parted = tmp_path / "store", tmp_path / "whole", tmp_path / "parted"
    logstore.open(path, segment_size=SEGMENT).close()
    with (
        hold_for(path, whole, limit_bytes=1 << 40) as one,
        hold_for(path, parted, limit_bytes=1 << 40) as other,
    ):
        messages: list[int] = []
        for number in range(3):
            messages = and_then_killed(epoch, path, 70 + number, messages, 60, 8)
        export(path, whole, body=2000, hold=one)
        monkeypatch.setattr(export_run.Run, "chunk_bytes", 1)
        report = export(path, parted, body=2000, file_bytes=1, hold=other)
    for dataset in ("messages", "open"):
        assert bodies_of(rows_of(parted, dataset)) == bodies_of(rows_of(whole, dataset))
    assert report.files > 3
    assert None not in bodies_of(rows_of(whole, "messages")).values()


@pytest.fixture
def recycled(tmp_path: Path) -> tuple[Path, Path, dict[int, bytes]]:
    """A store, its export with bodies, and its first messages, whose records are gone from the log."""
    path, target = tmp_path / "store", tmp_path / "target"
    with logstore.open(path, segment_size=SEGMENT, durability="relaxed") as store:
        store.declare_queue("kept")
        store.declare_queue("churned")
        pieces = {store.publish("kept", [b"%d" % n, bytes(2000 * n)]): b"%d" % n + bytes(2000 * n) for n in range(8)}
        staged = store.stage(b"", b"staged ")
    of = Contents(1 << 20)
    with Reader(path) as reader:
        for record in reader.records():
            of.add(record)
    export(path, target, body=9000)
    with logstore.open(path, durability="relaxed") as store:
        with hold_for(path, target, limit_bytes=1 << 40) as held:
            for _ in range(6):
                ids = store.publish_many("churned", [bytes(20_000)] * 40)
                store.dequeue_many(list(ids), "churned")
            store.compact()
            export(path, target, hold=held)
        store.compact()
    with Reader(path) as reader:
        assert reader.segments()[0].first_lsn > max(pieces)
    assert of.of == {**pieces, staged: b"staged "}
    return path, target, pieces


def test_a_message_keeps_its_body_after_its_records_were_recycled(
    recycled: tuple[Path, Path, dict[int, bytes]],
) -> None:
    path, target, pieces = recycled
    wanted = {message: content[:9000] for message, content in pieces.items()}
    with logstore.open(path) as store:
        for message in list(pieces)[:4]:
            store.dequeue(message, "kept")
    above = [arrow.read_table(path, target, name, columns=["id", "body"]).read_all() for name in ("messages", "open")]
    found = bodies_of(pa.concat_tables(above).to_pylist())
    assert {message: found[message] for message in pieces} == wanted
    export(path, target)
    found = bodies_of(rows_of(target, "messages") + rows_of(target, "open"))
    assert {message: found[message] for message in pieces} == wanted
    assert verify(target).problems == ()


def test_an_export_without_bodies_has_no_such_column_and_says_so(
    recycled: tuple[Path, Path, dict[int, bytes]], tmp_path: Path
) -> None:
    path, target, _ = recycled
    bare = tmp_path / "bare"
    export(path, bare)
    for name in ("messages", "open"):
        assert "body" not in pq.read_schema(bare / manifest_of(bare).of(name)[0].path).names
        with pytest.raises(OptionError, match="has no bodies: export to a new target with --body"):
            arrow.read_table(path, bare, name, columns=["body"])
        assert "body" not in arrow.read_table(path, target, name).schema.names
        table = arrow.read_table(path, target, name, columns=["body", "id"])
        assert table.schema.names == ["body", "id"]
    assert (manifest_of(bare).schema_version, manifest_of(target).schema_version) == (2, 3)


def test_sql_has_the_bodies_of_messages(recycled: tuple[Path, Path, dict[int, bytes]]) -> None:
    path, target, pieces = recycled
    query = "SELECT id, body FROM open WHERE queue = 'kept' ORDER BY id"
    for place, body in ((path, 9000), (target, None)):
        with Database(place, body=body) as opened:
            assert opened.query(query).read_all().to_pylist() == [
                {"id": message, "body": content[:9000]} for message, content in pieces.items()
            ]
            assert opened.query("SELECT id FROM messages WHERE body IS NULL").read_all().num_rows == 0


def test_merged_files_keep_the_bodies(
    recycled: tuple[Path, Path, dict[int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target, _ = recycled
    with logstore.open(path) as store:
        store.dequeue(next(iter(recycled[2])), "kept")
    export(path, target)
    before = rows_of(target, "messages")
    monkeypatch.setattr(upkeep, "MERGE_FILES", 2)
    with Target(target) as place:
        assert upkeep.keep_up(place, None, path).merged_files > 1
    assert rows_of(target, "messages") == before
    assert any(row["body"] for row in before)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_bodies_of_an_older_exports_messages_are_null(tmp_path: Path, version: str) -> None:
    target = tmp_path / "target"
    shutil.copytree(ROOT / "tests" / "golden" / f"export-{version}", target)
    assert manifest_of(target).options.body is not None
    with Database(target) as opened:
        for view in ("messages", "open"):
            found = opened.query(f"SELECT id, body FROM {view}").read_all()
            assert found["body"].null_count == found.num_rows > 0


def older(target: Path) -> None:
    """Makes the files of messages and open ones as a program made them that gave bodies only to records."""
    from dataclasses import replace

    from xxhash import xxh64_hexdigest

    from logstore.export.manifest import MANIFEST

    def without(file: Any) -> Any:
        if file.dataset == "records":
            return file
        table = pq.read_table(target / file.path, partitioning=None)
        told = pq.read_metadata(target / file.path).metadata
        own = {key: value for key, value in told.items() if key.startswith(b"logstore.")}
        pq.write_table(table.drop_columns(["body"]).replace_schema_metadata(own), target / file.path)
        raw = (target / file.path).read_bytes()
        return replace(file, bytes=len(raw), xxh64=xxh64_hexdigest(raw))

    manifest = manifest_of(target)
    files, opened = (tuple(without(file) for file in files) for files in (manifest.files, manifest.open))
    made = replace(manifest, files=files, open=opened, schema_version=2)
    (target / MANIFEST).write_bytes(made.encode())


def test_an_older_export_is_continued_with_bodies_where_they_can_be_had(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "target"
    with logstore.open(path) as store:
        store.declare_queue("q")
        old = [store.publish("q", b"old %d" % n) for n in range(4)]
        store.dequeue(old[0], "q")
    export(path, target, body=5)
    older(target)
    assert verify(target).problems == ()
    with logstore.open(path) as store:
        new = [store.publish("q", b"new %d" % n) for n in range(3)]
        for message in (old[1], new[0]):
            store.dequeue(message, "q")
    wanted = {old[0]: None, old[1]: None, new[0]: b"new 0"}
    assert (
        bodies_of(arrow.read_table(path, target, "messages", columns=["id", "body"]).read_all().to_pylist()) == wanted
    )
    export(path, target)
    assert verify(target).problems == ()
    for message, body in wanted.items():
        found = {row["id"]: row.get("body") for row in rows_of(target, "messages")}
        assert found[message] == body
    assert bodies_of(rows_of(target, "open")) == {old[2]: None, old[3]: None, new[1]: b"new 1", new[2]: b"new 2"}
    assert (
        bodies_of(arrow.read_table(path, target, "messages", columns=["id", "body"]).read_all().to_pylist()) == wanted
    )


def test_the_same_log_gives_the_same_files(tmp_path: Path) -> None:
    path, one, other = tmp_path / "store", tmp_path / "one", tmp_path / "other"
    logstore.open(path, segment_size=SEGMENT).close()
    and_then_killed(epoch, path, 5, [], 60, 8)
    export(path, one, body=100)
    export(path, other, body=100)
    assert everything(one) == everything(other)


def test_a_part_of_the_open_set_is_limited_by_its_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_set, "PART_BODIES", 1000)
    path, target = tmp_path / "store", tmp_path / "target"
    sizes = [0, 400, 500, 200, 3000, 0, 1, 999]
    with logstore.open(path) as store:
        store.declare_queue("q")
        for size in sizes:
            store.publish("q", bytes(size))
    export(path, target, body=2000)
    assert [part.rows for part in manifest_of(target).open] == [3, 1, 1, 3]
    assert [len(row["body"]) for row in rows_of(target, "open")] == [min(size, 2000) for size in sizes]


@pytest.mark.parametrize("batch_rows", [1, 4])
def test_a_part_that_is_full_where_a_batch_ends_is_followed_by_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int
) -> None:
    monkeypatch.setattr(open_set, "PART_ROWS", 2)
    monkeypatch.setitem(MessageScan.__init__.__kwdefaults__, "batch_rows", batch_rows)
    path, target = tmp_path / "store", tmp_path / "target"
    with logstore.open(path) as store:
        store.declare_queue("q")
        wanted = {store.publish("q", b"%d" % n): b"%d" % n for n in range(7)}
    export(path, target, body=10)
    assert [part.rows for part in manifest_of(target).open] == [2, 2, 2, 1]
    assert bodies_of(rows_of(target, "open")) == wanted


def test_files_are_read_and_merged_by_row_groups_whose_bytes_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "GROUP_BYTES", 100_000)
    monkeypatch.setitem(MessageScan.__init__.__kwdefaults__, "batch_rows", 4)
    path, target = tmp_path / "store", tmp_path / "target"
    for _ in range(2):
        with logstore.open(path, durability="relaxed") as store:
            store.declare_queue("q")
            store.dequeue_many(list(store.publish_many("q", [bytes(10_000)] * 40)), "q")
        export(path, target, body=10_000)
    with arrow.read_table(path, target, "messages", columns=["body"]) as read:
        sizes = [batch.nbytes for batch in read]
    assert len(sizes) > 4
    assert max(sizes) < 200_000
    merged: list[int] = []
    add = files.FileRows.add

    def noted(self: files.FileRows, batch: Any) -> None:
        if "end_lsn" in batch.schema.names:  # a batch of records has more rows
            merged.append(batch.nbytes)
        add(self, batch)

    monkeypatch.setattr(files.FileRows, "add", noted)
    monkeypatch.setattr(upkeep, "MERGE_FILES", 2)
    with Target(target) as place:
        assert upkeep.keep_up(place, None, path).merged_files > 1
    assert max(merged) < 200_000
    assert sum(row["body"] == bytes(10_000) for row in rows_of(target, "messages")) == 80
