"""The sender of an update over a connection; ``updating.send_update`` runs it."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xxhash import xxh64, xxh64_intdigest

from logstore.catalog.backends import FILE_NAME
from logstore.catalog.changes import applied_lsn
from logstore.catalog.copy import copy_catalog
from logstore.cluster.frames import BadFrame, Message
from logstore.cluster.update import Manifest, Source
from logstore.cluster.update_frames import (
    CATALOG,
    PIECE_BYTES_MAX,
    ROWS_MAX,
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
    on_disk,
)
from logstore.core.regular_files import open_regular
from logstore.holds import LogRecycled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Executor

BURST_S: Final = 0.1  # of the rate, after a pause
WAITS_MAX: Final = 100
STEPS_TOLD: Final = 16  # pieces of 16 MiB; after each the receiver learns that the sender still reads its log


@dataclass(frozen=True, slots=True)
class Sent:
    """An update that the receiver has ended."""

    index: int
    """Where it ended: the index, the term and the LSN of its end."""
    term: int
    end_lsn: int
    bytes: int
    """Of pieces that were sent, the catalog's and repeated ones included."""
    switched: bool
    """Whether the receiver has this log now."""
    reason: str
    """Why not."""


async def asked_for(connection: Connection) -> Request:
    """The receiver's first message."""
    request = await connection.receive()
    if not isinstance(request, Request):
        raise BadFrame(f"{type(request).__name__} came before a request")
    return request


class Pace:
    """How long to wait before this many bytes, so that at most ``rate`` bytes are sent per second.

    Times are the loop's.
    """

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._due = now

    def wait_s(self, size: int, now: float) -> float:
        """The wait before the next ``size`` bytes, which count as sent."""
        due = max(self._due, now - BURST_S)
        self._due = due + size / self._rate
        return max(0.0, due - now)


class _Snapshot:
    """The sender's catalog at one moment. Its file has no name, so nothing is left of it after a crash."""

    def __init__(self, store_dir: Path, uuid: bytes) -> None:
        with tempfile.TemporaryDirectory(prefix="logstore-update-") as place:
            self.bytes = copy_catalog(store_dir, Path(place), store_uuid=uuid, live=True)
            self.applied_lsn = applied_lsn(Path(place), uuid)
            self._file = open_regular(Path(place) / FILE_NAME)
        self.checksum = 0
        digest = xxh64()
        for offset in range(0, self.bytes, PIECE_BYTES_MAX):
            digest.update(self.read(offset, min(PIECE_BYTES_MAX, self.bytes - offset)))
        self.checksum = digest.intdigest()

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._file, size, offset)

    def close(self) -> None:
        os.close(self._file)


class Sending:
    """The sender. Methods that are not coroutines run in the executor, or only use memory."""

    def __init__(
        self,
        connection: Connection,
        store_dir: Path,
        uuid: bytes,
        executor: Executor,
        rate: int,
        in_flight: int,
        limit_bytes: int,
    ) -> None:
        self.connection = connection
        self._store_dir = store_dir
        self._uuid = uuid
        self._executor = executor
        self._in_flight = in_flight
        self._limit_bytes = limit_bytes
        self._loop = asyncio.get_running_loop()
        self._pace = Pace(rate, self._loop.time())
        self._snapshot: _Snapshot | None = None
        self._source: Source | None = None
        self._manifest: Manifest | None = None
        self._sizes: dict[int, int] = {}  # of what can be asked for
        self._ask: Ask | None = None
        self._at = 0  # bytes of it that were sent
        self._sent = 0
        self._acknowledged = 0
        self._ended: Ended | None = None
        self._changed = asyncio.Event()

    async def prepare(self, moved: Callable[[], Awaitable[None]], request: Request | None) -> None:
        """Reads the request, unless it was read before, and offers an update."""
        if request is None:
            request = await asked_for(self.connection)
        if request.uuid != self._uuid:
            raise UpdateFailed(
                Why.STORE, f"this is store {self._uuid.hex()}, and store {request.uuid.hex()} is asked for"
            )
        for left in range(WAITS_MAX, -1, -1):
            why_not = await on_disk(self._executor, self._open, request.index)
            if why_not is None:
                await self._offer(await self._described())
                return
            await on_disk(self._executor, self.close)
            if left == 0:
                kind, reason = why_not
                raise UpdateFailed(kind, f"{reason}, after {WAITS_MAX} pauses: update from another member")
            await self.connection.send(Wait(why_not[1]))
            await moved()

    def _open(self, index: int) -> tuple[Why, str] | None:
        """Reads the catalog first: the update begins at or below the LSN that the catalog has reached.

        A reason to wait; None: open.
        """
        self._snapshot = snapshot = _Snapshot(self._store_dir, self._uuid)
        if snapshot.applied_lsn is None:
            raise UpdateFailed(
                Why.CATALOG, f"the catalog in {self._store_dir} is no member's: update from another member"
            )
        name = f"update-{secrets.token_hex(8)}"
        try:
            self._source = Source.open(
                self._store_dir, name, limit_bytes=self._limit_bytes, applied_lsn=snapshot.applied_lsn
            )
        except LogRecycled as error:  # between the two calls the catalog, and the log with it, may have advanced
            return Why.RECYCLED, str(error)
        if self._source is None:
            return Why.WAITED, "the durable log does not say yet where it begins"
        has = self._source.index()
        return (
            (Why.BEHIND, f"batch {index} is wanted, and batch {has} is the last known to be durable")
            if has < index
            else None
        )

    async def _described(self) -> Manifest:
        source = self._source
        assert source is not None
        steps = 0
        while not await on_disk(self._executor, source.step):
            steps += 1
            if steps % STEPS_TOLD == 0:
                await self.connection.send(Wait("the sender reads and verifies its log"))
        return await on_disk(self._executor, source.manifest)

    async def _offer(self, manifest: Manifest) -> None:
        snapshot, source = self._snapshot, self._source
        assert snapshot is not None
        assert source is not None
        self._manifest = manifest
        self._sizes = {CATALOG: snapshot.bytes} | {one.first_lsn: one.bytes for one in manifest.segments}
        await self.connection.send(
            Offer(
                manifest.uuid,
                manifest.segment_size,
                manifest.max_undurable_bytes,
                manifest.created_us,
                manifest.end_lsn,
                manifest.term,
                manifest.index,
                len(manifest.segments),
                snapshot.bytes,
                snapshot.checksum,
                *source.members(),
            )
        )
        for at in range(0, len(manifest.segments), ROWS_MAX):
            rows = manifest.segments[at : at + ROWS_MAX]
            await self.connection.send(
                Segments([(one.first_lsn, one.term, one.prev_end_lsn, one.bytes, one.checksum) for one in rows])
            )

    async def serve(self) -> Sent:
        """Sends the parts that are asked for, until the receiver ends the update."""
        assert self._manifest is not None
        reading = asyncio.create_task(self._read())
        try:
            while self._ended is None:
                if reading.done():
                    await reading  # raises
                self._changed.clear()
                ask = self._ask
                size = 0 if ask is None else min(PIECE_BYTES_MAX, ask.bytes - self._at)
                if ask is None or size == 0 or self._sent - self._acknowledged + size > self._in_flight:
                    await self._changed.wait()
                else:
                    await self._send_piece(ask, size)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        end, ended = self._manifest, self._ended
        return Sent(end.index, end.term, end.end_lsn, self._sent, ended.switched, ended.reason)

    async def _send_piece(self, ask: Ask, size: int) -> None:
        wait_s = self._pace.wait_s(size, self._loop.time())
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        data = await on_disk(self._executor, self._piece, ask, size)
        if self._ask is ask:
            self._at += size
            self._sent += size
            await self.connection.send(Piece(ask.number, size, xxh64_intdigest(data)), data)

    def _piece(self, ask: Ask, size: int) -> bytes:
        assert self._snapshot is not None
        assert self._source is not None
        offset = ask.offset + self._at
        if ask.first_lsn == CATALOG:
            return self._snapshot.read(offset, size)
        return self._source.read(ask.first_lsn, offset, size)

    async def _read(self) -> None:
        try:
            while self._ended is None:
                self._take(await self.connection.receive())
                self._changed.set()
        finally:
            self._changed.set()

    def _take(self, message: Message) -> None:
        if isinstance(message, Ask):
            size = self._sizes.get(message.first_lsn, 0)
            last = 0 if self._ask is None else self._ask.number
            if message.number <= last or not 0 <= message.offset < message.offset + message.bytes <= size:
                raise BadFrame(f"the update has no such part: {message}")
            self._ask, self._at = message, 0
        elif isinstance(message, Ack):
            if not self._acknowledged <= message.bytes <= self._sent:
                raise BadFrame(f"{message.bytes} bytes are acknowledged, after {self._acknowledged} of {self._sent}")
            self._acknowledged = message.bytes
        elif isinstance(message, Ended):
            self._ended = message
        else:
            raise BadFrame(f"a receiver sent {type(message).__name__}")

    def close(self) -> None:
        """Releases the hold."""
        source, self._source = self._source, None
        snapshot, self._snapshot = self._snapshot, None
        if source is not None:
            source.close()
        if snapshot is not None:
            snapshot.close()
