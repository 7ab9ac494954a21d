"""Frames on the wire: an incremental reader with limits, and encoders for the frequent frames.

A frame is type (1 byte), channel (2), size (4), payload, end octet 0xCE; all integers are big-endian.
The reader keeps at most one incomplete frame, of at most `frame_bytes_max` bytes. Methods that contain
a name are encoded here and not by pamqp, because pamqp refuses names outside the specification's
alphabet, which real clients use.
"""

from __future__ import annotations

import struct
import sys
from typing import Final, Protocol

from pamqp import base, commands, constants
from pamqp import frame as pamqp_frame

from logstore.broker.errors import FRAME_ERROR, NOT_IMPLEMENTED, SYNTAX_ERROR, ConnectionException
from logstore.broker.fields import MalformedFields, check_arguments
from logstore.broker.limits import FRAME_OVERHEAD_BYTES
from logstore.broker.turns import UNIT_BYTES

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
METHOD: Final = constants.FRAME_METHOD
HEADER: Final = constants.FRAME_HEADER
BODY: Final = constants.FRAME_BODY
HEARTBEAT: Final = constants.FRAME_HEARTBEAT
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
CLOSE_OK_FRAME: Final = pamqp_frame.marshal(commands.Connection.CloseOk(), 0)

_END: Final = constants.FRAME_END
_END_OCTET: Final = constants.FRAME_END_CHAR
_KINDS: Final = frozenset((METHOD, HEADER, BODY, HEARTBEAT))
_PREFIX: Final = struct.Struct(">BHI")  # type, channel, size
_PREFIX_BYTES: Final = _PREFIX.size
# Both begin with the end octet of the preceding frame.
_CONTENT: Final = struct.Struct(">BBHIHHQ")  # type, channel, size, class, weight, body size
_BODY: Final = struct.Struct(">BBHI")  # type, channel, size
_METHOD_ID: Final = struct.Struct(">I")
_BASIC: Final = commands.Basic.frame_id

PUBLISH_START: Final = _METHOD_ID.pack(commands.Basic.Publish.index)
ACK_START: Final = _METHOD_ID.pack(commands.Basic.Ack.index)
ACK_BYTES: Final = 13  # of the payload of a basic.ack
CONTENT_HEADER_BYTES: Final = 12  # class, weight and body size, before the properties
unpack_ack: Final = struct.Struct(">QB").unpack_from  # tag and bits, the first of which says multiple

RawFrame = tuple[int, int, bytes]
"""Type, channel and payload."""


class Run(Protocol):
    """Several like frames on one channel."""

    @property
    def channel(self) -> int:
        """The number of the channel."""

    @property
    def count(self) -> int:
        """How many publishes or acknowledgements."""

    def raw_frames(self) -> list[RawFrame]:
        """The frames that it stands for."""


class Runs(Protocol):
    """Recognizes runs; see `runs`."""

    def take_alike(self, data: bytes, at: int) -> tuple[Run, int] | None:
        """The run of publishes like the last ones that begins at `at`, and the position after it."""

    def take(self, data: bytes, at: int, channel: int, size: int) -> tuple[Run, int] | None:
        """The run that begins with the method frame at `at`, and the position after it. None if there is none."""


Received = RawFrame | Run


class FrameReader:
    """Turns received bytes into frames; the bytes may arrive in pieces of any size.

    With `runs` set, the frames of a run are returned as that. After the first malformed frame `error` is set, and all
    later bytes are ignored.
    """

    __slots__ = ("_at", "_buffer", "_data", "_wanted", "error", "frame_bytes_max", "runs")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.runs: Runs | None = None
        self.error: ConnectionException | None = None
        self._data = b""  # received, and parsed up to `_at`
        self._at = 0
        self._buffer = bytearray()  # the beginning of a frame, if `_data` is empty
        self._wanted = 0  # the buffer holds no complete frame before it has this many bytes

    @property
    def has_more(self) -> bool:
        """Whether `take` has left something to take."""
        return bool(self._data)

    @property
    def held_bytes(self) -> int:
        """The bytes that it has in memory."""
        return len(self._data) + len(self._buffer)

    def rest(self) -> bytes:
        """Takes out the bytes of which no frame was made yet."""
        rest = self._data[self._at :] + self._buffer
        self._data, self._at = b"", 0
        self._buffer.clear()
        self._wanted = 0
        return rest

    def feed(self, data: bytes) -> list[Received]:
        """Add received bytes. Returns the frames that are now complete, in order."""
        self.put(data)
        return self.take(sys.maxsize)[0]

    def put(self, data: bytes) -> None:
        """Add received bytes."""
        if self.error is not None:
            return
        if self._data:
            self._data = self._data[self._at :] + data
            self._at = 0
        elif len(self._buffer) + len(data) < self._wanted:
            self._buffer += data
        elif self._buffer:
            self._data = b"".join((self._buffer, data))
            self._buffer.clear()
        else:
            self._data = data

    def take(self, units: int) -> tuple[list[Received], int]:
        """The next frames that are complete, in order, of so many units (`turns`) or a little more; and their units."""
        data, at, runs = self._data, self._at, self.runs
        if not data:
            return [], 0
        alike = runs.take_alike(data, at) if runs is not None else None
        if alike is None:
            return self._take_more([], 0, units)
        run, end = alike
        taken = (run.count + 1) // 2 + (end - at) // UNIT_BYTES
        if end < len(data):
            self._at = end
            return self._take_more([run], taken, units)
        self._data, self._at, self._wanted = b"", 0, _PREFIX_BYTES  # usual for a client that waits for each confirm
        return [run], taken

    def _take_more(self, frames: list[Received], taken: int, units: int) -> tuple[list[Received], int]:
        """Appends the next frames to those that were taken already."""
        data, at, runs = self._data, self._at, self.runs
        size = len(data)
        payload_bytes_max = self.frame_bytes_max - FRAME_OVERHEAD_BYTES
        unpack, append, kinds = _PREFIX.unpack_from, frames.append, _KINDS
        wanted = _PREFIX_BYTES
        while taken < units:
            if size - at < _PREFIX_BYTES:
                break
            kind, channel, length = unpack(data, at)
            if kind not in kinds:
                self._fail(f"frame type {kind} is unknown")
                return frames, taken
            if length > payload_bytes_max:
                self._fail(
                    f"a frame of {length} bytes on channel {channel} exceeds the negotiated {self.frame_bytes_max}"
                )
                return frames, taken
            if kind == METHOD and runs is not None:
                run = runs.take(data, at, channel, length)
                if run is not None:
                    append(run[0])
                    taken += (run[0].count + 1) // 2 + (run[1] - at) // UNIT_BYTES
                    at = run[1]
                    continue
            start = at + _PREFIX_BYTES
            end = start + length
            if end >= size:
                wanted = end + 1 - at
                break
            if data[end] != _END:
                self._fail("a frame does not end with its end octet")
                return frames, taken
            append((kind, channel, data[start:end]))
            taken += 1 + length // UNIT_BYTES
            at = end + 1
        else:
            if at < size:
                self._data, self._at = data, at
                return frames, taken
        self._data, self._at = b"", 0
        self._wanted = wanted
        if at < size:
            self._buffer += memoryview(data)[at:]
        return frames, taken

    def _fail(self, text: str) -> None:
        self.error = ConnectionException(FRAME_ERROR, text)
        self._data, self._at = b"", 0


_METHODS: Final[dict[int, type[base.Frame]]] = commands.INDEX_MAPPING
_ARGUMENT_KINDS: Final = {
    index: tuple(method.amqp_type(name) for name in method.attributes()) for index, method in _METHODS.items()
}


def method_index(payload: bytes) -> int:
    """Class and method id of a method frame, as pamqp numbers them. Raises `ConnectionException`."""
    if len(payload) < _METHOD_ID.size:
        raise ConnectionException(SYNTAX_ERROR, "a method frame is too short to contain its method's id")
    return int(_METHOD_ID.unpack_from(payload)[0])


def decode_method(index: int, payload: bytes) -> base.Frame:
    """Check and decode a method frame. Raises `ConnectionException` for unknown or malformed ones."""
    kinds = _ARGUMENT_KINDS.get(index)
    if kinds is None:
        raise ConnectionException(NOT_IMPLEMENTED, f"method {index >> 16}.{index & 0xFFFF} is not known to this broker")
    method = _METHODS[index]()
    try:
        check_arguments(kinds, payload, _METHOD_ID.size)
        method.unmarshal(payload[_METHOD_ID.size :])
    except (MalformedFields, ValueError, ArithmeticError, OSError) as error:
        # A well-formed value can still be an invalid date or number; pamqp then raises one of these.
        raise ConnectionException(SYNTAX_ERROR, f"{method.name} is malformed: {error}") from None
    return method


def method(channel: int, value: base.Frame) -> bytes:
    """A method frame, encoded by pamqp."""
    return pamqp_frame.marshal(value, channel)


def raw(frame: RawFrame) -> bytes:
    """The bytes of a frame."""
    kind, channel, payload = frame
    return b"".join((_PREFIX.pack(kind, channel, len(payload)), payload, _END_OCTET))


def short_string(text: str) -> bytes:
    """Length octet and UTF-8 bytes. Raises `ValueError` above 255 bytes."""
    data = text.encode()
    return bytes((len(data),)) + data


def _named_method(channel: int, index: int, arguments: bytes) -> bytes:
    return b"".join(
        (
            _PREFIX.pack(METHOD, channel, _METHOD_ID.size + len(arguments)),
            _METHOD_ID.pack(index),
            arguments,
            _END_OCTET,
        )
    )


def queue_declare_ok(channel: int, queue: str, messages: int, consumers: int) -> bytes:
    """queue.declare-ok, for a name with any characters."""
    counts = struct.pack(">II", min(messages, 0xFFFFFFFF), consumers)
    return _named_method(channel, commands.Queue.DeclareOk.index, short_string(queue) + counts)


def basic_return(channel: int, code: int, text: str, routing: bytes) -> bytes:
    """basic.return without its content; `routing` is the encoded exchange and routing key."""
    arguments = struct.pack(">H", code) + short_string(text) + routing
    return _named_method(channel, commands.Basic.Return.index, arguments)


def basic_get_ok(channel: int, tag: int, redelivered: bool, routing: bytes, messages: int) -> bytes:
    """basic.get-ok without its content."""
    arguments = struct.pack(">QB", tag, redelivered) + routing + struct.pack(">I", min(messages, 0xFFFFFFFF))
    return _named_method(channel, commands.Basic.GetOk.index, arguments)


def deliver_prefix(consumer_tag: str) -> bytes:
    """The first bytes of every basic.deliver to one consumer."""
    return _METHOD_ID.pack(commands.Basic.Deliver.index) + short_string(consumer_tag)


_TAG: Final = struct.Struct(">QB")
pack_tag: Final = _TAG.pack  # and redelivered flag
END_OCTET: Final = _END_OCTET


def basic_deliver(channel: int, prefix: bytes, tag: int, redelivered: bool, routing: bytes) -> bytes:
    """basic.deliver without its content."""
    size = len(prefix) + _TAG.size + len(routing)
    return b"".join((_PREFIX.pack(METHOD, channel, size), prefix, _TAG.pack(tag, redelivered), routing, _END_OCTET))


_ACK: Final = struct.Struct(">BHIIQBB")  # a whole frame


def basic_ack(channel: int, tag: int, *, multiple: bool) -> bytes:
    """basic.ack, as a publisher gets it for a confirm."""
    return _ACK.pack(METHOD, channel, 13, commands.Basic.Ack.index, tag, multiple, _END)


def delivery_template(
    channel: int, prefix: bytes, routing: bytes, properties: bytes, body_size: int
) -> tuple[bytes, bytes]:
    """The bytes before and after tag and redelivered flag in a delivery whose body fits into one frame.

    The body and an end octet follow the second part.
    """
    method_size = len(prefix) + _TAG.size + len(routing)
    before = _PREFIX.pack(METHOD, channel, method_size) + prefix
    head = _CONTENT.pack(_END, HEADER, channel, CONTENT_HEADER_BYTES + len(properties), _BASIC, 0, body_size)
    return before, b"".join((routing, head, properties, _BODY.pack(_END, BODY, channel, body_size)))


def content_start(channel: int, method_frame: bytes, properties: bytes, size: int) -> bytes:
    """A method frame and the header frame of its content."""
    head = _CONTENT.pack(_END, HEADER, channel, CONTENT_HEADER_BYTES + len(properties), _BASIC, 0, size)
    return b"".join((method_frame[:-1], head, properties, _END_OCTET))


def body_frame(channel: int, piece: bytes | memoryview) -> list[bytes | memoryview]:
    """One frame of a body."""
    return [_PREFIX.pack(BODY, channel, len(piece)), piece, _END_OCTET]


def with_content(
    channel: int, method_frame: bytes, properties: bytes, body: bytes | memoryview, frame_bytes_max: int
) -> list[bytes | memoryview]:
    """A method frame and its content frames, none longer than `frame_bytes_max`.

    If the body fits into one frame, the result is one piece; a longer body is returned in slices without
    a copy. The caller has checked that `properties` fit, because the header frame cannot be split.
    """
    size = len(body)
    head = _CONTENT.pack(_END, HEADER, channel, CONTENT_HEADER_BYTES + len(properties), _BASIC, 0, size)
    if not size:
        return [b"".join((method_frame[:-1], head, properties, _END_OCTET))]
    payload_bytes_max = frame_bytes_max - FRAME_OVERHEAD_BYTES
    if size <= payload_bytes_max:
        piece = _BODY.pack(_END, BODY, channel, size)
        return [b"".join((method_frame[:-1], head, properties, piece, body, _END_OCTET))]
    parts: list[bytes | memoryview] = [b"".join((method_frame[:-1], head, properties))]
    view = memoryview(body)
    for at in range(0, size, payload_bytes_max):
        piece_view = view[at : at + payload_bytes_max]
        parts.append(_BODY.pack(_END, BODY, channel, len(piece_view)))
        parts.append(piece_view)
    parts.append(_END_OCTET)
    return parts
