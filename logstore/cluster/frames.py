"""The bytes between two members. Pure: no socket, no store, no engine.

    ┌──────────┬─ HELLO ─┐  ┌─ head ─┬─ control ─┐  ┌─ head ─┬ record │ record … ┐  ┌─ long head ─┬─ part ─┐
    │ 24 bytes │ msgpack │  │   16   │  msgpack  │  │   16   │   40   │    40    │  │     48      │        │ …
    └──────────┴─────────┘  └────────┴───────────┘  └────────┴────────┴──────────┘  └─────────────┴────────┘

* A frame is taken if and only if its length is possible, its checksum is right, and every field has a meaning. All
  else is :class:`BadFrame`, and nothing of that frame is delivered.
* Checksums are XXH64 with seed 0. They find damage, not forgery: that is the business of TLS.
* Numbers are little-endian.

A message is an ``APPEND`` of the engine with its batches. It is cut into parts, a frame each; the receiver joins them.
docs/replication.md has the tables.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias

import msgspec
from xxhash import xxh64, xxh64_intdigest

from logstore.cluster.replica import HEADER_BYTES, UUID_BYTES, Batch
from logstore.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logstore.cluster.engine import Frame

MAGIC: Final = b"LSMEMBER"
#: The lowest and the highest version of the protocol that this program speaks. Their frames are equal; a program that
#: announces 2 knows the states of places: notes, headers, times, delivery counts, moves.
VERSIONS: Final = (1, 2)
STATES_OF_PLACES: Final = 2

FRAME_BYTES_MAX: Final = 256 << 10
CONTROL_BYTES_MAX: Final = 64 << 10
BATCH_BYTES_MAX: Final = 2 << 20  # of docs/format.md
BATCH_BYTES_MIN: Final = 104  # a batch record
MESSAGE_BYTES_MAX: Final = 16 << 20  # in frames: what may be unacknowledged
ENTRIES_MAX: Final = 64  # of one engine frame
CONFIGURATION_MAX: Final = 4032
LSN_MAX: Final = (1 << 63) - 1
_BUFFER_BYTES: Final = 2 * FRAME_BYTES_MAX  # the largest frame, and the bytes received behind it

PREAMBLE: Final = struct.Struct("<8sHHIQ")  # magic, lowest and highest version, bytes of HELLO, checksum
HEAD: Final = struct.Struct("<QIBBH")  # checksum, length, type, flags, number
DATA: Final = struct.Struct("<QIBBHIIIIQQ")  # the same; host, offset, total, term, index, lsn
RECORD: Final = struct.Struct("<IBBHIIQQQ")  # host, type, flags, 0, term, index_term, group, index, other
APPEND: Final = struct.Struct("<IIQQ")  # index_term, flags, group, other
BATCH: Final = struct.Struct("<IBBHQQQQQ")  # term, kind, header, configuration, index, lsn, end, first, known durable
_CHECKSUM: Final = struct.Struct("<Q")
_CHECKED_FROM: Final = 8  # a checksum covers everything behind it

# Types of frames.
CONTROL: Final = 1
RECORDS: Final = 2
PART: Final = 3

SKIPPABLE: Final = 1  # flag of a control frame: a receiver that does not know its number ignores the frame

# Types of records beyond those of the engine, which are 1 to 6 (test_frames.py compares them).
TYPE_APPEND: Final = 1
TYPE_LAST: Final = 6
TYPE_ACK: Final = 0x80  # index: bytes of parts that the receiver has consumed on this connection

# Kinds of entries, as the engine has them: a batch, the first of a term, a configuration.
KINDS: Final = (1, 2, 3)
KIND_MEMBERS: Final = 3

RECORDS_MAX: Final = (FRAME_BYTES_MAX - HEAD.size) // RECORD.size
PART_BYTES_MAX: Final = FRAME_BYTES_MAX - DATA.size

Fields: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, tuple[tuple[int, int, bytes], ...]]
"""An ``engine.Frame`` as a plain tuple: ``Frame._make(fields)``; entries are (term, kind, configuration)."""


class BadFrame(Exception):
    """A peer sent bytes that violate the protocol.

    The connection closes with this reason; it never leaves the transport.
    """


class Carried(NamedTuple):
    """A batch to send, with the engine's data about it."""

    batch: Batch
    kind: int
    """``engine.BATCH``, ``FIRST`` or ``MEMBERS``."""
    configuration: bytes = b""
    """Of ``MEMBERS``."""


# ---- Control: what is said once ---------------------------------------------------------------------------


class Message(msgspec.Struct, frozen=True):
    """A control message. A subclass has an integer tag from 16 on, its number; unknown fields are ignored."""

    skippable: ClassVar[bool] = False
    """Whether a program that does not know the number ignores it, instead of closing the connection."""


class Identity(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state of a host on a member's disk (R10)."""

    rebuild: int
    tail_term: int
    tail_index: int
    vote_term_at_start: int
    first: bool
    """Whether this is the first connection of this run to the peer."""


class Hello(msgspec.Struct, frozen=True):
    """The first message of each side."""

    cluster: bytes
    """Zeros, with ``join``: not known yet."""
    member: int
    name: str
    program: str
    """Version of the program."""
    versions: tuple[int, int]
    """The lowest and the highest version of the wire, as in the preamble."""
    start: int
    """Of the process: larger than that of any earlier process of the member."""
    connection: int
    """Grows with each dial of the process; 0 from the side that was dialled."""
    seen_start: int
    seen_connection: int
    """The newest dial of the peer that this side took; 0, 0: none. It tells which of two dials crossed."""
    purpose: str
    """``frames``, ``update``, ``join`` or ``relay``."""
    hosts: dict[bytes, Identity]
    """By the store's UUID."""


class Welcome(Message, frozen=True, tag=1):
    """The answer to a HELLO that is accepted."""


class Refused(Message, frozen=True, tag=2):
    """The answer to a HELLO that is refused; the connection closes."""

    kind: str
    reason: str


class Closing(Message, frozen=True, tag=3):
    """The connection closes for this reason. No answer."""

    kind: str
    reason: str


class HostNumber(Message, frozen=True, tag=4):
    """From now on the sender uses this number for the store with this UUID."""

    number: int
    uuid: bytes


OWN_MESSAGES: Final = (Welcome, Refused, Closing, HostNumber)
FIRST_FREE_TAG: Final = 16


class Messages:
    """The control messages that a program knows, by number."""

    def __init__(self, more: Iterable[type[Message]] = ()) -> None:
        """``OptionError``: a number is in use already, or is out of range."""
        self._decoders: dict[int, msgspec.msgpack.Decoder[Message]] = {}
        self._encoder = msgspec.msgpack.Encoder()
        for kinds, least in ((OWN_MESSAGES, 1), (tuple(more), FIRST_FREE_TAG)):
            for kind in kinds:
                tag = kind.__struct_config__.tag
                if not isinstance(tag, int) or not least <= tag <= 0xFFFF or tag in self._decoders:
                    raise OptionError(f"{kind.__name__} needs a tag of its own, from {least} to 65535, not {tag!r}")
                self._decoders[tag] = msgspec.msgpack.Decoder(kind)

    def frame(self, message: Message) -> bytearray:
        """The frame that carries a message. ``OptionError``: it is too long, or of a kind that was not given here."""
        tag = message.__struct_config__.tag
        if tag not in self._decoders:
            raise OptionError(f"{type(message).__name__} is no control message of this program")
        try:
            body = self._encoder.encode(message)
        except (TypeError, OverflowError, ValueError) as error:
            raise OptionError(f"a control message {type(message).__name__}: {error}") from None
        if len(body) > CONTROL_BYTES_MAX - HEAD.size:
            raise OptionError(f"a control message has at most {CONTROL_BYTES_MAX} bytes, not {len(body)}")
        made = bytearray(HEAD.size + len(body))
        HEAD.pack_into(made, 0, 0, len(made), CONTROL, SKIPPABLE if message.skippable else 0, int(tag))
        made[HEAD.size :] = body
        return _sealed(made)

    def read(self, frame: memoryview) -> Message | None:
        """The message in a control frame; None: an unknown one that may be skipped."""
        _, length, _, flags, tag = HEAD.unpack_from(frame)
        if length > CONTROL_BYTES_MAX or flags & ~SKIPPABLE:
            raise BadFrame(f"a control frame has {length} bytes and flags {flags:#x}")
        decoder = self._decoders.get(tag)
        if decoder is None:
            if flags & SKIPPABLE:
                return None
            raise BadFrame(f"control message {tag} is unknown here")
        try:
            return decoder.decode(frame[HEAD.size :])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame(f"control message {tag}: {error}") from None


_HELLO_DECODER: Final = msgspec.msgpack.Decoder(Hello)


def hello_bytes(hello: Hello | None, versions: tuple[int, int] = VERSIONS) -> bytes:
    """The preamble, followed by HELLO. None: no HELLO follows, but a refusal. ``OptionError``: too many hosts."""
    body = b"" if hello is None else msgspec.msgpack.encode(hello)
    lowest, highest = versions if hello is None else hello.versions
    if len(body) > CONTROL_BYTES_MAX:
        raise OptionError(
            f"a HELLO has at most {CONTROL_BYTES_MAX} bytes, not {len(body)}: let this member have fewer hosts"
        )
    made = PREAMBLE.pack(MAGIC, lowest, highest, len(body), 0)
    digest = xxh64(made[:-8])
    digest.update(body)
    return made[:-8] + _CHECKSUM.pack(digest.intdigest()) + body


def hello_of(body: bytes) -> Hello:
    """Reads HELLO. Versions are judged before: a later one may have other fields."""
    try:
        hello = _HELLO_DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"HELLO: {error}") from None
    sizes = {len(hello.cluster)} | {len(uuid) for uuid in hello.hosts}
    if sizes != {UUID_BYTES}:
        raise BadFrame(f"HELLO: a UUID has {UUID_BYTES} bytes")
    return hello


# ---- Records: engine frames without entries ---------------------------------------------------------------


def record(host: int, frame: Frame) -> bytes:
    """An engine frame without entries. ``OptionError``: it cannot be expressed."""
    group, _, term, index, index_term, other, kind, flags, count, _ = frame
    if count or not 0 < kind <= TYPE_LAST:
        raise OptionError(f"an engine frame of type {kind} with {count} entries is no record")
    try:
        return RECORD.pack(host, kind, flags, 0, term, index_term, group, index, other)
    except struct.error as error:
        raise OptionError(f"an engine frame: {error}") from None


def ack(consumed_bytes: int) -> bytes:
    """The record in which a receiver says how many bytes of parts it has consumed."""
    return RECORD.pack(0, TYPE_ACK, 0, 0, 0, 0, 0, consumed_bytes, 0)


def records_frame(records: Sequence[bytes]) -> bytearray:
    """The frame of at most ``RECORDS_MAX`` records; without any it is a ping."""
    made = bytearray(HEAD.size)
    made += b"".join(records)
    HEAD.pack_into(made, 0, 0, len(made), RECORDS, 0, len(records))
    return _sealed(made)


def records_of(frame: memoryview, peer: int) -> list[tuple[int, Fields]]:
    """The records of a frame: the sender's host number, and the fields. Of an ``ACK`` only type and index count."""
    _, length, _, flags, count = HEAD.unpack_from(frame)
    if flags or length != HEAD.size + count * RECORD.size:
        raise BadFrame(f"a frame of {count} records has {length} bytes and flags {flags:#x}")
    found: list[tuple[int, Fields]] = []
    for host, kind, bits, zero, term, index_term, group, index, other in RECORD.iter_unpack(frame[HEAD.size :]):
        if zero or not (0 < kind <= TYPE_LAST or kind == TYPE_ACK):
            raise BadFrame(f"a record of type {kind} is unknown here")
        found.append((host, (group, peer, term, index, index_term, other, kind, bits, 0, ())))
    return found


# ---- Messages: engine frames with entries -----------------------------------------------------------------


def message_parts(host: int, frame: Frame, carried: Sequence[Carried]) -> list[list[bytes | bytearray | memoryview]]:
    """The frames of an ``APPEND`` with its batches, each as buffers to be written one after the other.

    ``OptionError``: frame and batches contradict each other, or a limit is exceeded. Batches are not copied, unless
    they are small.
    """
    group, _, term, index, index_term, other, kind, flags, count, _ = frame
    if kind != TYPE_APPEND or count != len(carried) or not 0 < count <= ENTRIES_MAX:
        raise OptionError(f"an engine frame of type {kind} with {count} entries has {len(carried)} batches")
    lead = bytearray(DATA.size)
    bodies: list[bytes] = []
    try:
        lead += APPEND.pack(index_term, flags, group, other)
        for at, (batch, what, configuration) in enumerate(carried, index + 1):
            _judge_batch(batch, at, what, len(configuration))
            header = batch.header or b""
            has_header = batch.header is not None
            if len(batch.data) != batch.end_lsn - batch.lsn or len(header) != has_header * HEADER_BYTES:
                raise BadFrame(f"batch {batch.index} has not the bytes that its LSNs say")
            lead += BATCH.pack(
                batch.term, what, has_header, len(configuration), batch.index, batch.lsn, batch.end_lsn,
                batch.first_lsn, batch.known_durable_lsn,
            )  # fmt: skip
            bodies += (header, batch.data, configuration)
        total = len(lead) - DATA.size + sum(map(len, bodies))
        if _in_frames(total) > MESSAGE_BYTES_MAX:
            raise BadFrame(f"a message has at most {MESSAGE_BYTES_MAX} bytes, not {_in_frames(total)}")
        lsn = carried[0].batch.lsn
        if total <= PART_BYTES_MAX:
            DATA.pack_into(lead, 0, 0, DATA.size + total, PART, 0, count, host, 0, total, term, index, lsn)
            return [_sealed_buffers(lead, bodies)]
        parts = []
        offset = 0
        for buffers in _cut([memoryview(lead)[DATA.size :], *(memoryview(body) for body in bodies)], PART_BYTES_MAX):
            head = bytearray(DATA.size)
            length = sum(map(len, buffers))
            DATA.pack_into(head, 0, 0, DATA.size + length, PART, 0, count, host, offset, total, term, index, lsn)
            parts.append(_sealed_buffers(head, buffers))
            offset += length
    except (struct.error, BadFrame) as error:
        raise OptionError(f"an engine frame with batches: {error}") from None
    return parts


def message_bytes(carried: Iterable[Carried]) -> int:
    """The bytes that a message with these batches takes from a peer's room."""
    total = APPEND.size
    for batch, _, configuration in carried:
        total += BATCH.size + len(batch.header or b"") + len(batch.data) + len(configuration)
    return _in_frames(total)


def _in_frames(total: int) -> int:
    return total + -(-total // PART_BYTES_MAX) * DATA.size


class Part(NamedTuple):
    """The head of a part. All parts of a message have the same, but for the offset."""

    batches: int
    host: int
    offset: int
    total: int
    term: int
    log_index: int
    lsn: int


class _Open(NamedTuple):
    first: Part
    joined: bytearray
    filled: int
    bytes_in_frames: int


class Joiner:
    """Joins the parts of messages. Parts of different hosts may alternate; those of one host come in order."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}  # by host
        self._open_bytes = 0  # bytes of these messages once they are complete

    def is_open(self, host: int) -> bool:
        """Whether a message of this host is incomplete, so that no other frame of the host may come."""
        return host in self._open

    def take(self, frame: memoryview, peer: int) -> tuple[int, Fields, list[Batch], int] | None:
        """Adds one part of a message.

        If its message is complete: the host's number, the frame, the batches, bytes in frames.
        """
        if len(frame) < DATA.size:
            raise BadFrame(f"a part has {len(frame)} bytes")
        _, length, _, flags, *rest = DATA.unpack_from(frame)
        part = Part(*rest)
        size = length - DATA.size
        if flags or part.offset + size > part.total or not 0 < part.batches <= ENTRIES_MAX:
            raise BadFrame(f"a part of {size} bytes at {part.offset} of {part.total}, {part.batches} batches")
        held = self._open.get(part.host)
        if held is None and size == part.total:
            return _message_of(part, frame[DATA.size :], peer, length)
        if held is None:
            self._open_bytes += part.total
            if self._open_bytes > MESSAGE_BYTES_MAX:
                raise BadFrame(f"incomplete messages have {self._open_bytes} bytes")
            held = _Open(part, bytearray(part.total), 0, 0)
        if size == 0 or part != held.first._replace(offset=held.filled):
            raise BadFrame(f"a part of host number {part.host} does not follow the one before it")
        filled = held.filled + size
        held.joined[held.filled : filled] = frame[DATA.size :]
        held = held._replace(filled=filled, bytes_in_frames=held.bytes_in_frames + length)
        if filled < part.total:
            self._open[part.host] = held
            return None
        del self._open[part.host]
        self._open_bytes -= part.total
        return _message_of(held.first, memoryview(held.joined), peer, held.bytes_in_frames)


def _message_of(part: Part, body: memoryview, peer: int, bytes_in_frames: int) -> tuple[int, Fields, list[Batch], int]:
    at = APPEND.size + part.batches * BATCH.size
    if at > len(body):
        raise BadFrame(f"a message of {len(body)} bytes has no room for {part.batches} batches")
    index_term, flags, group, other = APPEND.unpack_from(body)
    if flags > 0xFF:
        raise BadFrame(f"an engine frame has flags {flags:#x}")
    batches = []
    entries = []
    for number, described in enumerate(BATCH.iter_unpack(body[APPEND.size : at]), part.log_index + 1):
        term, kind, has_header, configuration, index, lsn, end_lsn, first_lsn, known_durable_lsn = described
        header = None
        if has_header:
            header = bytes(body[at : at + HEADER_BYTES])
            at += HEADER_BYTES
        data = bytes(body[at : at + max(0, end_lsn - lsn)])
        at += len(data)
        batch = Batch(term, index, lsn, end_lsn, first_lsn, known_durable_lsn, header, data)
        _judge_batch(batch, number, kind, configuration)
        entries.append((term, kind, bytes(body[at : at + configuration])))
        at += configuration
        batches.append(batch)
        if has_header > 1 or len(data) != end_lsn - lsn or at > len(body):
            raise BadFrame(f"batch {index} does not lie in its message")
    if at != len(body) or batches[0].lsn != part.lsn:
        raise BadFrame(f"a message of {len(body)} bytes has batches up to {at}, the first at LSN {batches[0].lsn}")
    fields = group, peer, part.term, part.log_index, index_term, other, TYPE_APPEND, flags, part.batches, tuple(entries)
    return part.host, fields, batches, bytes_in_frames


def _judge_batch(batch: Batch, index: int, kind: int, configuration_bytes: int) -> None:
    size = batch.end_lsn - batch.lsn
    if not BATCH_BYTES_MIN <= size <= BATCH_BYTES_MAX or batch.end_lsn > LSN_MAX or batch.first_lsn > batch.lsn:
        raise BadFrame(f"batch {batch.index} reaches from LSN {batch.lsn} to {batch.end_lsn}, in {batch.first_lsn}")
    if batch.index != index or kind not in KINDS:
        raise BadFrame(f"batch {batch.index} of kind {kind} stands where batch {index} belongs")
    if (kind == KIND_MEMBERS) != (configuration_bytes > 0) or configuration_bytes > CONFIGURATION_MAX:
        raise BadFrame(f"batch {index} of kind {kind} has a configuration of {configuration_bytes} bytes")


def _cut(buffers: Iterable[memoryview], size: int) -> Iterable[list[memoryview]]:
    """The bytes of the buffers in portions of ``size`` bytes; the last may be shorter."""
    portion: list[memoryview] = []
    room = size
    for whole in buffers:
        left = whole
        while left:
            portion.append(left[:room])
            left = left[room:]
            room -= len(portion[-1])
            if room == 0:
                yield portion
                portion, room = [], size
    if portion:
        yield portion


# ---- Reading a connection ---------------------------------------------------------------------------------


class Reader:
    """Cuts the received bytes of one connection into frames, and checks their checksums.

    Bytes are put into :meth:`room` and counted with :meth:`filled`. A frame is a view that is valid until the next call
    of :meth:`room`.
    """

    def __init__(self) -> None:
        self._bytes = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._bytes)
        self._start = 0
        self._end = 0

    def room(self) -> memoryview:
        """The memory for the next received bytes; never empty."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start + FRAME_BYTES_MAX > _BUFFER_BYTES:
            have = self._end - self._start
            self._view[:have] = self._view[self._start : self._end]
            self._start, self._end = 0, have
        return self._view[self._end :]

    def filled(self, count: int) -> None:
        """Notes that this many bytes were received into that memory."""
        self._end += count

    def rest(self) -> bytes:
        """Returns and removes all bytes that belong to no frame returned before."""
        found = bytes(self._view[self._start : self._end])
        self._start = self._end = 0
        return found

    def drop(self) -> None:
        """Frees the memory: no bytes come here any more."""
        self._bytes = bytearray()
        self._view = memoryview(self._bytes)
        self._start = self._end = 0

    def preamble(self) -> tuple[int, int, bytes] | None:
        """Reads the preamble and what follows it: lowest and highest version, HELLO (empty: none).

        None: not all is there.
        """
        have = self._end - self._start
        known = bytes(self._view[self._start : self._start + min(have, len(MAGIC))])
        if not MAGIC.startswith(known):
            raise BadFrame("this is no member of a cluster")
        if have < PREAMBLE.size:
            return None
        _, lowest, highest, size, checksum = PREAMBLE.unpack_from(self._bytes, self._start)
        if size > CONTROL_BYTES_MAX or lowest > highest:
            raise BadFrame(f"a preamble has versions {lowest} to {highest}, and a HELLO of {size} bytes")
        if have < PREAMBLE.size + size:
            return None
        begin = self._start
        self._start = begin + PREAMBLE.size + size
        body = bytes(self._view[begin + PREAMBLE.size : self._start])
        digest = xxh64(self._view[begin : begin + PREAMBLE.size - _CHECKSUM.size])
        digest.update(body)
        if digest.intdigest() != checksum:
            raise BadFrame("the checksum of HELLO is wrong")
        return lowest, highest, body

    def frame(self) -> tuple[int, memoryview] | None:
        """The next frame and its type. None: not all of it is there."""
        have = self._end - self._start
        if have < HEAD.size:
            return None
        _, length, kind, _, _ = HEAD.unpack_from(self._bytes, self._start)
        if not HEAD.size <= length <= FRAME_BYTES_MAX or not CONTROL <= kind <= PART:
            raise BadFrame(f"a frame of type {kind} has {length} bytes")
        if have < length:
            return None
        found = self._view[self._start : self._start + length]
        self._start += length
        if not is_sealed(found):
            raise BadFrame(f"the checksum of a frame of type {kind} with {length} bytes is wrong")
        return kind, found


def is_sealed(frame: bytes | memoryview) -> bool:
    """Whether the checksum of a whole frame is right."""
    return bool(_CHECKSUM.unpack_from(frame)[0] == xxh64_intdigest(memoryview(frame)[_CHECKED_FROM:]))


def _sealed(frame: bytearray) -> bytearray:
    _CHECKSUM.pack_into(frame, 0, xxh64_intdigest(memoryview(frame)[_CHECKED_FROM:]))
    return frame


_SMALL_BYTES: Final = 8 << 10  # to copy this many bytes costs less than one more buffer in a write


def _sealed_buffers(head: bytearray, buffers: Sequence[bytes | memoryview]) -> list[bytes | bytearray | memoryview]:
    """Joins a frame's head, whose checksum is added here, with the buffers behind it."""
    if sum(map(len, buffers)) <= _SMALL_BYTES:
        head += b"".join(buffers)
        return [_sealed(head)]
    digest = xxh64(memoryview(head)[_CHECKED_FROM:])
    filled = [buffer for buffer in buffers if buffer]
    for buffer in filled:
        digest.update(buffer)
    _CHECKSUM.pack_into(head, 0, digest.intdigest())
    return [head, *filled]
