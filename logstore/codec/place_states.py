"""The states of places that records give (sections 6 and 7 of docs/format.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from logstore.codec.placed import (
    MessageMove,
    MessageRelocatedPlaced,
    MessageStartPlaced,
    PlacedPlace,
    PlacedWork,
    StateBit,
)
from logstore.codec.records import MessageEnqueue, MessageRelocated, MessageStart, PendingKind, PendingWork, QueuePlace
from logstore.codec.state import NO_STATE, Place, PlaceState, Work

if TYPE_CHECKING:
    from logstore.codec.placed import StateRow

_STATELESS = MessageStart, MessageEnqueue, PendingWork
RelocatedState: TypeAlias = MessageRelocated | MessageRelocatedPlaced


def given_state(
    body: MessageStart
    | MessageStartPlaced
    | MessageEnqueue
    | MessageMove
    | QueuePlace
    | PlacedPlace
    | PendingWork
    | PlacedWork
    | StateRow,
) -> PlaceState | None:
    """The state in a body or a row, without what a move keeps."""
    if isinstance(body, _STATELESS):
        return None
    header = None
    if isinstance(body, MessageMove | PlacedPlace | PlacedWork) and body.state_bits & StateBit.HAS_HEADER:
        header = body.header
    return PlaceState(
        getattr(body, "delivery_count", 0),
        getattr(body, "not_before_us", 0),
        getattr(body, "expires_us", 0),
        getattr(body, "note", b""),
        header,
    ).or_none


def moved_state(body: MessageMove, ended: Place | None) -> PlaceState | None:
    """The state of a move's new place; ``ended`` is the place that ends, from which it may keep header and note."""
    state, kept = given_state(body) or NO_STATE, (ended.state if ended is not None else None) or NO_STATE
    if body.state_bits & StateBit.KEEPS_HEADER:
        state = replace(state, header=kept.header)
    if body.state_bits & StateBit.KEEPS_NOTE:
        state = replace(state, note=kept.note)
    return state.or_none


def relocated_place(row: QueuePlace | PlacedPlace) -> Place:
    """The place in a row of a relocated state."""
    return Place(row.queue_id, row.order_lsn, row.order_index, row.enqueue_time_us, given_state(row))


def relocated_work(message_id: int, row: PendingWork | PlacedWork) -> Work:
    """The operation in a row of a relocated state."""
    order_index = row.order_index if row.kind is PendingKind.ENQUEUE else 0
    return Work(row.kind, message_id, row.queue_id, row.tx_id, row.lsn, order_index, given_state(row))


def order_of(work: Work) -> tuple[int, bool, int]:
    """The order of operations: by record, the end of a place before the new ones of the same record."""
    return work.lsn, work.kind is not PendingKind.DEQUEUE, work.order_index


def placed_place(place: Place) -> PlacedPlace:
    """The row of a relocated state with states."""
    state = place.state or NO_STATE
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
    state = work.state or NO_STATE
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
