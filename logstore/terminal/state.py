"""The state of a store for the commands that report it: the core replays the log, even while a writer runs.

Invariant: the catalog is read after the log, so each queue that the log names has a row, or had one and was deleted.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from logstore.core.counts import counted
from logstore.errors import CatalogError, CatalogMismatch, StoreError
from logstore.holds import Hold, hold, list_holds
from logstore.inspect import CatalogView, Inspection, LogRecycled, OpenTransaction, QueueLife, ReaderInfo, read_catalog
from logstore.inspect.catalog import catalog_contradiction
from logstore.inspect.catalog_changes import COMES_FROM_THE_LOG
from logstore.store.fullness import Fullness, QueueLoad, inspected_fullness
from logstore.store.limit import StoredLimit
from logstore.terminal.output import progress
from logstore.terminal.tables import folded_lines, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from logstore.core.reports import Recovery

T = TypeVar("T")

STATES = {
    "live": "open in a writer",
    "closed": "closed cleanly",
    "crashed": "not closed: the next open recovers it",
}
TRIES = 10  # in case a writer reuses segments before they are read
UNHELD_TRIES = 3  # then a hold keeps the writer from doing so


@dataclass(frozen=True, slots=True)
class State:
    """The state of a store, for the commands."""

    info: ReaderInfo
    recovery: Recovery  # as an open would report it, without changes of files
    queues: dict[int, QueueLife]  # by id; only those with places
    transactions: list[OpenTransaction]
    fullness: Fullness
    staged: int  # messages that were not enqueued, not even by an open transaction
    catalog: CatalogView


def retried(store_dir: Path, read: Callable[[], T]) -> T:
    """The result of ``read``, which is repeated up to ``TRIES`` times if a writer reuses a segment first."""
    for tried in range(1, TRIES):
        with kept(store_dir, tried), suppress(LogRecycled):
            return read()
    with kept(store_dir, TRIES):
        return read()


@contextmanager
def kept(store_dir: Path, tried: int) -> Iterator[None]:
    """Keeps the log with a hold if ``UNHELD_TRIES`` readers lost the race against the writer; ``tried`` counts from 1.

    A reader that may not write into the directory reads without one.
    """
    taken: Hold | None = None
    if tried > UNHELD_TRIES:
        with suppress(StoreError):
            taken = hold(store_dir, f"read-{os.getpid()}")
    try:
        yield
    finally:
        if taken is not None:
            taken.release()


def read_state(
    store_dir: Path, *, connect: str | None = None, schema: str | None = None, as_opened: bool = False
) -> State:
    """The state that recovery would restore; while a writer runs, the present durable state.

    With ``as_opened``, queues that the catalog no longer has are dropped, as an open does.

    Raises the errors of Inspection and read_catalog; ``CorruptLog`` also if the log contradicts itself,
    ``CatalogMismatch`` if the catalog contradicts the log.
    """
    return retried(store_dir, lambda: _read_once(store_dir, connect, schema, as_opened))


def _read_once(store_dir: Path, connect: str | None, schema: str | None, as_opened: bool) -> State:
    with Inspection(store_dir) as found:
        info = found.info
        with progress("reading", max(info.end_lsn - info.base_lsn, 0)) as show:
            found.read(show)
        catalog = matching_catalog(found, store_dir, connect=connect, schema=schema)
        if as_opened:
            found._drop_queues((queue.id for queue in catalog.queues), catalog.next_queue_id)
        queues = found.queues()
        with_places = {one.id: one for one in queues if one.depth > 0}
        limit = limit_in(catalog)
        size = None if limit is None else limit.max_log_bytes
        fullness = inspected_fullness(found.handle, store_dir, size, held_bytes(store_dir))
        recovery = found.recovery._with_transient(catalog.transient)
        return State(info, recovery, with_places, found.transactions(), fullness, found.staged, catalog)


def matching_catalog(
    found: Inspection, store_dir: Path, *, connect: str | None = None, schema: str | None = None
) -> CatalogView:
    """The catalog of a log that was read. Raises as read_catalog does, and ``CatalogMismatch`` if it is older."""
    catalog = read_catalog(store_dir, found.info, connect=connect, schema=schema)
    queues = found.queues()
    deleted = {one.id for one in queues if one.deleted}
    contradiction = catalog_contradiction(max(found.queue_id_max, *(one.id for one in queues), 0), deleted, catalog)
    if contradiction is not None:
        if found.info.index != 0:
            raise CatalogMismatch(f"{contradiction}: {COMES_FROM_THE_LOG}")
        raise CatalogMismatch(
            f"{contradiction}: restore the catalog that belongs to the log, or see what "
            "'logstore repair-catalog DIR --dry-run' would do"
        )
    return catalog


def limit_in(catalog: CatalogView) -> StoredLimit | None:
    """The stored limit of the log. None also if the row is no limit: then an open without the option is refused."""
    try:
        return StoredLimit.of(catalog.config)
    except CatalogError:
        return None


def held_bytes(store_dir: Path) -> int:
    """What the holds of a store keep: each keeps everything from its LSN on, so the one that keeps the most counts.

    0 if they cannot be read: an open succeeds then, so its dry run does, too.
    """
    try:
        holds = list_holds(store_dir)
    except StoreError:
        return 0
    return max((one.kept_bytes for one in holds if one.honoured), default=0)


def full_from_log(
    fullness: Fullness, store_dir: Path, queues: Mapping[int, QueueLife], catalog: CatalogView
) -> dict[str, Any] | None:
    """The key ``full`` of ``info`` and ``tail`` for a store that no broker serves; None if it is not full."""
    largest = max(queues.values(), key=lambda one: one.content_bytes, default=None)
    names = {queue.id: queue.name for queue in catalog.queues}
    load = None
    if largest is not None and largest.id in names:
        load = QueueLoad(names[largest.id], largest.depth, largest.content_bytes)
    return fullness._as_dict(load, list_holds(store_dir))


def full_lines(full: dict[str, Any] | None, width: int) -> list[str]:
    """What ``info``, ``stats`` and ``tail`` begin with if the store is full or nearly full."""
    if full is None:
        return []
    since = "" if full["since"] is None else f" since {full['since'][:19].replace('T', ' ')} UTC"
    lines = [
        f"{full['level'].upper()}{since}: {full['reason']}",
        *(f"to free it: {printable(one)}" for one in full["remedies"]),
    ]
    if (left := full["transaction_bytes_left"]) is not None:
        lines.append(f"transactions that take messages may use {counted(left, 'byte')} more until they end")
    return [piece for line in lines for piece in folded_lines(line, width)]


def queue_rows(state: State) -> list[dict[str, Any]]:
    """The queues of ``queues --json``: those of the catalog, and those that still have places in the log."""
    known = {queue.id: queue for queue in state.catalog.queues}
    lives, transient = state.queues, state.catalog.transient
    rows = []
    for queue_id in sorted(known.keys() | lives.keys()):
        queue, counts = known.get(queue_id), lives.get(queue_id, QueueLife(queue_id, False, 0, 0, 0, 0))
        rows.append(
            {
                "id": queue_id,
                "name": None if queue is None else queue.name,
                "depth": counts.depth,
                "ready": counts.ready,
                "acquired": None,
                "locked": counts.locked,
                "hidden": counts.hidden,
                "expired": counts.expired,
                "bytes": counts.content_bytes,
                "ready_bytes": counts.ready_bytes,
                "dead_letter": None if queue is None else queue.dead_letter,
                "arguments": {} if queue is None else queue.arguments,
                "transient": queue is None and queue_id in transient,
            }
        )
    return rows
