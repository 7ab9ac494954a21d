"""Notes of places and headers of their own.

They are read from the log on access. :func:`place_move` makes what a move gives to the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from logstore import errors
from logstore._core import ffi, lib
from logstore.core.native import as_buffer, check
from logstore.store.times import NO_TIMES, Times

if TYPE_CHECKING:
    from logstore._hot import StoreCalls

NOTE_BYTES_MAX: Final[int] = lib.LS_NOTE_BYTES


def _read(store: StoreCalls, queue_id: int, message_id: int, position: int, what: int, room: int) -> bytes:
    into = ffi.new("uint8_t[]", room)
    done, has = ffi.new("size_t *"), ffi.new("int *")
    check(lib.ls_load_place(store._c, queue_id, message_id, position, what, into, room, done, has))  # type: ignore[attr-defined] # MessageStore has it
    return bytes(ffi.buffer(into, done[0]))


def note_of(store: StoreCalls, queue_id: int, message_id: int, position: int) -> bytes:
    """The note of a place, b"" if it has none."""
    return _read(store, queue_id, message_id, position, lib.LS_PLACE_NOTE, NOTE_BYTES_MAX)


def own_header(store: StoreCalls, queue_id: int, message_id: int, position: int) -> bytes:
    """The header of a place that has one of its own."""
    room = 4096
    while len(header := _read(store, queue_id, message_id, position, lib.LS_PLACE_HEADER, room)) == room:
        room *= 16  # it may be longer
    return header


def as_note(note: object) -> tuple[Any, int]:
    """A note as the core takes it. Raises ``TypeError`` for no buffer, and ``OptionError`` for a long one."""
    c_note, note_bytes = as_buffer(note, "note")
    if note_bytes > NOTE_BYTES_MAX:
        raise errors.OptionError(
            f"a note has at most {NOTE_BYTES_MAX} bytes, not {note_bytes}: keep longer data in the header of a move"
        )
    return c_note, note_bytes


def _pointer(data: Any) -> Any:
    return ffi.from_buffer("uint8_t[]", data) if isinstance(data, bytes) else data


def place_move(
    from_id: int,
    to_id: int,
    *,
    reason: int = 0,
    header: object = None,
    note: object = None,
    times: Times = NO_TIMES,
    keeps_count: bool = False,
    keeps_expiry: bool = False,
) -> tuple[Any, tuple[Any, Any]]:
    """An ``ls_place_move``, and what it points to, to be kept as long. None: what the place has is kept."""
    c_header, header_bytes = as_buffer(b"" if header is None else header, "header")
    c_note, note_bytes = as_note(b"" if note is None else note)
    kept = _pointer(c_header), _pointer(c_note)
    made = ffi.new("ls_place_move *")
    made.from_queue_id, made.queue_id, made.reason = from_id, to_id, reason
    made.keeps_count, made.header_given, made.note_given = keeps_count, header is not None, note is not None
    made.header, made.header_bytes = kept[0], header_bytes
    made.note, made.note_bytes = kept[1], note_bytes
    made.times.not_before_us, made.times.expires_us = times.not_before_us, times.expires_us
    made.keeps_expiry = keeps_expiry
    return made, kept
