"""A member that lags beyond what the others keep, or that lost its copy, comes back by an update while they go on."""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

from kit.command import fine
from kit.copy_group import CLUSTER, fill
from kit.member_process import made, running
from kit.patience import PATIENCE_S, wait_until
from kit.ports import free_ports
from kit.stores import SMALL_SEGMENT
from kit.trio import HOST, Publisher, Trio, group_of, judge, number_of, wait_for_all
from logstore import errors
from logstore.cluster import config, group_update, keeping, update_frames, update_sending
from logstore.cluster.addresses import Tls
from logstore.cluster.member import Member
from logstore.cluster.replica import Copy, create
from logstore.cluster.update import Manifest, Source, Update
from logstore.cluster.update_frames import Connection, Offer, Request
from logstore.cluster.updating import UpdateFailed, Why, receive_update
from logstore.holds import list_holds

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from concurrent.futures import Executor
    from pathlib import Path

    from logstore.cluster.member import Member
    from logstore.cluster.updating import Received

T = TypeVar("T")

KEPT = 128 << 10


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    made = Trio(tmp_path, kept_bytes=KEPT)
    yield made
    made.stop()


# ---- what a test looks at --------------------------------------------------------------------------------------------


def on_loop(member: Member, work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, member._running.loop).result(PATIENCE_S)


def first_kept(trio: Trio, member: int) -> int:
    async def ask() -> int:
        copy = group_of(trio, member)._copy
        assert copy is not None
        return copy.kept().start

    return on_loop(trio.members[member], ask())


def kept_bytes(trio: Trio, member: int) -> int:
    async def ask() -> int:
        copy = group_of(trio, member)._copy
        assert copy is not None
        kept = copy.kept()
        return copy.entry(kept[-1]).end_lsn - copy.entry(kept[0]).lsn

    return on_loop(trio.members[member], ask())


def lag(trio: Trio, member: int = 3, *, count: int = 150) -> list[int]:
    """Stops the member, and publishes until no other keeps what it needs next; the messages that stay.

    The others are started before, and lead.
    """
    has = trio.members[member].standings()[HOST].index
    trio.stop(member)
    store = trio.store()
    stay = fill(store, count)
    stay += [store.publish("orders", bytes([number]) * 20_000) for number in range(100)]
    trio.leader()
    wait_until(
        lambda: all(first_kept(trio, other) > has + 1 for other in trio.members),
        "neither the leader nor one that may lead next keeps what the member needs",
    )
    return stay


class Watched:
    """The updates that members take: what was received, and a stop in the middle of one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.received: list[Received] = []
        self.begun = 0
        self.stops = False  # once, before the last segment is written
        self.is_in_the_middle = threading.Event()
        self.goes_on = threading.Event()
        watched = self

        async def receive(
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            begin: Callable[..., Update | None],
            *,
            store_uuid: bytes,
            index: int,
            executor: Executor,
            replaced: Callable[[], bool],
        ) -> Received:
            watched.begun += 1
            one = await receive_update(
                reader, writer, begin, store_uuid=store_uuid, index=index, executor=executor, replaced=replaced
            )
            watched.received.append(one)
            return one

        class Stopping(Update):
            def __init__(self, copy: Copy, manifest: Manifest) -> None:
                super().__init__(copy, manifest)
                self.last_lsn = manifest.segments[-1].first_lsn

            def write(self, first_lsn: int, offset: int, data: bytes) -> None:
                if watched.stops and first_lsn == self.last_lsn:
                    watched.stops = False
                    watched.is_in_the_middle.set()
                    assert watched.goes_on.wait(PATIENCE_S)
                super().write(first_lsn, offset, data)

        monkeypatch.setattr(group_update, "receive_update", receive)
        monkeypatch.setattr(group_update, "Update", Stopping)

    def wait_for_the_middle(self) -> None:
        assert self.is_in_the_middle.wait(PATIENCE_S)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    made = Watched(monkeypatch)
    yield made
    made.goes_on.set()


def whole(received: Received) -> int:
    return sum(segment.bytes for segment in received.manifest.segments)


# ---- whole updates ---------------------------------------------------------------------------------------------------


def test_a_member_whose_copy_was_removed_comes_back_by_an_update_while_others_publish(
    trio: Trio, watched: Watched
) -> None:
    trio.start()
    store = trio.store()
    trio.transfer_to(1)
    store = trio.store()
    store.declare_queue("invoices")
    store.declare_exchange("events")
    store.bind("events", "invoices", "k")
    wait_for_all(trio)
    stay = lag(trio)
    with Copy.open(trio.host_dir(3)) as copy:
        before = copy.member()
        copy.remove()
        assert not copy.is_there
    trio.transfer_to(2)  # a leader refuses a member that takes back what it acknowledged to it in its term (R11)
    publisher = Publisher(trio)
    trio.start(3)
    try:
        wait_until(lambda: number_of(trio, 3) > before.copy, "the update has been switched in")
    finally:
        stay += publisher.stop()
    assert watched.received[0].bytes == whole(watched.received[0])
    assert group_of(trio, 3).identity(first=True).rebuild == before.rebuild + 1
    wait_for_all(trio)
    store = trio.store()
    store.declare_queue("late")
    stay.append(store.publish("invoices", b"after the update"))
    trio.transfer_to(3)
    led = trio.members[3].store(HOST)
    assert {queue.name for queue in led.queues()} == {"orders", "invoices", "late"}
    assert [binding.key for binding in led.bindings()] == ["k"]
    assert led.queue("invoices").depth == 1
    stay.pop()
    judge(trio, stay)


def test_a_follower_that_lags_beyond_the_kept_window_is_updated_and_follows_by_batches(
    trio: Trio, watched: Watched
) -> None:
    trio.start()
    trio.store()
    trio.transfer_to(1)
    wait_for_all(trio)
    stay = lag(trio)
    trio.start(3)
    wait_until(lambda: number_of(trio, 3) == 2, "the update has been switched in")
    wait_for_all(trio)
    assert watched.begun == 1
    wait_until(lambda: not list_holds(trio.host_dir(1) / "copy-1"), "the sender keeps nothing for it any more")
    stay.append(trio.store().publish("orders", b"by a batch"))
    wait_for_all(trio)
    assert watched.begun == 1
    judge(trio, stay)


def test_followers_keep_no_more_than_the_window_however_long_one_member_leads(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they keep the files below for their catalog, and the floor of each ``VOTE`` moves."""
    monkeypatch.setattr(keeping, "NOTE_CATALOG_EVERY_MS", 500)
    trio.start()
    store = trio.store()
    queue = store.queue("orders")
    leader = trio.leader()
    followers = [member for member in trio.addresses if member != leader]
    floors = {member: floor_of(trio, member) for member in followers}
    for _ in range(100):
        store.publish_many("orders", [bytes(1000)] * 100)
        queue.accept_many(queue.acquire(100))
    written = store.stats()["segments_created"] * SMALL_SEGMENT
    assert written > 2 * (KEPT + 6 * SMALL_SEGMENT)

    def files(member: int) -> int:
        return len(list(trio.host_dir(member).glob("copy-*/*.seg"))) * SMALL_SEGMENT

    def is_bounded(member: int) -> bool:
        store.publish("orders", b"a batch more")  # files go when more is known to be durable
        return files(member) <= KEPT + 6 * SMALL_SEGMENT and kept_bytes(trio, member) <= KEPT

    for member in followers:
        wait_until(lambda member=member: is_bounded(member), "the follower's log is short")
        wait_until(lambda member=member: floor_of(trio, member) > floors[member], "the floor has moved")
    assert trio.leader() == leader


def floor_of(trio: Trio, member: int) -> int:
    async def ask() -> int:
        copy = group_of(trio, member)._copy
        assert copy is not None
        return copy.member().floor_index

    return on_loop(trio.members[member], ask())


def test_a_member_with_nothing_but_its_vote_gets_its_first_copy(trio: Trio) -> None:
    shutil.rmtree(trio.host_dir(3) / "copy-1")
    with Copy.open(trio.host_dir(1)) as copy:
        uuid = copy.member().uuid
    (trio.host_dir(3) / "VOTE").unlink()
    with pytest.raises(errors.OptionError, match="16 bytes"):
        create(trio.host_dir(3), 3, CLUSTER, uuid=uuid[:15])
    create(trio.host_dir(3), 3, CLUSTER, uuid=uuid)
    trio.start()
    ids = [trio.store().publish("orders", b"%d" % number) for number in range(10)]
    wait_until(lambda: number_of(trio, 3), "it has a copy")
    judge(trio, ids)


def test_an_update_works_with_tls(trio: Trio, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="the extra cluster is not installed")
    from logstore.cluster.certificates import make_authority, make_certificate

    authority = make_authority(tmp_path)
    for member in trio.addresses:
        made = make_certificate(tmp_path, authority, f"m{member}", ["127.0.0.1"])
        trio.tls[member] = Tls(authority.cert, made.cert, made.key)
    trio.start()
    trio.store()
    trio.transfer_to(1)
    wait_for_all(trio)
    stay = lag(trio)
    trio.start(3)
    wait_until(lambda: number_of(trio, 3) == 2, "the update has been switched in")
    judge(trio, stay)


# ---- somebody dies, and somebody else leads --------------------------------------------------------------------------


def test_if_the_sender_dies_in_the_middle_the_next_leader_sends_what_is_missing(trio: Trio, watched: Watched) -> None:
    trio.start()
    trio.store()
    trio.transfer_to(1)
    wait_for_all(trio)
    stay = lag(trio)
    watched.stops = True
    trio.start(3)
    watched.wait_for_the_middle()
    trio.stop(1)
    watched.goes_on.set()
    wait_until(lambda: watched.received, "another one has sent the rest")
    assert watched.received[-1].bytes < whole(watched.received[-1])
    wait_until(lambda: number_of(trio, 3) == 2, "the update has been switched in")
    stay.append(trio.store().publish("orders", b"two of three"))
    trio.start(1)
    judge(trio, stay)


def test_if_the_receiver_dies_in_the_middle_it_goes_on_with_what_it_has(trio: Trio, watched: Watched) -> None:
    trio.start()
    trio.store()
    trio.transfer_to(1)
    wait_for_all(trio)
    stay = lag(trio)
    watched.stops = True
    trio.start(3)
    watched.wait_for_the_middle()
    updates = group_of(trio, 3).updates
    dying = threading.Thread(target=trio.stop, args=(3,))
    dying.start()
    wait_until(lambda: updates._is_closed, "it is about to end")
    watched.goes_on.set()
    dying.join()
    assert not watched.received
    assert (trio.host_dir(3) / "copy-1").exists()
    assert (trio.host_dir(3) / "copy-2").exists()
    wait_until(lambda: not list_holds(trio.host_dir(1) / "copy-1"), "the sender has ended as well")
    trio.start(3)
    wait_until(lambda: number_of(trio, 3) == 2, "the update has been switched in")
    assert watched.received[0].bytes < whole(watched.received[0])
    judge(trio, stay)


def test_an_update_goes_on_when_another_member_leads(trio: Trio, watched: Watched) -> None:
    trio.start()
    trio.store()
    trio.transfer_to(1)
    wait_for_all(trio)
    stay = lag(trio)
    watched.stops = True
    trio.start(3)
    watched.wait_for_the_middle()
    trio.transfer_to(2)
    stay.append(trio.store().publish("orders", b"under the next leader"))
    watched.goes_on.set()
    wait_until(lambda: number_of(trio, 3) == 2, "the update has been switched in")
    assert watched.begun == 1
    judge(trio, stay)


def test_if_the_senders_disk_hangs_the_next_leader_sends_what_is_missing(
    trio: Trio, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, works = threading.Event(), threading.Event()

    class Hanging(Source):
        def read(self, first_lsn: int, offset: int, size: int) -> bytes:
            if not hangs.is_set():
                hangs.set()
                assert works.wait(PATIENCE_S)
            return super().read(first_lsn, offset, size)

    monkeypatch.setattr(update_sending, "Source", Hanging)
    monkeypatch.setattr(update_frames, "LOOK_S", 0.05)
    trio.start()
    trio.store()
    trio.transfer_to(1)
    wait_for_all(trio)
    stay = lag(trio)
    trio.start(3)
    assert hangs.wait(PATIENCE_S)
    try:
        trio.transfer_to(2)
        stay.append(trio.store().publish("orders", b"under the next leader"))
        wait_until(lambda: number_of(trio, 3) == 2, "the update has been switched in")
        assert watched.begun > 1
    finally:
        works.set()
    judge(trio, stay)


def test_what_a_leader_keeps_for_an_update_is_kept_when_it_follows(trio: Trio, watched: Watched) -> None:
    trio.start()
    trio.store()
    trio.transfer_to(1)
    wait_for_all(trio)
    lag(trio)
    watched.stops = True
    trio.start(3)
    watched.wait_for_the_middle()
    stay = fill(trio.store(), 150)
    kept = first_kept(trio, 1)
    assert kept_bytes(trio, 1) > KEPT + SMALL_SEGMENT
    trio.transfer_to(2)
    wait_until(lambda: group_of(trio, 1)._copy._leading is None, "it follows")  # type: ignore[union-attr]
    assert first_kept(trio, 1) <= kept
    watched.goes_on.set()
    judge(trio, stay)


def test_a_host_that_ends_in_the_middle_of_a_switch_has_one_of_both_copies(trio: Trio, watched: Watched) -> None:
    trio.start()
    trio.store()
    trio.transfer_to(1)
    wait_for_all(trio)
    stay = lag(trio)
    in_finish, goes_on = threading.Event(), threading.Event()
    base = group_update.Update

    class Finishing(base):  # type: ignore[misc, valid-type]
        def finish(self) -> None:
            in_finish.set()
            assert goes_on.wait(PATIENCE_S)
            super().finish()

    group_update.Update = Finishing  # type: ignore[misc]
    try:
        trio.start(3)
        assert in_finish.wait(PATIENCE_S)
        updates = group_of(trio, 3).updates
        dying = threading.Thread(target=trio.stop, args=(3,))
        dying.start()
        wait_until(lambda: updates._is_closed, "it is about to end")
        goes_on.set()
        dying.join()
    finally:
        group_update.Update = base  # type: ignore[misc]
    trio.start(3)
    assert number_of(trio, 3) == 2
    judge(trio, stay)


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_an_update_of_a_host_that_the_sender_does_not_have_is_refused_by_name(trio: Trio) -> None:
    trio.start()
    trio.store()
    (running,) = [trio.members[2]._running]
    wait_until(lambda: running.is_connected(1), "they are connected")

    async def ask() -> None:
        streams = await running.open_update(1)
        await receive_update(
            *streams,
            lambda _: None,
            store_uuid=b"no store of them",
            index=2,
            executor=group_of(trio, 2).updates._executor,
        )

    with pytest.raises(
        UpdateFailed, match=f"member 1 has no host with the store {b'no store of them'.hex()}"
    ) as failed:
        on_loop(trio.members[2], ask())
    assert failed.value.kind == Why.STORE


def test_a_peer_gets_one_update_at_a_time_and_its_newest_connection_counts(trio: Trio) -> None:
    trio.start()
    trio.store()
    running = trio.members[2]._running
    wait_until(lambda: running.is_connected(1), "they are connected")

    async def ask() -> None:
        first, second = [Connection(*await running.open_update(1)) for _ in range(2)]
        for one in (first, second):
            await one.send(Request(group_of(trio, 2).uuid, 1))
            while not isinstance(await one.receive(), Offer):
                pass
        while True:
            await first.receive()

    with pytest.raises(UpdateFailed, match="a newer connection of member 2 asks for an update"):
        on_loop(trio.members[2], ask())
    updates = group_of(trio, 1).updates
    wait_until(lambda: len(updates._sending) == 1, "one is left")
    trio.stop(1)
    assert not updates._sending
    assert not list_holds(trio.host_dir(1) / "copy-1")


def test_a_member_without_a_copy_sends_none(trio: Trio, watched: Watched) -> None:
    with Copy.open(trio.host_dir(3)) as copy:
        copy.remove()
    watched.stops = True
    trio.start()
    trio.store()
    watched.wait_for_the_middle()
    running = trio.members[2]._running
    wait_until(lambda: running.is_connected(3), "they are connected")
    group = group_of(trio, 2)

    async def ask() -> None:
        streams = await running.open_update(3)
        await receive_update(*streams, lambda _: None, store_uuid=group.uuid, index=2, executor=group.updates._executor)

    with pytest.raises(UpdateFailed, match="member 3 has no copy of it yet"):
        on_loop(trio.members[2], ask())
    watched.goes_on.set()
    judge(trio, [])


def test_an_update_that_fails_leaves_the_copy_and_the_next_offer_begins_anew(
    trio: Trio, watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[str] = []
    real = Update.next

    def fail_once(update: Update) -> Any:
        if not failed:
            failed.append("once")
            raise errors.StoreFull("no room for an update")
        return real(update)

    monkeypatch.setattr(Update, "next", fail_once)
    trio.start()
    trio.store()
    trio.transfer_to(1)
    wait_for_all(trio)
    stay = lag(trio)
    with caplog.at_level(logging.WARNING):
        trio.start(3)
        wait_until(lambda: number_of(trio, 3) == 2, "the second one has been switched in")
    assert "the update from member 1 has failed: no room for an update" in caplog.text
    assert watched.begun == 2
    judge(trio, stay)


# ---- a sender that is killed -----------------------------------------------------------------------------------------


def test_what_a_killed_sender_kept_for_an_update_is_recycled_by_its_next_run(tmp_path: Path) -> None:
    m1, m2 = made(tmp_path / "m1", "m1", "--member", 1), tmp_path / "m2"
    file = config.read(m1)
    with Member(m1, file.config(m1)) as sender:
        store = sender.store("main")
        store.declare_queue("orders")
        ids = [store.publish("orders", bytes(20_000), wait=False) for _ in range(1500)]
        store.force()
    copy = m1 / "main" / "copy-1"
    with running(m1) as process:
        listen = f"127.0.0.1:{free_ports(1)[0]}"
        fine("cluster", "join", file.listen, "--dir", m2, "--name", "m2", "--listen", listen)
        with running(m2):
            wait_until(lambda: list_holds(copy), "the update is under way")
            process.kill()
            process.ended(PATIENCE_S)
    (left,) = list_holds(copy)
    assert (left.state, left.kept_bytes) == ("abandoned", 0)
    with Member(m1, file.config(m1)) as sender:
        store = sender.store("main")
        kept = {path.name for path in copy.glob("*.seg") if int(path.stem, 16) >= left.lsn}
        assert kept
        for one in ids:
            store.dequeue(one, "orders")

        def is_recycled() -> bool:
            fill(store, 16)
            return not list_holds(copy) and not kept <= {path.name for path in copy.glob("*.seg")}

        wait_until(is_recycled, "the hold is gone, and segments that it kept")
