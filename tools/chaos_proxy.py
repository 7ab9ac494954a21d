"""Proxies between the members of a chaos run, in user space: each member is reached through a port of its own here.

A connection begins with a HELLO that names the member who dials, so each direction between two members can be held,
delayed or half-closed by itself. A held direction keeps its bytes, and so do connections that begin meanwhile; when it
is healed they go on, or the connections are reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import TYPE_CHECKING, TypeVar

import msgspec

from logstore.cluster.frames import PREAMBLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PIECE_BYTES = 64 << 10
HOST = "127.0.0.1"

T = TypeVar("T")

Direction = tuple[int, int]
"""From this member to that one."""


class _Pair:
    """One connection: what its dialler sends, and what comes back."""

    def __init__(self, source: int, target: int, writers: list[asyncio.StreamWriter]) -> None:
        self.source = source
        self.target = target
        self.writers = writers  # to the dialler, to the target

    def has(self, direction: Direction) -> bool:
        return direction in ((self.source, self.target), (self.target, self.source))

    def reset(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    def half_close(self, direction: Direction) -> None:
        writer = self.writers[1] if direction == (self.source, self.target) else self.writers[0]
        if writer.can_write_eof() and not writer.is_closing():
            with contextlib.suppress(OSError, RuntimeError):
                writer.write_eof()


class Proxies:
    """One loop, in a thread of its own, for all members. Its methods are called from another thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._held: set[Direction] = set()
        self._delays: dict[Direction, float] = {}
        self._pairs: set[_Pair] = set()
        self._healed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def addresses(self, member: int) -> tuple[str, str]:
        """Where the member listens, and where the others reach it from now on."""
        with socket.create_server((HOST, 0)) as free:
            port = free.getsockname()[1]

        async def begin() -> int:
            async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._serve(member, port, reader, writer)

            server = await asyncio.start_server(accepted, HOST, 0)
            return int(server.sockets[0].getsockname()[1])

        reached = asyncio.run_coroutine_threadsafe(begin(), self._loop).result()
        return f"{HOST}:{port}", f"{HOST}:{reached}"

    def command(self, member: int) -> list[str]:  # noqa: ARG002
        """What runs a command where the member is, before its words: nothing."""
        return []

    def inside(self, member: int) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        """Every socket can reach the member."""
        return contextlib.nullcontext()

    def hold(self, directions: Iterable[Direction]) -> None:
        """Nothing passes in these directions."""
        self._call(lambda: self._held.update(directions))

    def delay(self, directions: Iterable[Direction], seconds: float) -> None:
        """Each piece of what passes in these directions waits so long first."""
        self._call(lambda: self._delays.update(dict.fromkeys(directions, seconds)))

    def half_close(self, direction: Direction) -> int:
        """The connections between the two end in this direction; how many there are."""

        def work() -> int:
            pairs = [pair for pair in self._pairs if pair.has(direction)]
            for pair in pairs:
                pair.half_close(direction)
            return len(pairs)

        return self._call(work)

    def heal(self, directions: Iterable[Direction], *, reset: bool) -> None:
        """What was held passes on; or it is lost, with its connections."""

        def work() -> None:
            for direction in directions:
                self._held.discard(direction)
                self._delays.pop(direction, None)
                if reset:
                    for pair in [pair for pair in self._pairs if pair.has(direction)]:
                        pair.reset()
            self._healed.set()
            self._healed = asyncio.Event()

        self._call(work)

    def close(self) -> None:
        """Ends all connections, and the thread."""

        async def work() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            for pair in list(self._pairs):
                pair.reset()

        asyncio.run_coroutine_threadsafe(work(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Callable[[], T]) -> T:
        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    async def _serve(self, target: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair: _Pair | None = None
        try:
            start = await reader.readexactly(PREAMBLE.size)
            hello = await reader.readexactly(PREAMBLE.unpack(start)[3])
            source = int(msgspec.msgpack.decode(hello)["member"])
            await self._passes((source, target))
            to_reader, to_writer = await asyncio.open_connection(HOST, port)
            pair = _Pair(source, target, [writer, to_writer])
            self._pairs.add(pair)
            to_writer.write(start + hello)
            await asyncio.gather(
                self._pump((source, target), reader, to_writer), self._pump((target, source), to_reader, writer)
            )
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):  # the last: all ends
            writer.transport.abort()
        finally:
            if pair is not None:
                self._pairs.discard(pair)
                pair.reset()

    async def _passes(self, direction: Direction) -> None:
        while direction in self._held:
            await self._healed.wait()
        if direction in self._delays:
            await asyncio.sleep(self._delays[direction])

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE_BYTES):
            await self._passes(direction)
            if writer.is_closing():
                return
            with contextlib.suppress(RuntimeError):  # this direction is half-closed
                writer.write(piece)
                await writer.drain()
        await self._passes(direction)
        if writer.can_write_eof() and not writer.is_closing():
            with contextlib.suppress(OSError, RuntimeError):
                writer.write_eof()
