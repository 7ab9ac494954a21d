"""The meaning of a record in words, for readers of a chain; see section 7 of docs/format.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.codec.place_states import given_state
from logstore.codec.records import (
    CatalogChange,
    InlineCopy,
    Members,
    MessageChunk,
    MessageDequeue,
    MessageEnqueue,
    MessageMove,
    MessagePlace,
    MessageRelocated,
    MessageRelocatedPlaced,
    MessageStart,
    MessageStartPlaced,
    OrderedCopy,
    PendingKind,
    PlacedPlace,
    PlacedWork,
    PlaceStates,
    Record,
    RecordFlag,
    RecordType,
    StateBit,
    TxRelocated,
    XidBody,
)
from logstore.core.counts import counted
from logstore.terminal.place_states import note_text, own_text, standing_text
from logstore.terminal.records import catalog_row_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from logstore.codec.records import DequeueReason, PendingWork, QueuePlace
    from logstore.codec.state import PlaceState

PLAIN = {
    RecordType.TX_START: "a local transaction begins",
    RecordType.TX_END: "it accepts no more work",
    RecordType.TX_COMMIT: "it is committed: its work takes effect here, in the order of its operations",
    RecordType.TX_ROLLBACK: "it is rolled back: its work has no effect",
    RecordType.TX_DELETE: "a note that it is finished; nothing follows",
    RecordType.MESSAGE_DELETE: "a note that the message is dead; nothing follows",
}


def meaning(record: Record, names: Mapping[int, str]) -> str:
    """One line about the record alone. ``names`` are the queues' names by id; other references are shown as numbers."""
    body = record.body
    if isinstance(body, InlineCopy | OrderedCopy):
        return f"relocated: the whole message is here now, on {_queues((one for one in body.queues if one), names)}"
    if isinstance(body, MessageStart):
        return _start(record, body, names)
    if isinstance(body, MessageChunk):
        part = f"bytes {body.offset} to {body.offset + len(body.content)} of its content"
        copied = f"{part}, copied; counts once a state names it"
        return copied if RecordFlag.COPY in record.flags else f"{part} are added"
    if isinstance(body, MessageEnqueue):
        return f"enqueued on {_queues(body.queues, names)}{_within(body.tx_id)}"
    if isinstance(body, MessageDequeue):
        return _dequeue(record, body, names)
    if isinstance(body, MessageRelocated | MessageRelocatedPlaced):
        return _relocated(record, body, names)
    if isinstance(body, MessageStartPlaced | MessagePlace | MessageMove | PlaceStates):
        return _placed(body, names)
    if isinstance(body, TxRelocated):
        return f"relocated: a {body.kind.name.lower()} transaction that is {body.state.name.lower()}"
    if isinstance(body, XidBody):
        name = f"{body.format_id}:{body.gtrid.hex()}:{body.bqual.hex()}"
        begins = record.type is RecordType.DTX_START
        return f"a distributed transaction begins, xid {name}" if begins else "it is prepared: only its outcome ends it"
    if isinstance(body, Members):
        who = f"the members of the log since index {body.index}, {counted(len(body.config), 'byte')} of configuration"
        return f"relocated: {who}" if RecordFlag.COPY in record.flags else who
    if isinstance(body, CatalogChange):
        return _change(record, body)
    return PLAIN.get(record.type, "") if isinstance(record.type, RecordType) else ""


def _queues(ids: Iterable[int], names: Mapping[int, str]) -> str:
    texts = [_queue(one, names) for one in ids]
    return f"queue {texts[0]}" if len(texts) == 1 else f"queues {', '.join(texts)}" if texts else "no queue"


def _queue(queue_id: int, names: Mapping[int, str]) -> str:
    """The name in quotation marks, or the id of a queue without a name."""
    return repr(names[queue_id]) if queue_id in names else str(queue_id)


def _within(tx_id: int, state: str = "") -> str:
    """The state of the place, and the transaction."""
    by = f" by transaction {tx_id}: takes effect at its commit" if tx_id else ""
    return f"{state}{',' if state and by else ''}{by}"


def _start(record: Record, body: MessageStart, names: Mapping[int, str]) -> str:
    if RecordFlag.COPY in record.flags:
        return "header and first content, copied; counts once a state names it"
    if body.queues:
        return f"published to {_queues(body.queues, names)}{_within(body.tx_id)}"
    return "the first part of a publish" if RecordFlag.PUBLISHED in record.flags else "staged: on no queue yet"


def _change(record: Record, body: CatalogChange) -> str:
    rows = ", ".join(
        catalog_row_text(row.action.name, row.object.name, row.queue_id, row.row.decode("utf-8", "backslashreplace"))
        for row in body.rows
    )
    if RecordFlag.PART in record.flags:
        return f"part {body.part} of a change of the catalog, which counts with its last part: {rows}"
    return f"the catalog is changed: {rows}" if body.part == 0 else f"the last part of a change of the catalog: {rows}"


def _dequeue(record: Record, body: MessageDequeue, names: Mapping[int, str]) -> str:
    reason = _reason(body.reason)
    died = ", and with that it is dead" if RecordFlag.DELETES in record.flags else ""
    return f"dequeued from queue {_queue(body.queue_id, names)}{reason}{died}{_within(body.tx_id)}"


def _reason(reason: DequeueReason) -> str:
    return "" if reason == 0 else f" ({reason.name.lower().replace('_', '-')})"


def _placed(body: MessageStartPlaced | MessagePlace | MessageMove | PlaceStates, names: Mapping[int, str]) -> str:
    if isinstance(body, MessageStartPlaced):
        return f"published to {_queues(body.queues, names)}{_within(body.tx_id, _with(given_state(body)))}"
    if isinstance(body, MessagePlace):
        note = f"gets the {note_text(body.note)}" if body.note else "loses its note"
        return f"its place on queue {_queue(body.queue_id, names)} {note}{_within(body.tx_id)}"
    if isinstance(body, MessageMove):
        return _move(body, names)
    rows = (
        f"message {row.id} on queue {_queue(row.queue_id, names)}{_with(given_state(row)) or ', none'}"
        for row in body.rows
    )
    return f"counts and times of places: {'; '.join(rows)}"


def _move(body: MessageMove, names: Mapping[int, str]) -> str:
    to = f"queue {_queue(body.queue_id, names)}"
    if not body.from_queue_id:
        did = f"enqueued on {to}"
    elif body.from_queue_id == body.queue_id:
        did = f"moved to the end of {to}"
    else:
        did = f"moved from queue {_queue(body.from_queue_id, names)} to {to}"
    kept = ", with the header of its own that it had there" if body.state_bits & StateBit.KEEPS_HEADER else ""
    kept += ", with the note that it had there" if body.state_bits & StateBit.KEEPS_NOTE else ""
    return f"{did}{_reason(body.reason)}{_within(body.tx_id, _with(given_state(body)) + kept)}"


def _with(state: PlaceState | None) -> str:
    """The state of a place, each part behind a comma. Its times are shown as they were given."""
    if state is None:
        return ""
    return standing_text(state, hidden=state.not_before_us != 0, expired=False) + own_text(state)


def _relocated(record: Record, body: MessageRelocated | MessageRelocatedPlaced, names: Mapping[int, str]) -> str:
    if RecordFlag.PART in record.flags:
        return f"part {body.part} of its state, relocated; counts once the last part is there"
    places = _places(body.places, names)
    staged = ", never enqueued yet" if RecordFlag.STAGED in record.flags else ""
    pending = "".join(
        f"{_pending(work, names)} by transaction {work.tx_id} without an outcome" for work in body.pending
    )
    return f"relocated: its whole state, {counted(body.content_bytes, 'byte')} of content, {places}{staged}{pending}"


def _places(places: tuple[QueuePlace | PlacedPlace, ...], names: Mapping[int, str]) -> str:
    """The queues, each with what the place there remembers."""
    states = [given_state(place) for place in places]
    if not any(states):
        return f"on {_queues((place.queue_id for place in places), names)}"
    texts = (
        f"on queue {_queue(place.queue_id, names)}{f' ({told})' if (told := _with(state)[2:]) else ''}"
        for place, state in zip(places, states, strict=True)
    )
    return ", ".join(texts)


def _pending(work: PendingWork | PlacedWork, names: Mapping[int, str]) -> str:
    state = given_state(work)
    did = {PendingKind.ENQUEUE: "enqueued on", PendingKind.DEQUEUE: "dequeued from", PendingKind.NOTE: "noted on"}
    told = _with(state)[2:] or ("without a note" if work.kind is PendingKind.NOTE else "")
    return f", {did[work.kind]} queue {_queue(work.queue_id, names)}{f' ({told})' if told else ''}"
