"""The sources of a report's rows: a store in any state, or the target of an export.

Invariant: a report shows one state. While a writer runs, that is the log that was durable at the start, and a hold
keeps it until it has been read. For an export it is the files in its manifest, even if an export runs meanwhile.
"""

from __future__ import annotations

import os
import secrets
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from xxhash import xxh64_hexdigest

from logstore.codec.records import LSN_LIMIT
from logstore.core.extras import require
from logstore.errors import StoreError
from logstore.holds import LIMIT_BYTES, hold, list_holds
from logstore.inspect import Inspection, Reader, read_catalog
from logstore.report.counts import Doubt, OpenWork
from logstore.rows.schema import message_schema
from logstore.store.base_holders import HOLDERS, HOLDERS_MAX, read_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from logstore.catalog.rows import QueueRow
    from logstore.export.manifest import Dropped, Manifest, Missing, Span
    from logstore.export.places import Place
    from logstore.store.base_holders import Holder

__all__ = ["ExportSource", "Source", "StoreSource", "check_source", "open_source"]

MANIFEST: Final = "_manifest.json"
EXPORT_LOCK: Final = "_LOCK"
HOLD_S: Final = 6 * 3600.0
TRIES: Final = 10
BATCH_ROWS: Final = 1 << 16


@dataclass(slots=True)
class Facts:
    """Facts about the source as a whole."""

    kind: str
    """``store`` or ``export``."""
    uuid: str
    state: str
    base_lsn: int
    end_lsn: int
    log_bytes: int
    read_us: int | None
    """When the state was read, in µs since 1970 UTC; None for an export, whose state is that of its last record."""
    missing: Missing | None
    """What the log, or for an export the log at the first run, no longer held."""
    gaps: tuple[Span, ...] = ()
    """Ranges that were recycled between two exports."""
    dropped: tuple[Dropped, ...] = ()
    """Records and messages that the export had, and dropped because of their age."""


class Source(ABC):
    """The source of a report. A context manager that releases its hold at the end."""

    facts: Facts
    shown: str
    """Its path, or its address without what is secret in it."""
    last_name: str
    """The last name in that, with the working directory's for a path such as ``.``."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Releases the hold. A second call does nothing."""
        self._stack.close()

    @abstractmethod
    def records(self, columns: Sequence[str]) -> Iterator[Any]:
        """Record batches with these columns."""

    @abstractmethod
    def messages(self) -> tuple[Iterator[Any], Callable[[], Any]]:
        """Batches of ended messages, and a function that gives the table of open ones after the last batch."""

    @abstractmethod
    def names(self) -> dict[int, str]:
        """The known names of queues by id."""

    def tail(self) -> dict[str, Any] | None:
        """The tail, in the form of ``logstore tail --json``; None for an export."""
        return None

    def doubts(self) -> list[Doubt] | None:
        """Transactions in doubt; None if they must be found from the records."""
        return None

    def work(self) -> list[OpenWork] | None:
        """All transactions without an outcome, with the messages that they change; None if only doubts are known."""
        return None

    def holding(self) -> frozenset[tuple[str, int]]:
        """What needs the oldest segment of the log: ("queue" or "transaction", id)."""
        return frozenset()

    def dead_letter_ids(self) -> frozenset[int]:
        """The queues that take the dead letters of another one, as far as the source knows."""
        return frozenset()

    def catalog_options(self) -> tuple[list[str], bool]:
        """The options with which a command finds the catalog, and whether they lack a secret."""
        return [], False


class StoreSource(Source):
    """A store."""

    def __init__(self, store_dir: str | os.PathLike[str], *, connect: str | None, catalog: str | None) -> None:
        super().__init__()
        self.path = Path(store_dir)
        self.shown, self.last_name = str(self.path), self.path.absolute().name
        self._connect, self._catalog = connect, catalog
        from logstore.export.plan import missing_before

        with self._stack as stack:
            with Reader(self.path) as reader:
                info = reader.info
            self.hold = None
            self.start_lsn = info.base_lsn
            if info.live:
                limit = max(LIMIT_BYTES, info.log_bytes)
                name = f"report-{os.getpid()}-{secrets.token_hex(4)}"
                self.hold = stack.enter_context(hold(self.path, name, limit_bytes=limit, expires_s=HOLD_S))
                self.start_lsn = self.hold.lsn
            with Reader(self.path, hold=self.hold) as reader:
                missing = missing_before(reader)
            self._look(connect, catalog)
            self._stack = stack.pop_all()
        info = self._info
        self.facts = Facts(
            *("store", str(info.uuid), info.state, self.start_lsn, self.stop_lsn, info.log_bytes),
            read_us=time.time_ns() // 1000,
            missing=missing,
        )

    def _look(self, connect: str | None, catalog: str | None) -> None:
        """The state from the core's replay. The rows are read up to the same LSN, so that both tell of one moment."""
        with Inspection(self.path) as found:
            self._info = info = found.info
            self.stop_lsn = info.end_lsn  # after a crash, the end of the log that recovery will accept
            catalog_view = read_catalog(self.path, info, connect=connect, schema=catalog)
            self._names = {queue.id: queue.name for queue in catalog_view.queues}
            found.read()
            told = read_tail(found.handle, self._names, list_holds(self.path), HOLDERS_MAX)
            self._holding = _holding(told.holders)
            self._tail = told.as_dict() | {"log_bytes": info.log_bytes}
            self._tail["holders"] = self._tail["holders"][:HOLDERS]
            self._dead_letter_ids = _dead_letter_ids(catalog_view.queues)
            own = None if self.hold is None else self.hold.name
            self._tail["holds"] = [one for one in self._tail["holds"] if one["name"] != own]
            self._transactions = found.transactions()
            self._doubts = [
                Doubt(
                    one.id,
                    None if one.xid is None else str(one.xid),
                    one.prepared_us or one.started_us or None,
                    len(one.work),
                    tuple(sorted({work.queue_id for work in one.work if work.queue_id})),
                )
                for one in self._transactions
                if one.prepared
            ]

    def names(self) -> dict[int, str]:
        """The names from the catalog."""
        return self._names

    def records(self, columns: Sequence[str], *, body: int | None = None) -> Iterator[Any]:
        """Read from the segments, on each call again. ``body``: the bytes to which ``body`` is cut, if it is named."""
        from logstore import arrow

        yield from arrow.read(
            self.path,
            start_lsn=self.start_lsn,
            stop_lsn=self.stop_lsn,
            columns=columns,
            body=body,
            hold=self.hold,
            queue_names=self._names,
        )

    def messages(self, *, body: int | None = None) -> tuple[Iterator[Any], Callable[[], Any]]:
        """One pass over the log. ``body``: the bytes to which the column of that name is cut; None: there is none."""
        from logstore.rows.messages import MessageScan

        scan = MessageScan(
            self.path,
            start_lsn=self.start_lsn,
            stop_lsn=self.stop_lsn,
            seed=None,
            hold=self.hold,
            queue_names=self._names,
            body=body,
        )
        return iter(self._stack.enter_context(scan)), scan.open_rows

    def tail(self) -> dict[str, Any] | None:
        """The tail from the inspection."""
        return self._tail

    def doubts(self) -> list[Doubt] | None:
        """The transactions from the core, with the times of their prepares, even if they were relocated."""
        return self._doubts

    def work(self) -> list[OpenWork]:
        """From the core."""
        return [
            OpenWork(
                one.id,
                None if one.xid is None else str(one.xid),
                one.prepared,
                one.prepared_us or one.started_us or None,
                tuple(work.message_id for work in one.work),
                tuple(sorted({work.queue_id for work in one.work if work.queue_id})),
            )
            for one in self._transactions
        ]

    def holding(self) -> frozenset[tuple[str, int]]:
        """From the first holders, up to the most that the core lists."""
        return self._holding

    def dead_letter_ids(self) -> frozenset[int]:
        """From the catalog."""
        return self._dead_letter_ids

    def catalog_options(self) -> tuple[list[str], bool]:
        """Those of a catalog on a server."""
        if self._connect is None:
            return [], False
        from logstore.catalog.postgres import command_options

        return command_options(self._connect, self._catalog)


def _holding(holders: Iterable[Holder]) -> frozenset[tuple[str, int]]:
    found = {("transaction", one.id) for one in holders if one.kind == "transaction"}
    for place in (place for one in holders for place in one.places):
        queue = ("queue", place.queue_id)
        found.add(queue if place.transaction is None else ("transaction", place.transaction))
    return frozenset(found)


def _dead_letter_ids(queues: Iterable[QueueRow]) -> frozenset[int]:
    targets = {queue.dead_letter for queue in queues if queue.dead_letter is not None}
    return frozenset(queue.id for queue in queues if queue.name in targets)


class ExportSource(Source):
    """The target of an export. Records, messages and the open set are of one moment: that of its manifest."""

    def __init__(self, target: str | os.PathLike[str]) -> None:
        from logstore.export.places import place_of
        from logstore.export.target import checked_manifest

        super().__init__()
        self.place = place_of(target)
        self.shown = str(self.place)
        self.last_name = str(self.place.absolute()).rpartition("/")[2]
        self.manifest, self._opened = self._state(checked_manifest)
        manifest = self.manifest
        size = sum(file.bytes for file in (*manifest.files, *manifest.of("open")))
        self.facts = Facts(
            *("export", str(manifest.store), "exported", manifest.first_lsn, manifest.last_lsn, size),
            read_us=None,
            missing=manifest.missing_before,
            gaps=tuple(manifest.gaps),
            dropped=manifest.dropped,
        )

    def _state(self, checked_manifest: Callable[[Place], Manifest | None]) -> tuple[Manifest, list[bytes]]:
        """A manifest and its open set; tries again if an export is between two renames."""
        for _ in range(TRIES):
            with self.place.explained():
                manifest = checked_manifest(self.place)
            if manifest is None:
                raise StoreError(f"{self.place} has no {MANIFEST} any more: give the target of an export")
            opened = self._open_bytes(manifest)
            if opened is not None:
                return manifest, opened
            time.sleep(0.2)
        raise StoreError(
            f"{self.place}: the open set is not the manifest's: an export is writing it, or was interrupted; "
            "run the export again, then this"
        )

    def _open_bytes(self, manifest: Manifest) -> list[bytes] | None:
        """The parts of the open set if they are those that this manifest names; each export replaces some of them."""
        found = []
        for part in manifest.open:
            with self.place.explained():
                try:
                    raw, _ = self.place.read(part.path, part.bytes + 1)
                except FileNotFoundError:
                    return None
            if xxh64_hexdigest(raw) != part.xxh64:
                return None
            found.append(raw)
        return found

    def files(self, dataset: str) -> list[str]:
        """The names of the Parquet files of one dataset in the place, in order."""
        return [file.path for file in self.manifest.of(dataset)]

    def _batches(self, dataset: str, columns: Sequence[str] | None) -> Iterator[Any]:
        from logstore.export.manifest import ExportDamaged, ExportError
        from logstore.export.target import read_manifest

        arrow, parquet = require("report", "pyarrow"), require("report", "pyarrow.parquet")
        for name in self.files(dataset):
            try:
                with self.place.opened(name) as raw, parquet.ParquetFile(raw) as file:
                    for batch in file.iter_batches(BATCH_ROWS, columns=None if columns is None else list(columns)):
                        yield _completed(batch, columns or ())
            except (OSError, arrow.ArrowException) as error:
                with self.place.explained():
                    removed = self.place.size(name) is None and read_manifest(self.place) != self.manifest
                if removed:
                    raise ExportError(
                        f"a run of the export removed {self.place}/{name} while it was read: run this again"
                    ) from None
                raise ExportDamaged(
                    f"{self.place}/{name} cannot be read ({error}): restore it; logstore export --verify {self.place} "
                    "tells all that is missing or damaged"
                ) from error

    def records(self, columns: Sequence[str]) -> Iterator[Any]:
        """The record batches from the export's files."""
        return self._batches("records", columns)

    def messages(self) -> tuple[Iterator[Any], Callable[[], Any]]:
        """The ended messages from the export's files."""
        return self._batches("messages", message_schema().names), self.open_rows

    def open_rows(self, *, body: bool = False) -> Any:
        """The table of open messages, of the manifest's moment; ``body`` adds that column, null where there is none."""
        pyarrow, parquet = require("report", "pyarrow"), require("report", "pyarrow.parquet")
        parts = []
        for raw in self._opened:
            part = parquet.read_table(pyarrow.BufferReader(raw)).replace_schema_metadata(None)
            has = "body" in part.column_names
            if body and not has:
                part = part.append_column("body", pyarrow.nulls(part.num_rows, pyarrow.binary()))
            parts.append(part if body or not has else part.drop_columns(["body"]))
        return pyarrow.concat_tables(parts)

    def names(self) -> dict[int, str]:
        """The names as the records have them."""
        found: dict[int, str] = {}
        for batch in self._batches("records", ("queue_id", "queue")):
            found |= {queue_id: name for queue_id, name in _pairs(batch) if name is not None}
        return found


def _completed(batch: Any, columns: Sequence[str]) -> Any:
    """The batch with nulls in columns that its file has not, because an earlier version of this package wrote it."""
    from logstore import arrow

    pyarrow = require("report", "pyarrow")
    for name in columns:
        if name not in batch.schema.names:
            field = arrow.RECORDS.field(name)
            batch = batch.append_column(field, pyarrow.nulls(batch.num_rows, field.type))
    return batch


def _pairs(batch: Any) -> list[tuple[int, str | None]]:
    """Each queue once with its name."""
    pyarrow = require("report", "pyarrow")
    table = pyarrow.Table.from_batches([batch]).group_by(["queue_id", "queue"]).aggregate([])
    ids, names = (table.column(name).to_pylist() for name in ("queue_id", "queue"))
    return [(one, name) for one, name in zip(ids, names, strict=True) if one is not None]


def check_source(path: str | os.PathLike[str]) -> None:
    """Raises what :func:`open_source` raises for a place that is no source, without reading the log."""
    if _is_export(path):
        ExportSource(path)
    else:
        Reader(path, from_lsn=LSN_LIMIT - 1).close()


def _is_export(path: str | os.PathLike[str]) -> bool:
    """Whether this is a target of an export; a store has no address."""
    return "://" in str(path) or any((Path(path) / name).is_file() for name in (MANIFEST, EXPORT_LOCK))


def open_source(path: str | os.PathLike[str], *, connect: str | None = None, catalog: str | None = None) -> Source:
    """The source in a directory, which is a store or the target of an export, or at an address, which is the latter.

    Raises what reading it raises.
    """
    require("report", "pyarrow")
    if _is_export(path):
        return ExportSource(path)
    return StoreSource(path, connect=connect, catalog=catalog)
