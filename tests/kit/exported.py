"""Stores to export, and the contents of their exports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from xxhash import xxh64_hexdigest

import logstore
from logstore.arrow import export
from logstore.export.manifest import MANIFEST, OPEN_FILE, FileInfo, Manifest
from logstore.export.target import read_manifest
from logstore.inspect import Reader

SEGMENT = 512 << 10


def manifest_of(target: Path) -> Manifest:
    found = read_manifest(target)
    assert found is not None
    return found


def everything(target: Path) -> dict[str, bytes]:
    """Every file of a target, by its path."""
    return {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*") if path.is_file()}


@pytest.fixture
def store_dir(tmp_path: Path) -> Path:
    """A closed store with live and ended messages in several segments."""
    path = tmp_path / "store"
    with logstore.open(path, segment_size=SEGMENT) as store:
        queue = store.declare_queue("orders")
        ids = store.publish_many(queue, [bytes(20_000)] * 60, headers=[b"head"] * 60)
        store.dequeue_many(list(ids)[:30:2], queue)
    return path


def recycle(path: Path, times: int) -> None:
    with logstore.open(path) as store:
        queue = store.declare_queue("orders")
        for _ in range(times):
            ids = store.publish_many(queue, [bytes(20_000)] * 40)
            store.dequeue_many(list(ids), queue)
        store.compact()


NEW_COLUMNS = frozenset({"from_queue_id", "not_before", "expires", "note"})
NEW_FIELDS = frozenset({"not_before", "expires", "note", "header_bytes"})  # of places


def as_version_1(target: Path) -> None:
    """Makes an export what a program of version 1 made: without states of places, and with an open set in one file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def older(file: FileInfo) -> FileInfo:
        path = target / file.path
        if file.dataset == "open":
            file = replace(file, path=OPEN_FILE, start_lsn=file.stop_lsn)
            path = path.rename(target / OPEN_FILE)
        table = pq.read_table(path, partitioning=None)
        known = pq.read_metadata(path).metadata or {}
        told = {key: value for key, value in known.items() if key.startswith(b"logstore.")}
        told[b"logstore.start_lsn"] = str(file.start_lsn).encode()
        table = table.drop_columns([name for name in table.column_names if name in NEW_COLUMNS])
        if "places" in table.column_names:
            at = table.schema.get_field_index("places")
            fields = [one for one in table.schema.field(at).type.value_type if one.name not in NEW_FIELDS]
            kind = pa.list_(pa.field("element", pa.struct(fields), nullable=False))
            rows = [
                [{one.name: place[one.name] for one in fields} for place in places]
                for places in table["places"].to_pylist()
            ]
            table = table.set_column(at, pa.field("places", kind, nullable=False), pa.array(rows, kind))
        with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata(told | {b"logstore.schema_version": b"1"})
        raw = path.read_bytes()
        return replace(file, bytes=len(raw), xxh64=xxh64_hexdigest(raw))

    manifest = manifest_of(target)
    (opened,) = manifest.open
    files = tuple(older(file) for file in manifest.files)
    made = replace(manifest, files=files, open=(older(opened),), schema_version=1)
    document = json.loads(made.encode())
    content = document["manifest"]
    (content["open"],) = content["open"]
    checked = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    document |= {"logstore_manifest": 1, "xxh64": xxh64_hexdigest(checked)}
    (target / MANIFEST).write_text(json.dumps(document, indent=1) + "\n")


def damage(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def export_with_a_gap(path: Path, target: Path) -> None:
    """Exports a store twice, with a part of its log recycled in between.

    Queue "slow" has 20 messages before that part, 5 after it and 8 at the end. Of two transactions that were prepared
    before it, the first was committed in it; the second is in doubt at the end.
    """
    with logstore.open(path, segment_size=SEGMENT) as store:
        ids = list(store.publish_many(store.declare_queue("slow"), [b"slow"] * 20))
        for number in (1, 2):
            doubt = store.begin(xid=logstore.Xid(number, b"g", b"b"))
            store.publish("slow", b"doubt", transaction=doubt)
            doubt.end()
            doubt.prepare()
    last = export(path, target).last_lsn
    with logstore.open(path) as store:
        store.dequeue_many(ids[:16], "slow")
        store.in_doubt()[0].commit()
    recycle(path, 20)
    with Reader(path) as reader:
        assert reader.info.base_lsn > last
    export(path, target, allow_gap=True)
    with logstore.open(path) as store:
        store.publish_many("slow", [b"later"] * 3)
    export(path, target)
