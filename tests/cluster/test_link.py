"""One connection, with a peer made by hand: which one counts, what is lost, and what is refused with which reason."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")

from kit.members import (
    OTHER_STORE,
    STORE,
    Node,
    Note,
    Raw,
    alone,
    append,
    batch,
    close,
    engine_frame,
    reached,
    received,
    run,
    turns,
)
from logstore.cluster import frames, link
from logstore.cluster.addresses import parse
from logstore.cluster.frames import Carried
from logstore.cluster.transport import GREETING_MAX

__all__ = ["run"]

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
        ({"start": 4, "connection": 9}, "another process"),
        ({"start": 6, "connection": 1}, "another process"),
        ({"connection": 4}, None),
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
            assert node.told.count("lost", 2, False) == 1
        else:
            assert await other.preamble() == b""
            refused = await other.message()
            assert isinstance(refused, frames.Refused)
            assert refused.kind == kind
            assert node.told.count("connected") == 1
            assert len(node.links()) == 1
        await close(node)

    run(test())


def test_another_process_of_a_peer_is_taken_only_when_the_one_from_before_is_given_up(run: Any) -> None:
    async def test() -> None:
        node = await alone()
        first = await Raw.dial(node, start=5, connection=3)
        await first.open()
        await node.told.event("connected", 2)
        for purpose in ("frames", "update"):
            second = await Raw.dial(node, start=6, connection=1, purpose=purpose)
            assert await second.preamble() == b""
            refused = await second.message()
            assert isinstance(refused, frames.Refused)
            assert refused.kind == "another process"
            assert "its directory was copied and both run" in refused.reason
        for _ in range(link.QUIET_TICKS + 1):
            node.transport.tick()
        await node.told.event("lost", 2, False)
        second = await Raw.dial(node, start=6, connection=2)
        await second.open()
        await node.told.until(lambda: node.told.count("connected") == 2)
        late = await Raw.dial(node, start=5, connection=9)
        assert await late.preamble() == b""
        assert "another process" in str(await late.message())
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


def test_dials_that_are_refused_pause_longer_up_to_a_limit(run: Any) -> None:
    async def test() -> None:
        node = await alone()
        peer = node.transport._peers[2]
        peer.timer.cancel()
        node.transport._backoff_s = (0.001, 0.004)
        peer.backoff_s = 0.0
        pauses = []
        for _ in range(5):
            peer.timer = None
            node.transport._dial_soon(peer, None)
            pauses.append(peer.backoff_s)
            peer.timer.cancel()
        assert pauses == [0.001, 0.002, 0.004, 0.004, 0.004]
        await close(node)

    run(test())


@pytest.mark.parametrize("lasts", [False, True])
def test_a_peer_is_dialled_at_once_only_if_its_connection_lasted_a_heartbeat(run: Any, lasts: bool) -> None:
    """Otherwise a fault that ends each connection at its beginning would be a loop without a pause."""

    async def test() -> None:
        node = await alone()
        raw = await Raw.dial(node)
        await raw.open()
        await node.told.event("connected", 2)
        if lasts:
            node.transport.tick()
        raw.writer.transport.abort()
        await node.told.until(lambda: node.told.count("lost", 2, True) == 2)
        if lasts:
            await node.told.until(lambda: node.told.count("lost", 2, True) == 3)  # a new dial, which is refused
        else:
            assert node.transport._peers[2].backoff_s == 3600
            assert node.transport._peers[2].timer is not None
        await close(node)

    run(test())


def test_sockets_that_say_nothing_are_limited(run: Any) -> None:
    async def test() -> None:
        node = await alone()
        opened = [await asyncio.open_connection(*parse(node.address)) for _ in range(GREETING_MAX)]
        await reached(lambda: len(node.transport._greeting) == GREETING_MAX)
        reader, _ = await asyncio.open_connection(*parse(node.address))
        with pytest.raises(ConnectionResetError):
            if await reader.read() == b"":
                raise ConnectionResetError
        opened[0][1].transport.abort()
        await reached(lambda: len(node.transport._greeting) < GREETING_MAX)
        await (await Raw.dial(node)).open()
        await node.told.event("connected", 2)
        await close(node)

    run(test())


def test_a_member_with_more_hosts_than_a_hello_holds_is_told_why_it_has_no_connection(run: Any) -> None:
    async def test() -> None:
        node = await alone()
        many = {i.to_bytes(16, "big"): frames.Identity(1 << 40, 1, 1 << 40, 1, True) for i in range(3000)}
        node.told.hosts = many
        raw = await Raw.dial(node)
        assert await raw.preamble() == b""
        refused = await raw.message()
        assert isinstance(refused, frames.Refused)
        assert "fewer hosts" in refused.reason
        other = Node(3, backoff_s=(3600, 3600))
        other.told.hosts = many
        await other.listen()
        other.knows(node)
        await other.told.event("refused", 1, "refused by the member")
        assert "fewer hosts" in other.transport.why_not(1)
        await close(node, other)

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
        ({"versions": (3, 4)}, "other version"),
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


def test_a_frame_of_a_host_between_the_parts_of_its_message_closes_the_connection(run: Any) -> None:
    async def test() -> None:
        node = await alone()
        raw = await Raw.dial(node)
        await raw.open()
        raw.say(frames.HostNumber(9, STORE))
        frame, carried = append(1, Carried(batch(1, 1 << 20), 1))
        raw.writer.writelines(frames.message_parts(9, frame, carried)[0])
        raw.writer.write(frames.records_frame([frames.record(9, engine_frame())]))
        await node.told.event("lost", 2, False)
        assert received(node, 2) == []
        assert "between the parts" in node.transport.why_not(2)
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


# ---- Bounds ----


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
        await node.told.event("lost", 2, False)
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
