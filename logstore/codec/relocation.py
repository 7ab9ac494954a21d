"""Finds contradictions in a relocated state: with the format, and with what is known of the message.

Written from sections 6 and 7 of docs/format.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.codec.interpreter import state_parts
from logstore.codec.records import (
    InlineCopy,
    MessageRelocated,
    MessageRelocatedPlaced,
    OrderedCopy,
    PendingKind,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logstore.codec.place_states import RelocatedState
    from logstore.codec.records import ChunkPlace, Record
    from logstore.codec.state import Copies, Message, Moved, Piece, PlaceState


def start_bytes(state: RelocatedState, chunks: list[ChunkPlace], copies: Copies, known: Message | None) -> int:
    """Bytes of content in the start record. If the start lies below the base, the chunks give the rest."""
    if state.start_lsn == copies.start_lsn:
        return copies.start_bytes
    if known is not None and state.start_lsn == known.start_lsn:
        return known.start_bytes
    return min((chunk.offset for chunk in chunks), default=state.content_bytes)


def state_chunks(copies: Copies) -> list[ChunkPlace]:
    """The chunks that a state lists in all its parts."""
    return [chunk for part in state_parts(copies) for chunk in part.chunks]


def wrong_state(
    state: RelocatedState,
    copies: Copies,
    known: Message | None,
    seen: dict[int, Piece],
    moved: Moved,
    broken: dict[int, str],
    base_lsn: int,
) -> Iterator[str]:
    """Yields the errors of a complete state; ``seen`` has the chunks of a message that is not known, by offset."""
    parts = state_parts(copies)
    if any((part.content_bytes, part.start_lsn) != (state.content_bytes, state.start_lsn) for part in parts):
        yield "the parts of its state are of different contents"
    if len({type(part) for part in parts}) > 1:
        yield "the parts of its state are of two types"
    chunks = state_chunks(copies)
    yield from _wrong_content(state, chunks, copies, known, seen, base_lsn)
    named = (state.start_lsn, *(chunk.lsn for chunk in chunks), *(part.lsn for part in copies.parts[:-1]))
    yield from (broken[lsn] for lsn in named if lsn in broken)
    if moved.staged and moved.places:
        yield "its state has places, and says that it was never enqueued"


def _wrong_content(
    state: RelocatedState,
    chunks: list[ChunkPlace],
    copies: Copies,
    known: Message | None,
    seen: dict[int, Piece],
    base_lsn: int,
) -> Iterator[str]:
    """Yields errors unless its records are there and contain every byte exactly once."""

    def is_out_of_sight(lsn: int) -> bool:
        return known is None and lsn < base_lsn

    starts = {copies.start_lsn, 0 if known is None else known.start_lsn}
    if state.start_lsn not in starts and not is_out_of_sight(state.start_lsn):
        yield f"its start {state.start_lsn} is neither the newest copy nor where it was"
    there: dict[int, tuple[int, int]] = {}
    for pieces in ((known.chunks or {}) if known is not None else {}, seen, copies.chunks):
        there |= {piece.lsn: (offset, piece.size) for offset, piece in pieces.items()}
    for chunk in chunks:
        if there.get(chunk.lsn) != (chunk.offset, chunk.content_bytes) and not (
            chunk.lsn not in there and is_out_of_sight(chunk.lsn)
        ):
            yield f"its chunk of {chunk.content_bytes} bytes at {chunk.offset} is not that of LSN {chunk.lsn}"
    end = start_bytes(state, chunks, copies, known)
    for offset, size in sorted((chunk.offset, chunk.content_bytes) for chunk in chunks):
        if offset != end:
            break
        end += size
    else:
        if end == state.content_bytes:
            return
    yield f"its content of {state.content_bytes} bytes does not occur exactly once in the records of its state"


def differences(message: Message, record: Record, moved: Moved, is_deleted: Callable[[int], bool]) -> Iterator[str]:
    """Yields how a relocated state differs from what is known. Places and work on deleted queues may be in either or
    not.
    """
    places = {place.queue_id: place.state for place in message.places if not is_deleted(place.queue_id)}
    said = {place.queue_id: place.state for place in moved.places if not is_deleted(place.queue_id)}
    if places.keys() != said.keys():
        yield f"with places on queues {sorted(said)}, and it has them on {sorted(places)}"
    for queue_id in sorted(places.keys() & said.keys()):
        yield from _wrong_place_state(f"its place on queue {queue_id}", said[queue_id], places[queue_id])
    work = {one.key: one.state for one in message.pending or () if not is_deleted(one.queue_id)}
    work_said = {one.key: one.state for one in moved.work if not is_deleted(one.queue_id)}
    if work.keys() != work_said.keys():
        yield f"with pending work {_listed(sorted(work_said))}, and it has {_listed(sorted(work))}"
    for key in sorted(work.keys() & work_said.keys()):
        yield from _wrong_place_state(_told(key), work_said[key], work[key])
    body = record.body
    assert isinstance(body, InlineCopy | OrderedCopy | MessageRelocated | MessageRelocatedPlaced)
    size = len(body.content) if isinstance(body, InlineCopy | OrderedCopy) else body.content_bytes
    if message.length != size:
        yield f"with {size} bytes of content, and it has {message.length}"
    if message.staged != moved.staged:
        never, once = "as one that was never enqueued", "as one that was enqueued"
        yield f"{never}, and it was" if moved.staged else f"{once}, and it never was"


def _wrong_place_state(what: str, said: PlaceState | None, known: PlaceState | None) -> Iterator[str]:
    if said is None and known is not None:
        yield f"without the state of {what}, which would be lost: {_state_text(known)}"
    elif said != known:
        yield f"with {_state_text(said)} of {what}, and it has {_state_text(known)}"


def _state_text(state: PlaceState | None) -> str:
    if state is None:
        return "no state"
    header = "no header" if state.header is None else f"header {state.header.hex() or 'of no bytes'}"
    return (
        f"the state (delivery_count {state.delivery_count}, not_before_us {state.not_before_us}, "
        f"expires_us {state.expires_us}, {f'note {state.note.hex()}' if state.note else 'no note'}, {header})"
    )


def _told(key: tuple[int, int, int, int, int]) -> str:
    tx_id, lsn, queue_id, kind, _ = key
    return f"{PendingKind(kind).name.lower()} on queue {queue_id} by transaction {tx_id} at {lsn}"


def _listed(work: list[tuple[int, int, int, int, int]]) -> str:
    return f"[{', '.join(map(_told, work))}]"
