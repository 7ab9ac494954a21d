"""The states of places that records give (sections 6 and 7 of docs/format.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from logstore.codec.placed import (
    MessageMove,
    MessageRelocatedPlaced,
    MessageStartPlaced,
    PlacedPlace,
    PlacedWork,
    StateBit,
)
from logstore.codec.records import MessageRelocated, MessageStart, PendingKind, PendingWork, QueuePlace
from logstore.codec.state import Place, PlaceState, Work

if TYPE_CHECKING:
    from logstore.codec.records import MessageEnqueue

RelocatedState: TypeAlias = MessageRelocated | MessageRelocatedPlaced


def enqueued_state(body: MessageStart | MessageStartPlaced | MessageEnqueue) -> PlaceState | None:
    """The state with which each place of a start or an enqueue begins."""
    if isinstance(body, MessageStartPlaced):
        return PlaceState(0, body.not_before_us, body.expires_us, body.note).or_none
    return None


def moved_state(body: MessageMove, ended: Place | None) -> PlaceState | None:
    """The state of a move's new place; ``ended`` is the place that ends, from which it may keep header and note."""
    kept = ended.state if ended is not None else None
    header = _own_header(body)
    if kept is not None and body.state_bits & StateBit.KEEPS_HEADER:
        header = kept.header
    note = kept.note if kept is not None and body.state_bits & StateBit.KEEPS_NOTE else body.note
    return PlaceState(body.delivery_count, body.not_before_us, body.expires_us, note, header).or_none


def _own_header(body: MessageMove | PlacedPlace | PlacedWork) -> bytes | None:
    return body.header if body.state_bits & StateBit.HAS_HEADER else None


def relocated_place(row: QueuePlace | PlacedPlace) -> Place:
    """The place in a row of a relocated state."""
    if isinstance(row, PlacedPlace):
        state = PlaceState(row.delivery_count, row.not_before_us, row.expires_us, row.note, _own_header(row))
    else:
        state = PlaceState(row.delivery_count)
    return Place(row.queue_id, row.order_lsn, row.order_index, row.enqueue_time_us, state.or_none)


def relocated_work(message_id: int, row: PendingWork | PlacedWork) -> Work:
    """The operation in a row of a relocated state."""
    order_index, state = row.order_index if row.kind is PendingKind.ENQUEUE else 0, None
    if isinstance(row, PlacedWork):
        state = PlaceState(row.delivery_count, row.not_before_us, row.expires_us, row.note, _own_header(row)).or_none
    return Work(row.kind, message_id, row.queue_id, row.tx_id, row.lsn, order_index, state)


def order_of(work: Work) -> tuple[int, bool, int]:
    """The order of operations: by record, the end of a place before the new ones of the same record."""
    return work.lsn, work.kind is not PendingKind.DEQUEUE, work.order_index


def placed_place(place: Place) -> PlacedPlace:
    """The row of a relocated state with states."""
    state = place.state or PlaceState()
    bits = 0 if state.header is None else StateBit.HAS_HEADER
    return PlacedPlace(
        place.order_lsn,
        place.time_us,
        place.queue_id,
        place.order_index,
        state.delivery_count,
        state.not_before_us,
        state.expires_us,
        int(bits),
        state.note,
        state.header or b"",
    )


def placed_work(work: Work) -> PlacedWork:
    """The row of a relocated state with states."""
    state = work.state or PlaceState()
    bits = 0 if state.header is None else StateBit.HAS_HEADER
    return PlacedWork(
        work.tx_id,
        work.lsn,
        work.queue_id,
        work.kind,
        state.delivery_count,
        state.not_before_us,
        state.expires_us,
        int(bits),
        work.order_index,
        state.note,
        state.header or b"",
    )
