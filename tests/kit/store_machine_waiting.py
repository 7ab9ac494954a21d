"""More rules of the state machine in store_machine.py: acquires that wait, batches of names, transient queues, and what
listeners are told of deaths.

What is told must be dead, now and after every crash. Once all is durable, every death since the open has been told,
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from kit.store_machine import PICK, SIZES, WAIT, StoreMachine
from logstore import QueueDeclaration, errors
from logstore._core import lib
from logstore.store.queue_events import EventInbox

if TYPE_CHECKING:
    from kit.store_model import State
    from logstore import Deaths, MessageStore

PATIENCE_S = 60  # never reached: what is waited for is there, or comes before the wait


class WaitingMachine(StoreMachine):
    """StoreMachine with the operations that a broker's consumers and sessions add."""

    def __init__(self) -> None:
        self.told: list[int] = []  # since the last open
        self.told_ever: set[int] = set()
        self.died: list[int] = []  # durably, since the last open
        self.inbox: EventInbox | None = None
        super().__init__()
        self.listen()

    # ---- deaths ----

    def listen(self) -> None:
        """Begin to be told. The test looks in place of a thread, since the inbox's eventfd is the simulated disk's."""
        self.inbox = EventInbox(self.store._c)
        self.inbox.of_store.listen(lib.LS_NOTICE_DEATHS, self.hear, weak=False)
        self.told, self.died = [], []

    def hear(self, deaths: Deaths) -> None:
        assert deaths.missed == 0
        self.told += deaths.ids
        self.told_ever.update(deaths.ids)

    def stop_listening(self) -> None:
        if self.inbox is not None:
            self.inbox.end()
            self.inbox = None

    def operation_is_durable(self, *operation: Any) -> None:
        before = list(self.sure.messages)
        super().operation_is_durable(*operation)
        self.died += [key for key in before if key not in self.sure.messages]

    def open(self) -> MessageStore:
        self.stop_listening()
        return super().open()

    def cut_power(self, losses: int, seed: int) -> None:
        self.stop_listening()  # the old store goes on, and what it is told then does not count
        super().cut_power(losses, seed)

    def reopened(self, candidates: list[State], *, orderly: bool = False) -> None:
        super().reopened(candidates, orderly=orderly)
        self.listen()

    def teardown(self) -> None:
        self.stop_listening()
        super().teardown()

    @rule()
    def look(self) -> None:
        assert self.inbox is not None
        self.inbox.tell()

    @rule()
    def every_death_was_told_once(self) -> None:
        self.force()
        self.look()
        assert sorted(self.told) == sorted(self.died)

    @invariant()
    def what_was_told_is_dead(self) -> None:
        assert self.told_ever.isdisjoint(self.live.messages)

    # ---- names ----

    @precondition(lambda self: len(self.live.queues) < 4)
    @rule()
    def declare_transient_queue(self) -> None:
        self.names += 1
        queue = self.store.declare_queue(f"t{self.names}", transient=True)
        assert self.store.declare_queue(queue.name, transient=True) is queue
        self.did("declare_queue", queue.id)

    @precondition(lambda self: len(self.live.queues) < 4)
    @rule(transient=st.lists(st.booleans(), min_size=1, max_size=3), pick=PICK)
    def declare_queues(self, transient: list[bool], pick: int) -> None:
        """Some new ones, and one that is there; not one of them if a name occurs twice."""
        there = self.handle(self.some_queue(pick))
        batch = [QueueDeclaration(there.name, transient=there.id not in self.catalog)]
        for each in transient:
            self.names += 1
            batch.append(QueueDeclaration(f"b{self.names}", transient=each))
        with pytest.raises(errors.OptionError):
            self.store.declare_queues([*batch, batch[-1]])
        queues = self.store.declare_queues(batch)
        assert queues[0] is there
        assert [queue.name for queue in queues] == [one.name for one in batch]
        for queue, declared in zip(queues[1:], batch[1:], strict=True):
            if not declared.transient:
                assert queue.id not in self.catalog
                self.catalog.add(queue.id)
            self.did("declare_queue", queue.id)

    @precondition(lambda self: len(self.live.queues) > 2)
    @rule(pick=PICK, wait=WAIT)
    def delete_queues(self, pick: int, wait: bool) -> None:
        """All but one that the catalog has; not one of them if the batch names one twice."""
        kept = sorted(self.catalog)[pick % len(self.catalog)]
        queues = [queue for queue in self.store.queues() if queue.id != kept]
        with pytest.raises(errors.OptionError):
            self.store.delete_queues([*queues, queues[0].name])
        self.store.delete_queues(queues, wait=wait)
        for queue in queues:
            self.forget_queue(queue.id)
            self.did("delete_queue", queue.id, wait=wait)

    # ---- acquires that wait ----

    @rule(pick=PICK, n=st.integers(1, 5), back=st.booleans())
    def acquire_what_is_there(self, pick: int, n: int, back: bool) -> None:
        """A wait ends at once if something is there, and a wait of no time does so also if nothing is."""
        queue = self.some_queue(pick)
        handle, places = self.handle(queue), self.live.queues[queue]
        timeout = PATIENCE_S if self.free_and_certain(queue, places)[1] > 0 else 0
        self.acquired(queue, places, n, lambda: handle.acquire(n, timeout=timeout), back)

    def has_nothing_free(self, queue: int) -> bool:
        return not any(self.is_free(queue, place) for place in self.live.queues[queue])

    @rule(pick=PICK, n=st.integers(1, 3), size=SIZES, wait=WAIT)
    def wait_for_a_publish(self, pick: int, n: int, size: int, wait: bool) -> None:
        """Who waits gets what arrives, once it is durable; the one who gave up before gets nothing."""
        queue = self.some_queue(pick)
        if not self.has_nothing_free(queue):
            return
        handle, content = self.handle(queue), self.fresh_content(size)
        gone, first, second = (handle._wait_as(n) for _ in range(3))
        gone.give_back()
        key = self.store.publish(handle, content, wait=wait)
        self.did("publish", key, content, b"", [queue], None, wait=wait)
        if not wait:
            self.force()
        first.wait(0)
        got = first.take(False)
        second.give_back()
        assert [delivery.id for delivery in got] == [key]
        self.hold(queue, got[0], recovered=False)

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def wait_for_a_release(self, pick: int) -> None:
        (queue, key), delivery = self.some_held(pick)
        if not self.has_nothing_free(queue) or self.live.locked(key, queue):
            return
        waiting = self.handle(queue)._wait_as(1)
        delivery.release()
        waiting.wait(0)
        got = waiting.take(False)
        assert [(again.id, again.position) for again in got] == [(key, delivery.position)]
        recovered = next(place.recovered for place in self.live.queues[queue] if place.key == key)
        self.hold(queue, got[0], recovered=recovered)
