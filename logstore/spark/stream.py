"""The log as a Spark stream: ``spark.readStream.format("logstore").load(path)``.

An offset is an LSN and the UUID of its store. A batch is the log between two offsets, which is always durable. Columns
about other records use the log from the segment on in which the batch begins; the stream holds that segment. Outcomes
of transactions are those known at the end of the batch. So a row does not depend on the division of its batch into
tasks, and a batch that is read again after a restart has the same rows.

The stream holds the log from the end of its last completed batch on, so that a writer recycles no unread part. A hold
ends with its process: while a query is stopped, nothing is held. If unread parts were recycled meanwhile, the query
fails when it continues; with ``failOnDataLoss=false`` it logs the gap.
"""

from __future__ import annotations

import logging
import os
import secrets
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from logstore.errors import OptionError, StoreError, StoreLocked
from logstore.holds import hold
from logstore.inspect import LogRecycled
from logstore.spark.filters import listed
from logstore.spark.plan import Range, View, cut, look, place_of, used_names
from logstore.spark.schema import checked_columns
from logstore.spark.shipping import Shipped, plainly
from logstore.spark.source import RangePartition, read_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from logstore.holds import Hold
    from logstore.spark.options import StreamOptions

__all__ = ["LogStream", "Offset", "RefusedStream"]

logger = logging.getLogger("logstore.spark")

Offset = dict[str, Any]


class LogStream(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of one streaming query in the driver; executors read them."""

    def __init__(self, schema: StructType, options: StreamOptions, path: str | None = None) -> None:
        self._schema = schema
        self._options = options
        self._columns = checked_columns(schema)
        self._path = options.paths[0] if path is None else path
        self._hold: Hold | None = None
        self._last_lsn: int | None = None  # with Trigger.AvailableNow: the LSN at which to end

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_hold": None}

    def store(self) -> str:
        """The UUID of the store."""
        return str(self._look().uuid)

    # ---- Offsets

    @plainly()
    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's own name
        """The start of a query without a checkpoint."""
        start = self._options.start
        starting = self._options.starting
        if starting is not None:
            if starting > datetime.now(UTC):
                raise OptionError(f"startingTimestamp is {starting}, and that is yet to come: use start=latest")
            start = place_of(self._look(), starting, self._keep(None))
        view = self._look()
        if isinstance(start, int):
            if start > view.stop_lsn:
                raise OptionError(f"the option start is {start}, and the log of {self._path} ends at {view.stop_lsn}")
            self._keep(start)
            return _offset(view, start)
        if start == "latest":
            self._keep(view.stop_lsn)
            return _offset(view, view.stop_lsn)
        return _offset(view, self._keep(None))

    @plainly()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's own name
        """The end of the next batch: the durable LSN, within the limit."""
        at = _lsn(start)
        try:
            self._keep(at)
            view = self._look_from(at, names="queue" in self._options.conditions.wanted, durable=True)
        except StoreLocked:  # a writer is opening the store, so nothing new is durable
            return start
        self._same_store(start, view)
        stop = self._stop(view, at)
        if stop <= at:
            return start
        if isinstance(limit, ReadMaxBytes):
            stop = _after_bytes(view, at, stop, limit.max_bytes)
        elif isinstance(limit, ReadMaxRows):
            stop = self._after_rows(view, at, stop, limit.max_rows)
        return _offset(view, stop)

    def _stop(self, view: View, at: int) -> int:
        """The end of the log, or the place where the options stop the stream."""
        stop = min(view.stop_lsn, self._options.conditions.stop_lsn)
        if self._last_lsn is not None:
            stop = min(stop, self._last_lsn)
        if self._options.ending is not None and stop > at:
            stop = min(stop, place_of(view, self._options.ending, at, start_lsn=at))
        return stop

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's own name
        """The limit from the options."""
        if self._options.max_records is not None:
            return ReadMaxRows(self._options.max_records)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's own name
        """The durable LSN now."""
        try:
            view = self._look()
        except StoreError:
            return None  # only a progress report needs it
        return _offset(view, view.stop_lsn)

    @plainly()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's own name
        """The query ends with what is durable now."""
        self._last_lsn = self._look().stop_lsn

    # ---- Batches

    @plainly()
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The ranges of one batch."""
        at, stop = _lsn(start), _lsn(end)
        if at >= stop:
            return []
        self._keep(at)
        # After a crash the log may show an older durable LSN than the writer did, but it contains everything durable.
        wanted = self._options.conditions.wanted
        view = self._look_from(at, names="queue" in self._columns or "queue" in wanted)
        self._same_store(end, view)
        if view.stop_lsn < stop:
            raise StoreError(
                f"the checkpoint has been at LSN {stop}, and the log of {self._path} ends at {view.stop_lsn}: it was "
                "set back, by a restored backup perhaps; begin with a new checkpoint"
            )
        ranges = view.clipped(at, stop)
        whole = self._range(view, ranges, stop)
        if whole is None:
            return []
        return [
            RangePartition(replace(whole, start_lsn=parts[0][0], stop_lsn=parts[-1][1]))
            for parts in cut(ranges, self._options.partition_bytes)
        ]

    def _range(self, view: View, ranges: Sequence[tuple[int, int]], stop: int) -> Range | None:
        """All of these ranges as one; None if the options select nothing of it."""
        conditions = self._options.conditions
        queue_ids = conditions.queue_ids(view.names)
        if not ranges or conditions.impossible or queue_ids == ():
            return None
        return Range(
            path=self._path,
            uuid=str(view.uuid),
            start_lsn=ranges[0][0],
            stop_lsn=stop,
            keep_lsn=ranges[0][0],
            end_lsn=None,
            as_of_lsn=stop,
            names=used_names(view.names, self._columns),
            types=listed(conditions.wanted.get("type")),
            queue_ids=queue_ids,
            ids=listed(conditions.wanted.get("id")),
            start_time=conditions.start_time,
            stop_time=conditions.stop_time,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, in LSN order; runs in an executor."""
        if partition.value is None:
            return
        wanted: Range = partition.value
        if self._options.fail_on_data_loss:
            with plainly():
                yield from read_range(wanted, self._schema, self._options)
            return
        begun = False
        # The segment with the start of the batch may be recycled, but not this range.
        for one in (wanted, replace(wanted, keep_lsn=wanted.start_lsn)):
            try:
                for batch in read_range(one, self._schema, self._options):
                    begun = True
                    yield batch
                return
            except LogRecycled as lost:
                if begun or one is not wanted:
                    said = "%s: rows below LSN %d are missing: %s"
                    logger.warning(said, self._path, wanted.stop_lsn, lost.message)
                    return

    def commit(self, end: Offset) -> None:
        """Advances the hold: everything below ``end`` has been processed."""
        if self._hold is not None and int(end["lsn"]) > self._hold.lsn:
            try:
                self._hold.advance(int(end["lsn"]), expires_s=self._options.hold_expires_s)
            except LogRecycled:
                self.stop()  # the hold had expired; planning the next batch detects a lost part

    def stop(self) -> None:
        """Releases the hold."""
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    # ---- The hold

    def _keep(self, lsn: int | None) -> int:
        """Holds the log from ``lsn`` on, or from its base on; returns the first held LSN.

        Raises ``LogRecycled`` if a part from ``lsn`` on is gone, unless the stream may lose data.
        """
        if self._hold is not None:
            try:
                self._hold.renew(self._options.hold_expires_s)
            except LogRecycled:
                self.stop()
            else:
                return self._hold.lsn
        try:
            self._hold = self._take(lsn)
        except LogRecycled:
            self._hold = self._take(None)
            self._look_from(lsn or 1)  # between two epochs the base passes an LSN although nothing is gone
        return self._hold.lsn

    def _take(self, lsn: int | None) -> Hold:
        name = f"spark-stream-{os.getpid()}-{secrets.token_hex(4)}"
        limit, lasts_s = self._options.hold_limit_bytes, self._options.hold_expires_s
        return hold(self._path, name, lsn=lsn, limit_bytes=limit, expires_s=lasts_s)

    # ---- Inspecting the store

    def _look(self, *, names: bool = False, durable: bool = True, keep_lsn: int | None = None) -> View:
        options = self._options
        return look(
            self._path,
            names=names,
            durable=durable,
            keep_lsn=keep_lsn,
            connect=options.connect,
            catalog=options.catalog,
        )

    def _look_from(self, lsn: int, *, names: bool = False, durable: bool = False) -> View:
        """The log from ``lsn`` on. A stream that may lose data starts at the base instead of raising LogRecycled."""
        try:
            return self._look(names=names, durable=durable, keep_lsn=lsn)
        except LogRecycled:
            if self._options.fail_on_data_loss:
                raise LogRecycled(
                    f"the stream from {self._path} is to go on at LSN {lsn}, and the log there was recycled before it "
                    "was read: while no query runs, nothing holds it. Begin with a new checkpoint, or set the option "
                    "failOnDataLoss to false: then the stream goes on, and what is missing is logged"
                ) from None
        view = self._look(names=names, durable=durable)
        logger.warning(
            "%s: the log from LSN %d up to LSN %d was recycled before it was read: these records are missing",
            self._path,
            lsn,
            view.base_lsn,
        )
        return view

    def _same_store(self, offset: Offset, view: View) -> None:
        if offset.get("store") != str(view.uuid):
            raise StoreError(
                f"the checkpoint is of the store {offset.get('store')}, and {self._path} is the store {view.uuid}: "
                "give each store a checkpoint of its own"
            )

    def _after_rows(self, view: View, at: int, stop: int, rows: int) -> int:
        """The LSN of the record after this many, or ``stop`` if there are no more."""
        import logstore.arrow

        whole = self._range(view, view.clipped(at, stop), stop)
        if whole is None:
            return stop
        with logstore.arrow.read(
            self._path,
            start_lsn=at,
            stop_lsn=stop,
            columns=["lsn"],
            where=whole.where(),
            keep_lsn=whole.keep_lsn,
            as_of_lsn=stop,
            queue_names={},
            batch_rows=min(rows + 1, self._options.batch_rows),
        ) as reader:
            for batch in reader:
                if batch.num_rows > rows:
                    return int(batch.column(0)[rows].as_py())
                rows -= batch.num_rows
        return stop


class RefusedStream(DataSourceStreamReader):
    """A stream that cannot begin: each call raises the error that tells why.

    Where the making of a reader fails, Spark 4 shows an error of its own code instead.
    """

    def __init__(self, refused: StoreError) -> None:
        self._refused = refused

    @plainly()
    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's own name
        """Raises the error."""
        raise copy(self._refused)

    @plainly()
    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802 - of a stream without limits
        """Raises the error."""
        raise copy(self._refused)

    @plainly()
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:  # noqa: ARG002 - Spark's own
        """Raises the error."""
        raise copy(self._refused)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - Spark's own
        """Raises the error."""
        raise copy(self._refused)


def _lsn(offset: Offset) -> int:
    if "lsn" not in offset:
        stores = ", ".join(offset.get("stores", ()))
        raise StoreError(f"the checkpoint is of the stores {stores}: name all of them in the list of paths")
    return int(offset["lsn"])


def _offset(view: View, lsn: int) -> Offset:
    return {"lsn": lsn, "store": str(view.uuid)}


def _after_bytes(view: View, at: int, stop: int, size: int) -> int:
    for first, end in view.clipped(at, stop):
        if end - first >= size:
            return first + size
        size -= end - first
    return stop
