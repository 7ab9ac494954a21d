"""Several stores as one stream: a stream for each, and an offset that has the LSN of each store by its UUID.

A store that is added to the list begins where a new query would, in the batch after the first that knows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from logstore.errors import OptionError, StoreError
from logstore.spark.shipping import Shipped, plainly
from logstore.spark.stream import LogStream, Offset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from logstore.spark.options import StreamOptions

__all__ = ["ManyStreams"]


class ManyStreams(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of one query on several stores in the driver; executors read them."""

    def __init__(self, schema: StructType, options: StreamOptions) -> None:
        self._streams = {path: LogStream(schema, options, path) for path in options.paths}
        self._by_store: dict[str, LogStream] = {}

    def _each(self) -> dict[str, LogStream]:
        """The streams by their stores' UUIDs."""
        if not self._by_store:
            for path, stream in self._streams.items():
                uuid = stream.store()
                if uuid in self._by_store:
                    raise OptionError(f"{path} is a copy of another of the stores, {uuid}: each row would come twice")
                self._by_store[uuid] = stream
        return self._by_store

    @plainly()
    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's own name
        """The start of a query without a checkpoint."""
        return _offset({store: stream.initialOffset()["lsn"] for store, stream in self._each().items()})

    @plainly()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's own name
        """The end of the next batch: of each store the durable LSN, within an equal share of the limit."""
        places, streams = _places(start), self._each()
        if isinstance(limit, ReadMaxRows):
            limit = ReadMaxRows(max(1, limit.max_rows // len(streams)))
        elif isinstance(limit, ReadMaxBytes):
            limit = ReadMaxBytes(max(1, limit.max_bytes // len(streams)))
        for store, stream in streams.items():
            began = store in places
            place = stream.latestOffset(_one(store, places), limit) if began else stream.initialOffset()
            places[store] = place["lsn"]
        return _offset(places)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's own name
        """The limit from the options."""
        return next(iter(self._streams.values())).getDefaultReadLimit()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's own name
        """The durable LSNs now."""
        found = [stream.reportLatestOffset() for stream in self._streams.values()]
        known = {one["store"]: one["lsn"] for one in found if one is not None}
        return _offset(known) if len(known) == len(found) else None

    @plainly()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's own name
        """The query ends with what is durable now."""
        for stream in self._streams.values():
            stream.prepareForTriggerAvailableNow()

    @plainly()
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The ranges of one batch, of all stores."""
        before, after, streams = _places(start), _places(end), self._each()
        gone = [store for store, lsn in after.items() if store not in streams and before.get(store, lsn) < lsn]
        if gone:
            raise StoreError(
                f"the checkpoint has a batch with rows of the store {', '.join(gone)}, which is none of "
                f"{', '.join(self._streams)}: let the query finish that batch with this store, and leave it out then"
            )
        return [
            part
            for store, stream in streams.items()
            if store in before and store in after
            for part in stream.partitions(_one(store, before), _one(store, after))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, in LSN order; runs in an executor."""
        if partition.value is not None:
            yield from self._streams[partition.value.path].read(partition)

    def commit(self, end: Offset) -> None:
        """Advances the holds."""
        places = _places(end)
        for store, stream in self._each().items():
            if store in places:
                stream.commit(_one(store, places))

    def stop(self) -> None:
        """Releases the holds."""
        for stream in self._streams.values():
            stream.stop()


def _offset(places: dict[str, int]) -> Offset:
    return {"stores": dict(sorted(places.items()))}


def _one(store: str, places: dict[str, int]) -> Offset:
    return {"lsn": places[store], "store": store}


def _places(offset: Offset) -> dict[str, Any]:
    """The LSN of each store; a checkpoint of a stream of one store can be continued with several."""
    return dict(offset["stores"]) if "stores" in offset else {offset["store"]: offset["lsn"]}
