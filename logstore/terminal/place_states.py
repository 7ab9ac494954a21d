"""The states of places as JSON and as text, for ``logstore peek`` and ``logstore chain``."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from logstore.core.counts import counted
from logstore.core.moments import time_text
from logstore.terminal.output import iso_time
from logstore.terminal.previews import preview, text_of

if TYPE_CHECKING:
    from logstore.codec.state import PlaceState


def state_document(state: PlaceState, *, hidden: bool, expired: bool) -> dict[str, Any]:
    """The state of a place as JSON; ``hidden`` and ``expired`` are of now."""
    return {
        "delivery_count": state.delivery_count,
        "not_before": iso_time(state.not_before_us),
        "hidden": hidden,
        "expires": iso_time(state.expires_us),
        "expired": expired,
        "own_header": state.header is not None,
        "note_bytes": len(state.note),
        "note_text": text_of(state.note) if state.note else None,
        "note_base64": base64.b64encode(state.note).decode("ascii"),
    }


def standing_text(state: PlaceState, *, hidden: bool, expired: bool) -> str:
    """How often the place was delivered, and how its times stand now, each part behind a comma."""
    count = state.delivery_count
    parts = [f"delivered {'once' if count == 1 else f'{count} times'}"] if count else []
    parts += [f"hidden until {time_text(state.not_before_us)}"] if hidden and not expired else []
    if state.expires_us:
        parts.append(f"{'expired since' if expired else 'expires'} {time_text(state.expires_us)}")
    return "".join(f", {part}" for part in parts)


def own_text(state: PlaceState) -> str:
    """The note and the header of its own, each behind a comma; their parts in a record's meaning read the same."""
    parts = [f"with the {note_text(state.note)}"] if state.note else []
    if state.header is not None:
        parts.append(f"with a header of its own of {counted(len(state.header), 'byte')}")
    return "".join(f", {part}" for part in parts)


def note_text(note: bytes) -> str:
    """The word note and its bytes, as text in quotation marks if they are printable."""
    text = text_of(note)
    return f"note {preview(note, len(note)) if text is None else repr(text)}"
