"""Connections between members in one loop, on the loopback: one a pair, in order, bounded."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")

from kit.members import (
    OTHER_STORE,
    STORE,
    Node,
    Note,
    append,
    batch,
    close,
    engine_frame,
    mesh,
    reached,
    received,
    run,
    turns,
)
from logstore.cluster import frames
from logstore.cluster.frames import Carried
from logstore.cluster.link import WINDOW_BYTES
from logstore.errors import OptionError, StoreError

__all__ = ["run"]

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


def test_batches_of_one_host_do_not_wait_for_all_those_of_another(run: Any) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        other, there = one.transport.host(OTHER_STORE), two.transport.host(OTHER_STORE)
        await mesh(one, two)
        for index in range(1, 13):
            frame, carried = append(index, Carried(batch(index, 1 << 20), 1))
            assert one.transport.send(2, one.host, frame, carried)
        frame, carried = append(1, Carried(batch(1, 300_000), 1))
        assert one.transport.send(2, other, frame, carried)
        await two.told.until(lambda: (1, there) in two.told.frames_of)
        assert len(received(two, 1)) < 3
        await two.told.until(lambda: len(received(two, 1)) == 12)
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

        room = one.transport.room(2, wanted=3 * size)
        for held in two.told.held[:2]:
            held.consumed()
            held.consumed()  # counts once
        await reached(lambda: one.transport.room(2) == room + 2 * size)
        assert one.told.count("room") == 0
        two.told.held[2].consumed()
        await one.told.event("room", 2)
        assert one.transport.room(2) == room + 3 * size
        two.told.held[3].consumed()
        await reached(lambda: one.transport.room(2) == room + 4 * size)
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


# ---- What ends ----


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


def test_a_member_that_stops_tells_its_peers_so_and_they_need_not_wait(run: Any) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        await mesh(one, two)
        await close(one)
        await two.told.event("lost", 1, True)
        await close(two)

    run(test())


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


# ---- Members that are not named (yet) ------------------------------------------------------------------------


def test_a_member_that_is_expected_connects_though_nobody_named_it_and_keeps_its_connection_then(run: Any) -> None:
    async def test() -> None:
        node, newcomer = Node(1), Node(2)
        await node.listen()
        await newcomer.listen()
        newcomer.knows(node)
        await newcomer.told.event("refused", 1, "wrong member")
        node.told.expected.add(2)
        await node.told.event("connected", 2)
        assert node.transport.send(2, node.host, engine_frame(index=5))
        await newcomer.told.until(lambda: len(received(newcomer, 1)) == 1)
        (link,) = node.links()
        node.transport.set_peers({})
        node.knows(newcomer)
        await turns()
        assert node.links() == [link]
        await close(newcomer)
        await node.told.event("lost", 2)
        await close(node)

    run(test())


def test_a_stranger_goes_with_its_connection_and_is_never_dialled(run: Any) -> None:
    async def test() -> None:
        node, newcomer = Node(1), Node(2)
        await node.listen()
        await newcomer.listen()
        node.told.expected.add(2)
        newcomer.knows(node)
        await node.told.event("connected", 2)
        await close(newcomer)
        await node.told.event("lost", 2)
        assert node.transport.why_not(2) == "member 2 is no peer"
        with pytest.raises(OptionError, match="no peer"):
            await node.transport.open_update(2)
        await close(node)

    run(test())


def test_a_program_that_knows_one_address_learns_the_cluster_and_is_nobodys_peer(run: Any) -> None:
    async def test() -> None:
        node = Node(1)
        await node.listen()
        newcomer = Node(9, cluster=bytes(16))
        hello, reader, writer = await newcomer.transport.open_join(node.address)
        assert (hello.cluster, hello.member, hello.hosts) == (node.transport.me.cluster, 1, {})
        asked, its_reader, its_writer = await node.told.joins.get()
        assert (asked.member, asked.hosts) == (9, {})
        writer.write(b"a question")
        assert await its_reader.readexactly(10) == b"a question"
        its_writer.write(b"an answer")
        assert await reader.readexactly(9) == b"an answer"
        assert node.transport.why_not(9) == "member 9 is no peer"
        writer.close()
        its_writer.close()
        with pytest.raises(StoreError, match=r"no join from a member at 127.0.0.1:1: "):
            await newcomer.transport.open_join("127.0.0.1:1")
        other = Node(9, cluster=b"another cluster.")
        with pytest.raises(StoreError, match="this is cluster"):
            await other.transport.open_join(node.address)
        await close(node, newcomer, other)

    run(test())
