"""The defects of this design's predecessor in their transactional forms; see test_defects.py.

The numbers are those of the list in the design; number 10, the cost of an outcome, is in test_commit_cost.py. A restart
is a power cut on the simulated disk, or a killed process where the file system matters.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.killed import and_then_killed, quick_directory, remove
from kit.simulated import ALL_LOST, BY_SEED, Disk
from kit.stores import SMALL_SEGMENT, contents, segment_files
from logstore import Xid, errors
from logstore.codec.records import RecordType
from logstore.inspect import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logstore import MessageStore, Transaction

KINDS = ("local", "one-phase", "prepared")


@pytest.fixture
def path() -> Iterator[Path]:
    made = quick_directory("logstore-defects-")
    yield made / "store"
    remove(made)


def begin(store: MessageStore, kind: str) -> Transaction:
    return store.begin(None if kind == "local" else Xid(1, b"g", b"b"))


def commit(tx: Transaction, kind: str) -> None:
    if kind != "local":
        tx.end()
    if kind == "prepared":
        tx.prepare()
    tx.commit()


@pytest.mark.parametrize("kind", KINDS)
def test_1_content_over_64_kib_is_whole_after_a_commit_and_gone_after_a_rollback(path: Path, kind: str) -> None:
    sizes = [65_535, 65_536, 65_537, 131_073, 1_000_003]
    data = [random.Random(size).randbytes(size) for size in sizes]

    def work(path: Path, kept: list[Any]) -> None:
        store = logstore.open(path, segment_size=SMALL_SEGMENT)
        store.declare_queue("q")
        lost = begin(store, kind)
        kept += [store, lost]
        for content in data:
            store.publish("q", [content[::-1]], transaction=lost)
        lost.rollback()
        tx = begin(store, kind)
        for number, content in enumerate(data):
            store.publish("q", content if number % 2 else [content[:7], content[7:]], transaction=tx)
        commit(tx, kind)

    def look(path: Path, kept: list[Any]) -> list[bool]:
        store = logstore.open(path)
        kept.append(store)
        assert store.stats()["messages"] == len(data)
        return [found == content for found, content in zip(contents(store.queue("q")), data, strict=True)]

    and_then_killed(work, path)
    for _ in range(2):
        assert and_then_killed(look, path) == [True] * len(data)


@pytest.mark.parametrize("outcome", ["commit", "rollback", "in doubt"])
def test_2_recovery_ends_although_a_transaction_took_a_message_from_one_of_its_queues(path: Path, outcome: str) -> None:
    disk = Disk()
    store = disk.open(path)
    first, second = store.declare_queue("first"), store.declare_queue("second")
    keys = [store.publish([first, second], b"%d" % number) for number in range(3)]
    tx = store.begin(Xid(1, b"g"))
    for key in keys:
        store.dequeue(key, first, tx)
    store.dequeue(keys[1], second)
    tx.end()
    tx.prepare()
    if outcome != "in doubt":
        getattr(tx, outcome)()
    for _ in range(3):
        disk = disk.crash()
        store = disk.open(path)
        assert contents(store.queue("first")) == ([] if outcome == "commit" else [b"0", b"1", b"2"])
        assert all(message.locked == (outcome == "in doubt") for message in store.messages("first"))
        assert contents(store.queue("second")) == [b"0", b"2"]
        assert store.stats()["messages"] == (2 if outcome == "commit" else 3)
    store.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_3_no_later_recovery_misses_a_transaction_that_messages_still_name(path: Path, kind: str, outcome: str) -> None:
    """The messages stay while the segments around them are recycled, and every open reads their records."""

    def work(path: Path, kept: list[Any]) -> None:
        store = logstore.open(path, segment_size=SMALL_SEGMENT)
        kept.append(store)
        for name in ("q", "r", "noise"):
            store.declare_queue(name)
        churn(store)
        old = store.publish("q", b"old")
        tx = begin(store, kind)
        store.dequeue(old, "q", tx)
        store.enqueue(old, "r", tx)
        store.publish("r", b"new", transaction=tx)
        if outcome == "commit":
            commit(tx, kind)
        else:
            tx.rollback()

    def go_on(path: Path, kept: list[Any]) -> list[list[str]]:
        store = logstore.open(path)
        kept.append(store)
        found = [[content.decode() for content in contents(store.queue(name))] for name in ("q", "r")]
        for queue in ("q", "r"):
            for message in list(store.messages(queue)):  # it names the message, whose chain names the transaction
                with store.transaction() as tx:
                    store.dequeue(message.id, queue, tx)
                    store.enqueue(message.id, queue, tx)
        churn(store)
        return found

    def churn(store: MessageStore) -> None:
        until = store.next_lsn + 2 * SMALL_SEGMENT
        while store.next_lsn < until:
            store.dequeue_many(store.publish_many("noise", [bytes(12_000)] * 8, wait=False), "noise", wait=False)
        store.force()
        store.compact()

    and_then_killed(work, path)
    for _ in range(4):
        assert and_then_killed(go_on, path) == ([[], ["old", "new"]] if outcome == "commit" else [["old"], []])


@pytest.mark.parametrize("seed", range(3))
def test_4_the_base_never_passes_a_transaction_whose_commit_is_not_yet_durable(path: Path, seed: int) -> None:
    """Threads commit small transactions whose messages end soon, so that the base follows them closely at each cut."""
    disk = Disk()
    store = disk.open(path)
    store.declare_queue("q")
    sure: dict[int, bytes] = {}
    gone: set[int] = set()
    cuts: list[tuple[Disk, dict[int, bytes], set[int]]] = []
    failed: list[BaseException] = []

    def work(name: int) -> None:
        chance = random.Random(seed * 10 + name)
        mine: list[int] = []
        try:
            for number in range(100):
                with store.transaction() as tx:
                    made = {}
                    for _ in range(2):
                        content = b"%d %d " % (name, number) + bytes(chance.randrange(2500))
                        made[store.publish("q", content, transaction=tx)] = content
                    dead, mine = mine[:2], mine[2:]
                    gone.update(dead)
                    store.dequeue_many(dead, "q", tx)
                sure.update(made)
                mine += made
        except BaseException as problem:  # noqa: BLE001 - raised below
            failed.append(problem)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for number in range(8):
        before = dict(sure)
        cuts.append((disk.crash(BY_SEED if number % 2 else ALL_LOST, seed + number + 1), before, set(gone)))
    for thread in threads:
        thread.join(240)
    assert failed == []
    store.force()
    cuts.append((disk.crash(), dict(sure), set(gone)))
    assert store.stats()["segments_recycled"] > 0
    store.close()
    for after, before, excused in cuts:
        again = after.open(path)
        found = {message.id: message.content for message in again.messages("q")}
        assert set(before) - set(found) <= excused
        assert all(found[key] == before[key] for key in set(before) & set(found))
        again.close()


@pytest.mark.parametrize("kind", KINDS)
def test_5_a_commit_takes_the_same_message_as_often_as_it_likes_and_every_restart_agrees(path: Path, kind: str) -> None:
    disk = Disk()
    store = disk.open(path)
    first, second = store.declare_queue("first"), store.declare_queue("second")
    key, stays = store.publish([first, second], b"x"), store.publish(first, b"stays")
    tx = begin(store, kind)
    for _ in range(5):
        store.dequeue(key, first, tx)
        store.dequeue(key, second, tx)
        store.enqueue(key, [second, first], tx)
    store.dequeue(key, second, tx)
    assert tx.operations == 5 * 4 + 1
    commit(tx, kind)
    for _ in range(3):
        assert (contents(store.queue("first")), contents(store.queue("second"))) == ([b"stays", b"x"], [])
        disk = disk.crash()
        store = disk.open(path)
    store.dequeue_many([key, stays], "first")
    assert store.stats()["messages"] == 0
    store.close()


def test_6_a_queue_may_be_listed_while_transactions_take_and_return_its_messages(path: Path) -> None:
    store = Disk().open(path)
    queue = store.declare_queue("q")
    ids = list(store.publish_many(queue, [b"%d" % number for number in range(600)]))
    seen = []
    for number, message in enumerate(store.messages(queue)):
        seen.append(message.id)
        tx = store.begin()
        store.dequeue(message.id, queue, tx)
        (tx.commit if number % 2 else tx.rollback)(wait=False)
    assert seen == ids
    assert [message.id for message in queue.browse()] == ids[::2]
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_7_a_transaction_may_dequeue_its_own_enqueue_and_every_restart_agrees(path: Path, kind: str) -> None:
    disk = Disk()
    store = disk.open(path)
    for name in ("q", "r"):
        store.declare_queue(name)
    staged = store.stage(b"", b"staged")
    tx = begin(store, kind)
    kept = store.publish("q", b"kept", transaction=tx)
    brief = store.publish(["q", "r"], b"brief", transaction=tx)
    half = store.publish(["q", "r"], b"half", transaction=tx)
    store.enqueue(staged, "q", tx)
    for key, queue in ((brief, "q"), (brief, "r"), (half, "q"), (staged, "q")):
        store.dequeue(key, queue, tx)
    with pytest.raises(errors.NotEnqueued):
        store.dequeue(half, "q", tx)
    commit(tx, kind)
    for _ in range(3):
        assert [message.id for message in store.messages("q")] == [kept]
        assert [message.id for message in store.messages("r")] == [half]
        assert store.stats()["messages"] == 2
        disk = disk.crash()
        store = disk.open(path)
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_8_the_recovered_order_is_that_of_the_commits(path: Path, kind: str) -> None:
    disk = Disk()
    store = disk.open(path)
    store.declare_queue("q")
    staged = [store.stage(b"", b"%d" % number) for number in range(6)]
    tx = begin(store, kind)
    for number in (4, 0, 2):
        store.enqueue(staged[number], "q", tx)
    store.enqueue(staged[5], "q")
    store.enqueue(staged[1], "q")
    commit(tx, kind)
    store.enqueue(staged[3], "q")
    for _ in range(3):
        assert contents(store.queue("q")) == [b"5", b"1", b"4", b"0", b"2", b"3"]
        disk = disk.crash()
        store = disk.open(path)
    store.close()


def test_9_and_11_content_is_loaded_whole_or_empty_while_its_transaction_is_open(path: Path) -> None:
    disk = Disk()
    store = disk.open(path)
    store.declare_queue("q")
    tx = store.begin(Xid(1, b"g"))
    data = [b"", b"x", bytes(range(256)) * 100]
    keys = [store.publish("q", content, header=b"h", transaction=tx) for content in data]
    tx.end()
    tx.prepare()
    for _ in range(2):
        assert [store.load_content(key) for key in keys] == data
        assert store.load_content(keys[2], 255, 3) == b"\xff\x00\x01"
        assert [store.header(key) for key in keys] == [b"h"] * 3
        disk = disk.crash()
        store = disk.open(path)
    store.in_doubt()[0].commit()
    assert contents(store.queue("q")) == data
    store.close()


def test_12_a_bad_record_never_turns_the_outcomes_behind_it_into_rollbacks(path: Path) -> None:
    """Everything above the damage was committed; an open that continued would lose all of it."""
    with logstore.open(path, segment_size=SMALL_SEGMENT) as store:
        store.declare_queue("q")
        for number in range(60):
            with store.transaction() as tx:
                store.publish("q", b"%d" % number + bytes(20_000), transaction=tx)
    with Reader(path) as reader:
        commits = [record.lsn for record in reader.records() if record.type == RecordType.TX_COMMIT]
    assert len(commits) == 60
    files = segment_files(path)
    place = commits[20]
    damaged = path / f"{place - place % SMALL_SEGMENT:016x}.seg"
    whole = damaged.read_bytes()
    at = place % SMALL_SEGMENT
    damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
    for _ in range(2):
        with pytest.raises(errors.CorruptLog) as caught:
            logstore.open(path)
        assert caught.value.segment == damaged.name
        assert caught.value.lsn <= place
    assert segment_files(path) == files
    damaged.write_bytes(whole)
    with logstore.open(path) as store:
        assert contents(store.queue("q")) == [b"%d" % number + bytes(20_000) for number in range(60)]


@pytest.mark.parametrize("losses", [ALL_LOST, BY_SEED])
def test_13_old_outcomes_in_a_recycled_file_never_settle_a_new_transaction(path: Path, losses: int) -> None:
    """Rounds of the same work under the same xid, committed or not, in recycled files."""
    disk, xid = Disk(), Xid(1, b"same", b"name")
    store = disk.open(path)
    store.declare_queue("q")
    expected: list[bytes] = []
    recycled = 0
    for number in range(24):
        keys = [message.id for message in store.messages("q")]
        tx = store.begin(xid)
        for part in range(6):
            store.publish("q", b"%d %d " % (number, part) + bytes(4000), transaction=tx)
        store.dequeue_many(keys, "q", tx)
        if number % 3 < 2:
            tx.end()
            (tx.commit if number % 3 == 0 else tx.rollback)()
        store.force()
        if number % 3 == 0:
            expected = [b"%d %d " % (number, part) + bytes(4000) for part in range(6)]
        recycled += store.stats()["segments_recycled"]
        disk = disk.crash(losses, number + 1)
        store = disk.open(path)
        assert contents(store.queue("q")) == expected
        assert store.recovery.transactions_abandoned == (number % 3 == 2)
    assert recycled > 3
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_14_a_full_log_takes_nothing_that_grows_but_every_outcome_and_can_be_restarted_and_drained(
    path: Path, kind: str
) -> None:
    limit = 6 * SMALL_SEGMENT
    store = logstore.open(path, segment_size=SMALL_SEGMENT, max_log_bytes=limit)
    store.declare_queue("q")
    tx = begin(store, kind)
    kept = store.publish("q", b"in the transaction", transaction=tx)
    if kind == "prepared":
        tx.end()
        tx.prepare()
    ids: list[int] = []
    with pytest.raises(errors.StoreFull):
        while True:
            ids.append(store.publish("q", bytes(20_000), wait=False))
    store.force()
    with store.transaction() as taking, pytest.raises(errors.StoreFull):
        store.publish("q", bytes(20_000), transaction=taking)
    if kind == "prepared":
        store.close()
        store = logstore.open(path, max_log_bytes=limit)
        assert [message.id for message in store.messages("q")] == ids
        (tx,) = store.in_doubt()
        tx.commit()
    else:
        with pytest.raises(errors.StoreFull):
            store.publish("q", bytes(20_000), transaction=tx)
        commit(tx, kind)
    assert [message.id for message in store.messages("q")] == [*ids, kept]
    store.close()
    store = logstore.open(path, max_log_bytes=limit)
    store.dequeue_many([*ids, kept], "q")
    store.compact()
    with store.transaction() as again:
        store.publish("q", bytes(20_000), transaction=again)
    assert store.queue("q").depth == 1
    store.close()


def test_15_a_transaction_that_nobody_resolves_blocks_neither_its_neighbours_nor_a_restart(path: Path) -> None:
    limit = 8 * SMALL_SEGMENT
    store = logstore.open(path, segment_size=SMALL_SEGMENT, max_log_bytes=limit)
    store.declare_queue("q")
    tx = store.begin(Xid(1, b"nobody"))
    store.publish("q", b"stuck", transaction=tx)
    tx.end()
    tx.prepare()
    for _ in range(2):
        for _ in range(20):
            with store.transaction() as other:
                other_key = store.publish("q", bytes(5000), transaction=other)
            with store.transaction() as other:
                store.dequeue(other_key, "q", other)
        store.close()
        store = logstore.open(path, max_log_bytes=limit)
        assert [known.xid for known in store.in_doubt()] == [Xid(1, b"nobody")]
        assert store.queue("q").depth == 0
    store.in_doubt()[0].commit()
    assert contents(store.queue("q")) == [b"stuck"]
    store.close()
