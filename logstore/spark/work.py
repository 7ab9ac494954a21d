"""The tasks of a distributed export as a Spark source: a partition is a task, and a row lists the files it wrote.

A source needs only this package on the executors. Its parameter is an option in JSON, which runs no code when it is
decoded.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self
from uuid import UUID

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from logstore.export.files import Job, write_messages, write_records
from logstore.export.manifest import FileInfo, Span
from logstore.spark.shipping import Shipped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

__all__ = ["Work", "WorkSource"]


@dataclass(frozen=True, slots=True)
class Work:
    """One chunk of an export: task 0 writes its messages, task n the records of its nth unit."""

    job: Job
    span: Span
    units: tuple[Span, ...]
    staging: str

    def encode(self) -> str:
        """The work as the text of an option."""
        content = asdict(self)
        content["job"] |= {"store": str(self.job.store), "queue_names": sorted(self.job.queue_names.items())}
        return json.dumps(content)

    @classmethod
    def decode(cls, text: str) -> Self:
        """Decodes the result of :meth:`encode`."""
        content = json.loads(text)
        job = content["job"] | {
            "store": UUID(content["job"]["store"]),
            "queue_names": dict(content["job"]["queue_names"]),
        }
        units = tuple(Span(**each) for each in content["units"])
        return cls(Job(**job), Span(**content["span"]), units, content["staging"])

    def do(self, task: int, attempt: str) -> list[FileInfo]:
        """Writes the files of a task; those of the open set are the last ones."""
        if task == 0:
            files, opened = write_messages(self.job, self.span, self.staging, attempt=attempt)
            return [*files, *opened]
        return write_records(self.job, self.units[task - 1], self.staging, attempt=attempt)


class WorkSource(Shipped, DataSource):
    """The format ``logstore_export``, read only by :func:`logstore.spark.export`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "logstore_export"

    def schema(self) -> StructType:
        """The number of the task, and its files in JSON."""
        return StructType([StructField("task", LongType(), False), StructField("made", StringType(), False)])

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's own signature
        """The reader of one chunk."""
        return _WorkReader(Work.decode(self.options["work"]))


class _WorkReader(Shipped, DataSourceReader):
    def __init__(self, work: Work) -> None:
        self._work = work

    def partitions(self) -> Sequence[InputPartition]:
        """One partition for each task; the messages come first, because they take longest."""
        return [InputPartition(task) for task in range(1 + len(self._work.units))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Does the work of one task; runs in an executor."""
        import pyarrow as pa

        context = TaskContext.get()
        # A task may run twice, after a failure or speculatively, so an incomplete file has a name with the attempt.
        attempt = "" if context is None else f"-{context.taskAttemptId()}"
        made = json.dumps([asdict(file) for file in self._work.do(partition.value, attempt)])
        schema = pa.schema([pa.field("task", pa.int64(), False), pa.field("made", pa.string(), False)])
        yield pa.RecordBatch.from_arrays([pa.array([partition.value]), pa.array([made])], schema=schema)
