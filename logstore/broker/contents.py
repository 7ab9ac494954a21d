"""One message that a client publishes, while it arrives: its method, its header, and its body in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from logstore.broker.fields import Properties
from logstore.broker.headers import encode_header
from logstore.broker.queues import now_ms
from logstore.broker.streams import PIECE_BYTES

if TYPE_CHECKING:
    from logstore.broker.uploads import Upload

_MANDATORY: Final = 1
_OWN_PIECE_BYTES: Final = 2048  # a shorter frame is added to the piece before it, as an object takes memory, too


class Content:
    """A message that is arriving: the method first, then the header, then the body in pieces."""

    __slots__ = ("body_size", "flags", "missing", "pieces", "properties", "reserved", "routing", "upload", "wanted")

    def __init__(self, routing: bytes, flags: int) -> None:
        self.routing = routing
        self.flags = flags
        self.properties: bytes | None = None  # None until the header arrives
        self.wanted = Properties(None, None)
        self.body_size = 0
        self.missing = 0
        self.pieces: list[bytes | bytearray] = []  # of the body, without what is in the store
        self.reserved = 0  # bytes reserved in the memory budget meanwhile
        self.upload: Upload | None = None  # of a large body

    def add(self, payload: bytes) -> None:
        """Add a frame of the body."""
        last = self.pieces[-1] if self.pieces else b""
        if isinstance(last, bytearray) and len(last) < PIECE_BYTES:
            last += payload
        elif len(payload) < min(_OWN_PIECE_BYTES, self.body_size):
            self.pieces.append(bytearray(payload))
        else:
            self.pieces.append(payload)

    @property
    def body(self) -> bytes | bytearray:
        """The body in one piece; b"" if it is in the store."""
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)

    @property
    def is_mandatory(self) -> bool:
        """Whether it is returned if it goes to no queue."""
        return bool(self.flags & _MANDATORY)

    def header(self, expiration_ms: int | None) -> bytes:
        """The encoded header, with the present time. The properties must have arrived."""
        assert self.properties is not None
        return encode_header(self.routing, self.properties, now_ms(), expiration_ms)
