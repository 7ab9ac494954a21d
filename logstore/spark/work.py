"""The tasks of a distributed export as a Spark source: a partition is a task, and a row lists the files it wrote.

A task writes into a directory that all executors reach. If the target is an address, it writes into a temporary
directory of its machine first, and puts each complete file below the staging directory of the target.

A source needs only this package on the executors. Its parameter is an option in JSON, which runs no code when it is
decoded.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import UUID

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from logstore.export.files import Job, write_messages, write_records
from logstore.export.manifest import ExportError, FileInfo, Span
from logstore.export.places import RemotePlace, place_of
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
    """A directory; with an address, one in the target."""
    address: str | None = None
    """The target, unless it is a directory. Then the job names its open parts as they are called in the target."""

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
        return cls(Job(**job), Span(**content["span"]), units, content["staging"], content["address"])

    def do(self, task: int, attempt: str) -> list[FileInfo]:
        """Writes the files of a task; those of the open set are the last ones."""
        if self.address is None:
            return self._write(self.job, task, self.staging, attempt)
        place = place_of(self.address)
        assert isinstance(place, RemotePlace)
        try:
            with tempfile.TemporaryDirectory(prefix="logstore-export-") as scratch:
                return self._upload(place, task, attempt, Path(scratch))
        except OSError as error:
            raise ExportError(
                f"the files for {place} cannot be written to {tempfile.gettempdir()} on {os.uname().nodename} first "
                f"({error.strerror}): correct that, or name another directory in TMPDIR of the executors"
            ) from error

    def _upload(self, place: RemotePlace, task: int, attempt: str, scratch: Path) -> list[FileInfo]:
        staged = scratch / "staged"
        staged.mkdir()
        parts = [scratch / f"part-{number}" for number in range(len(self.job.open_parts))]
        with place.explained():
            for name, part in zip(self.job.open_parts, parts, strict=True):
                place.fetch(name, part)
        files = self._write(replace(self.job, open_parts=[str(part) for part in parts]), task, str(staged), "")
        with place.explained():
            for file in files:
                place.put(self.uploaded(file, attempt), staged / file.staged)
        return files

    def uploaded(self, file: FileInfo, attempt: str) -> str:
        """The name in the target under which an attempt of a task has put this file."""
        return f"{self.staging}/{file.staged}{attempt}"

    def _write(self, job: Job, task: int, staging: str, attempt: str) -> list[FileInfo]:
        if task == 0:
            files, opened = write_messages(job, self.span, staging, attempt=attempt)
            return [*files, *opened]
        return write_records(job, self.units[task - 1], staging, attempt=attempt)


class WorkSource(Shipped, DataSource):
    """The format ``logstore_export``, read only by :func:`logstore.spark.export`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "logstore_export"

    def schema(self) -> StructType:
        """The number of the task, its attempt, and its files in JSON."""
        return StructType(
            [
                StructField("task", LongType(), False),
                StructField("attempt", StringType(), False),
                StructField("made", StringType(), False),
            ]
        )

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
        texts = [pa.field(name, pa.string(), False) for name in ("attempt", "made")]
        schema = pa.schema([pa.field("task", pa.int64(), False), *texts])
        row = [pa.array([partition.value]), pa.array([attempt]), pa.array([made])]
        yield pa.RecordBatch.from_arrays(row, schema=schema)
