"""The state that a log comes to, for the commands that count: one pass of a reader, replayed in Python.

What always holds: the catalog is read after the log, so a queue that the log names has its row, or had it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from logstore.commands.output import progress
from logstore.commands.replay import Replay, Replayed
from logstore.errors import CatalogMismatch, CorruptLog
from logstore.inspect import CatalogView, LogRecycled, Reader, ReaderInfo, read_catalog, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

TRIES = 10  # beside a writer that reuses segments faster than they are read


@dataclass(frozen=True, slots=True)
class State:
    """Everything that a command may want to say of a store."""

    info: ReaderInfo
    replay: Replay
    replayed: Replayed
    catalog: CatalogView
    segments: int  # that hold something of the log; the last may not
    bytes_read: int


def retried(read: Callable[[], T]) -> T:
    """What ``read`` gives; it is begun again while a writer overtakes it, a few times."""
    for _ in range(TRIES - 1):
        try:
            return read()
        except LogRecycled:
            continue
    return read()


def read_state(store_dir: Path, *, connect: str | None = None, schema: str | None = None) -> State:
    """The state as recovery would make it, or beside a writer as it is.

    Raises as Reader and read_catalog do; ``CorruptLog`` also where the log contradicts itself,
    ``CatalogMismatch`` where the catalog contradicts the log.
    """
    return retried(lambda: _read_once(store_dir, connect, schema))


def _read_once(store_dir: Path, connect: str | None, schema: str | None) -> State:
    with Reader(store_dir) as reader:
        info = reader.info
        segments = sum(segment.end_lsn > segment.first_lsn for segment in reader.segments())
        replay = Replay(info.base_lsn)
        bytes_read = 0
        with progress("reading", max(info.end_lsn - info.base_lsn, 0)) as show:
            for batch in reader.batches():
                for record in reader.decode(batch):
                    replay.apply(record)
                bytes_read += len(batch.raw)
                show(batch.end_lsn - info.base_lsn)
        replayed = replay.finish(writer_epoch=info.writer_epoch)
        catalog = read_catalog(store_dir, info, connect=connect, schema=schema)
    if replay.problems:
        first = replay.problems[0]
        name = segment_name(first.lsn, info.segment_size)
        offset = first.lsn % info.segment_size
        reason = f"it contradicts itself: {first.reason}"
        raise CorruptLog(reason, segment=name, offset=offset, lsn=first.lsn)
    contradiction = catalog_contradiction(replay, catalog)
    if contradiction is not None:
        raise CatalogMismatch(f"{contradiction}: restore the catalog that belongs to the log")
    return State(info, replay, replayed, catalog, segments, bytes_read)


def catalog_contradiction(replay: Replay, catalog: CatalogView) -> str | None:
    """How the catalog shows that it is older than the log, or None if it does not."""
    if replay.queue_id_max >= catalog.next_queue_id:
        return (
            f"the log names queue {replay.queue_id_max}, and the catalog has only given out ids below "
            f"{catalog.next_queue_id}, so it is older than the log"
        )
    for queue in catalog.queues:
        if queue.id in replay.deleted_queues:
            return (
                f"the log says that queue {queue.id} was deleted, and the catalog has it as {queue.name!r}, "
                "so it is older than the log"
            )
    return None
