"""The states of places of an inspected store: counts and times from the inspection, notes and headers from the log.

Nothing is acquired, and no file is changed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from logstore.codec.state import PlaceState
from logstore.core.counts import counted
from logstore.errors import UnknownMessage
from logstore.inspect.reader import LogRecycled, Reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from logstore.inspect.inspection import Inspection, OwnBytes, PlaceLife

__all__ = ["SKIPPED_SEGMENTS", "place_states", "state_differences"]

STATES_AT_ONCE: Final = 4096  # whose notes and headers are in memory
SHOWN_CHARS: Final = 80  # of a note or a header that differs, in hexadecimal
_PARTS: Final = {
    "delivery_count": "delivery count",
    "not_before_us": "not_before_us",
    "expires_us": "expires_us",
    "note": "note",
    "header": "header of its own",
}
SKIPPED_SEGMENTS: Final = 4  # a record that is further away is reached by a new reader, not by reading on


def place_states(inspection: Inspection, places: Sequence[PlaceLife]) -> list[PlaceState]:
    """The state of each of these places of the inspected store.

    Raises :class:`LogRecycled` if the writer has moved a note or header meanwhile, and the errors of :class:`Reader`.
    """
    bytes_of = _read(inspection, {one for place in places for one in (place.note, place.header) if one is not None})
    return [
        PlaceState(
            place.delivery_count,
            place.not_before_us,
            place.expires_us,
            b"" if place.note is None else bytes_of[place.note],
            None if place.header is None else bytes_of[place.header],
        )
        for place in places
    ]


def state_differences(inspection: Inspection, wanted: Mapping[tuple[int, int], PlaceState]) -> Iterator[str]:
    """How the states of the inspected store's places differ from ``wanted``, by message and queue: all that there are.

    Raises as :func:`place_states`.
    """
    if inspection.stated != len(wanted):
        yield f"{inspection.stated} instead of {counted(len(wanted), 'place')} with a state"
    keys = list(wanted)
    for at in range(0, len(keys), STATES_AT_ONCE):
        part = keys[at : at + STATES_AT_ONCE]
        found: dict[tuple[int, int], PlaceLife] = {}
        for message_id in dict.fromkeys(message_id for message_id, _ in part):
            with suppress(UnknownMessage):
                found |= {(message_id, one.queue_id): one for one in inspection.whereabouts(message_id)[1]}
        known = [key for key in part if key in found]
        states = dict(zip(known, place_states(inspection, [found[key] for key in known]), strict=True))
        for message_id, queue_id in part:
            differing = _difference(states.get((message_id, queue_id)), wanted[message_id, queue_id])
            if differing is not None:
                yield f"message {message_id} on queue {queue_id} {differing}"


def _difference(found: PlaceState | None, wanted: PlaceState) -> str | None:
    """The first part that differs."""
    if found is None:
        return "is not there"
    for name, what in _PARTS.items():
        has, should = getattr(found, name), getattr(wanted, name)
        if has != should:
            return f"has {what} {_shown(has)}, not {_shown(should)}"
    return None


def _shown(part: int | bytes | None) -> str:
    return part.hex()[:SHOWN_CHARS] or "''" if isinstance(part, bytes) else str(part or "none")


def _read(inspection: Inspection, wanted: Iterable[OwnBytes]) -> dict[OwnBytes, bytes]:
    """The bytes, read from the log front to back."""
    found: dict[OwnBytes, bytes] = {}
    left = sorted(wanted, reverse=True)
    while left:
        before = len(left)
        with Reader(inspection.path, from_lsn=left[-1].lsn) as reader:
            far = SKIPPED_SEGMENTS * reader.info.segment_size
            for batch in reader.batches(ahead=False):
                while left and batch.lsn <= left[-1].lsn < batch.end_lsn:
                    one = left.pop()
                    begin = one.lsn - batch.lsn + one.at
                    found[one] = batch.raw[begin : begin + one.size]
                if not left or left[-1].lsn < batch.lsn or left[-1].lsn > batch.end_lsn + far:
                    break
        if len(left) == before:
            raise LogRecycled(
                f"the writer of {inspection.path} moved the note or header of a place before it was read; nothing is "
                "wrong with the log: run this again, or at a quieter time"
            )
    return found
