"""The first messages of a queue, read from the log without opening the store, even while a writer runs.

The inspected state says which messages are on the queue and where the newest copy of each begins; the records there
have the header and the content. Nothing is acquired, and no file is changed. Sizes are bytes, times µs since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from logstore.codec.records import (
    InlineCopy,
    MessageChunk,
    MessageRelocated,
    MessageRelocatedPlaced,
    MessageStart,
    MessageStartPlaced,
    OrderedCopy,
    Record,
    RecordFlag,
)
from logstore.codec.state import NO_STATE, PlaceState
from logstore.inspect.place_states import SKIPPED_SEGMENTS, place_states
from logstore.inspect.reader import BatchBytes, LogRecycled, Reader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logstore.inspect.inspection import Inspection

__all__ = ["Peeked", "peek"]

_Start = MessageStart | MessageStartPlaced | InlineCopy | OrderedCopy


@dataclass(slots=True)
class Peeked:
    """One message on a queue."""

    id: int
    lsn: int
    """Of its start record, or of the newest copy of that; 0 if a broker lists it, which does not say."""
    locked: bool
    """A transaction without an outcome has dequeued it."""
    content_bytes: int
    """The size of the whole content."""
    state: PlaceState = NO_STATE
    """Of its place."""
    hidden: bool = False
    """Its place is not offered yet."""
    expired: bool = False
    """Its place is not offered any more."""
    header: bytes = b""
    """The header that its place has of its own, or else the message's."""
    content: bytes = b""
    """The first bytes of the content, as many as were wanted."""
    time_us: int = 0
    """When it was published; 0 if the log no longer says."""
    unreadable: str | None = None
    """Why header and content cannot be read; None if they can."""
    _wanted: int = 0
    _is_found: bool = field(default=False, repr=False)
    _has_time: bool = field(default=False, repr=False)

    @property
    def relocated(self) -> bool:
        """Whether the writer has moved it."""
        return self.lsn != self.id

    def _is_whole(self) -> bool:
        return self._is_found and self._has_time and len(self.content) >= self._wanted

    def _take(self, record: Record, time_us: int, queue_id: int) -> None:
        body = record.body
        if isinstance(body, _Start) and record.lsn == self.lsn:
            self.header, self.content, self._is_found = body.header, body.content[: self._wanted], True
            if isinstance(body, InlineCopy):
                self.time_us = body.enqueue_time_us
            elif isinstance(body, MessageStart | MessageStartPlaced) and RecordFlag.COPY not in record.flags:
                self.time_us = time_us
            # Only a copy of the start alone is followed by a state, which has the time.
            self._has_time = not (isinstance(body, MessageStart) and RecordFlag.COPY in record.flags)
        elif isinstance(body, MessageChunk) and self._is_found and body.offset == len(self.content):
            self.content += body.content[: self._wanted - len(self.content)]
        elif (
            isinstance(body, MessageRelocated | MessageRelocatedPlaced)
            and self._is_found
            and body.start_lsn == self.lsn
        ):
            times = [place.enqueue_time_us for place in body.places if place.queue_id == queue_id]
            self.time_us, self._has_time = min(times, default=0), True


def peek(inspection: Inspection, queue_id: int, limit: int, content_bytes: int) -> list[Peeked]:
    """The first ``limit`` messages on a queue of an inspected store, in order, each with its first ``content_bytes``.

    A message whose content is in several records may have less of it, if only a part was relocated.

    Raises ``UnknownQueue``, :class:`LogRecycled` if the writer has moved a message meanwhile, and the errors of
    :class:`Reader`.
    """
    found, places = [], []
    for message_id, locked in islice(inspection.places(queue_id), limit):
        lsn, of_all = inspection.whereabouts(message_id)
        place = next(one for one in of_all if one.queue_id == queue_id)
        size = inspection.content_bytes(message_id)
        found.append(Peeked(message_id, lsn, locked, size, _wanted=min(size, content_bytes)))
        found[-1].hidden, found[-1].expired = place.hidden, place.expired
        places.append(place)
    waiting = sorted(found, key=lambda one: one.lsn, reverse=True)
    while waiting:
        with Reader(inspection.path, from_lsn=waiting[-1].lsn) as reader:
            _read(reader, waiting, queue_id)
    if not all(one._is_found for one in found):
        raise LogRecycled(
            f"the writer of {inspection.path} moved a message before it was read; nothing is wrong with the log: run "
            "this again, or at a quieter time"
        )
    for one, state in zip(found, place_states(inspection, places), strict=True):
        one.state = state
        one.header = one.header if state.header is None else state.header
    return found


def _read(reader: Reader, waiting: list[Peeked], queue_id: int) -> None:
    """Reads on until nothing is begun, or the next message is far away. Takes what it has passed from ``waiting``."""
    begun: dict[int, Peeked] = {}
    far = SKIPPED_SEGMENTS * reader.info.segment_size
    for batch in reader.batches(ahead=False):
        while waiting and waiting[-1].lsn < batch.end_lsn:
            begun[waiting[-1].id] = waiting[-1]
            waiting.pop()
        if _names(batch, begun):
            for record in reader._decode(batch):
                if record.id in begun:
                    begun[record.id]._take(record, reader.batch_time_us, queue_id)
                    if begun[record.id]._is_whole():
                        del begun[record.id]
        if not begun and (not waiting or waiting[-1].lsn > batch.end_lsn + far):
            return
    waiting.clear()  # the log ends


def _names(batch: BatchBytes, ids: Iterable[int]) -> bool:
    return any(one.to_bytes(8, "little") in batch.raw for one in ids)
