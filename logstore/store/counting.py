"""Counts of a queue at one moment: :class:`QueueCounts`; each place that a consumer has acquired:
:class:`Acquisition`; and when a place became visible.

The core keeps the counts with every change of a place, so they take the same time for a queue of any length, and are
right from the moment a store is open. It lists acquired places in steps and holds no lock in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from logstore._core import ffi, lib
from logstore.core.native import check, filled

if TYPE_CHECKING:
    from logstore.store.message_store import MessageStore

__all__ = [
    "Acquisition",
    "QueueCounts",
    "acquisitions_of",
    "counts_in_core",
    "counts_of",
    "delivery_count",
    "enqueued_at",
]

_STEP: Final = 1000
_COMPLETE: Final = (1 << 64) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The places of a queue at one moment. Always ``depth == ready + acquired + locked + hidden + expired``.

    A message has one place on each of its queues, and counts on each of them.
    """

    depth: int
    """All places."""
    ready: int
    """None of the others. Some may not be durable yet; an acquire gets durable ones only."""
    acquired: int
    """Acquired by consumers, and not locked."""
    locked: int
    """Dequeued by a transaction that has no outcome yet, whether a consumer had acquired the place or not."""
    bytes: int
    """Content bytes of all places, headers not counted."""
    ready_bytes: int
    """Content bytes of the ready places."""
    hidden: int = 0
    """Neither acquired nor locked, and not offered before a time that has not come: ``not_before`` or a delay."""
    expired: int = 0
    """Neither acquired nor locked, and past the time at which they expire: only ``Queue.expired`` gives them."""


@dataclass(frozen=True, slots=True)
class Acquisition:
    """A place that a consumer has acquired and not yet settled or released, as ``Queue.acquisitions()`` lists it."""

    id: int
    """The persistence ID of the message."""
    position: int
    """The position of the place, as in :attr:`Delivery.position`."""
    delivery_count: int
    """How often the place has been acquired in this open, this time included."""
    since: datetime
    """When it was acquired, in UTC; up to a tenth of a second early.

    Kept on the monotonic clock and converted when it is read, so it moves if the wall clock is set.
    """
    locked: bool
    """Whether a transaction that has no outcome yet has settled it."""


def delivery_count(store: MessageStore, queue_id: int, message_id: int, position: int) -> int:
    """How often a place was acquired. Raises ``UnknownMessage`` or ``NotEnqueued`` if it has ended."""
    into = ffi.new("uint32_t *")
    check(lib.ls_place_count(store._c, queue_id, message_id, position, into))
    return int(into[0])


def counts_in_core(store: Any, queue_id: int) -> Any:
    """The core's ``ls_queue_counts`` of a queue of its ``ls_store``. Raises as :func:`counts_of` does."""
    return filled("ls_queue_counts", lambda into: lib.ls_queue_counts_get(store, queue_id, into))


def counts_of(store: MessageStore, queue_id: int) -> QueueCounts:
    """The counts of a queue. Raises ``UnknownQueue`` after it was deleted, and ``StoreClosed``."""
    found = counts_in_core(store._c, queue_id)
    return QueueCounts(
        found.depth,
        found.ready,
        found.acquired,
        found.locked,
        found.bytes,
        found.ready_bytes,
        found.hidden,
        found.expired,
    )


def enqueued_at(store: MessageStore, queue_id: int, message_id: int, position: int) -> datetime | None:
    """When the message's place at this position became visible, in UTC; None: see :attr:`Delivery.enqueued_at`."""
    time_us = ffi.new("uint64_t *")
    check(lib.ls_enqueued_us(store._c, queue_id, message_id, position, time_us))
    return _EPOCH + timedelta(microseconds=time_us[0]) if time_us[0] else None


def acquisitions_of(store: MessageStore, queue_id: int) -> list[Acquisition]:
    """The acquired places of a queue, in its order. Raises ``UnknownQueue`` after it was deleted."""
    made: list[Acquisition] = []
    start = ffi.new("uint64_t *")
    rows, done = ffi.new("ls_acquisition[]", _STEP), ffi.new("size_t *")
    while start[0] != _COMPLETE:
        check(lib.ls_acquisitions(store._c, queue_id, start, rows, _STEP, done))
        for row in rows[0 : done[0]]:
            since = _EPOCH + timedelta(microseconds=row.since_us)
            made.append(Acquisition(row.id, row.position, row.count, since, bool(row.locked)))
    return made
