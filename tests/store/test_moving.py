"""Notes of places, headers of their own, and moves: one record each, kept through opens, also in a full store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.killed import and_then_killed
from kit.stores import contents
from logstore import errors
from logstore.inspect import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from logstore import Delivery, MessageStore, Queue

SEGMENT = 1 << 19


@pytest.fixture
def queues(store: MessageStore) -> tuple[Queue, Queue]:
    dead = store.declare_queue("dead")
    return store.declare_queue("work", dead_letter="dead"), dead


def one(queue: Queue, **how: Any) -> Delivery:
    (delivery,) = queue.acquire(**how)
    return delivery


def records(store: MessageStore, since: int) -> list[str]:
    store.force()
    with Reader(store.path) as reader:
        return [record.type.name for record in reader.records() if record.lsn >= since and record.id]


def test_a_note_is_that_of_one_place_and_stays_through_opens(store: MessageStore, queues: Any, tmp_path: Path) -> None:
    work, dead = queues
    key = store.publish([work, dead], b"m", header=b"head")
    store.annotate(key, work, b"first")
    delivery = one(work)
    store.annotate(key, "work", bytearray(b"tried once"))
    assert delivery.note == b"tried once"
    assert one(dead).note == b""
    store.close()
    with logstore.open(store.path) as again:
        (listed,) = again.messages("work")
        assert (listed.note, listed.header, listed.content) == (b"tried once", b"head", b"m")
        again.annotate(key, "work", b"")
        assert [message.note for message in again.messages("work")] == [b""]


def test_a_note_takes_at_most_255_bytes_and_a_place(store: MessageStore, queues: Any) -> None:
    work, _ = queues
    key = store.publish(work, b"m")
    store.annotate(key, work, b"x" * 255)
    with pytest.raises(errors.OptionError, match="255 bytes, not 256"):
        store.annotate(key, work, b"x" * 256)
    with pytest.raises(TypeError, match="note is bytes, not str"):
        store.annotate(key, work, "text")
    with pytest.raises(errors.NotEnqueued):
        store.annotate(key, "dead", b"x")
    assert one(work).note == b"x" * 255


def test_a_move_is_one_record_and_keeps_what_it_is_not_given(store: MessageStore, queues: Any) -> None:
    work, dead = queues
    store.publish(work, b"m" * 3000, header=b"head")
    delivery = one(work)
    before = store.next_lsn
    work.move(delivery, dead, header=b"its own", note=b"why")
    assert records(store, before) == ["MESSAGE_MOVE"]
    with pytest.raises(errors.NotEnqueued):
        delivery.accept()
    for load in (False, True):
        moved = one(dead, load=load)
        assert (moved.header, moved.note, moved.content) == (b"its own", b"why", b"m" * 3000)
        assert (moved.delivery_count, moved.redelivered) == (1, False)
        (listed,) = dead.browse(load=load, views=load)
        assert (listed.header, listed.note, listed.content) == (b"its own", b"why", b"m" * 3000)
        dead.move(moved.detach() if load else moved, "dead", wait=True)
    assert store.header(moved.id) == b"head"
    back = one(dead)
    dead.move(back, "work", header=b"", note=b"")
    assert (one(work).header, list(dead.browse())) == (b"", [])


def test_a_move_that_is_refused_leaves_the_place_acquired(store: MessageStore, queues: Any) -> None:
    work, dead = queues
    store.publish([work, dead], b"m")
    delivery = one(work)
    with pytest.raises(errors.AlreadyEnqueued):
        work.move(delivery, dead)
    with pytest.raises(errors.OptionError, match="larger segment_size"):
        work.move(delivery, work, header=b"x" * (1 << 20))
    with pytest.raises(errors.UnknownQueue):
        work.move(delivery, "nowhere")
    with pytest.raises(TypeError, match="header is bytes"):
        work.move(delivery, work, header=5)
    assert work.acquired == 1
    delivery.accept()


def test_moves_and_notes_in_a_transaction_take_effect_at_its_commit(store: MessageStore, queues: Any) -> None:
    work, dead = queues
    key = store.publish(work, b"m", header=b"head")
    for commits in (False, True):
        delivery = one(work)
        with store.transaction() as transaction:
            store.annotate(key, work, b"noted", transaction)
            work.move(delivery, dead, header=b"own", transaction=transaction)
            assert (work.locked, dead.depth, delivery.note) == (1, 0, b"")
            if not commits:
                transaction.rollback()
        if not commits:
            delivery.release()
    assert work.depth == 0
    moved = one(dead)
    assert (moved.header, moved.note) == (b"own", b"noted")


def test_a_message_gets_another_header_for_one_queue(store: MessageStore, queues: Any) -> None:
    work, dead = queues
    key = store.publish(work, b"m", header=b"head")
    store.enqueue(key, dead, header=b"for the dead")
    with store.transaction() as transaction:
        store.enqueue(key, store.declare_queue("third"), transaction, header=b"")
    assert [one(store.queue(name)).header for name in ("work", "dead", "third")] == [b"head", b"for the dead", b""]
    with pytest.raises(errors.OptionError, match="one queue, not 2"):
        store.enqueue(key, [work, dead], header=b"x")


def test_a_release_to_the_back_keeps_the_count_through_opens(store: MessageStore, queues: Any) -> None:
    work, _ = queues
    first, second = store.publish(work, b"1"), store.publish(work, b"2")
    store.annotate(first, work, b"slow")
    delivery = one(work)
    delivery.release(to_back=True, wait=True)
    assert [message.id for message in work.browse()] == [second, first]
    with pytest.raises(errors.NotEnqueued):
        delivery.release(to_back=True)
    other = one(work)
    work.release(other.detach(), to_back=True)
    store.force()
    again = one(work)
    assert (again.id, again.delivery_count, again.redelivered, again.note) == (first, 2, True, b"slow")
    again.release(to_back=True)
    store.close()
    with logstore.open(store.path) as reopened:
        got = reopened.queue("work").acquire(2)
        assert [(one.id, one.delivery_count) for one in got] == [(second, 2), (first, 3)]


def test_unseen_and_wait_do_not_go_with_what_they_are_not_for(store: MessageStore, queues: Any) -> None:
    work, _ = queues
    store.publish(work, b"m")
    delivery = one(work)
    with pytest.raises(errors.OptionError, match="not both"):
        delivery.release(to_back=True, unseen=True)
    with pytest.raises(errors.OptionError, match="wait is for to_back"):
        delivery.release(wait=True)
    assert work.acquired == 1


def test_a_rejected_message_takes_its_own_header_and_note_to_the_dead_letters(store: MessageStore, queues: Any) -> None:
    work, dead = queues
    key = store.publish(work, b"m", header=b"head")
    work.move(one(work), work, header=b"own", note=b"tried")
    before = store.next_lsn
    one(work).reject()
    assert records(store, before) == ["MESSAGE_MOVE"]
    letter = one(dead)
    assert (letter.id, letter.header, letter.note, letter.delivery_count) == (key, b"own", b"tried", 1)


def test_a_rejection_in_a_transaction_is_a_move_in_it(store: MessageStore, queues: Any) -> None:
    work, dead = queues
    key = store.publish(work, b"m")
    store.annotate(key, work, b"why")
    with store.transaction() as transaction:
        work.reject(one(work), transaction=transaction)
        assert dead.depth == 0
    assert (work.depth, one(dead).note) == (0, b"why")


def test_a_full_store_takes_rejections_and_refuses_moves(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "full", create=True, segment_size=SEGMENT, max_log_bytes=8 * SEGMENT) as store:
        dead = store.declare_queue("dead")
        work = store.declare_queue("work", dead_letter="dead")
        key = store.publish(work, b"m")
        store.annotate(key, work, b"why")
        with pytest.raises(errors.StoreFull):
            while True:
                store.publish(work, b"", wait=False)
        delivery = one(work)
        with pytest.raises(errors.StoreFull):
            work.move(delivery, dead)
        assert work.acquired == 1
        delivery.reject()
        assert [(letter.content, letter.note) for letter in dead.browse()] == [(b"m", b"why")]
        assert contents(dead) == [b"m"]


def publish_one(path: Path, kept: list[object]) -> int:
    store = logstore.open(path)
    kept.append(store)
    return store.publish(store.declare_queue("work"), b"m")


@pytest.mark.parametrize("back", [False, True], ids=["a move", "a release to the back"])
def test_after_a_crash_a_move_to_the_same_queue_has_the_mark_that_a_later_open_gives_it(
    tmp_path: Path, back: bool
) -> None:
    key = and_then_killed(publish_one, tmp_path / "store")
    with logstore.open(tmp_path / "store") as store:
        work = store.queue("work")
        delivery = one(work)
        assert delivery.redelivered
        if back:
            delivery.release(to_back=True)
        else:
            work.move(delivery, work)
        assert [(message.id, message.redelivered) for message in work.browse()] == [(key, back)]
    with logstore.open(tmp_path / "store") as store:
        assert [(message.id, message.redelivered) for message in store.messages("work")] == [(key, back)]
