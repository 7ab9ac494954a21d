"""Connections between members in one loop, on the loopback: one a pair, in order, bounded, refused with reasons."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")

from kit.members import LISTEN, OTHER_STORE, STORE, Node, append, batch, close, engine_frame, mesh
from logstore.cluster import frames, link
from logstore.cluster.addresses import Tls, parse
from logstore.cluster.certificates import Files, make_authority, make_certificate
from logstore.cluster.frames import Carried, Message
from logstore.cluster.link import ROOM_BYTES, WINDOW_BYTES
from logstore.cluster.transport import new_event_loop
from logstore.errors import OptionError, StoreError

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


# ---- One connection ----------------------------------------------------------------------------------------


def test_members_that_all_dial_at_once_have_one_connection_a_pair(run: Any) -> None:
    async def test() -> None:
        for number in range(20):
            nodes = [Node(i) for i in random.Random(number).sample(range(1, 9), 3)]
            await mesh(*nodes)
            await turns()
            for node in nodes:
                assert len(node.links()) == 2
                assert len({each.peer for each in node.links()}) == 2
            ends = {
                frozenset(each.transport.get_extra_info(name) for name in ("sockname", "peername"))
                for node in nodes
                for each in node.links()
            }
            assert len(ends) == 3
            await close(*nodes)

    run(test())


def test_of_two_dials_that_cross_the_lower_members_counts_on_both_sides(run: Any) -> None:
    async def test() -> None:
        low, high = Node(1), Node(2)
        await mesh(low, high)
        await turns()
        assert [each.is_dialled for each in low.links()] == [True]
        assert [each.is_dialled for each in high.links()] == [False]
        assert all(event[2] == "crossing connection" for event in low.told.events if event[0] == "refused")
        await close(low, high)

    run(test())


def test_frames_and_control_messages_arrive_in_order_and_name_the_receivers_host(run: Any) -> None:
    async def test() -> None:
        one, two = Node(1, messages=[Note]), Node(2, messages=[Note])
        two.transport.drop_host(two.host)
        two.transport.host(OTHER_STORE)
        two.host = two.transport.host(STORE)
        assert one.host != two.host
        await mesh(one, two)
        for index in range(200):
            assert one.transport.send(2, one.host, engine_frame(index=index))
        assert one.transport.control(2, Note("after"))
        await two.told.until(lambda: len(received(two, 1)) == 200)
        assert [frame[3] for frame in received(two, 1)] == list(range(200))
        await two.told.event("control", 1, Note("after"))
        await close(one, two)

    run(test())


def test_all_records_of_one_turn_go_in_one_frame(run: Any) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        hosts = [number.to_bytes(16, "big") for number in range(100)]
        numbers = [one.transport.host(uuid) for uuid in hosts]
        for uuid in hosts:
            two.transport.host(uuid)
        await mesh(one, two)
        for _ in range(2):
            two.told.events.clear()
            for number in numbers:
                one.transport.send(2, number, engine_frame())
            await two.told.event("frames")
        assert two.told.events == [("frames", 1, 100)]
        await close(one, two)

    run(test())


def test_frames_of_a_host_that_a_member_has_not_are_dropped_and_take_no_room(run: Any) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        other = one.transport.host(OTHER_STORE)
        await mesh(one, two)
        frame, carried = append(1, Carried(batch(1, 1 << 20), 1))
        assert one.transport.send(2, other, frame, carried)
        assert one.transport.send(2, other, engine_frame())
        assert one.transport.send(2, one.host, frame, carried)
        await two.told.until(lambda: len(received(two, 1)) == 1)
        await reached(lambda: one.transport.room(2) == WINDOW_BYTES)
        assert two.told.count("frames") == 1
        await close(one, two)

    run(test())


# ---- Order under load --------------------------------------------------------------------------------------


def test_frames_of_a_host_never_overtake_each_other_under_load(run: Any) -> None:
    """Three members, three hosts each, frames with and without batches of all sizes, in turns that chance decides."""

    async def test() -> None:
        chance = random.Random(7)
        nodes = [Node(1), Node(2), Node(3)]
        uuids = [STORE, OTHER_STORE, bytes(16)]
        numbers = {node.number: [node.transport.host(uuid) for uuid in uuids] for node in nodes}
        await mesh(*nodes)
        sent: dict[tuple[int, int, int], list[Any]] = {}
        batches: dict[tuple[int, int, int], list[Any]] = {}
        for step in range(600):
            node, peer = chance.sample(nodes, 2)
            which = chance.randrange(3)
            way = (node.number, peer.number, which)
            carried: tuple[Carried, ...] = ()
            frame = engine_frame(index=step + 1)
            if chance.random() < 0.5:
                sizes = [chance.choice((104, 4096, 65_536, 700_000)) // 8 * 8 for _ in range(chance.randint(1, 3))]
                frame, carried = append(
                    step + 2, *(Carried(batch(step + 2 + i, size), 1) for i, size in enumerate(sizes))
                )
            while not node.transport.send(peer.number, numbers[node.number][which], frame, carried):
                node.told.events.clear()
                await node.told.event("room", peer.number)
            sent.setdefault(way, []).append(frame[2:9])
            batches.setdefault(way, []).extend(each.batch for each in carried)
            if chance.random() < 0.2:
                await asyncio.sleep(0)
        for (sender, peer_number, which), wanted in sent.items():
            peer = nodes[peer_number - 1]
            where = (sender, numbers[peer_number][which])
            await peer.told.until(lambda p=peer, w=where, all_=wanted: len(p.told.frames_of.get(w, [])) >= len(all_))
            assert [frame[2:9] for frame in peer.told.frames_of[where]] == wanted
            assert peer.told.batches_of[where] == batches[sender, peer_number, which]
        await close(*nodes)

    run(test())


def test_heartbeats_of_another_host_pass_bulk_and_those_of_the_same_host_do_not(run: Any) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        other = one.transport.host(OTHER_STORE)
        there = two.transport.host(OTHER_STORE)
        await mesh(one, two)
        order: list[tuple[int, int]] = []
        frames_told = two.told.frames

        def told(peer: int, many: list[Any]) -> None:
            order.extend((each.host, each.frame[6]) for each in many)
            frames_told(peer, many)

        two.told.frames = told  # type: ignore[method-assign]
        bulk = [append(1 + 3 * i, *(Carried(batch(1 + 3 * i + j, 1 << 20), 1) for j in range(3))) for i in range(5)]
        for frame, carried in bulk:
            assert one.transport.send(2, one.host, frame, carried)
        assert one.transport.send(2, one.host, engine_frame(frames.TYPE_LAST))
        assert one.transport.send(2, other, engine_frame(frames.TYPE_LAST))
        await two.told.until(lambda: len(order) == 7)
        assert order[0] == (there, frames.TYPE_LAST)
        assert order[1:] == [(two.host, frames.TYPE_APPEND)] * 5 + [(two.host, frames.TYPE_LAST)]
        await close(one, two)

    run(test())


# ---- Back-pressure -----------------------------------------------------------------------------------------


def test_a_receiver_that_consumes_nothing_bounds_its_sender_until_it_does(run: Any) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        two.told.consumes = False
        await mesh(one, two)
        sent = 0
        while True:
            frame, carried = append(sent + 1, Carried(batch(sent + 1, 1 << 20), 1))
            size = frames.message_bytes(carried)
            if not one.transport.send(2, one.host, frame, carried):
                break
            sent += 1
        assert one.transport.room(2) == WINDOW_BYTES - sent * size < size
        await two.told.until(lambda: len(two.told.held) == sent)
        await turns()
        assert one.transport.room(2) < size
        assert not one.transport.send(2, one.host, frame, carried)
        assert one.transport.send(2, one.host, engine_frame())  # heartbeats need no room
        assert one.told.count("room") == 0

        needed = -(-(ROOM_BYTES - one.transport.room(2)) // size)
        for held in two.told.held[: needed - 1]:
            held.consumed()
            held.consumed()  # counts once
        await reached(lambda: one.transport.room(2) >= (needed - 1) * size)
        assert one.told.count("room") == 0
        two.told.held[needed - 1].consumed()
        await one.told.event("room", 2)
        assert one.transport.room(2) >= ROOM_BYTES
        assert one.told.count("room") == 1
        assert one.transport.send(2, one.host, frame, carried)
        await close(one, two)

    run(test())


def test_what_is_consumed_after_its_connection_was_lost_counts_for_no_other(run: Any) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        two.told.consumes = False
        await mesh(one, two)
        frame, carried = append(1, Carried(batch(1, 1 << 20), 1))
        assert one.transport.send(2, one.host, frame, carried)
        await two.told.until(lambda: len(two.told.held) == 1)
        one.links()[0].transport.abort()
        await one.told.until(lambda: one.told.count("connected") == 2)
        await two.told.until(lambda: two.told.count("connected") == 2)
        assert one.transport.room(2) == WINDOW_BYTES
        two.told.held[0].consumed()
        assert one.transport.send(2, one.host, frame, carried)
        await two.told.until(lambda: len(two.told.held) == 2)
        await turns()
        assert one.transport.room(2) < WINDOW_BYTES
        await close(one, two)

    run(test())


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
        versions = changed.pop("versions", (1, 1))
        fields = {"cluster": node.transport.me.cluster, "member": 2, "name": "member-2", "program": "x", "start": 5}
        fields |= {"connection": 1, "seen_start": 0, "seen_connection": 0, "purpose": "frames", "hosts": {}}
        made.writer.write(frames.hello_bytes(frames.Hello(**fields | changed), *versions))
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


def test_a_peer_that_sends_more_than_the_window_without_an_answer_is_closed(run: Any) -> None:
    async def test() -> None:
        node = await alone()
        node.told.consumes = False
        raw = await Raw.dial(node)
        await raw.open()
        raw.say(frames.HostNumber(9, STORE))
        for index in range(1, 18):
            frame, carried = append(index, Carried(batch(index, 1 << 20), 1))
            for part in frames.message_parts(9, frame, carried):
                raw.writer.writelines(part)
        await node.told.event("lost", 2)
        assert len(node.told.held) == 15
        await close(node)

    run(test())


def test_a_peer_that_pings_but_does_not_read_is_closed(run: Any) -> None:
    async def test() -> None:
        node = await alone()
        raw = await Raw.dial(node)
        await raw.open()
        await node.told.event("connected", 2)
        raw.writer.transport.pause_reading()
        while not node.told.count("lost", 2, False):
            for _ in range(10_000):
                node.transport.send(2, node.host, engine_frame())
            raw.writer.write(frames.records_frame([]))
            await asyncio.sleep(0)
        assert "does not read" in node.transport.why_not(2)
        await close(node)

    run(test())


# ---- R12: which connection counts --------------------------------------------------------------------------


def test_a_newer_connection_closes_the_older_before_its_first_frame_is_read(run: Any) -> None:
    async def test() -> None:
        node = await alone()
        older = await Raw.dial(node, connection=1)
        await older.open()
        await node.told.event("connected", 2)
        older.say(frames.HostNumber(9, STORE))
        newer = await Raw.dial(node, connection=2)
        await newer.open()
        newer.say(frames.HostNumber(9, STORE))
        newer.writer.write(frames.records_frame([frames.record(9, engine_frame(index=2))]))
        older.writer.write(frames.records_frame([frames.record(9, engine_frame(index=1))]))
        await node.told.until(lambda: len(received(node, 2)) == 1)
        assert received(node, 2)[0][3] == 2
        assert [event for event in node.told.events if event[0] in ("connected", "lost")][1:] == [
            ("connected", 2),
            ("lost", 2, False),
            ("connected", 2),
        ]
        said = await older.message()
        assert (type(said), said.kind) == (frames.Closing, "newer connection")  # type: ignore[attr-defined]
        assert await older.ended()
        assert len(received(node, 2)) == 1
        await close(node)

    run(test())


@pytest.mark.parametrize(
    ("second", "kind"),
    [
        ({"connection": 3}, "older connection"),
        ({"connection": 2}, "older connection"),
        ({"start": 4, "connection": 9}, "older connection"),
        ({"connection": 4}, None),
        ({"start": 6, "connection": 1}, None),
    ],
)
def test_start_and_number_decide_which_connection_is_newer(run: Any, second: dict[str, int], kind: str | None) -> None:
    async def test() -> None:
        node = await alone()
        first = await Raw.dial(node, connection=3)
        await first.open()
        await node.told.event("connected", 2)
        other = await Raw.dial(node, **second)
        if kind is None:
            await other.open()
            await node.told.until(lambda: node.told.count("connected") == 2)
            assert node.told.count("lost", 2, "start" in second) == 1 + ("start" in second)  # the first dial as well
        else:
            assert await other.preamble() == b""
            refused = await other.message()
            assert isinstance(refused, frames.Refused)
            assert refused.kind == kind
            assert node.told.count("connected") == 1
            assert len(node.links()) == 1
        await close(node)

    run(test())


def test_a_peer_that_lost_this_members_dial_may_dial_and_one_that_never_saw_it_may_not(run: Any) -> None:
    """The lower member has its own dial open: only a HELLO that says so tells a loss from a crossing."""

    async def test() -> None:
        low, high = Node(1), Node(2)
        await low.listen()
        await high.listen()
        low.knows(high)
        high.transport.set_peers({1: ("member-1", low.address)})
        await low.told.event("connected", 2)
        (mine,) = low.links()
        assert mine.is_dialled
        crossing = await Raw.dial(low, start=1, connection=90)
        assert await crossing.preamble() == b""
        refused = await crossing.message()
        assert isinstance(refused, frames.Refused)
        assert refused.kind == "crossing connection"
        after_loss = await Raw.dial(low, start=1, connection=91, seen_start=1, seen_connection=mine.number)
        await after_loss.open()
        await low.told.event("lost", 2)
        await close(low, high)

    run(test())


def test_a_connection_that_dies_is_replaced_by_one(run: Any) -> None:
    async def test() -> None:
        chance = random.Random(3)
        one, two = Node(1), Node(2)
        await mesh(one, two)
        for step in range(2, 30):
            node = chance.choice((one, two))
            node.links()[0].transport.abort()
            for each, other in ((one, 2), (two, 1)):
                await each.told.until(
                    lambda each=each, other=other, step=step: each.told.count("connected", other) >= step
                )
            await turns()
            for each, other in ((one, 2), (two, 1)):
                await each.told.until(lambda each=each, other=other: each.transport.room(other) > 0)
                assert len(each.links()) == 1
            step = max(one.told.count("connected"), two.told.count("connected"))
        await close(one, two)

    run(test())


# ---- What is lost, and how -------------------------------------------------------------------------------


def test_a_reset_an_end_and_a_refused_dial_are_told_as_the_end_of_the_process(run: Any) -> None:
    async def test() -> None:
        for how in ("reset", "end"):
            node = await alone()
            raw = await Raw.dial(node)
            await raw.open()
            await node.told.event("connected", 2)
            node.told.events.clear()
            sock = raw.writer.get_extra_info("socket")
            if how == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.writer.transport.abort()
            await node.told.event("lost", 2)
            assert node.told.events[0] == ("lost", 2, True)
            assert not node.transport.send(2, node.host, engine_frame())
            await close(node)

    run(test())


def test_a_silent_peer_is_closed_after_three_heartbeats_and_that_is_no_reset(run: Any) -> None:
    async def test() -> None:
        node = await alone()
        raw = await Raw.dial(node)
        await raw.open()
        await node.told.event("connected", 2)
        node.told.events.clear()
        node.transport.tick()
        for _ in range(10):  # it speaks in each heartbeat, if only a ping
            raw.writer.write(frames.records_frame([]))
            await raw.more()  # a ping came, since nothing else was sent
            raw.frames.rest()
            await reached(lambda: bool(node.links()[0]._has_heard))
            node.transport.tick()
        for _ in range(link.QUIET_TICKS - 1):
            node.transport.tick()
            assert node.told.events == []
        node.transport.tick()
        assert node.told.events == [("lost", 2, False)]
        assert "silent" in node.transport.why_not(2)
        await close(node)

    run(test())


def test_a_ping_goes_only_if_nothing_else_was_sent(run: Any) -> None:
    async def test() -> None:
        node = await alone()
        raw = await Raw.dial(node)
        await raw.open()
        await node.told.event("connected", 2)
        node.transport.tick()
        node.transport.send(2, node.host, engine_frame())
        await turns(5)
        node.transport.tick()
        node.transport.tick()
        kinds = []
        while len(kinds) < 4:
            while (found := raw.frames.frame()) is not None:
                kinds.append((found[0], len(found[1]) == frames.HEAD.size))
            if len(kinds) < 4:
                await raw.more()
        ping, frame = (frames.RECORDS, True), (frames.RECORDS, False)
        assert kinds == [ping, (frames.CONTROL, False), frame, ping]
        await close(node)

    run(test())


def test_a_member_that_stops_tells_its_peers_so_and_they_need_not_wait(run: Any) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        await mesh(one, two)
        await close(one)
        await two.told.event("lost", 1, True)
        await close(two)

    run(test())


def test_a_peer_that_never_ends_its_handshake_is_closed(run: Any) -> None:
    async def test() -> None:
        node = await alone()
        reader, writer = await asyncio.open_connection(*parse(node.address))
        writer.write(frames.MAGIC)
        await reached(lambda: bool(node.transport._links))
        for _ in range(link.HANDSHAKE_TICKS):
            node.transport.tick()
        with pytest.raises(ConnectionResetError):
            if await reader.read() == b"":
                raise ConnectionResetError
        await close(node)

    run(test())


# ---- Refused, with a reason ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"cluster": b"another cluster!"}, "other cluster"),
        ({"versions": (2, 3)}, "other version"),
        ({"versions": (0, 0)}, "other version"),
        ({"member": 3}, "wrong member"),
        ({"member": 1}, "wrong member"),
        ({"purpose": "other"}, "wrong member"),
        ({"name": "member-3"}, "wrong name"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused_with_a_reason(run: Any, changed: dict[str, Any], kind: str) -> None:
    async def test() -> None:
        node = await alone()
        raw = await Raw.dial(node, **changed)
        assert await raw.preamble() == b""
        refused = await raw.message()
        assert isinstance(refused, frames.Refused)
        assert refused.kind == kind
        assert refused.reason
        assert await raw.ended()
        assert [event[2] for event in node.told.events if event[0] == "refused"] == [kind]
        assert node.told.count("connected") == 0
        await close(node)

    run(test())


def test_versions_n_and_n_plus_1_talk(run: Any) -> None:
    async def test() -> None:
        node = await alone(versions=(1, 2))
        for connection, versions in enumerate([(1, 1), (2, 3), (0, 1)], 1):
            raw = await Raw.dial(node, versions=versions, connection=connection)
            await raw.open()
        await node.told.until(lambda: node.told.count("connected") == 3)
        await close(node)

    run(test())


def test_both_sides_learn_why_the_member_refuses_a_hello(run: Any) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        two.told.refuses = "its copy is older"
        await one.listen()
        await two.listen()
        one.knows(two)
        two.knows(one)
        for node, other in ((one, 2), (two, 1)):
            await node.told.event("refused", other, "refused by the member", "its copy is older")
            assert node.told.count("connected") == 0
        two.told.refuses = None
        await one.told.event("connected", 2)
        assert one.told.hellos[-1].hosts == two.told.hosts
        await close(one, two)

    run(test())


BAD = {
    "damage": lambda: b"\0" * 64,
    "a part": lambda: bytes(frames.DATA.size),
    "not announced": lambda: bytes(frames.records_frame([frames.record(1, engine_frame())])),
    "acknowledged before it was sent": lambda: bytes(frames.records_frame([frames.ack(1)])),
    "a second WELCOME": lambda: bytes(frames.Messages().frame(frames.Welcome())),
    "unknown": lambda: bytes(frames.Messages([Note]).frame(Note("?"))),
    "number given twice": lambda: b"".join(
        bytes(frames.Messages().frame(frames.HostNumber(1, uuid))) for uuid in (STORE, OTHER_STORE)
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_meant_closes_the_connection_with_a_reason(run: Any, what: str) -> None:
    async def test() -> None:
        node = await alone()
        raw = await Raw.dial(node)
        await raw.open()
        await node.told.event("connected", 2)
        raw.writer.write(BAD[what]())
        await node.told.event("lost", 2, False)
        said = await raw.message()
        assert isinstance(said, frames.Closing)
        assert (said.kind, bool(said.reason)) == ("bad frame", True)
        assert await raw.ended()
        await close(node)

    run(test())


@pytest.mark.parametrize("early", ["records", "control", "another protocol"])
def test_frames_before_the_handshake_has_ended_are_refused(run: Any, early: str) -> None:
    async def test() -> None:
        node = await alone()
        raw = await Raw.dial(node)
        if early == "another protocol":
            raw = Raw(*await asyncio.open_connection(*parse(node.address)))
            raw.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        else:
            await raw.preamble()
            await raw.message()
            data = {"records": frames.records_frame([]), "control": raw.messages.frame(frames.HostNumber(1, STORE))}
            raw.writer.write(data[early])
        await node.told.until(lambda: any(event[:3:2] == ("refused", "bad frame") for event in node.told.events))
        assert await raw.ended()
        assert node.told.count("connected") == 0
        await close(node)

    run(test())


def test_plain_connections_are_for_the_loopback_only() -> None:
    async def test() -> None:
        node = Node(1)
        for address in ("0.0.0.0:0", "192.0.2.1:7000", "[::]:0", "member-2.example:7000"):
            with pytest.raises(OptionError, match="need TLS: give ca, cert and key"):
                await node.transport.start(address)
            with pytest.raises(OptionError, match="need TLS"):
                node.transport.set_peers({2: ("member-2", address)})
        for wrong in ("127.0.0.1", "::1:70", "127.0.0.1:x", ":7000", "127.0.0.1:70000"):
            with pytest.raises(OptionError, match="HOST:PORT"):
                node.transport.set_peers({2: ("member-2", wrong)})
        with pytest.raises(OptionError, match="name"):
            node.transport.set_peers({2: ("Member 2", LISTEN)})
        with pytest.raises(OptionError, match="no peer of its own"):
            node.transport.set_peers({1: ("member-1", LISTEN)})
        await node.listen()
        other = Node(2)
        with pytest.raises(StoreError, match="cannot be used"):
            await other.transport.start(node.address)
        await close(node, other)

    asyncio.run(test())


def test_a_member_that_is_no_peer_any_more_is_disconnected(run: Any) -> None:
    async def test() -> None:
        nodes = [Node(1), Node(2), Node(3)]
        await mesh(*nodes)
        nodes[0].knows(nodes[2])
        await nodes[1].told.event("lost", 1)
        await nodes[0].told.event("lost", 2)
        assert [each.peer for each in nodes[0].links()] == [3]
        assert nodes[0].transport.why_not(2) == "member 2 is no peer"
        await close(*nodes)

    run(test())


# ---- Updates ---------------------------------------------------------------------------------------------


def test_an_update_has_a_connection_of_its_own_which_frames_do_not_end(run: Any) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        await mesh(one, two)
        reader, writer = await one.transport.open_update(2)
        peer, there, back = await two.told.updates.get()
        assert peer == 1
        one.links()[0].transport.abort()
        await one.told.until(lambda: one.told.count("connected") == 2)
        data = random.Random(1).randbytes(3 << 20)
        writer.write(data)
        assert await there.readexactly(len(data)) == data
        back.write(data)
        assert await reader.readexactly(len(data)) == data
        writer.close()
        assert await there.read() == b""
        back.close()
        two.told.refuses = "no room"
        with pytest.raises(StoreError, match="no room"):
            await one.transport.open_update(2)
        with pytest.raises(OptionError):
            await one.transport.open_update(9)
        await close(one, two)

    run(test())


# ---- TLS -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tls]:
    pytest.importorskip("cryptography", reason="the extra cluster is not installed")
    where: Path = tmp_path_factory.mktemp("certificates")
    authority, stranger = make_authority(where), make_authority(where / "stranger")
    made: dict[str, Files] = {
        name: make_certificate(where, authority, name, ["127.0.0.1"]) for name in ("member-1", "member-2", "member-3")
    }
    found = {name: Tls(authority.cert, each.cert, each.key) for name, each in made.items()}
    foreign = make_certificate(where / "stranger", stranger, "member-2")
    found["foreign"] = Tls(authority.cert, foreign.cert, foreign.key)
    return found


def test_members_with_certificates_talk_and_send_updates(run: Any, files: dict[str, Tls]) -> None:
    async def test() -> None:
        one, two = Node(1, tls=files["member-1"]), Node(2, tls=files["member-2"])
        await mesh(one, two)
        assert one.links()[0].transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        frame, carried = append(1, *(Carried(batch(1 + i, 1 << 20), 1) for i in range(5)))
        assert one.transport.send(2, one.host, frame, carried)
        await two.told.until(lambda: len(received(two, 1)) == 1)
        assert two.told.batches_of[1, two.host] == [each.batch for each in carried]
        reader, writer = await one.transport.open_update(2)
        _, there, back = await two.told.updates.get()
        writer.write(bytes(1 << 20))
        assert await there.readexactly(1 << 20) == bytes(1 << 20)
        back.write(b"done")
        assert await reader.readexactly(4) == b"done"
        await close(one, two)

    run(test())


@pytest.mark.parametrize("certificate", ["foreign", "member-3", "plain"])
def test_a_member_without_the_right_certificate_is_refused_with_a_reason(
    run: Any, files: dict[str, Tls], certificate: str
) -> None:
    """It dials, and it is dialled."""

    async def test() -> None:
        one = Node(1, tls=files["member-1"])
        two = Node(2, tls=files.get(certificate))
        await one.listen()
        await two.listen()
        two.knows(one)
        if certificate == "plain":
            await two.told.until(lambda: "connect" in two.transport.why_not(1) and two.transport._peers[1].last != "")
        else:
            await two.told.event("refused", 1, "TLS" if certificate == "foreign" else "wrong name")
        if certificate == "member-3":
            await one.told.event("refused", 0, "wrong name")
        two.transport.set_peers({})
        one.knows(two)
        if certificate == "plain":
            await one.told.event("refused", 2, "TLS")
        else:
            await one.told.until(lambda: "certificate" in one.transport.why_not(2))
        assert one.told.count("connected") + two.told.count("connected") == 0
        await close(one, two)

    run(test())


def test_files_that_cannot_be_used_are_named(files: dict[str, Tls], tmp_path: Path) -> None:
    good = files["member-1"]
    for wrong in (
        Tls(tmp_path / "no", good.cert, good.key),
        Tls(good.ca, tmp_path / "no", good.key),
        Tls(good.ca, good.cert, files["member-2"].key),
        Tls(good.key, good.cert, good.key),
    ):
        with pytest.raises(OptionError, match="cannot be used"):
            wrong.context(listens=True)


def test_certificates_are_for_their_owner_and_replace_nothing(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="the extra cluster is not installed")
    authority = make_authority(tmp_path)
    made = make_certificate(tmp_path, authority, "member-1", ["10.0.0.1", "host.example"])
    for path in (authority.key, made.key):
        assert path.stat().st_mode & 0o077 == 0
    before = made.cert.read_bytes()
    for again in (lambda: make_authority(tmp_path), lambda: make_certificate(tmp_path, authority, "member-1")):
        with pytest.raises(OptionError, match="exists"):
            again()
    assert made.cert.read_bytes() == before
    for name in ("", "Member", "a b", "-a", "a" * 65, "a..b", "../x"):
        with pytest.raises(OptionError, match="name"):
            make_certificate(tmp_path, authority, name)
    with pytest.raises(OptionError, match="cannot be read"):
        make_certificate(tmp_path, Files(tmp_path / "no.pem", authority.key), "member-2")
    with pytest.raises(OptionError, match="is not the key"):
        make_certificate(tmp_path, Files(authority.cert, made.key), "member-2")
    with pytest.raises(StoreError, match="cannot be written"):
        make_certificate(made.cert, authority, "member-2")
