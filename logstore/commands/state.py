"""The state that a log comes to, for the commands that count: replayed by the core, beside whoever has the store.

What always holds: the catalog is read after the log, so a queue that the log names has its row, or had it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from logstore.commands.output import progress
from logstore.errors import CatalogMismatch
from logstore.inspect import CatalogView, Inspection, LogRecycled, OpenTransaction, QueueLife, ReaderInfo, read_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from pathlib import Path

    from logstore.core.reports import Recovery

T = TypeVar("T")

TRIES = 10  # beside a writer that reuses segments faster than they are read


@dataclass(frozen=True, slots=True)
class State:
    """Everything that a command may want to say of a store."""

    info: ReaderInfo
    recovery: Recovery  # as an open would report it, but for what it does to the files
    queues: dict[int, QueueLife]  # by id; only those with places
    transactions: list[OpenTransaction]
    staged: int  # messages that were never enqueued, by a transaction neither
    catalog: CatalogView


def retried(read: Callable[[], T]) -> T:
    """What ``read`` gives; it is begun again while a writer overtakes it, a few times."""
    for _ in range(TRIES - 1):
        try:
            return read()
        except LogRecycled:
            continue
    return read()


def read_state(
    store_dir: Path, *, connect: str | None = None, schema: str | None = None, as_opened: bool = False
) -> State:
    """The state as recovery would make it, or beside a writer as it is.

    Queues that the catalog no longer has are dropped only if asked for the state ``as_opened``.

    Raises as Inspection and read_catalog do; ``CorruptLog`` also where the log contradicts itself,
    ``CatalogMismatch`` where the catalog contradicts the log.
    """
    return retried(lambda: _read_once(store_dir, connect, schema, as_opened))


def _read_once(store_dir: Path, connect: str | None, schema: str | None, as_opened: bool) -> State:
    with Inspection(store_dir) as found:
        info = found.info
        with progress("reading", max(info.end_lsn - info.base_lsn, 0)) as show:
            found.read(show)
        catalog = read_catalog(store_dir, info, connect=connect, schema=schema)
        queues = found.queues()
        deleted = {one.id for one in queues if one.deleted}
        queue_id_max = max(found.queue_id_max, *(one.id for one in queues), 0)
        contradiction = catalog_contradiction(queue_id_max, deleted, catalog)
        if contradiction is not None:
            raise CatalogMismatch(f"{contradiction}: restore the catalog that belongs to the log")
        if as_opened:
            found.drop_queues((queue.id for queue in catalog.queues), catalog.next_queue_id)
        with_places = {one.id: one for one in found.queues() if one.depth > 0}
        return State(info, found.recovery, with_places, found.transactions(), found.staged, catalog)


def catalog_contradiction(queue_id_max: int, deleted: Container[int], catalog: CatalogView) -> str | None:
    """How the catalog shows that it is older than the log, or None if it does not.

    ``queue_id_max`` is the largest queue id that the log names, ``deleted`` are those that it says were deleted.
    """
    if queue_id_max >= catalog.next_queue_id:
        return (
            f"the log names queue {queue_id_max}, and the catalog has only given out ids below "
            f"{catalog.next_queue_id}, so it is older than the log"
        )
    for queue in catalog.queues:
        if queue.id in deleted:
            return (
                f"the log says that queue {queue.id} was deleted, and the catalog has it as {queue.name!r}, "
                "so it is older than the log"
            )
    return None
