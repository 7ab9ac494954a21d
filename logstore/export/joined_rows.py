"""The rows of an export and of the log above it as Arrow record batches, for every program that reads those.

The values are those of :func:`logstore.spark.read` with an export; see :mod:`logstore.export.joined`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from logstore.core import arguments
from logstore.core.extras import require
from logstore.errors import OptionError
from logstore.export.joined import (
    DECIDING,
    UNDECIDED,
    decision_table,
    decisions,
    known_places,
    no_bodies,
    tail_messages,
    with_join,
)
from logstore.export.manifest import ExportDamaged, ExportError
from logstore.export.older_files import batches_of, of_this_version
from logstore.export.places import place_of
from logstore.export.target import read_manifest
from logstore.rows.properties import DECODED, decoded_columns
from logstore.rows.records import queue_names, read
from logstore.rows.schema import message_schema, open_schema, schema

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from logstore.export.joined import Join
    from logstore.export.manifest import FileInfo

__all__ = ["read_table"]

EAGER_BYTES: Final = 64 << 20
"""A log's side of at most so many bytes is decoded at the call, so that a writer cannot recycle it meanwhile."""

_DECIDED_LATER: Final = frozenset({"outcome", "effect_lsn", "effect_time", "enqueue_lsn", "enqueue_time"})
_KEYS: Final = {"records": "lsn", "messages": "end_lsn"}
_ENDS: Final = ("MESSAGE_DEQUEUE", "MESSAGE_MOVE")


def read_table(
    store_dir: str | os.PathLike[str],
    target: str | os.PathLike[str],
    table: str = "records",
    *,
    columns: Sequence[str] | None = None,
    connect: str | None = None,
    catalog: str | None = None,
    filesystem: Any = None,
) -> pa.RecordBatchReader:
    """One table of a store's export and of the log above it, each row once, as a stream of record batches.

    ``target`` is the target of an export of the store, and ``filesystem`` as in ``export``. ``table`` is ``records``,
    ``messages`` (those that ended) or ``open``. ``columns``: their names, in this order; by default all of the table
    but ``body``. A transaction that was undecided when a file was written has the outcome that is known now. Later runs
    of the export do not change the stream. A log of up to 64 MiB above the export is decoded at the call; a longer one
    is read at the stream's end, and a running writer may recycle it until then, unless
    :func:`logstore.export.hold_for` holds it.

    Raises ``OptionError``, also for a target without an export or a column that it does not have; ``ExportGap`` if the
    log has recycled records that the export does not have; ``ExportMismatch`` for the export of another store;
    ``ExportDamaged``; ``MissingExtra``; and the errors of reading the log.
    """
    arrow = require("arrow", "pyarrow")
    source, place = arguments.path("store_dir", store_dir), place_of(target, filesystem)
    table = arguments.choice("table", table, "records", "messages", "open")
    arguments.catalog(connect, catalog, called="catalog")
    made = schema(columns) if table == "records" else _chosen(table, columns)

    def work(join: Join) -> Any:
        names = queue_names(join.source, connect=connect, catalog=catalog, info=join.info)
        if table == "records":
            return _Records(join, made, names).batches()
        size = join.manifest.options.body if "body" in made.names else None
        if size is None and "body" in made.names:
            raise no_bodies(join)
        rows = (of_this_version(batch, made) for batch in tail_messages(join, names, table, body=size))
        above = list(rows) if join.tail_bytes <= EAGER_BYTES else rows
        below = _of_files(join, "messages", made) if table == "messages" else iter(())
        return itertools.chain(below, above)

    return arrow.RecordBatchReader.from_batches(made, with_join(source, place, work))


def _chosen(table: str, columns: Sequence[str] | None) -> pa.Schema:
    kind = message_schema if table == "messages" else open_schema
    if columns is None:
        return kind()
    whole = kind(body=True)
    wanted = arguments.texts("columns", columns)
    for name in wanted:
        if name not in whole.names:
            raise OptionError(
                f"the table {table} has no column {arguments.shown(name)}; it has {', '.join(whole.names)}"
            )
    return require("arrow", "pyarrow").schema([whole.field(name) for name in wanted])


class _Records:
    def __init__(self, join: Join, made: pa.Schema, names: dict[int, str]) -> None:
        if "body" in made.names and join.manifest.options.body is None:
            raise no_bodies(join)
        self._join, self._made, self._names = join, made, names
        self._decides = bool(_DECIDED_LATER.intersection(made.names))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The exported rows, then those of the log. The log's side is opened, or decoded, at this call."""
        above = self._above()
        return itertools.chain(self._below(), above)

    def _above(self) -> Iterator[pa.RecordBatch]:
        join = self._join
        if not join.tail_bytes:
            return iter(())
        reader = read(
            join.source,
            start_lsn=join.keep_lsn,
            stop_lsn=join.end_lsn,
            columns=self._made.names,
            body=join.manifest.options.body if "body" in self._made.names else None,
            keep_lsn=join.keep_lsn,
            end_lsn=join.info.end_lsn,
            as_of_lsn=join.end_lsn,
            queue_names=self._names,
            strings="plain",
            known=known_places(join) if {"enqueue_lsn", "enqueue_time"}.intersection(self._made.names) else None,
        )
        return iter(reader.read_all().to_batches() if join.tail_bytes <= EAGER_BYTES else reader)

    def _below(self) -> Iterator[pa.RecordBatch]:
        names = [name for name in self._made.names if name not in DECODED]
        names += ["header"] if len(names) < len(self._made.names) and "header" not in names else []
        extra = ["tx_id", "outcome", "id", "type", "effect_lsn", "effect_time", "enqueue_lsn", "enqueue_time"]
        needed = schema([*names, *(name for name in extra if self._decides and name not in names)])
        known = self._decisions() if self._decides else None
        for batch in _of_files(self._join, "records", needed):
            rows = batch if known is None else self._decided(batch, known)
            columns = {name: rows.column(name) for name in names}
            if len(set(DECODED) & set(self._made.names)):
                columns |= decoded_columns(self._made.names, rows.column("header"))
            arrays = [columns[name] for name in self._made.names]
            yield require("arrow", "pyarrow").RecordBatch.from_arrays(arrays, schema=self._made)

    def _decisions(self) -> pa.RecordBatch | None:
        """Later outcomes of transactions undecided in a file: ``id, outcome, lsn, time``; None if there are none."""
        arrow, compute = require("arrow", "pyarrow"), require("arrow", "pyarrow.compute")
        wanted = schema(["tx_id", "outcome"])
        undecided = [
            batch.column("tx_id").filter(compute.is_in(batch.column("outcome"), arrow.array(UNDECIDED)))
            for batch in _of_files(self._join, "records", wanted, _may_be_undecided)
        ]
        ids = arrow.chunked_array(undecided, arrow.int64()).unique()
        if not len(ids):
            return None
        types = arrow.array(list(DECIDING))
        found = [decisions(self._join)] if self._join.tail_bytes else []
        for batch in _of_files(self._join, "records", schema(["id", "type", "lsn", "time"])):
            decide = batch.filter(compute.is_in(batch.column("type"), types))
            found.append(arrow.Table.from_batches([decide]))
        rows = arrow.concat_tables(found)
        return decision_table(rows.filter(compute.is_in(rows["id"], ids)))

    def _decided(self, batch: pa.RecordBatch, known: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the outcomes that are known now."""
        arrow, compute = require("arrow", "pyarrow"), require("arrow", "pyarrow.compute")
        undecided = compute.is_in(batch.column("outcome"), arrow.array(UNDECIDED))
        if not compute.any(undecided).as_py():
            return batch
        at = compute.index_in(batch.column("tx_id"), known["id"])
        at = compute.if_else(undecided, at, arrow.scalar(None, arrow.int32()))
        told = {name: known[name].take(at) for name in ("outcome", "lsn", "time")}
        committed = compute.fill_null(compute.equal(told["outcome"], "committed"), False)
        manifest = self._join.manifest
        # The place that a dequeue ends became visible with the same commit if its own transaction made it.
        ends = compute.is_in(batch.column("type"), arrow.array(_ENDS))
        ends = compute.and_(ends, compute.greater_equal(compute.fill_null(batch.column("id"), 0), manifest.first_lsn))
        ends = compute.and_(compute.and_(committed, ends), not manifest.gaps)
        values = {"outcome": compute.coalesce(told["outcome"], batch.column("outcome"))}
        for name, of, where in (
            ("effect_lsn", "lsn", committed),
            ("effect_time", "time", committed),
            ("enqueue_lsn", "lsn", ends),
            ("enqueue_time", "time", ends),
        ):
            kept = batch.column(name)
            values[name] = compute.if_else(where, compute.coalesce(kept, told[of]), kept)
        arrays = [values.get(name, batch.column(name)) for name in batch.schema.names]
        return arrow.RecordBatch.from_arrays(arrays, schema=batch.schema)


# ---- Files


def _of_files(
    join: Join, dataset: str, wanted: pa.Schema, group_matters: Callable[[Any], bool] = lambda _: True
) -> Iterator[pa.RecordBatch]:
    """The rows of the manifest's files with this schema, without row groups that do not matter.

    A column that an older file lacks is null. If a run of the export has merged files meanwhile, their rows come from
    the merged file.
    """
    arrow, parquet = require("arrow", "pyarrow"), require("arrow", "pyarrow.parquet")
    files, next_lsn = list(join.manifest.of(dataset)), join.manifest.first_lsn
    while files:
        file, begun = files.pop(0), False
        try:
            with join.target.opened(file.path) as raw, parquet.ParquetFile(raw) as opened:
                groups = [n for n in range(opened.num_row_groups) if group_matters(opened.metadata.row_group(n))]
                clipped = file.start_lsn < next_lsn or file.stop_lsn > join.last_lsn
                there = [name for name in wanted.names if name in opened.schema_arrow.names]
                there += [_KEYS[dataset]] if clipped and _KEYS[dataset] not in there else []
                for batch in batches_of(opened, columns=there, groups=groups):
                    begun = True
                    rows = _between(batch, _KEYS[dataset], next_lsn, join.last_lsn) if clipped else batch
                    yield of_this_version(rows, wanted)
            next_lsn = file.stop_lsn
        except (OSError, arrow.ArrowException) as error:
            with join.target.explained():
                gone = join.target.size(file.path) is None
            if gone:
                files = _files_now(join, dataset, next_lsn, file)
                if not begun:
                    continue
                raise ExportError(
                    f"a run of the export removed {file.path} while it was read: read again, or between two runs"
                ) from None
            raise ExportDamaged(
                f"{join.target}/{file.path} cannot be read ({error}): restore it; logstore export --verify "
                f"{join.target} tells all that is missing or damaged"
            ) from error


def _files_now(join: Join, dataset: str, next_lsn: int, gone: FileInfo) -> list[FileInfo]:
    """The files that now have the join's rows from this LSN on, after a run of the export has removed a file.

    Raises ``ExportDamaged`` if no run has, and ``ExportError`` if retention dropped its rows.
    """
    with join.target.explained():
        now = read_manifest(join.target)
    if now is None or gone.path in now.paths():
        raise ExportDamaged(
            f"{join.target}/{gone.path} is missing: restore it; logstore export --verify {join.target} tells all that "
            "is missing or damaged"
        )
    for dropped in now.dropped:
        if dropped.dataset == dataset and dropped.start_lsn < gone.stop_lsn and gone.start_lsn < dropped.stop_lsn:
            raise ExportError(
                f"a run of the export with --keep dropped {gone.path} while it was read: read again to get what is left"
            )
    return [file for file in now.of(dataset) if file.stop_lsn > next_lsn and file.start_lsn < join.last_lsn]


def _between(batch: pa.RecordBatch, key: str, start_lsn: int, stop_lsn: int) -> pa.RecordBatch:
    """The rows of a merged file that are the join's and were not read yet."""
    compute = require("arrow", "pyarrow.compute")
    keys = batch.column(key)
    return batch.filter(compute.and_(compute.greater_equal(keys, start_lsn), compute.less(keys, stop_lsn)))


def _may_be_undecided(group: Any) -> bool:
    """Whether the bounds of a row group's outcomes leave room for an undecided one."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == "outcome":
            told = column.statistics
            if told is None or not told.has_min_max:
                return told is None or told.null_count != column.num_values
            return any(told.min <= outcome <= told.max for outcome in UNDECIDED)
    return True
