"""move and release to the back, which logstore._hot makes: every form, and the errors of the slow path."""

from __future__ import annotations

import itertools
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.stores import SMALL_SEGMENT
from logstore import Delivery, MessageStore, Queue, errors
from logstore.store.times import times_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FAR_S = 32_503_680_000  # the year 3000
NEAR_S = 4_000_000_000  # the year 2096


class Bytes(bytes):
    """A subclass, as a caller may have."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT) as opened:
        opened.declare_queue("q")
        opened.declare_queue("r")
        yield opened


def one_held(store: MessageStore, queue: str = "q") -> Delivery:
    store.publish(queue, b"content", header=b"the message's")
    (held,) = store.queue(queue).acquire()
    return held


def moves(store: MessageStore) -> list[Callable[..., None]]:
    return [store.queue("q").move, store.queue("q")._move_slow]


@pytest.mark.parametrize("transacted", [False, True])
def test_every_form_of_a_move_makes_the_same_place(store: MessageStore, transacted: bool) -> None:
    queue = store.queue("r")
    waits = itertools.cycle([False, True, 1, ""])
    for header, note in itertools.product(
        (None, b"", b"h", bytes(20_000), Bytes(b"s"), bytearray(b"a")), (None, b"", b"n", bytes(255), memoryview(b"v"))
    ):
        for move, to in itertools.product(moves(store), (queue, "r")):
            delivery = one_held(store)
            transaction = store.begin() if transacted else None
            move(delivery, to, header=header, note=note, transaction=transaction, wait=next(waits))
            if transaction is not None:
                assert not delivery._settled
                transaction.commit()
            assert delivery._settled
            store.force()
            (moved,) = queue.acquire()
            assert moved.header == (b"the message's" if header is None else bytes(header))
            assert (moved.note, moved.delivery_count, moved.expires) == (bytes(note or b""), 1, None)
            moved.accept(wait=False)


@pytest.mark.parametrize(
    "expires",
    [None, FAR_S, FAR_S + 0.25, FAR_S + 1e-6, FAR_S / 3 + 0.0000005, 253_402_300_799, datetime(3000, 1, 1, tzinfo=UTC)],
)
def test_a_time_of_any_kind_is_the_same_both_ways(store: MessageStore, expires: Any) -> None:
    for move in moves(store):
        move(one_held(store), store.queue("r"), expires=expires, wait=False)
    store.force()
    first, second = store.queue("r").acquire(2)
    assert first.expires == second.expires
    assert (first.expires is None) == (expires is None)
    for step in range(200):
        odd = NEAR_S + step / (1 << 21)  # halves of a microsecond: no finer time is a float there
        store.queue("q").move(one_held(store), store.queue("r"), expires=odd)
        (moved,) = store.queue("r").acquire()
        assert moved.expires is not None
        assert (moved.expires - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) == (
            times_of(None, odd).expires_us
        )
        moved.accept(wait=False)


def test_a_move_that_is_refused_gives_the_error_of_the_slow_path_and_keeps_the_place(
    store: MessageStore, tmp_path: Path
) -> None:
    queue, deleted = store.queue("q"), store.declare_queue("deleted")
    store.delete_queue(deleted)
    delivery, other = one_held(store), one_held(store)
    store.enqueue(other.id, "r")
    other.release()
    (other,) = store.queue("q").acquire()
    ended = store.begin()
    ended.rollback()
    with logstore.open(tmp_path / "other", segment_size=SMALL_SEGMENT) as strange:
        foreign, branch = strange.declare_queue("q"), strange.begin()
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            ((delivery,), {}),
            ((delivery, "r", b"h"), {}),
            *(((delivery, wrong), {}) for wrong in (None, 1, "none", deleted, foreign, [queue])),
            *(((wrong, "r"), {}) for wrong in (None, 1, "x", delivery.id)),
            *(((delivery, "r"), {"header": wrong}) for wrong in (1, "text", bytes(1 << 20))),
            *(((delivery, "r"), {"note": wrong}) for wrong in (1, "text", bytes(256))),
            *(((delivery, "r"), {"expires": wrong}) for wrong in (True, "1", 0, -1, 1, 1.5, float("nan"), 1e15)),
            *(((delivery, "r"), {"not_before": wrong}) for wrong in (False, 1, float("inf"), 253_402_300_800.0)),
            ((delivery, "r"), {"not_before": FAR_S, "expires": FAR_S}),
            ((delivery, "r"), {"heading": b""}),
            *(((delivery, "r"), {"transaction": wrong}) for wrong in (1, ended, branch)),
            ((other, "r"), {}),
            ((other, store.queue("r")), {"wait": False}),
            ((other, store.queue("r")), {"transaction": store.begin()}),
        ]
        for given, named in calls:
            found, slow = (outcome(move, given, named) for move in moves(store))
            assert found[0] is slow[0], (given, named)
            assert found == slow or "_move_slow()" in slow[1], (given, named)
        branch.rollback()
    assert (delivery._settled, other._settled) == (False, False)
    assert store.stats()["queues"]["q"]["acquired"] == 2


def outcome(call: Callable[..., object], given: tuple[Any, ...], named: dict[str, Any]) -> tuple[type, str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - compared with that of the other way
        call(*given, **named)
    words = str(caught.value).split(", and now it is", 1)[0]  # the rest is the time of the call
    return caught.type, words


def test_a_delivery_is_moved_once(store: MessageStore) -> None:
    for move in moves(store):
        delivery = one_held(store)
        move(delivery, store.queue("r"))
        for again in (*moves(store), lambda one, _: one.release(to_back=True)):
            with pytest.raises(errors.NotEnqueued, match="settled before"):
                again(delivery, store.queue("r"))
        lost = one_held(store)
        store.dequeue(lost.id, "q")
        with pytest.raises(errors.UnknownMessage):
            move(lost, store.queue("r"))
        assert lost._settled
    assert (store.queue("q").depth, store.queue("r").depth) == (0, 2)


def test_every_form_of_a_release_to_the_back_keeps_count_note_and_expiry(store: MessageStore) -> None:
    queue = store.queue("q")
    told: list[object] = []
    forms: list[Callable[[Delivery], object]] = [
        lambda one: one.release(to_back=True),
        lambda one: one.release(to_back=True, wait=True, unseen=False, delay=None),
        lambda one: queue.release(one, to_back=True, wait=False),
        lambda one: queue.release(one, to_back=1),  # type: ignore[arg-type] # wrong on purpose
        lambda one: queue._release_slow(one, to_back=True),
        lambda one: queue.release(one.detach(), to_back=True),
    ]
    queue.move(one_held(store), queue, note=b"n", expires=FAR_S)
    store.publish(queue, b"the other")
    with store.on_release(told.append):
        for number, form in enumerate(forms):
            held, other = queue.acquire(2)
            assert (held.content, held.note, held.delivery_count) == (b"content", b"n", number + 1)
            assert held.expires == datetime(3000, 1, 1, tzinfo=UTC)
            form(held)
            other.accept()
            store.publish(queue, b"the other")
            store.force()
            first, second = queue.acquire(2)
            assert (first.content, second.content) == (b"content", b"the other")
            first.release(unseen=True)
            second.release(unseen=True)
    assert len(told) >= len(forms)


def test_a_transaction_keeps_what_it_moves_until_its_outcome(store: MessageStore) -> None:
    queue, target = store.queue("q"), store.queue("r")
    for commits in (False, True):
        transaction = store.begin()
        queue.move(one_held(store), target, transaction=transaction)  # nothing else refers to the delivery
        assert (queue.acquire(), target.acquire()) == ([], [])
        (transaction.commit if commits else transaction.rollback)()
        assert (queue.depth, target.depth) == ((0, 1) if commits else (1, 0))
        (left,) = (target if commits else queue).acquire()  # a rollback releases what nobody holds
        left.accept()


def test_no_move_keeps_or_drops_a_reference(store: MessageStore) -> None:
    header, note, expires = b"h" * 100, b"n" * 100, FAR_S + 0.5
    given: list[object] = [header, note, expires, store.queue("q"), store.queue("r")]

    def moved(queue: Queue, other: Queue) -> None:
        queue.move(one_held(store, queue.name), other, header=header, note=note, expires=expires, wait=False)
        with store.transaction() as transaction:
            queue.move(one_held(store, queue.name), other, header=header, note=note, transaction=transaction)
        one_held(store, queue.name).release(to_back=True)
        with pytest.raises(errors.OptionError):
            queue.move(one_held(store, queue.name), other, header=header, note=note, expires=1)
        queue.purge()
        other.purge()

    moved(store.queue("q"), store.queue("r"))
    before = [sys.getrefcount(each) for each in given]
    for _ in range(20):
        moved(store.queue("q"), store.queue("r"))
    assert [sys.getrefcount(each) for each in given] == before
