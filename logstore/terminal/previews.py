"""Bytes of any kind for people: as text if they are printable, else in hexadecimal."""

from __future__ import annotations

import codecs

from logstore.core.counts import counted
from logstore.terminal.tables import printable

HEX_BYTES = 64  # of what is no text


def text_of(data: bytes, *, is_cut: bool = False) -> str | None:
    """The bytes as text if they are printable UTF-8, else None; if they were cut, the last character may be cut too."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=not is_cut)
    except UnicodeDecodeError:
        return None
    return text if all(char.isprintable() or char in "\t\r\n" for char in text) else None


def preview(data: bytes, size: int) -> str:
    """The bytes as text or in hexadecimal, on one line; ``size`` is the whole length, ``data`` may be cut."""
    text = text_of(data, is_cut=len(data) < size)
    if text is None:
        data = data[:HEX_BYTES]
    shown = data.hex(" ") if text is None else printable(text)
    cut = f" … (the first {len(data)} of {counted(size, 'byte')})" if len(data) < size else ""
    return f"{'hex ' if text is None else ''}{shown}{cut}" if size else "empty"
