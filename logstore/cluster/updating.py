"""An update over a connection: :func:`send_update` on the member that has the log, :func:`receive_update` on the other.

Both run on a loop and do everything that may wait for a disk in an executor, one call at a time. The bytes between them
are in ``update_frames``; what an update is, and what always holds, in ``update``.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from xxhash import xxh64

from logstore import errors
from logstore.catalog.backends import FILE_NAME, SIDE_NAMES
from logstore.catalog.changes import applied_lsn
from logstore.cluster.frames import BadFrame
from logstore.cluster.update import Manifest, Part, Segment, Update
from logstore.cluster.update_frames import (
    CATALOG,
    PIECE_BYTES_MAX,
    REASON_MAX,
    Ack,
    Ask,
    Connection,
    Ended,
    Offer,
    Piece,
    Request,
    Segments,
    UpdateFailed,
    Wait,
    Why,
    judge_offer,
    manifest_of,
    on_disk,
    segments_of,
)
from logstore.cluster.update_sending import Sending, Sent, asked_for
from logstore.core import arguments
from logstore.core.regular_files import open_regular
from logstore.holds import LIMIT_BYTES, LIMIT_BYTES_MAX, LogRecycled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from concurrent.futures import Executor
    from pathlib import Path

    from logstore.cluster.replica import Copy

__all__ = [
    "Received",
    "Request",
    "Sent",
    "UpdateFailed",
    "Why",
    "read_request",
    "receive_update",
    "refuse_update",
    "send_update",
]

RATE: Final = 64 << 20  # bytes a second
IN_FLIGHT: Final = 4 << 20
PAUSE_S: Final = 0.1
AGAIN_MAX: Final = 8  # how often one update asks again for damaged bytes


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request:
    """Reads which store a peer wants, for a program that has more than one store; then call :func:`send_update`.

    Raises :class:`UpdateFailed`; the peer has got the reason, and the connection is closed.
    """
    connection = Connection(reader, writer)
    try:
        async with _peer_learns(connection):
            return await asked_for(connection)
    except BaseException:
        connection.close()
        raise


async def refuse_update(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: str, reason: str) -> None:
    """Tells a peer why it gets no update, and closes the connection."""
    await Connection(reader, writer).refuse(kind, reason)


async def send_update(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    store_dir: str | os.PathLike[str],
    *,
    uuid: bytes,
    executor: Executor,
    rate: int = RATE,
    in_flight: int = IN_FLIGHT,
    limit_bytes: int = LIMIT_BYTES,
    moved: Callable[[], Awaitable[None]] | None = None,
    request: Request | None = None,
) -> Sent:
    """Sends the log and the catalog of the store in ``store_dir``, with this UUID, and closes the connection.

    It sends at most ``rate`` bytes a second, and keeps at most ``in_flight`` unacknowledged. A hold keeps the log, also
    the log after the update's end, until the receiver ends; it keeps at most ``limit_bytes`` more than the store
    does. If the log cannot be sent yet, ``moved`` is awaited before each new attempt: it returns when more of the log
    is durable. Without it the sender pauses for a moment. ``request`` is what :func:`read_request` gave, if that was
    called. The receiver gets the reason of every error below.

    Raises :class:`UpdateFailed`; ``LogRecycled`` if the hold is lost: begin again, with a larger limit if it happens
    again; ``CorruptLog`` if the log is damaged; and what the catalog and the disk raise.
    """
    sending = Sending(
        Connection(reader, writer),
        arguments.path("store_dir", store_dir),
        uuid,
        executor,
        arguments.integer("rate", rate, 1, 1 << 62),
        arguments.integer("in_flight", in_flight, PIECE_BYTES_MAX, 1 << 40),
        arguments.integer("limit_bytes", limit_bytes, 1, LIMIT_BYTES_MAX),
    )
    try:
        async with _peer_learns(sending.connection):
            await sending.prepare(moved or _pause, request)
            return await sending.serve()
    finally:
        sending.connection.close()
        await on_disk(executor, sending.close)


async def receive_update(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    begin: Callable[[Manifest], Update | None],
    *,
    store_uuid: bytes,
    index: int,
    executor: Executor,
    replaced: Callable[[], bool] | None = None,
) -> Received:
    """Receives an update that ends at or above ``index``, up to the point where :meth:`Update.finish` can be called.

    ``begin`` is called in the executor with the manifest. It gives the update that this fills, or None for a member
    that needs none any more. It uses the copy, so if the copy has a thread of its own it waits for that thread. The
    update's other calls here do not use the copy, which may take batches meanwhile. ``replaced`` is asked while the
    sender is silent: whether another member would send an update. Then this one ends; without it a sender may be silent
    for ``QUIET_S``.

    After an exception the connection is closed, and so is the update; what came stays in its directory, and an update
    from any member goes on with it. Raises :class:`UpdateFailed`, what ``begin`` raises, and what the disk raises.
    """
    receiving = _Receiving(Connection(reader, writer, replaced), begin, executor)
    try:
        async with _peer_learns(receiving.connection):
            return await receiving.run(Request(store_uuid, index))
    except BaseException:
        await on_disk(executor, receiving.close)
        raise


@asynccontextmanager
async def _peer_learns(connection: Connection) -> AsyncIterator[None]:
    """Sends the reason why this side fails, and closes the connection."""
    try:
        yield
    except BadFrame as error:
        await connection.refuse(Why.FRAME, str(error))
        raise UpdateFailed(Why.FRAME, f"{error}; the peer runs another program, or the connection is damaged") from None
    except UpdateFailed as error:
        if error.kind in (Why.LOST, Why.SILENT):
            connection.abort()
        else:
            await connection.refuse(error.kind, error.reason)
        raise
    except BaseException as error:
        await connection.refuse(_kind_of(error), str(error) or type(error).__name__)
        raise


def _kind_of(error: BaseException) -> Why:
    if isinstance(error, LogRecycled):
        return Why.RECYCLED
    if isinstance(error, errors.BatchRefused):
        return Why.REFUSED
    return Why.CATALOG if isinstance(error, errors.CatalogError) else Why.FAILED


async def _pause() -> None:
    await asyncio.sleep(PAUSE_S)


# ---- the receiver ----------------------------------------------------------------------------------------------------


class Received:
    """An update that has arrived completely and is not in use yet.

    The caller tells its engine (``Engine.updated``), calls ``update.finish()`` in the thread of the copy, compares with
    :meth:`check_members`, and then ends with :meth:`switched`; or with :meth:`failed` instead. The sender keeps its
    log, and all later segments, until then.
    """

    def __init__(self, receiving: _Receiving, manifest: Manifest, members: tuple[int, bytes]) -> None:
        """As :func:`receive_update` makes it."""
        self._receiving = receiving
        self.manifest = manifest
        """The update ends at its ``index`` and ``term``."""
        self.members_index, self.members = members
        """The newest configuration in the update, and the index of its batch, as the sender says."""
        self.update = receiving.update
        """None: ``begin`` said that none is needed; the connection is closed."""
        self.bytes = receiving.bytes
        """Of segments that the sender gave; the others were here."""

    def check_members(self, copy: Copy) -> None:
        """Called after ``finish``, in the copy's thread: raises :class:`UpdateFailed` for another configuration.

        The engine then has a wrong configuration: close it, and open the copy and a new engine.
        """
        index, members = copy.members()
        if (index, members) != (self.members_index, self.members):
            raise UpdateFailed(
                Why.MEMBERS,
                f"the log has the members of batch {index}, and the sender said batch {self.members_index} or "
                "others; close this host and open it again, and look at the sender",
            )

    async def switched(self) -> None:
        """The new copy is in use: tells the sender, and closes the connection. A sender that is gone is no error."""
        await self._end(True, "")

    async def failed(self, reason: str) -> None:
        """The new copy was not put in use: ends the connection as :meth:`switched` does.

        What came stays for another update.
        """
        await self._end(False, reason)

    async def _end(self, switched: bool, reason: str) -> None:
        await self._receiving.end(switched, reason)


class _CatalogFile:
    """The catalog's file on its way into the update's directory. It gets its name when it is whole and forced."""

    def __init__(self, place: Path, size: int, checksum: int) -> None:
        self._place = place
        self._part = place / f"{FILE_NAME}.part"
        self._size = size
        self._checksum = checksum
        self._written = 0
        self._digest = xxh64()
        self._file = open_regular(self._part, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def next(self) -> Part | None:
        """The part that is missing; None: the file is complete."""
        if self._written == self._size:
            return None
        return Part(CATALOG, self._written, self._size - self._written)

    def write(self, first_lsn: int, offset: int, data: bytes) -> None:  # noqa: ARG002 - as in Update
        """Raises ``BatchRefused`` if the file is complete and differs from the offer: then it is asked for again."""
        with memoryview(data) as left:
            done = 0
            while done < len(data):
                done += os.pwrite(self._file, left[done:], offset + done)
        self._digest.update(data)
        self._written += len(data)
        if self._written == self._size and self._digest.intdigest() != self._checksum:
            self._written = 0
            self._digest.reset()
            raise errors.BatchRefused("the bytes of the catalog differ from the offer; they are asked for again")

    def finish(self, manifest: Manifest) -> None:
        """Puts the file in its place. It must be the store's, and have every change below the update's beginning."""
        os.fsync(self._file)
        for name in SIDE_NAMES:
            (self._place / name).unlink(missing_ok=True)
        self._part.rename(self._place / FILE_NAME)
        applied = applied_lsn(self._place, manifest.uuid)
        for name in SIDE_NAMES:
            (self._place / name).unlink(missing_ok=True)
        begins = manifest.segments[0].prev_end_lsn
        if applied is None or applied < begins:
            raise UpdateFailed(
                Why.CATALOG,
                f"the catalog has the changes up to LSN {applied}, and the log of the update begins at {begins}: "
                "update from another member",
            )

    def close(self) -> None:
        os.close(self._file)


class _Receiving:
    """The receiver. Methods that are not coroutines run in the executor, or only use memory."""

    def __init__(self, connection: Connection, begin: Callable[[Manifest], Update | None], executor: Executor) -> None:
        self.connection = connection
        self._begin = begin
        self._executor = executor
        self.update: Update | None = None
        self.bytes = 0
        self._catalog: _CatalogFile | None = None
        self._number = 0
        self._consumed = 0
        self._again = 0

    async def run(self, request: Request) -> Received:
        await self.connection.send(request)
        offer, manifest = await self._offered()
        if manifest.uuid != request.uuid:
            raise UpdateFailed(Why.STORE, f"store {offer.uuid.hex()} was offered for store {request.uuid.hex()}")
        if manifest.index < request.index:
            raise UpdateFailed(Why.BEHIND, f"the update ends with batch {offer.index}, below batch {request.index}")
        await on_disk(self._executor, self._open, offer, manifest)
        if self.update is None:
            await self.end(False, "no update is needed any more")
            return Received(self, manifest, (offer.members_index, offer.members))
        assert self._catalog is not None
        await self._fill(self._catalog)
        await on_disk(self._executor, self._catalog.finish, manifest)
        before = self._consumed
        await self._fill(self.update)
        self.bytes = self._consumed - before
        return Received(self, manifest, (offer.members_index, offer.members))

    def _open(self, offer: Offer, manifest: Manifest) -> None:
        self.update = self._begin(manifest)
        if self.update is not None:
            self._catalog = _CatalogFile(self.update.path, offer.catalog_bytes, offer.catalog_checksum)

    async def _offered(self) -> tuple[Offer, Manifest]:
        while isinstance(offer := await self.connection.receive(), Wait):
            pass
        if not isinstance(offer, Offer):
            raise BadFrame(f"{type(offer).__name__} came before an offer")
        judge_offer(offer)
        segments: list[Segment] = []
        while len(segments) < offer.segments:
            rows = await self.connection.receive()
            if not isinstance(rows, Segments):
                raise BadFrame(f"{type(rows).__name__} came between the rows of a manifest")
            segments += segments_of(rows, offer.segments - len(segments))
        return offer, manifest_of(offer, segments)

    async def _fill(self, into: Update | _CatalogFile) -> None:
        while (part := await on_disk(self._executor, into.next)) is not None:
            try:
                await self._take_part(into, part)
            except errors.BatchRefused as error:
                self._count_again(str(error))

    async def _take_part(self, into: Update | _CatalogFile, part: Part) -> None:
        """Takes a part, or the bytes before a damaged piece: then it asks for the rest again, as another part."""
        self._number += 1
        await self.connection.send(Ask(self._number, part.first_lsn, part.offset, part.bytes))
        # This also acknowledges damaged bytes. Sent before the Ask, it would let the sender send more of the old part.
        await self.connection.send(Ack(self._consumed))
        offset, end = part.offset, part.offset + part.bytes
        while offset < end:
            piece = await self.connection.receive()
            if not isinstance(piece, Piece) or piece.number > self._number:
                raise BadFrame(f"a sender sent {piece!r:.200} for part {self._number}")
            data = await self.connection.data(piece)
            self._consumed += piece.bytes
            if piece.number == self._number:
                if offset + piece.bytes > end:
                    raise BadFrame(f"a piece of {piece.bytes} bytes came, and {end - offset} are missing")
                if data is None:
                    self._count_again(f"a piece of {piece.bytes} bytes at {offset} of segment {part.first_lsn}")
                    return
                await on_disk(self._executor, into.write, part.first_lsn, offset, data)
                offset += piece.bytes
            await self.connection.send(Ack(self._consumed))

    def _count_again(self, what: str) -> None:
        self._again += 1
        if self._again > AGAIN_MAX:
            raise UpdateFailed(
                Why.DAMAGED,
                f"damaged bytes came {self._again} times, the last time: {what}. Check the memory and the disk of the "
                "sender, and update from another member",
            )

    async def end(self, switched: bool, reason: str) -> None:
        """Sends the last message to the sender."""
        try:
            await self.connection.send(Ended(switched, reason[:REASON_MAX]))
        except UpdateFailed:
            self.connection.abort()  # it finds out by itself
        self.connection.close()
        await on_disk(self._executor, self.close)

    def close(self) -> None:
        """Closes the connection; the received bytes stay in the directory."""
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()
        if self.update is not None:
            self.update.close()
