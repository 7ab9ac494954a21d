"""The stream of new log as ranges instead of records, for an export behind a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import LongType, StructField, StructType

from logstore.spark.options import StreamOptions
from logstore.spark.schema import spark_schema
from logstore.spark.source import LogSource
from logstore.spark.stream import LogStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

__all__ = ["RangeSource"]


class RangeSource(LogSource):
    """The format ``logstore_ranges``: a row for each task that would read a batch's records. A stream only."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "logstore_ranges"

    def schema(self) -> StructType:
        """The start and the end of a range."""
        return StructType([StructField(name, LongType(), False) for name in ("start_lsn", "stop_lsn")])

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's own signature
        """Raises ``OptionError``: there is only a stream."""
        from logstore.errors import OptionError

        raise OptionError("logstore_ranges is a stream: read it with readStream")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - as Spark has them
        """The reader of one streaming query."""
        return _RangeStream(spark_schema(["lsn"]), StreamOptions.read(dict(self.options)))


class _RangeStream(LogStream):
    """Plans like a stream of records, and reads nothing."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the range itself."""
        import pyarrow as pa

        if partition.value is not None:
            wanted = partition.value
            kinds = pa.schema([pa.field(name, pa.int64(), False) for name in ("start_lsn", "stop_lsn")])
            yield pa.RecordBatch.from_arrays([[wanted.start_lsn], [wanted.stop_lsn]], schema=kinds)
