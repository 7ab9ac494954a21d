"""An update over a connection: log and catalog arrive whole, whoever dies, and whatever is damaged on the way."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")

from cluster.test_catalog_log import contents
from xxhash import xxh64_intdigest

from kit.copy_group import Group, fill
from kit.members import Node, close, mesh, run
from kit.patience import wait_until
from logstore import errors
from logstore.catalog.changes import applied_lsn
from logstore.catalog.copy import copy_catalog
from logstore.cluster import frames
from logstore.cluster.update import Manifest, Update
from logstore.cluster.update_frames import (
    CATALOG,
    MESSAGES,
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
)
from logstore.cluster.update_sending import BURST_S, WAITS_MAX, Pace
from logstore.cluster.updating import AGAIN_MAX, Received, Sent, receive_update, send_update
from logstore.holds import LogRecycled, list_holds
from logstore.inspect.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


__all__ = ["run"]

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
FAST = 1 << 40  # bytes a second
SEGMENT_AT = 8192  # an offset in a segment, among its batches


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path, catalog=True)
    yield made
    made.close()


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


async def pair() -> tuple[Streams, Streams]:
    """Both ends of a connection on the loopback."""
    accepted: asyncio.Queue[Streams] = asyncio.Queue()
    server = await asyncio.start_server(lambda *streams: accepted.put_nowait(streams), "127.0.0.1", 0)
    dialled = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    taken = await accepted.get()
    server.close()
    return dialled, taken


class Case:
    """A group whose member 3 (index 2) is behind, and the two calls."""

    def __init__(self, group: Group, executor: ThreadPoolExecutor) -> None:
        self.group = group
        self.executor = executor
        self.uuid = group.copies[0].member().uuid
        self.store = group.lead(0)
        group.reached = {0, 1}
        self.stay = [self.store.publish("orders", content=b"s" * 100_000, wait=False) for _ in range(40)]
        self.fill(120)
        self.store.declare_queue("early")

    def fill(self, count: int) -> None:
        """Much comes and goes, so the base moves on and the log below it is recycled."""
        self.stay += fill(self.store, count)
        self.group.forget()

    def begin(self, manifest: Manifest) -> Update:
        return Update(self.group.copies[2], manifest)

    async def send(self, streams: Streams, sender: int = 0, **options: Any) -> Sent:
        options = {"rate": FAST, "uuid": self.uuid} | options
        return await send_update(*streams, self.group.stores[sender], executor=self.executor, **options)

    async def receive(
        self, streams: Streams, begin: Callable[[Manifest], Update | None] | None = None, **options: Any
    ) -> Received:
        options = {"store_uuid": self.uuid, "index": 2} | options
        return await receive_update(*streams, begin or self.begin, executor=self.executor, **options)

    async def finish(self, received: Received) -> None:
        """What a member does in the thread of its copy."""
        assert received.update is not None
        received.update.finish()
        copy = self.group.copies[2]
        received.check_members(copy)
        await received.switched()
        info = copy.info()
        assert (info.index, info.term) == (received.manifest.index, received.manifest.term)

    async def update(self, begin: Callable[[Manifest], Update | None] | None = None, **options: Any) -> Received:
        ours, theirs = await pair()
        sent = asyncio.create_task(self.send(theirs, **options))
        received = await self.receive(ours, begin)
        await self.finish(received)
        assert (await sent).switched
        return received

    def catch_up(self, end: int) -> None:
        """The batches behind the update, and then the catalogs and the messages agree."""
        copy = self.group.copies[2]
        for batch in list(self.group.sent):
            if batch.index > end:
                copy.take(batch)
        self.group.reached = {0, 1, 2}
        self.store.declare_queue("late")
        self.stay.append(self.store.publish("orders", content=b"for all"))
        wait_until(lambda: copy.info().applied_lsn == self.group.sent[-1].end_lsn, "it has applied all")
        place = self.group.paths[2] / f"copy-{copy.member().copy}"
        assert contents(place) == contents(self.group.stores[0])
        self.group.cease()
        led = self.group.lead(2)
        assert set(self.stay) <= {message.id for message in led.messages("orders")}
        assert "late" in {queue.name for queue in led.queues()}


@pytest.fixture
def case(group: Group, executor: ThreadPoolExecutor) -> Case:
    return Case(group, executor)


class Watched(Update):
    """Something happens when a piece was written."""

    def __init__(self, copy: Any, manifest: Manifest, wrote: Callable[[], None]) -> None:
        super().__init__(copy, manifest)
        self.wrote = wrote

    def write(self, first_lsn: int, offset: int, data: bytes) -> None:
        super().write(first_lsn, offset, data)
        self.wrote()


# ---- whole updates ---------------------------------------------------------------------------------------------------


def test_a_member_without_a_copy_gets_log_and_catalog_over_the_members_transport(run: Any, case: Case) -> None:
    case.group.copies[2].remove()

    async def test() -> None:
        one, three = Node(1), Node(3)
        await mesh(one, three)
        ours = await three.transport.open_update(1)
        peer, *theirs = await one.told.updates.get()
        assert peer == 3
        sent = asyncio.create_task(case.send(tuple(theirs)))
        received = await case.receive(ours)
        assert received.bytes == sum(segment.bytes for segment in received.manifest.segments)
        assert (received.members_index, received.members) == (1, b"1,2,3")
        await case.finish(received)
        done = await sent
        assert (done.switched, done.index, done.reason) == (True, received.manifest.index, "")
        assert list_holds(case.group.stores[0]) == []
        case.catch_up(received.manifest.index)
        await close(one, three)

    run(test())


def test_a_member_far_behind_is_updated_while_the_leader_publishes_and_declares_queues(run: Any, case: Case) -> None:
    case.fill(300)
    with pytest.raises(errors.BatchRefused):
        case.group.copies[2].take(case.group.sent[-1])
    wrote = 0

    def meanwhile() -> None:
        nonlocal wrote
        wrote += 1
        case.stay.append(case.store.publish("orders", content=b"meanwhile"))
        if wrote % 4 == 1:
            case.store.declare_queue(f"meanwhile-{wrote}")

    async def test() -> None:
        def begin(manifest: Manifest) -> Update:
            assert manifest.segments[0].first_lsn > case.group.copies[2].info().end_lsn
            case.store.declare_queue("after the offer")
            return Watched(case.group.copies[2], manifest, meanwhile)

        received = await case.update(begin)
        assert wrote > 4
        assert received.manifest.index < case.group.sent[-1].index
        case.catch_up(received.manifest.index)

    run(test())


def test_an_update_begins_where_the_senders_catalog_stands(run: Any, case: Case) -> None:
    case.fill(300)
    stands = applied_lsn(case.group.stores[1], case.uuid)
    with Reader(case.group.stores[1]) as reader:
        assert stands is not None
        assert stands < reader.info.base_lsn

    async def test() -> None:
        received = await case.update(sender=1)
        assert received.manifest.segments[0].prev_end_lsn <= stands
        case.catch_up(received.manifest.index)

    run(test())


def test_segments_that_the_member_has_are_not_sent(run: Any, case: Case) -> None:
    case.group.reached = {0, 1}

    async def test() -> None:
        first = await case.update()
        case.store.publish("orders", content=b"more")
        second = await case.update()
        assert second.bytes <= sum(one.bytes for one in second.manifest.segments[-2:]) < first.bytes

    run(test())


def test_a_member_that_needs_no_update_says_so(run: Any, case: Case) -> None:
    async def test() -> None:
        ours, theirs = await pair()
        sent = asyncio.create_task(case.send(theirs))
        received = await case.receive(ours, lambda _: None)
        assert received.update is None
        done = await sent
        assert (done.switched, done.reason, done.bytes) == (False, "no update is needed any more", 0)

    run(test())


def test_an_update_that_is_not_switched_in_leaves_the_member_as_it_was(run: Any, case: Case) -> None:
    before = case.group.copies[2].info()

    async def test() -> None:
        ours, theirs = await pair()
        sent = asyncio.create_task(case.send(theirs))
        received = await case.receive(ours)
        assert len(list_holds(case.group.stores[0])) == 1
        await received.failed("the engine has another leader")
        done = await sent
        assert (done.switched, done.reason) == (False, "the engine has another leader")
        assert list_holds(case.group.stores[0]) == []
        assert case.group.copies[2].info() == before
        case.catch_up((await case.update()).manifest.index)

    run(test())


def test_a_configuration_that_the_log_does_not_have_is_found_when_the_copy_is_switched_in(run: Any, case: Case) -> None:
    async def test() -> None:
        received = await case.update()
        received.members = b"4,5,6"
        with pytest.raises(UpdateFailed, match="close this host") as failed:
            received.check_members(case.group.copies[2])
        assert failed.value.kind == Why.MEMBERS

    run(test())


# ---- damage ----------------------------------------------------------------------------------------------------------


class Flipped:
    """A reader in front of a stream that flips a bit of some reads."""

    def __init__(self, reader: asyncio.StreamReader, flips: Callable[[int], bool]) -> None:
        self.reader = reader
        self.flips = flips

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reader, name)

    async def readexactly(self, size: int) -> bytes:
        data = await self.reader.readexactly(size)
        return bytes([data[0] ^ 4]) + data[1:] if self.flips(size) else data


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(SEGMENT_AT)
        byte = file.read(1)[0]
        file.seek(SEGMENT_AT)
        file.write(bytes([byte ^ 4]))


def test_a_byte_flipped_on_the_way_is_asked_for_again(run: Any, case: Case) -> None:
    flipped = 0

    def flips(size: int) -> bool:
        nonlocal flipped
        flipped += size > 8000
        return size > 8000 and flipped in (1, 3, 5)  # the catalog's first piece, and two of segments

    async def test() -> None:
        (reader, writer), theirs = await pair()
        sent = asyncio.create_task(case.send(theirs, in_flight=PIECE_BYTES_MAX))
        received = await case.receive((Flipped(reader, flips), writer))  # type: ignore[arg-type]
        assert flipped > 5
        whole = sum(segment.bytes for segment in received.manifest.segments)
        assert 0 < received.bytes - whole <= 2 * PIECE_BYTES_MAX  # and not whole segments again
        await case.finish(received)
        assert (await sent).switched
        case.catch_up(received.manifest.index)

    run(test())


def test_bytes_that_are_always_damaged_end_the_update(run: Any, case: Case) -> None:
    async def test() -> None:
        (reader, writer), theirs = await pair()
        sent = asyncio.create_task(case.send(theirs))
        with pytest.raises(UpdateFailed, match=f"damaged bytes came {AGAIN_MAX + 1} times") as failed:
            await case.receive((Flipped(reader, lambda size: size > 8000), writer))  # type: ignore[arg-type]
        assert failed.value.kind == Why.DAMAGED
        with pytest.raises(UpdateFailed) as told:
            await sent
        assert told.value.kind == Why.DAMAGED
        assert list_holds(case.group.stores[0]) == []

    run(test())


@pytest.mark.parametrize("mends", [True, False])
def test_a_byte_that_the_senders_disk_spoils_is_found_by_the_manifest(run: Any, case: Case, mends: bool) -> None:
    class Mending(Update):
        def write(self, first_lsn: int, offset: int, data: bytes) -> None:
            try:
                super().write(first_lsn, offset, data)
            except errors.BatchRefused:
                refused.append(first_lsn)
                if mends:
                    flip(spoilt[0])
                raise

    refused: list[int] = []
    spoilt: list[Path] = []

    def begin(manifest: Manifest) -> Update:
        spoilt.append(case.group.stores[1] / f"{manifest.segments[0].first_lsn:016x}.seg")
        made = Mending(case.group.copies[2], manifest)
        flip(spoilt[0])
        return made

    async def test() -> None:
        ours, theirs = await pair()
        sent = asyncio.create_task(case.send(theirs, sender=1, in_flight=PIECE_BYTES_MAX))
        if mends:
            received = await case.receive(ours, begin)
            assert len(refused) == 1
            await case.finish(received)
            assert (await sent).switched
            case.catch_up(received.manifest.index)
            return
        with pytest.raises(UpdateFailed, match="update from another member") as failed:
            await case.receive(ours, begin)
        assert (failed.value.kind, len(refused)) == (Why.DAMAGED, AGAIN_MAX + 1)
        with pytest.raises(UpdateFailed, match="damaged"):
            await sent
        flip(spoilt[0])

    run(test())


def test_a_damaged_message_ends_the_update_on_both_sides(run: Any, case: Case) -> None:
    async def test() -> None:
        (reader, writer), theirs = await pair()
        sent = asyncio.create_task(case.send(theirs))
        with pytest.raises(UpdateFailed, match="checksum") as failed:
            await case.receive((Flipped(reader, lambda size: size != frames.HEAD.size), writer))  # type: ignore[arg-type]
        assert failed.value.kind == Why.FRAME
        with pytest.raises(UpdateFailed, match="checksum"):
            await sent

    run(test())


# ---- death -----------------------------------------------------------------------------------------------------------

SENDER = """
import asyncio, sys
from concurrent.futures import ThreadPoolExecutor
from logstore.cluster.updating import send_update

async def main():
    streams = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    with ThreadPoolExecutor(1) as executor:
        await send_update(*streams, sys.argv[2], uuid=bytes.fromhex(sys.argv[3]), executor=executor, in_flight=1 << 18)

asyncio.run(main())
"""


def test_another_sender_goes_on_with_what_a_killed_one_left(run: Any, case: Case) -> None:
    case.group.copies[2].remove()

    async def test() -> None:
        accepted: asyncio.Queue[Streams] = asyncio.Queue()
        server = await asyncio.start_server(lambda *streams: accepted.put_nowait(streams), "127.0.0.1", 0)
        port = str(server.sockets[0].getsockname()[1])
        sender = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SENDER, port, str(case.group.stores[1]), case.uuid.hex()
        )
        wrote = 0

        def kill_in_the_middle() -> None:
            nonlocal wrote
            wrote += 1
            if wrote == 10:
                sender.kill()

        with pytest.raises(UpdateFailed, match="another one, which goes on") as failed:
            await case.receive(
                await accepted.get(), lambda given: Watched(case.group.copies[2], given, kill_in_the_middle)
            )
        assert failed.value.kind == Why.LOST
        await sender.wait()
        server.close()
        left = sorted(case.group.paths[2].glob("copy-*/*.seg"))
        assert left
        received = await case.update(sender=0)
        whole = sum(segment.bytes for segment in received.manifest.segments)
        assert 0 < received.bytes < whole
        case.catch_up(received.manifest.index)

    run(test())


def test_a_sender_whose_receiver_dies_releases_its_hold(run: Any, case: Case) -> None:
    async def test() -> None:
        ours, theirs = await pair()
        sent = asyncio.create_task(case.send(theirs))
        receiving: list[asyncio.Task[Received]] = []
        loop = asyncio.get_running_loop()

        def begin(manifest: Manifest) -> Update:
            return Watched(case.group.copies[2], manifest, lambda: loop.call_soon_threadsafe(ours[1].transport.abort))

        receiving.append(asyncio.create_task(case.receive(ours, begin)))
        with pytest.raises(UpdateFailed) as failed:
            await sent
        assert failed.value.kind == Why.LOST
        with pytest.raises(UpdateFailed):
            await receiving[0]
        assert list_holds(case.group.stores[0]) == []
        case.catch_up((await case.update()).manifest.index)

    run(test())


@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_a_side_that_is_cancelled_leaves_nothing_open(run: Any, case: Case, who: str) -> None:
    async def test() -> None:
        ours, theirs = await pair()
        loop = asyncio.get_running_loop()
        tasks: dict[str, asyncio.Task[Any]] = {}

        def begin(manifest: Manifest) -> Update:
            return Watched(case.group.copies[2], manifest, lambda: loop.call_soon_threadsafe(tasks[who].cancel))

        tasks["sender"] = asyncio.create_task(case.send(theirs, in_flight=PIECE_BYTES_MAX))
        tasks["receiver"] = asyncio.create_task(case.receive(ours, begin))
        results = dict(zip(tasks, await asyncio.gather(*tasks.values(), return_exceptions=True), strict=True))
        assert isinstance(results.pop(who), asyncio.CancelledError)
        assert all(isinstance(result, UpdateFailed) for result in results.values())
        assert list_holds(case.group.stores[0]) == []
        case.catch_up((await case.update()).manifest.index)  # its directory is not locked

    run(test())


# ---- a sender that cannot send ---------------------------------------------------------------------------------------


def test_a_log_that_is_recycled_ends_the_update_and_both_sides_say_so(run: Any, case: Case) -> None:
    def begin(manifest: Manifest) -> Update:
        made = case.begin(manifest)
        oldest = case.group.stores[0] / f"{manifest.segments[0].first_lsn:016x}.seg"
        while oldest.exists():
            case.fill(40)
        return made

    async def test() -> None:
        ours, theirs = await pair()
        sent = asyncio.create_task(case.send(theirs, limit_bytes=1))
        with pytest.raises(UpdateFailed, match="begin anew") as failed:
            await case.receive(ours, begin)
        assert failed.value.kind == Why.RECYCLED
        with pytest.raises(LogRecycled):
            await sent
        case.catch_up((await case.update()).manifest.index)

    run(test())


def test_another_store_is_refused_by_the_sender(run: Any, case: Case) -> None:
    async def test() -> None:
        ours, theirs = await pair()
        sent = asyncio.create_task(case.send(theirs))
        with pytest.raises(UpdateFailed, match="is asked for") as failed:
            await case.receive(ours, store_uuid=bytes(16))
        assert failed.value.kind == Why.STORE
        with pytest.raises(UpdateFailed, match="is asked for"):
            await sent

    run(test())


def test_a_sender_that_is_behind_waits_until_its_log_has_moved(run: Any, case: Case) -> None:
    wanted = case.group.sent[-1].index + 3
    moves = 0

    async def moved() -> None:
        nonlocal moves
        moves += 1
        await asyncio.get_running_loop().run_in_executor(case.executor, lambda: case.store.publish("orders", b"next"))

    async def test() -> None:
        ours, theirs = await pair()
        sent = asyncio.create_task(case.send(theirs, moved=moved))
        received = await case.receive(ours, index=wanted)
        assert moves >= 2
        assert received.manifest.index >= wanted
        await case.finish(received)
        assert (await sent).switched

    run(test())


def test_a_sender_whose_log_does_not_move_gives_up_and_says_why(run: Any, case: Case) -> None:
    moves = 0

    async def moved() -> None:
        nonlocal moves
        moves += 1

    async def test() -> None:
        ours, theirs = await pair()
        sent = asyncio.create_task(case.send(theirs, moved=moved))
        with pytest.raises(UpdateFailed, match="is wanted") as failed:
            await case.receive(ours, index=1 << 40)
        assert (failed.value.kind, moves) == (Why.BEHIND, WAITS_MAX)
        with pytest.raises(UpdateFailed, match="update from another member"):
            await sent
        assert list_holds(case.group.stores[0]) == []

    run(test())


def test_what_begin_refuses_is_told_to_the_sender(run: Any, case: Case) -> None:
    def begin(_: Manifest) -> Update:
        raise errors.StoreFull("no room here")

    async def test() -> None:
        ours, theirs = await pair()
        sent = asyncio.create_task(case.send(theirs))
        with pytest.raises(errors.StoreFull):
            await case.receive(ours, begin)
        with pytest.raises(UpdateFailed, match="no room here"):
            await sent

    run(test())


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_a_sender_never_has_more_in_flight_than_its_limit(run: Any, case: Case) -> None:
    async def test() -> None:
        ours, theirs = await pair()
        sent = asyncio.create_task(case.send(theirs, in_flight=PIECE_BYTES_MAX))
        peer = Connection(*ours)
        await peer.send(Request(case.uuid, 2))
        rows = [await peer.receive(), await peer.receive()][1]
        assert isinstance(rows, Segments)
        first, size = next((row[0], row[3]) for row in rows.rows if row[3] > PIECE_BYTES_MAX)
        for number in range(1, 20):
            await peer.send(Ask(number, first, 0, size))
            await peer.send(Ack((number - 1) * PIECE_BYTES_MAX))
            piece = await peer.receive()
            assert isinstance(piece, Piece)
            assert (piece.number, piece.bytes) == (number, PIECE_BYTES_MAX)  # and not the rest of the part before
            assert await peer.data(piece) is not None
        await peer.send(Ended(False, "enough"))
        assert (await sent).reason == "enough"

    run(test())


def test_a_manifest_of_a_hundred_thousand_segments_passes(run: Any, executor: ThreadPoolExecutor) -> None:
    uuid, count = bytes(16), 100_000
    rows = [((2 + number) << 24, 1 << 20, (2 + number) << 24, 1 << 24, (1 << 64) - 1) for number in range(count)]

    async def test() -> None:
        ours, theirs = await pair()
        seen: list[Manifest] = []

        def begin(manifest: Manifest) -> None:
            seen.append(manifest)

        receiving = asyncio.create_task(receive_update(*ours, begin, store_uuid=uuid, index=2, executor=executor))
        peer = Connection(*theirs)
        assert await peer.receive() == Request(uuid, 2)
        await peer.send(Wait("soon"))
        await peer.send(Offer(uuid, 1 << 24, 1 << 20, 1, 1 << 50, 7, 9, count, 4096, 1, 1, b"1"))
        for at in range(0, count, ROWS_MAX):
            await peer.send(Segments(rows[at : at + ROWS_MAX]))
        await receiving
        assert len(seen[0].segments) == count
        assert seen[0].segments[-1].first_lsn == rows[-1][0]

    run(test())


def test_a_sender_keeps_its_rate_after_a_burst() -> None:
    pace = Pace(1000, 5.0)
    assert pace.wait_s(100, 5.0) == 0
    assert pace.wait_s(100, 5.0) == pytest.approx(0.1)
    assert pace.wait_s(100, 5.05) == pytest.approx(0.15)
    now, sent = 10.0, 0
    while now < 110.0:
        now += pace.wait_s(50, now)
        sent += 50
    assert sent == pytest.approx(1000 * (100 + BURST_S), rel=0.01)


OFFER = Offer(bytes(16), 1 << 20, 1 << 20, 1, 1 << 40, 7, 9, 1, 4096, 1, 1, b"1")
ROW = (1 << 21, 7, 1 << 21, 8192, 1)


def changed(**values: Any) -> Offer:
    return Offer(**{name: getattr(OFFER, name) for name in Offer.__struct_fields__} | values)


def beyond(message: Any) -> bytes:
    return bytes(MESSAGES.frame(message))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(frames.HEAD.pack(0, 1 << 31, frames.CONTROL, 0, 18), id="a length beyond the limit"),
        pytest.param(frames.HEAD.pack(0, 16, frames.PART, 0, 0), id="another type"),
        pytest.param(beyond(Ask(1, CATALOG, 0, 1)), id="a receiver's message"),
        pytest.param(beyond(Segments([ROW])), id="rows before the offer"),
        pytest.param(beyond(changed(segments=0)), id="no segment"),
        pytest.param(beyond(changed(segments=1 << 40)), id="too many segments"),
        pytest.param(beyond(changed(uuid=b"short")), id="a short UUID"),
        pytest.param(beyond(changed(index=-1)), id="a negative index"),
        pytest.param(beyond(changed(end_lsn=1 << 63)), id="an LSN beyond the last"),
        pytest.param(beyond(changed(catalog_bytes=1 << 60)), id="a catalog beyond the limit"),
        pytest.param(beyond(changed(members=b"")), id="no members"),
        pytest.param(beyond(OFFER) + beyond(Segments([ROW, ROW])), id="too many rows"),
        pytest.param(beyond(OFFER) + beyond(Segments([])), id="no rows"),
        pytest.param(beyond(OFFER) + beyond(Segments([(-1, *ROW[1:])])), id="a negative number in a row"),
        pytest.param(beyond(OFFER) + beyond(Wait("now")), id="a wait between rows"),
    ],
)
def test_what_no_sender_can_mean_ends_the_update(run: Any, executor: ThreadPoolExecutor, data: bytes) -> None:
    async def test() -> None:
        ours, theirs = await pair()
        receiving = asyncio.create_task(
            receive_update(*ours, lambda _: None, store_uuid=bytes(16), index=2, executor=executor)
        )
        peer = Connection(*theirs)
        await peer.receive()
        theirs[1].write(data)
        with pytest.raises(UpdateFailed) as told:
            await peer.receive()
        assert told.value.kind == Why.FRAME
        peer.close()
        with pytest.raises(UpdateFailed) as failed:
            await receiving
        assert failed.value.kind == Why.FRAME

    run(test())


@pytest.mark.parametrize(
    "message",
    [
        Request(bytes(16), 2),
        Ask(1, CATALOG, 0, 0),
        Ask(1, CATALOG, 0, 1 << 40),
        Ask(1, CATALOG, -1, 2),
        Ask(0, CATALOG, 0, 1),
        Ask(1, 1, 0, 1),
        Ack(1),
        Ack(-1),
        Wait("no"),
    ],
    ids=repr,
)
def test_what_no_receiver_can_mean_ends_the_update(run: Any, case: Case, message: Any) -> None:
    async def test() -> None:
        ours, theirs = await pair()
        sent = asyncio.create_task(case.send(theirs))
        peer = Connection(*ours)
        await peer.send(Request(case.uuid, 2))
        while not isinstance(await peer.receive(), Segments):
            pass
        await peer.send(message)
        with pytest.raises(UpdateFailed) as told:
            await peer.receive()
        assert told.value.kind == Why.FRAME
        peer.close()
        with pytest.raises(UpdateFailed) as failed:
            await sent
        assert failed.value.kind == Why.FRAME
        assert list_holds(case.group.stores[0]) == []

    run(test())


def test_a_catalog_that_lacks_changes_below_the_log_is_refused(run: Any, case: Case, tmp_path: Path) -> None:
    copy_catalog(case.group.stores[2], tmp_path, store_uuid=case.uuid, live=True)
    stale = (tmp_path / "catalog.sqlite").read_bytes()
    case.fill(200)

    async def test() -> None:
        ours, theirs = await pair()
        receiving = asyncio.create_task(case.receive(ours))
        senders, relayed = await pair()
        sent = asyncio.create_task(case.send(relayed))
        peer, sender = Connection(*theirs), Connection(*senders)
        await sender.send(await peer.receive())
        offer = await sender.receive()
        assert isinstance(offer, Offer)
        fields = {name: getattr(offer, name) for name in Offer.__struct_fields__}
        await peer.send(Offer(**fields | {"catalog_bytes": len(stale), "catalog_checksum": xxh64_intdigest(stale)}))
        await peer.send(await sender.receive())
        ask = await peer.receive()
        assert ask == Ask(1, CATALOG, 0, len(stale))
        assert await peer.receive() == Ack(0)
        await peer.send(Piece(1, len(stale), xxh64_intdigest(stale)), stale)
        assert await peer.receive() == Ack(len(stale))
        with pytest.raises(UpdateFailed) as told:
            await peer.receive()
        assert told.value.kind == Why.CATALOG
        peer.close()
        with pytest.raises(UpdateFailed, match=r"the catalog has the changes up to LSN \d+"):
            await receiving
        sender.abort()
        with pytest.raises(UpdateFailed):
            await sent

    run(test())
