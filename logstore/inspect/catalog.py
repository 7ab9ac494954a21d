"""Reads the catalog of a store without opening the store, and compares it with the log.

Invariant: it is read after the log, so each queue that the log names has a row, or had one and was deleted.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logstore.catalog.at_rest import read_at_rest
from logstore.catalog.catalog import Catalog, QueueRow
from logstore.catalog.changes import applied_in, queues_and_config
from logstore.catalog.transient import TransientIds
from logstore.core import arguments
from logstore.inspect.catalog_changes import changes_since
from logstore.inspect.reader import ReaderInfo

if TYPE_CHECKING:
    import os
    from collections.abc import Container, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class CatalogView:
    """The queues in the catalog."""

    next_queue_id: int  # every id in the log is below it
    queues: tuple[QueueRow, ...]  # by id
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def transient(self) -> TransientIds:
        """The ids of transient queues: one that the log has, and the catalog lacks, was not deleted."""
        return TransientIds.of(self.config)


def read_catalog(
    store_dir: str | os.PathLike[str],
    info: ReaderInfo,
    *,
    connect: str | None = None,
    schema: str | None = None,
) -> CatalogView:
    """The queues that the catalog of this store has committed; nothing is created or changed.

    It is read after the log, so it is as new as the log or newer; that of a member's copy that is not open gets the
    changes that its log has and its file lacks, in memory. Raises ``CatalogMismatch`` (missing, or of another
    store), ``VersionError``, ``CatalogUnavailable`` or ``CatalogError``.
    """
    directory = arguments.path("store_dir", store_dir).absolute()
    arguments.instance("info", info, ReaderInfo)
    arguments.catalog(connect, schema)

    def view(place: Path, at_rest: bool) -> CatalogView:
        with closing(
            Catalog.open(
                place, connect=connect, schema=schema, store_uuid=info.uuid.bytes, read_only=True, at_rest=at_rest
            )
        ) as opened:
            behind = applied_in(opened) if info.index != 0 else None  # 0 also while a writer runs
            contents = opened.contents()
            if behind is not None and behind < info.end_lsn:
                contents = queues_and_config(contents, changes_since(directory, behind, info))
            return CatalogView(contents.next_queue_id, tuple(opened.queues(contents)), dict(contents.config))

    if connect is not None or schema is not None or info.live:
        return view(directory, False)
    return read_at_rest(directory, view)


def catalog_contradiction(queue_id_max: int, deleted: Container[int], catalog: CatalogView) -> str | None:
    """The evidence that the catalog is older than the log, as a text; None if there is none.

    ``queue_id_max`` is the largest queue id in the log; ``deleted`` are the ids of queues that the log says were
    deleted.
    """
    if queue_id_max >= catalog.next_queue_id:
        return (
            f"the log names queue {queue_id_max}, but the catalog has only given out ids below "
            f"{catalog.next_queue_id}, so the catalog is older than the log"
        )
    for queue in catalog.queues:
        if queue.id in deleted:
            return (
                f"the log says that queue {queue.id} was deleted, but the catalog has it as {queue.name!r}, "
                "so the catalog is older than the log"
            )
    return None
