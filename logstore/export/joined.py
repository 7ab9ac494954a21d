"""An export and the log above it as one table: everything below the export's last LSN from its files, the rest from the
log.

A :class:`Join` is one manifest and one end of the log, taken at one moment. Later runs of the export and later records
do not change it: the open set is read when the join is made, and files of records and messages are never changed. A
later run may remove such a file; then a newer manifest names the file with its rows, or that they were dropped.

Invariant: no row of the log's side depends on the log below :attr:`Join.keep_lsn`. What such a row says of earlier
records comes from the export's open set, as in a run of the export. So a writer may recycle the exported part.

Nothing here writes to the target or takes its lock.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from xxhash import xxh64_hexdigest

from logstore.core import arguments
from logstore.core.extras import require
from logstore.errors import OptionError
from logstore.export.manifest import ExportError, ExportGap, Manifest
from logstore.export.mark import check_mark
from logstore.export.places import Place, place_of
from logstore.export.plan import plan_run
from logstore.export.target import checked_manifest
from logstore.inspect import LogRecycled, Reader
from logstore.rows.messages import REST_KEY, MessageScan
from logstore.rows.records import Where, open_places, read
from logstore.rows.schema import message_schema

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from logstore.export.manifest import FileInfo
    from logstore.inspect import ReaderInfo

__all__ = [
    "DECIDING",
    "UNDECIDED",
    "Join",
    "decision_table",
    "decisions",
    "find_join",
    "known_places",
    "no_bodies",
    "tail_messages",
    "with_join",
]

UNDECIDED: Final = ("open", "prepared")
"""Outcomes that a later record changes."""

DECIDING: Final = {"TX_PREPARE": "prepared", "TX_ROLLBACK": "rolled_back", "TX_COMMIT": "committed"}
"""The record types that decide a transaction, and the outcome after each; a later one of these counts more."""

_ENDING: Final = ("MESSAGE_DEQUEUE", "MESSAGE_MOVE", "MESSAGE_DELETE")
_TRIES: Final = 10
_PAUSE_S: Final = 0.1  # a run puts its files into place within milliseconds

Made = TypeVar("Made")


class _PartReplaced(ExportError):
    """A part of the open set is not the manifest's, because a run of the export has replaced it."""


@dataclass(frozen=True, slots=True)
class Join:
    """An export and the log above it, at one moment."""

    source: Path
    target: Place
    manifest: Manifest
    keep_lsn: int
    """The first LSN of the log's side; the log must exist from here on."""
    end_lsn: int
    """The end of the log's side. Equal to ``keep_lsn``, or below it, if the export has everything."""
    tail_bytes: int
    """Bytes of the log's side."""
    info: ReaderInfo
    """The log as it was found: every later reader of it knows its end."""

    @property
    def last_lsn(self) -> int:
        """Everything below it is exported."""
        return self.manifest.last_lsn

    @property
    def store(self) -> str:
        """The store's UUID."""
        return str(self.manifest.store)


def find_join(store_dir: str | os.PathLike[str], target: str | os.PathLike[str] | Place) -> Join:
    """The join of a store's log and its export as they are now.

    Raises ``OptionError`` if ``target`` has no export, ``ExportMismatch`` for the export of another store or of another
    history of this one, ``ExportDamaged`` if a file of the export is missing, ``ExportGap`` if the log has recycled
    records that the export does not have, and the errors of reading the log.
    """
    source, path = arguments.path("store_dir", store_dir).absolute(), place_of(target).absolute()
    attempt, before = 1, -1
    while True:
        with path.explained():
            manifest = checked_manifest(path)
        if manifest is None:
            raise OptionError(f"there is no export in {path}: name the target of an export of {source}")
        try:
            return _joined(source, path, manifest)
        except LogRecycled:
            if attempt == _TRIES:
                raise
        except ExportGap as gap:
            if manifest.last_lsn == before or attempt == _TRIES:  # no run of the export has brought these records
                raise ExportGap(
                    f"{source} has recycled records that the export in {path} does not have: LSN {gap.start_lsn} to "
                    f"{gap.stop_lsn}. Run `logstore export --allow-gap` with this target, which notes the gap, and "
                    "read again; to prevent it, export more often, or with --every, which holds the log",
                    gap.start_lsn,
                    gap.stop_lsn,
                ) from None
        attempt, before = attempt + 1, manifest.last_lsn


def _joined(source: Path, path: Place, manifest: Manifest) -> Join:
    with _reader(source, max(1, manifest.last_lsn)) as reader:
        info, segments = reader.info, reader.segments()
        planned = plan_run(reader, manifest)  # raises for another store, another history and a gap
    check_mark(source, None, segments, manifest.mark, end_lsn=info.end_lsn)
    # Between two epochs no record is lost when the base passes the export's last LSN.
    keep_lsn = max(1, manifest.last_lsn, segments[0].first_lsn if segments else 0)
    return Join(source, path, manifest, keep_lsn, planned.stop_lsn, planned.log_bytes if planned.units else 0, info)


def _reader(source: Path, keep_lsn: int) -> Reader:
    """The log from this LSN on if it is there, as a hold may keep it below the base; else from the base.

    Between two epochs the base passes an LSN although no record is lost.
    """
    try:
        return Reader(source, keep_lsn=keep_lsn)
    except LogRecycled:
        return Reader(source)


def with_join(
    store_dir: str | os.PathLike[str], target: str | os.PathLike[str] | Place, work: Callable[[Join], Made]
) -> Made:
    """The result of ``work`` on the join; repeats both if the log or the export moves on before ``work`` has ended."""
    attempt = 1
    while True:
        found = find_join(store_dir, target)
        try:
            return work(found)
        except (LogRecycled, _PartReplaced):
            if attempt == _TRIES:
                raise
        attempt += 1
        time.sleep(_PAUSE_S)


# ---- The open set


@contextmanager
def _opened(join: Join, part: FileInfo) -> Iterator[Any]:
    """One part as a ``ParquetFile``, from bytes that are the manifest's."""
    arrow, parquet = require("arrow", "pyarrow"), require("arrow", "pyarrow.parquet")
    with join.target.explained():
        try:
            raw, _ = join.target.read(part.path, part.bytes + 1)
        except FileNotFoundError:
            raw = b""
    if xxh64_hexdigest(raw) != part.xxh64:
        raise _PartReplaced(
            f"{join.target}/{part.path} is not the part of the open set that the manifest names: a run of the export "
            "is replacing it, or was interrupted. Run the export again, then read again"
        )
    with parquet.ParquetFile(arrow.BufferReader(raw)) as opened:
        yield opened


def _open_part(join: Join, part: FileInfo, columns: list[str]) -> pa.Table:
    """These columns of one part."""
    with _opened(join, part) as opened:
        return opened.read(columns)


def _open_set(join: Join) -> pa.Table:
    """The state of the messages that were open at the export's last LSN, for a pass that continues there."""
    tables = [_open_part(join, part, ["id", "state"]) for part in join.manifest.open]
    rest = (tables[-1].schema.metadata or {}).get(REST_KEY, b"")
    plain = [table.replace_schema_metadata(None) for table in tables]
    return require("arrow", "pyarrow").concat_tables(plain).replace_schema_metadata({REST_KEY: rest})


def _open_bodies(join: Join, size: int) -> Iterator[pa.RecordBatch]:
    """Their bodies, cut to ``size`` bytes; none of parts that an earlier version wrote without them."""
    from logstore.export.open_set import bodies_in

    arrow, compute = require("arrow", "pyarrow"), require("arrow", "pyarrow.compute")
    for part in join.manifest.open:
        with _opened(join, part) as opened:
            for batch in bodies_in(opened):
                bodies = compute.binary_slice(batch["body"].cast(arrow.binary()), 0, size)
                yield arrow.RecordBatch.from_arrays([batch["id"], bodies], names=["id", "body"])


def known_places(join: Join) -> pa.Table | None:
    """The exported places that records of the log's side end, in the form of ``known`` of ``logstore.arrow.read``.

    None if there are none. Reads the parts of the open set that have such messages.
    """
    from logstore.export.open_set import part_of

    arrow, compute = require("arrow", "pyarrow"), require("arrow", "pyarrow.compute")
    parts = join.manifest.open
    with read(
        join.source,
        start_lsn=join.keep_lsn,
        stop_lsn=join.end_lsn,
        columns=["id"],
        where=Where(types=_ENDING),
        keep_lsn=join.keep_lsn,
        end_lsn=join.info.end_lsn,
        queue_names={},
    ) as rows:
        ids = rows.read_all()["id"]
    ids = ids.filter(compute.less(ids, join.last_lsn)).unique()
    wanted = sorted({part_of(parts, each) for each in ids.to_pylist()})
    found = [open_places(_open_part(join, parts[number], ["id", "places"])) for number in wanted]
    found = [table.filter(compute.is_in(table["id"], ids)) for table in found]
    return arrow.concat_tables(found) if sum(table.num_rows for table in found) else None


# ---- Transactions


def decisions(join: Join) -> pa.Table:
    """The decisions that the log's side takes of transactions begun before it: ``id, type, lsn, time``."""
    compute = require("arrow", "pyarrow.compute")
    with read(
        join.source,
        start_lsn=join.keep_lsn,
        stop_lsn=join.end_lsn,
        columns=["id", "type", "lsn", "time"],
        where=Where(types=tuple(DECIDING)),
        keep_lsn=join.keep_lsn,
        end_lsn=join.info.end_lsn,
        queue_names={},
        strings="plain",
    ) as rows:
        found = rows.read_all()
    return found.filter(compute.less(found["id"], join.last_lsn))


def decision_table(found: pa.Table) -> pa.RecordBatch | None:
    """The last decision of each transaction, as ``id, outcome, lsn, time``; None if there are none."""
    arrow = require("arrow", "pyarrow")
    order = list(DECIDING)
    rows = sorted(found.to_pylist(), key=lambda row: (order.index(row["type"]), row["lsn"]))
    last = {row["id"]: row for row in rows}
    if not last:
        return None
    return arrow.RecordBatch.from_arrays(
        [
            arrow.array(list(last), arrow.int64()),
            arrow.array([DECIDING[row["type"]] for row in last.values()], arrow.string()),
            arrow.array([row["lsn"] for row in last.values()], arrow.int64()),
            arrow.array([row["time"] for row in last.values()], arrow.timestamp("us", tz="UTC")),
        ],
        names=["id", "outcome", "lsn", "time"],
    )


# ---- Messages


def no_bodies(join: Join) -> OptionError:
    """The error for the column ``body`` of an export that was made without bodies."""
    return OptionError(f"the export in {join.target} has no bodies: export to a new target with --body")


def tail_messages(
    join: Join, queue_names: Mapping[int, str], table: str, *, body: int | None
) -> Iterator[pa.RecordBatch]:
    """``messages``: those that ended on the log's side, also if they began before it; ``open``: those open at its end.

    ``body``: the length to which the column ``body`` is cut; None: there is no such column. The open set is read at the
    call, and its bodies go to an unnamed file of the system. The batches are read from the log when they are wanted.
    """
    if table == "messages" and not join.tail_bytes:
        return iter(())
    scan = MessageScan(
        join.source,
        start_lsn=join.last_lsn,
        stop_lsn=max(join.last_lsn, join.end_lsn),
        seed=_open_set(join),
        seed_bodies=() if body is None else _open_bodies(join, body),
        keep_lsn=join.keep_lsn,
        end_lsn=join.info.end_lsn,
        queue_names=queue_names,
        body=body,
    )
    return _ended(scan, body=body is not None) if table == "messages" else _still_open(scan)


def _ended(scan: MessageScan, *, body: bool) -> Iterator[pa.RecordBatch]:
    plain = message_schema(body=body)
    with scan:
        for batch in scan:
            yield from require("arrow", "pyarrow").Table.from_batches([batch]).cast(plain).to_batches()


def _still_open(scan: MessageScan) -> Iterator[pa.RecordBatch]:
    with scan:
        for _ in scan:
            pass
        for batch in scan.open_batches():
            yield batch.replace_schema_metadata(None)
