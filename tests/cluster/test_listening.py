"""Listeners in the store of a leader: they are told what a majority has, and end with its term."""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from kit.copy_group import Group
from kit.patience import PATIENCE_S, wait_until
from logstore import Deaths, InDoubtChanges, MessageStore, Queue, Xid, errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logstore import Listener


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    yield made
    made.close()


class Heard:
    """The events that listeners of a leader's store got, by kind."""

    def __init__(self, store: MessageStore, queue: Queue) -> None:
        self.arrived: SimpleQueue[Queue] = SimpleQueue()
        self.released: SimpleQueue[Queue] = SimpleQueue()
        self.died: SimpleQueue[Deaths] = SimpleQueue()
        self.in_doubt: SimpleQueue[InDoubtChanges] = SimpleQueue()
        self.durable: SimpleQueue[Any] = SimpleQueue()
        self.listeners: list[Listener] = [
            queue.on_arrived(self.arrived.put),
            queue.on_released(self.released.put),
            store.on_death(self.died.put),
            store.on_in_doubt(self.in_doubt.put),
            store.on_durable(self.durable.put),
        ]


def branch(store: MessageStore, queue: Queue, name: bytes) -> tuple[int, int]:
    """Prepared, and not yet durable: its id, and that of the message which it publishes."""
    made = store.begin(Xid(1, name))
    key = store.publish(queue, b"in doubt", transaction=made)
    made.end()
    made.prepare(wait=False)
    return made.id, key


def test_listeners_of_a_leaders_store_are_told_and_those_of_the_next_leader_go_on(group: Group) -> None:
    earlier: tuple[int, int] | None = None  # in doubt since an earlier term: listed, and its outcome is told
    for leads in (0, 1, 2):
        store = group.lead(leads)
        queue = store.queue("orders")
        (before,) = queue.acquire()  # there is one in every term
        heard = Heard(store, queue)
        if earlier is not None:
            (found,) = store.in_doubt()
            found.rollback()
            (change,) = heard.in_doubt.get(timeout=PATIENCE_S).changes
            assert (change.id, change.state) == (earlier[0], "rolled_back")
            assert heard.died.get(timeout=PATIENCE_S) == Deaths((earlier[1],), 0)
        key = store.publish(queue, b"x")
        assert heard.arrived.get(timeout=PATIENCE_S) is queue
        before.release()
        assert heard.released.get(timeout=PATIENCE_S) is queue
        store.dequeue(key, queue)
        assert heard.died.get(timeout=PATIENCE_S) == Deaths((key,), 0)
        earlier = branch(store, queue, b"of term %d" % leads)
        store.force()
        (change,) = heard.in_doubt.get(timeout=PATIENCE_S).changes
        assert (change.id, change.state) == (earlier[0], "prepared")
        group.cease()
        for listener in heard.listeners:
            wait_until(lambda: listener.closed, "the end of the term ends it")  # noqa: B023 - used at once


def test_what_no_majority_has_is_never_told_and_has_not_happened_for_the_next_leader(group: Group) -> None:
    store = group.lead(0)
    queue = store.queue("orders")
    (key,) = [one.id for one in queue.browse()]
    heard = Heard(store, queue)
    group.reached = {0}  # nobody else: nothing becomes durable any more
    store.dequeue(key, queue, wait=False)
    store.publish(queue, b"nobody has it", wait=False)
    branch(store, queue, b"nobody has it")
    end = store.next_lsn
    wait_until(lambda: group.sent and group.sent[-1].end_lsn >= end, "this disk has it")
    group.cease()
    while not isinstance(heard.durable.get(timeout=PATIENCE_S), errors.OutcomeUnknown):
        pass
    wait_until(lambda: all(one.closed for one in heard.listeners), "all listeners have ended")
    assert heard.arrived.empty()
    assert heard.died.empty()
    assert heard.in_doubt.empty()
    for register in (queue.on_arrived, store.on_death, store.on_in_doubt):
        with pytest.raises(errors.StoreError):
            register(print)
    group.reached = {1, 2}
    store = group.lead(1)
    assert [one.id for one in store.queue("orders").browse()] == [key]
    assert store.in_doubt() == []
