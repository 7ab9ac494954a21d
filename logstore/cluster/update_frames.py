"""The bytes of an update over a connection of its own.

    receiver                                    sender
    Request(store, index) ────────────────────▶
                          ◀──────────────────── Wait …                 (or Refused, from either side at any time)
                          ◀──────────────────── Offer, Segments …
    Ask(number, part) ────────────────────────▶
                          ◀──────────────────── Piece(number), its bytes …
    Ack(bytes so far) … ──────────────────────▶
    Ended ────────────────────────────────────▶

Each message is a control frame as ``frames`` has it, with a checksum. A piece's bytes follow its message and have a
checksum of their own there: damage among them loses this piece and not the place in the stream. Anything else that
cannot be meant ends the update.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, Unpack

from xxhash import xxh64_intdigest

from logstore._core import lib
from logstore.cluster import frames
from logstore.cluster.control_streams import read_control
from logstore.cluster.frames import BadFrame, Message, Messages, Refused
from logstore.cluster.replica import UUID_BYTES
from logstore.cluster.update import Manifest, Segment
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Executor

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

PIECE_BYTES_MAX: Final = 256 << 10
CATALOG: Final = 0  # in place of a segment's first LSN: the catalog's file
CATALOG_BYTES_MAX: Final = 16 << 30
SEGMENTS_MAX: Final = lib.LS_UPDATE_SEGMENTS_MAX
ROWS_MAX: Final = 1024  # rows of one message, at most 46 bytes each
QUIET_S: Final = 600.0
"""A side that is silent for longer is given up. It is long, because a receiver copies and opens a log meanwhile."""
LOOK_S: Final = 10.0
"""So often does a receiver ask whether a silent sender, whose disk may hang, is still the one to wait for."""

LINGER_S: Final = 1.0  # time for a peer to close after it was refused
REASON_MAX: Final = 4096


class Why(enum.StrEnum):
    """Why an update ended; ``UpdateFailed.kind``."""

    STORE = "other store"
    BEHIND = "the sender is behind"
    WAITED = "the sender has waited too long"
    RECYCLED = "recycled"
    CATALOG = "no catalog"
    DAMAGED = "damaged"
    REFUSED = "refused by the receiver"
    MEMBERS = "other members"
    FRAME = "bad frame"
    LOST = "the connection is lost"
    SILENT = "silent"
    FAILED = "failed"


class UpdateFailed(StoreError):
    """An update ended before the new copy was in use. The text says why, and what to do.

    What the receiver has stays in its directory: another update, also from another member, goes on with it.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
        """One of :class:`Why`; a later program may send others."""
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return UpdateFailed, (self.kind, self.reason)


class Request(Message, frozen=True, tag=16):
    """The first message of the receiver."""

    uuid: bytes
    """The store's."""
    index: int
    """The update is to end at or above this batch."""


class Wait(Message, frozen=True, tag=17):
    """The sender is not ready yet, and keeps trying."""

    reason: str


class Offer(Message, frozen=True, tag=18):
    """The manifest without its segments, and what is sent in addition."""

    uuid: bytes
    segment_size: int
    max_undurable_bytes: int
    created_us: int
    end_lsn: int
    term: int
    index: int
    segments: int
    catalog_bytes: int
    catalog_checksum: int
    """XXH64 of the catalog's file."""
    members_index: int
    members: bytes
    """The newest configuration below the end, and the index of its batch."""


class Segments(Message, frozen=True, tag=19):
    """The next rows of the manifest: first LSN, term, end of the log before it, bytes, checksum."""

    rows: list[tuple[int, int, int, int, int]]


class Ask(Message, frozen=True, tag=20):
    """The receiver asks for this part, and for nothing more of an earlier one."""

    number: int
    """Larger than that of the one before."""
    first_lsn: int
    """Of the segment; ``CATALOG``: the catalog's file."""
    offset: int
    bytes: int


class Piece(Message, frozen=True, tag=21):
    """The next bytes of the part that was asked for; they follow this message."""

    number: int
    bytes: int
    checksum: int


class Ack(Message, frozen=True, tag=22):
    """The receiver has processed this many bytes of pieces on this connection."""

    bytes: int


class Ended(Message, frozen=True, tag=23):
    """The last message of the receiver."""

    switched: bool
    """Whether the copy counts now."""
    reason: str


MESSAGES: Final = Messages((Request, Wait, Offer, Segments, Ask, Piece, Ack, Ended))


def manifest_of(offer: Offer, segments: list[Segment]) -> Manifest:
    """The manifest that was offered."""
    numbers = offer.end_lsn, offer.term, offer.index
    return Manifest(
        offer.uuid, offer.segment_size, offer.max_undurable_bytes, offer.created_us, *numbers, tuple(segments)
    )


def judge_offer(offer: Offer) -> None:
    """Raises :class:`BadFrame` for numbers beyond their limits. What they say together is the core's to judge."""
    if len(offer.uuid) != UUID_BYTES or not 0 < offer.segments <= SEGMENTS_MAX:
        raise BadFrame(f"an offer has {offer.segments} segments, and a UUID of {len(offer.uuid)} bytes")
    numbers = offer.segment_size, offer.max_undurable_bytes, offer.created_us, offer.end_lsn, offer.term, offer.index
    if not all(0 <= number <= frames.LSN_MAX for number in (*numbers, offer.members_index)):
        raise BadFrame(f"an offer has an impossible number among {numbers}, {offer.members_index}")
    if not 0 < offer.catalog_bytes <= CATALOG_BYTES_MAX or not 0 <= offer.catalog_checksum < 1 << 64:
        raise BadFrame(f"an offer has a catalog of {offer.catalog_bytes} bytes")
    if not 0 < len(offer.members) <= frames.CONFIGURATION_MAX:
        raise BadFrame(f"an offer has a configuration of {len(offer.members)} bytes")


def segments_of(message: Segments, room: int) -> list[Segment]:
    """The rows of a message, of which at most ``room`` are expected."""
    if not 0 < len(message.rows) <= min(room, ROWS_MAX):
        raise BadFrame(f"{len(message.rows)} rows of a manifest came, and {room} are left")
    if not all(0 <= number < 1 << 64 for row in message.rows for number in row):
        raise BadFrame("a row of a manifest has an impossible number")
    return [Segment(*row) for row in message.rows]


async def on_disk(executor: Executor, work: Callable[[Unpack[_Ts]], _T], *args: *_Ts) -> _T:
    """Runs a function in the executor. A cancelled caller waits for its end, so that the next call is alone."""
    return await ended(asyncio.get_running_loop().run_in_executor(executor, work, *args))


async def ended(running: asyncio.Future[_T]) -> _T:
    """Waits for the result of a thread's work. A cancelled caller waits for its end, and is cancelled then."""
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # the cancellation counts
        raise


class Connection:
    """Messages over a pair of streams. What the peer or the network does wrong is :class:`UpdateFailed`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replaced: Callable[[], bool] | None = None
    ) -> None:
        """``replaced``: whether another peer is to be asked, if this one is silent; see ``receive_update``."""
        self._reader = reader
        self._writer = writer
        self._replaced = replaced
        self._is_told = False  # by the peer: it closes

    async def send(self, message: Message, data: bytes = b"") -> None:
        """Sends a message, with a piece's bytes; returns when the socket has room for more."""
        self.check_open()
        try:
            self._writer.write(MESSAGES.frame(message))
            if data:
                self._writer.write(data)
            async with asyncio.timeout(QUIET_S):
                await self._writer.drain()
        except TimeoutError:
            raise UpdateFailed(Why.SILENT, f"the peer has read nothing for {QUIET_S:.0f} s") from None
        except OSError as error:
            raise _lost(error) from error

    async def receive(self) -> Message:
        """The next message. ``Refused`` is raised."""
        message = await self._come(read_control(self._reader, MESSAGES, "an update"))
        if isinstance(message, Refused):
            self._is_told = True
            raise UpdateFailed(message.kind, message.reason)
        return message

    async def data(self, piece: Piece) -> bytes | None:
        """The bytes of a piece; None: they are damaged."""
        if not 0 < piece.bytes <= PIECE_BYTES_MAX:
            raise BadFrame(f"a piece has {piece.bytes} bytes, and may have {PIECE_BYTES_MAX}")
        data = await self._come(self._reader.readexactly(piece.bytes))
        return data if xxh64_intdigest(data) == piece.checksum else None

    async def _come(self, read: Coroutine[Any, Any, _T]) -> _T:
        """Waits for the peer for at most ``QUIET_S``, or ``LOOK_S`` where ``replaced`` says that another one leads."""
        reading = asyncio.create_task(read)
        try:
            for _ in range(round(QUIET_S / LOOK_S)):
                done, _ = await asyncio.wait([reading], timeout=LOOK_S)
                if done:
                    return await reading
                if self._replaced is not None and self._replaced():
                    raise UpdateFailed(Why.SILENT, f"nothing came for {LOOK_S:.0f} s, and another member leads")
            raise UpdateFailed(Why.SILENT, f"nothing came for {QUIET_S:.0f} s: try another member")
        except (asyncio.IncompleteReadError, OSError) as error:
            raise _lost(error) from error
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)  # the next reader must be alone

    def check_open(self) -> None:
        """Raises :class:`UpdateFailed` if the connection has ended: a transport of uvloop then ignores writes."""
        if self._reader.at_eof() or self._writer.is_closing():
            raise _lost(ConnectionError("the peer closed it"))

    async def refuse(self, kind: str, reason: str) -> None:
        """Sends the reason why this side ends the update, and closes after the peer has closed.

        Closing at once would reset a connection on which the peer still sends, and with that the reason may be lost.
        """
        if self._is_told:
            self.close()
            return
        with contextlib.suppress(OSError, RuntimeError):  # the transport of uvloop raises the latter after it has ended
            self._writer.write(MESSAGES.frame(Refused(kind, reason[:REASON_MAX])))
            async with asyncio.timeout(LINGER_S):
                while await self._reader.read(PIECE_BYTES_MAX):
                    pass
        self.close()

    def close(self) -> None:
        """Closes the connection; bytes that were sent before still go out."""
        self._writer.close()

    def abort(self) -> None:
        """Closes the connection at once."""
        self._writer.transport.abort()


def _lost(error: BaseException) -> UpdateFailed:
    what = "the peer closed it" if isinstance(error, asyncio.IncompleteReadError) else str(error) or repr(error)
    return UpdateFailed(Why.LOST, f"{what}; begin again, with this member or another one, which goes on from here")
