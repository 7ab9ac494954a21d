"""Messages that are taken out of their order: those after a position. The others keep theirs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

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
    assert queue._acquired_count() == 0


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
