"""Members with nothing but a transport: what each was told, and a way to wait until it was."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from logstore.cluster import frames
from logstore.cluster.addresses import parse
from logstore.cluster.frames import Carried, Fields, Hello, Identity, Message
from logstore.cluster.replica import Batch
from logstore.cluster.transport import Me, Received, Transport, new_event_loop

CLUSTER = b"the cluster UUID"
STORE = b"the store's UUID"
OTHER_STORE = b"the other's UUID"
LISTEN = "127.0.0.1:0"


def engine_frame(
    kind: int = frames.TYPE_LAST, *, term: int = 7, index: int = 0, count: int = 0, group: int = 5, other: int = 0
) -> Any:
    """As the engine answers it, without needing the engine."""
    return (group, 0, term, index, max(0, term - 1), other, kind, 0, count, ())


def batch(index: int, size: int = 104, *, term: int = 7, header: bool = False) -> Batch:
    """A batch whose bytes depend on its index, so that no other can be taken for it."""
    lsn = (term << 40) + 4096 + index * (2 << 20)
    data = (index.to_bytes(8, "little") * (size // 8 + 1))[:size]
    return Batch(term, index, lsn, lsn + size, term << 40, lsn - 8, b"H" * 4096 if header else None, data)


def append(first: int, *carried: Carried, term: int = 7) -> tuple[Any, tuple[Carried, ...]]:
    """The frame and the batches of an APPEND whose first entry has this index."""
    return engine_frame(frames.TYPE_APPEND, term=term, index=first - 1, count=len(carried)), carried


class Told:
    """A handler that writes down what it is told. `until` waits for an event, never for a time."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.frames_of: dict[tuple[int, int], list[Fields]] = {}
        self.batches_of: dict[tuple[int, int], list[Batch]] = {}
        self.held: list[Received] = []
        self.consumes = True
        self.hosts: dict[bytes, Identity] = {STORE: Identity(0, 7, 12, 7, True)}
        self.refuses: str | None = None
        self.hellos: list[Hello] = []
        self.updates: asyncio.Queue[tuple[int, asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.joins: asyncio.Queue[tuple[Hello, asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.expected: set[int] = set()
        self._changed = asyncio.Event()

    def _tell(self, *event: Any) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    async def event(self, *wanted: Any) -> None:
        """Waits until an event begins like this."""
        await self.until(lambda: self.count(*wanted) > 0)

    def count(self, *wanted: Any) -> int:
        return sum(event[: len(wanted)] == wanted for event in self.events)

    def identity(self, peer: int) -> dict[bytes, Identity]:
        return self.hosts

    def greeted(self, peer: int, hello: Hello) -> str | None:
        self.hellos.append(hello)
        return self.refuses

    def connected(self, peer: int) -> None:
        self._tell("connected", peer)

    def lost(self, peer: int, reset: bool) -> None:
        self._tell("lost", peer, reset)

    def frames(self, peer: int, received: list[Received]) -> None:
        for each in received:
            self.frames_of.setdefault((peer, each.host), []).append(each.frame)
            self.batches_of.setdefault((peer, each.host), []).extend(each.batches)
            if self.consumes:
                each.consumed()
            else:
                self.held.append(each)
        self._tell("frames", peer, len(received))

    def control(self, peer: int, message: Message) -> None:
        self._tell("control", peer, message)

    def room(self, peer: int) -> None:
        self._tell("room", peer)

    def refused(self, peer: int, kind: str, reason: str) -> None:
        self._tell("refused", peer, str(kind), reason)

    def update(self, peer: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.updates.put_nowait((peer, reader, writer))

    def join(self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.joins.put_nowait((hello, reader, writer))

    def is_expected(self, hello: Hello) -> bool:
        return hello.member in self.expected


class Node:
    """A member: its transport, and what it was told. Heartbeats come only from `tick`."""

    def __init__(self, number: int, *, start: int = 1, cluster: bytes = CLUSTER, **options: Any) -> None:
        self.number = number
        self.name = f"member-{number}"
        self.told = Told()
        me = {"cluster": cluster, "member": number, "name": self.name, "start": start}
        me |= {name: options.pop(name) for name in ("name", "versions") if name in options}
        options = {"heartbeat_s": 0, "backoff_s": (0.001, 0.002)} | options
        self.transport = Transport(Me(**me), self.told, **options)
        self.address = ""
        self.host = self.transport.host(STORE)

    async def listen(self, address: str = LISTEN) -> None:
        self.address = await self.transport.start(address)

    def knows(self, *others: Node) -> None:
        self.transport.set_peers({other.number: (other.name, other.address) for other in others})

    def links(self) -> list[Any]:
        """Open connections, by looking inside."""
        return [link for link in self.transport._links if link.state.name == "OPEN"]


async def mesh(*nodes: Node) -> None:
    """Connects each with each, all dialling at once."""
    for node in nodes:
        await node.listen()
    for node in nodes:
        node.knows(*(other for other in nodes if other is not node))
    for node in nodes:
        for other in nodes:
            if other is not node:
                await node.told.until(lambda node=node, other=other: node.transport.room(other.number) > 0)


async def close(*nodes: Node) -> None:
    for node in nodes:
        closing = asyncio.ensure_future(node.transport.close())
        while not closing.done():
            await asyncio.sleep(0)
            node.transport.tick()
        await closing


LOOPS = {"uvloop": new_event_loop, "asyncio": asyncio.new_event_loop}


class Note(Message, frozen=True, tag=16):
    text: str


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a test in a loop of either kind. An exception that only the loop would see fails the test, too."""

    def runs(test: Coroutine[Any, Any, None]) -> None:
        unseen: list[dict[str, Any]] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
            await test

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(watched())
        assert unseen == []

    return runs


def received(node: Node, peer: int) -> list[tuple[Any, ...]]:
    return node.told.frames_of.get((peer, node.host), [])


async def reached(holds: Callable[[], bool]) -> None:
    """Waits for what no handler is told of."""
    while not holds():  # noqa: ASYNC110 - so there is no event to wait for
        await asyncio.sleep(0)


async def turns(count: int = 50) -> None:
    """Lets everything happen that can happen without time; only to show that something does not."""
    for _ in range(count):
        await asyncio.sleep(0)


class Raw:
    """A peer made by hand: it says HELLO, and then whatever a test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames = frames.Reader()
        self.messages = frames.Messages()

    @classmethod
    async def dial(cls, node: Node, **changed: Any) -> Raw:
        made = cls(*await asyncio.open_connection(*parse(node.address)))
        fields = {"cluster": node.transport.me.cluster, "member": 2, "name": "member-2", "program": "x", "start": 5}
        fields |= {"versions": (1, 1)}
        fields |= {"connection": 1, "seen_start": 0, "seen_connection": 0, "purpose": "frames", "hosts": {}}
        made.writer.write(frames.hello_bytes(frames.Hello(**fields | changed)))
        return made

    async def more(self) -> bool:
        data = await self.reader.read(1 << 16)
        self.frames.room()[: len(data)] = data
        self.frames.filled(len(data))
        return bool(data)

    async def preamble(self) -> bytes:
        while (found := self.frames.preamble()) is None:
            assert await self.more()
        return found[2]

    async def message(self) -> Message:
        while (found := self.frames.frame()) is None:
            assert await self.more()
        message = self.messages.read(found[1])
        assert message is not None
        return message

    async def open(self) -> None:
        assert frames.hello_of(await self.preamble()).member == 1
        assert isinstance(await self.message(), frames.Welcome)
        self.say(frames.Welcome())

    def say(self, message: Message) -> None:
        self.writer.write(self.messages.frame(message))

    async def ended(self) -> bool:
        try:
            while await self.more():
                self.frames.rest()
        except ConnectionResetError:
            pass
        return True


async def alone(**options: Any) -> Node:
    """A member whose only peer, member 2, does not listen: its dials are refused."""
    node = Node(1, backoff_s=(3600, 3600), **options)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{free.getsockname()[1]}"
    await node.listen()
    node.transport.set_peers({2: ("member-2", nowhere)})
    await node.told.event("lost", 2, True)
    return node
