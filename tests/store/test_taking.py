"""Messages that are taken out of their order: those after a position, those with given ids, and a publisher's own. The
others keep theirs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from kit.interrupts import Interrupted, every_step
from kit.stores import contents
from logstore import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore import Delivery, MessageStore, Queue


@pytest.fixture
def queue(store: MessageStore) -> Queue:
    """With ten messages, b"0" to b"9"."""
    made = store.declare_queue("q")
    store.publish_many(made, [b"%d" % number for number in range(10)])
    return made


def taken(deliveries: list[Delivery]) -> bytes:
    return b"".join(each.content for each in deliveries)


def positions(queue: Queue) -> list[int]:
    return [message.position for message in queue.browse()]


# ---- positions ----


def test_positions_grow_in_the_order_of_the_queue_and_are_the_same_in_every_form(queue: Queue) -> None:
    listed = positions(queue)
    assert listed == sorted(set(listed))
    assert [each.position for each in queue.browse(views=True)] == listed
    held = queue.acquire(10)
    assert [each.position for each in held] == listed
    assert [each.detach().position for each in held] == listed


def test_browsing_after_a_position_lists_the_places_behind_it_also_those_that_come_later(
    store: MessageStore, queue: Queue
) -> None:
    listed = positions(queue)
    for number, position in enumerate(listed):
        assert b"".join(each.content for each in queue.browse(after=position)) == b"0123456789"[number + 1 :]
    rest, views = queue.browse(after=listed[-1]), queue.browse(after=listed[7], views=True)
    store.publish(queue, b"A")
    assert [each.content for each in rest] == [b"A"]
    assert b"".join(each.content for each in views) == b"89A"


def test_a_page_after_another_lists_each_place_once(store: MessageStore, queue: Queue) -> None:
    store.publish_many(queue, [b"x"] * 1000)
    for each in queue.acquire(400)[100:300]:
        each.accept()
    expected, found = positions(queue), []
    while page := list(itertools.islice(queue.browse(after=found[-1] if found else None), 37)):
        found += [each.position for each in page]
    assert found == expected


# ---- after a position ----


def test_an_acquire_after_a_position_leaves_the_earlier_ones_which_are_offered_first(queue: Queue) -> None:
    listed = positions(queue)
    held = [
        queue.acquire(2, after=listed[6]),
        queue.acquire(3),
        queue.acquire(2, after=listed[4]),
        queue.acquire(10),
    ]
    assert [taken(each) for each in held] == [b"78", b"012", b"56", b"349"]
    assert queue.acquire(1, after=listed[0]) == queue.acquire() == []


def test_what_was_taken_out_of_order_and_released_stands_in_its_place(queue: Queue) -> None:
    listed = positions(queue)
    (seven,) = queue.acquire(1, after=listed[6])
    seven.release()
    assert taken(queue.acquire(2, after=listed[5])) == b"67"  # and drops them, which releases them
    order = queue.acquire(10)
    assert taken(order) == b"0123456789"
    assert [each.delivery_count for each in order] == [1, 1, 1, 1, 1, 1, 2, 3, 1, 1]


def test_what_was_released_in_any_order_is_acquired_in_the_order_of_the_queue(queue: Queue) -> None:
    listed = positions(queue)
    held = queue.acquire(3, after=listed[6]) + queue.acquire(2) + queue.acquire(2, after=listed[2])
    assert taken(held) == b"7890134"
    for number in (1, 3, 0, 4, 6, 2, 5):
        held[number].release()
    del held
    assert taken(queue.acquire(10)) == b"0123456789"


def test_an_acquire_after_a_position_offers_what_came_back_there_before_new_ones(queue: Queue) -> None:
    listed = positions(queue)
    first = queue.acquire(5)
    for number in (3, 1):
        first[number].release()
    assert taken(queue.acquire(3, after=listed[1])) == b"356"


def test_neither_locked_nor_undurable_places_are_acquired_after_a_position(store: MessageStore, queue: Queue) -> None:
    listed = positions(queue)
    tx = store.begin()
    ids = [message.id for message in queue.browse()]
    store.dequeue(ids[5], queue, tx)
    store.dequeue(ids[8], queue, tx)
    held = queue.acquire(3, after=listed[4])
    assert taken(held) == b"679"
    tx.rollback()
    assert taken(queue.acquire(10, after=listed[4])) == b"58"
    for each in held:
        each.accept()
    assert b"".join(contents(queue)) == b"0123458"


def test_a_batch_larger_than_the_first_memory_continues_behind_its_last_place(
    store: MessageStore, queue: Queue
) -> None:
    store.publish_many(queue, [b"x"] * 5000)
    held = queue.acquire(10_000, after=positions(queue)[9], load=True)
    assert (len(held), taken(held[:3]), taken(queue.acquire(99))) == (5000, b"xxx", b"0123456789")


WRONG = {
    "negative": -1,
    "huge": 1 << 63,
    "beyond 64 bits": 1 << 80,
    "a text": "7",
    "a float": 1.0,
    "a bool": True,
    "a token": (1, 2, 3, 4, 5),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("call", ["acquire", "acquire none", "browse"])
def test_a_position_that_is_none_is_refused_with_where_one_comes_from(queue: Queue, wrong: str, call: str) -> None:
    calls: dict[str, Callable[[Any], object]] = {
        "acquire": lambda after: queue.acquire(1, after=after),
        "acquire none": lambda after: queue.acquire(0, after=after),
        "browse": lambda after: queue.browse(after=after),
    }
    with pytest.raises(errors.OptionError, match=r"after is the position of a place, .* delivery\.position"):
        calls[call](WRONG[wrong])
    assert queue.acquired == 0


def test_a_position_that_the_queue_has_not_had_is_refused(
    open_store: Callable[..., Any], store: MessageStore, queue: Queue
) -> None:
    other = store.declare_queue("other")
    last = positions(queue)[-1]
    for each, position in ((queue, last + 1), (queue, (1 << 63) - 1), (other, 0), (other, last)):
        for call in (each.acquire, each.browse):
            with pytest.raises(
                errors.OptionError, match=rf"queue {each.id} has had position {position} since the store"
            ):
                call(after=position)
    queue.purge()
    assert queue.acquire(after=last) == list(queue.browse(after=last)) == []
    store.close()
    again = open_store().queue("q")
    with pytest.raises(
        errors.OptionError, match="go on after that of a delivery or message of this queue and this open"
    ):
        again.acquire(after=last)


def test_after_its_deletion_or_a_close_a_queue_refuses_a_position_as_any_acquire(
    store: MessageStore, queue: Queue
) -> None:
    other = store.declare_queue("other")
    store.publish_many(other, [b"1", b"2"])
    (held,) = other.acquire()
    store.delete_queue(other)
    for call in (other.acquire, other.browse):
        with pytest.raises(errors.UnknownQueue):
            call(after=held.position)
    store.close()
    for call in (queue.acquire, queue.browse):
        with pytest.raises(errors.StoreClosed):
            call(after=0)


# ---- by their ids ----


def ids_of(queue: Queue) -> list[int]:
    return [message.id for message in queue.browse()]


@pytest.mark.parametrize("load", [False, True])
def test_exactly_the_named_messages_are_acquired_in_the_order_of_the_ids(queue: Queue, load: bool) -> None:
    ids = ids_of(queue)
    held = queue.acquire_ids((ids[number] for number in (7, 2, 9, 2, 7)), load=load)
    assert [each.id for each in held] == [ids[7], ids[2], ids[9]]
    assert (taken(held), {each.delivery_count for each in held}) == (b"729", {1})
    assert [each._loaded is not None for each in held] == [load] * 3
    rest = queue.acquire(10)
    assert taken(rest) == b"0134568"
    held[1].accept()
    for each in (held[0], *rest, held[2]):
        each.release()
    del held, rest
    assert taken(queue.acquire(10)) == b"013456789"


def test_what_cannot_be_had_is_left_out(store: MessageStore, queue: Queue) -> None:
    ids, other = ids_of(queue), store.declare_queue("other")
    elsewhere = store.publish(other, b"elsewhere")
    tx = store.begin()
    store.dequeue(ids[1], queue, tx)
    pending = store.publish(queue, b"not committed", transaction=tx)
    undurable = store.publish(queue, b"not durable", wait=False)
    staged = store.stage(b"", b"on no queue")
    (first,) = queue.acquire()
    store.dequeue(ids[2], queue)
    wanted = [*ids[:4], elsewhere, pending, staged, ids[3] + 1, (1 << 63) - 1]
    held = queue.acquire_ids(wanted)
    assert [each.id for each in held] == [ids[3]]
    assert queue.acquire_ids([]) == queue.acquire_ids(ids[:4]) == []
    first.release()
    tx.commit()
    assert [each.id for each in queue.acquire_ids([ids[0], ids[1], pending, undurable])] == [ids[0], pending, undurable]


def test_a_message_on_two_queues_is_acquired_on_the_one_that_is_asked(store: MessageStore, queue: Queue) -> None:
    other = store.declare_queue("other")
    key = store.publish([queue, other], b"both")
    (here,), (there,) = queue.acquire_ids([key]), other.acquire_ids([key])
    here.accept()
    assert there.content == b"both"
    there.accept()


@pytest.mark.parametrize("wrong", [-1, 0, 1 << 63, 1 << 64, 1 << 80])
def test_a_number_that_no_id_can_be_is_refused_and_nothing_is_acquired(queue: Queue, wrong: int) -> None:
    with pytest.raises(errors.UnknownMessage, match=r"there is no message .*: ids are 1 to 2\*\*63 - 1"):
        queue.acquire_ids([*ids_of(queue), wrong])
    assert queue.acquired == 0


@pytest.mark.parametrize("wrong", ["1", 1.5, True, None, b"1"])
def test_an_id_that_is_no_int_is_refused_and_nothing_is_acquired(queue: Queue, wrong: Any) -> None:
    with pytest.raises(TypeError, match="a message id is an int, not"):
        queue.acquire_ids([*ids_of(queue), wrong])
    with pytest.raises(TypeError, match="message_ids is an iterable of message ids, not"):
        queue.acquire_ids(wrong)
    assert queue.acquired == 0


def test_a_deleted_queue_and_a_closed_store_give_none_by_id(store: MessageStore, queue: Queue) -> None:
    ids, other = ids_of(queue), store.declare_queue("other")
    store.delete_queue(other)
    with pytest.raises(errors.UnknownQueue):
        other.acquire_ids(ids)
    store.close()
    with pytest.raises(errors.StoreClosed):
        queue.acquire_ids(ids)


# ---- the publisher's own ----

CONTENTS: dict[str, Any] = {
    "bytes": b"own",
    "a buffer": bytearray(b"own"),
    "several records": b"own" * 100_000,
    "parts": [b"o", b"wn"],
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_publisher_that_acquires_holds_its_message_and_nobody_else_is_offered_it(
    store: MessageStore, queue: Queue, kind: str
) -> None:
    content = CONTENTS[kind]
    own = store.publish("q", content, header=b"head", acquire=True)
    assert (own.content, own.header) == (bytes(content) if not isinstance(content, list) else b"own", b"head")
    assert (own.delivery_count, own.redelivered, store.durable_lsn >= store.next_lsn) == (1, False, True)
    assert ids_of(queue)[-1] == own.id
    later = store.publish(queue, b"later")
    held = queue.acquire(20)
    assert (taken(held[:10]), [each.id for each in held[10:]]) == (b"0123456789", [later])
    own.release(unseen=True)
    (again,) = queue.acquire(20)
    assert (again.id, again.delivery_count) == (own.id, 1)
    again.accept()
    assert len(ids_of(queue)) == 11


def test_what_a_publisher_acquired_and_dropped_stands_in_its_place(store: MessageStore, queue: Queue) -> None:
    store.publish(queue, b"A", acquire=True)
    token = store.publish(queue, b"B", acquire=True).detach()
    store.publish(queue, b"C")
    held = queue.acquire(20)
    assert taken(held) == b"0123456789AC"
    queue.release(token)
    assert taken(queue.acquire(20)) == b"B"


def test_a_message_that_its_publisher_acquired_survives_as_any_other(
    open_store: Callable[..., Any], store: MessageStore, queue: Queue
) -> None:
    own = store.publish(queue, b"own", acquire=True)
    store.close()
    again = open_store().queue("q")
    found = again.acquire(20)
    assert (found[-1].id, found[-1].redelivered, len(found)) == (own.id, True, 11)


def test_a_publish_that_acquires_is_for_one_queue_without_a_transaction_and_waits(
    store: MessageStore, queue: Queue
) -> None:
    other, tx = store.declare_queue("other"), store.begin()
    publish: Any = store.publish
    before = store.next_lsn
    for queues, given, match in (
        ([queue, other], {}, "for one queue, not 2"),
        (queue, {"transaction": tx}, "for no transaction"),
        (queue, {"wait": False}, "waits until the message is durable"),
    ):
        for content in (b"x", [b"x"]):
            with pytest.raises(errors.OptionError, match=match):
                publish(queues, content, acquire=True, **given)
    with pytest.raises(errors.UnknownQueue):
        publish("none", b"x", acquire=True)
    for wrong in ("text", 7, [b"x", 7]):
        with pytest.raises(TypeError):
            publish(queue, wrong, acquire=True)
    with pytest.raises(errors.OptionError):
        publish(queue, b"x", header=bytes(1 << 20), acquire=True)
    assert (len(ids_of(queue)), queue.acquired, other.depth, tx.operations) == (10, 0, 0, 0)
    assert store.next_lsn >= before
    (own,) = [publish([queue], b"x", acquire=True)]
    assert own.content == b"x"


def test_whichever_allocation_fails_no_message_is_taken_without_its_delivery(store: MessageStore, queue: Queue) -> None:
    """A publish that fails leaves no message behind, and a failed acquire no place that nobody holds."""
    testcapi = pytest.importorskip("_testcapi", reason="SKIPPED LOUDLY: this Python has no _testcapi")
    ids, last = ids_of(queue), positions(queue)[4]
    calls: tuple[Callable[[], Any], ...] = (
        lambda: queue.acquire_ids(ids, load=True),
        lambda: queue.acquire(5, after=last, load=True),
        lambda: store.publish(queue, b"own", acquire=True),
        lambda: store.publish(queue, [b"o", b"wn"], acquire=True),
    )
    for call in calls:
        failed = passed_in_a_row = number = 0
        while passed_in_a_row <= 20:  # some allocations may fail without harm
            made: Any = None
            testcapi.set_nomemory(number, number + 1)
            try:
                made = call()
            except MemoryError:
                failed += 1
            finally:
                testcapi.remove_mem_hooks()
            held = made if isinstance(made, list) else [made] if made is not None else []
            is_new = made is not None and not isinstance(made, list)
            assert (queue.depth, queue.acquired) == (10 + is_new, len(held)), number
            for each in held:
                if is_new:
                    each.accept()
                else:
                    each.release()
            passed_in_a_row = passed_in_a_row + 1 if made is not None else 0
            number += 1
        assert failed > 0


@pytest.mark.parametrize("kind", ["acquire after", "acquire_ids", "publish", "publish parts"])
def test_a_handler_that_raises_leaves_nothing_acquired(store: MessageStore, queue: Queue, kind: str) -> None:
    ids, last = ids_of(queue), positions(queue)[4]
    calls: dict[str, Callable[[], Any]] = {
        "acquire after": lambda: queue.acquire(5, after=last),
        "acquire_ids": lambda: queue.acquire_ids(ids[3:7]),
        "publish": lambda: store.publish(queue, b"own", acquire=True),
        "publish parts": lambda: store.publish(queue, [b"o", b"wn"], acquire=True),
    }

    def handler() -> None:
        raise Interrupted

    for _ in every_step(lambda _: calls[kind](), handler):
        assert queue.acquired == 0
    assert [each.delivery_count >= 1 for each in queue.acquire(20)][:10] == [True] * 10
