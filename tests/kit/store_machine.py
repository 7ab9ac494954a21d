"""A state machine that applies random operations to a store and to a plain model of it, and compares; see
test_model.py.

Its rules are the public operations; a crash loses all, some or none of the unsynced data.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from kit.simulated import ALL_LOST, BY_SEED, Disk
from kit.store_model import DEQUEUE, ENQUEUE, State, shown_by
from logstore import QueueCounts, Xid, errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.store_model import Place
    from logstore import Delivery, MessageStore, Transaction

PICK = st.integers(0, 1_000_000)
WAIT = st.booleans()
SIZES = st.sampled_from([0, 0, 1, 100, 3000, 5000, 9000])
ONE_RECORD_BYTES = 4000  # a shorter content is in the record that enqueues it
XIDS = [Xid(1, b"g", b"b%d" % i) for i in range(3)]


class StoreMachine(RuleBasedStateMachine):
    """One store, its expected contents, and the operations that may not be durable."""

    plant: ClassVar[Callable[[pytest.MonkeyPatch], None] | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.patches = pytest.MonkeyPatch()
        if self.plant is not None:
            type(self).plant(self.patches)  # type: ignore[misc]  # kept on the class, called without self
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # SQLite's syncs would take most of the time
        self.directory = Path(tempfile.mkdtemp(prefix="logstore-model-", dir=memory))
        self.disks = [Disk()]
        self.live = State()  # all that was done
        self.sure = State()  # all that is durable
        self.unsure: list[tuple[int, tuple[Any, ...]]] = []  # the others, each with the LSN that makes it durable
        self.catalog: set[int] = set()
        self.names = 0
        self.contents = 0
        self.counts: dict[tuple[int, int], int] = {}
        self.uncounted: set[tuple[int, int]] = set()  # places that a crash has left with a count that is not known
        self.forget_handles()
        self.store = self.open()

    @property
    def disk(self) -> Disk:
        return self.disks[-1]

    def open(self) -> MessageStore:
        return self.disk.open(self.directory / "store", background=0)

    def forget_handles(self) -> None:
        self.txs: dict[int, Transaction] = {}
        self.held: dict[tuple[int, int], Delivery] = {}

    def teardown(self) -> None:
        try:
            with contextlib.suppress(errors.StoreError):
                self.store.close()
            del self.store
            self.forget_handles()
            for disk in self.disks:
                disk.free()
        finally:
            self.patches.undo()
            shutil.rmtree(self.directory, ignore_errors=True)

    # ---- bookkeeping ----

    def did(self, *operation: Any, wait: bool = False) -> None:
        """Apply an operation that succeeded; it is certain once it is durable."""
        self.live.apply(*operation)
        self.unsure.append((self.store.next_lsn, operation))
        if wait:
            assert self.store.durable_lsn >= self.store.next_lsn
        self.catch_up()

    def catch_up(self) -> None:
        durable = self.store.durable_lsn
        while self.unsure and self.unsure[0][0] <= durable:
            self.operation_is_durable(*self.unsure.pop(0)[1])

    def operation_is_durable(self, *operation: Any) -> None:
        self.sure.apply(*operation)

    def cut_power(self, losses: int, seed: int) -> None:
        """From here on the store is opened on the disk as a power cut leaves it; the old store keeps the old disk."""
        self.disks.append(self.disk.crash(losses, seed))

    def fresh_content(self, size: int) -> bytes:
        self.contents += 1
        return b"%d:" % self.contents + bytes([self.contents % 256]) * size

    def some_queue(self, pick: int) -> int:
        ids = sorted(self.live.queues)
        return ids[pick % len(ids)]

    def handle(self, queue: int) -> Any:
        return next(known for known in self.store.queues() if known.id == queue)

    def some_message(self, pick: int) -> int:
        keys = sorted(self.live.messages)
        return keys[pick % len(keys)]

    def some_tx(self, pick: int) -> int | None:
        """An active transaction, or none of them."""
        active = [None, *(tx for tx, known in sorted(self.live.txs.items()) if known.state == "active")]
        return active[pick % len(active)]

    def transaction(self, tx: int | None) -> Transaction | None:
        return None if tx is None else self.txs[tx]

    def forget_place(self, queue: int, key: int) -> None:
        self.held.pop((queue, key), None)
        self.counts.pop((queue, key), None)
        self.uncounted.discard((queue, key))

    def forget_queue(self, queue: int) -> None:
        self.catalog.discard(queue)
        for _, key in [place for place in {*self.held, *self.counts, *self.uncounted} if place[0] == queue]:
            self.forget_place(queue, key)

    # ---- rules: queues ----

    @initialize()
    def first_queue(self) -> None:
        self.declare_queue()

    @precondition(lambda self: len(self.live.queues) < 4)
    @rule()
    def declare_queue(self) -> None:
        self.names += 1
        queue = self.store.declare_queue(f"q{self.names}").id
        assert queue not in self.catalog
        self.catalog.add(queue)
        self.did("declare_queue", queue)

    @precondition(lambda self: len(self.live.queues) > 1)
    @rule(pick=PICK, wait=WAIT)
    def delete_queue(self, pick: int, wait: bool) -> None:
        queue = self.some_queue(pick)
        if self.catalog == {queue}:
            return  # after an open there is no other
        self.store.delete_queue(self.handle(queue), wait=wait)
        self.forget_queue(queue)
        self.did("delete_queue", queue, wait=wait)

    # ---- rules: messages ----

    @rule(pick=PICK, fan=st.integers(1, 3), size=SIZES, tx=PICK, wait=WAIT, parts=st.booleans())
    def publish(self, pick: int, fan: int, size: int, tx: int, wait: bool, parts: bool) -> None:
        queues = sorted({self.some_queue(pick + i) for i in range(fan)})
        content, header = self.fresh_content(size), b"h" * (pick % 5)
        into = self.some_tx(tx)
        key = self.store.publish(
            [self.handle(queue) for queue in queues],
            [content[:2], content[2:]] if parts else content,
            header=header,
            transaction=self.transaction(into),
            wait=wait,
        )
        self.did("publish", key, content, header, queues, into, wait=wait and into is None)

    @rule(pick=PICK, sizes=st.lists(SIZES, max_size=6), tx=PICK, wait=WAIT)
    def publish_many(self, pick: int, sizes: list[int], tx: int, wait: bool) -> None:
        queue, into = self.some_queue(pick), self.some_tx(tx)
        contents = [self.fresh_content(size) for size in sizes]
        keys = self.store.publish_many(self.handle(queue), contents, transaction=self.transaction(into), wait=wait)
        assert len(keys) == len(contents)
        for key, content in zip(keys, contents, strict=True):
            self.did("publish", key, content, b"", [queue], into)
        assert not (wait and into is None and keys) or self.store.durable_lsn >= self.store.next_lsn

    @rule(size=SIZES)
    def stage(self, size: int) -> None:
        content = self.fresh_content(size)
        self.did("stage", self.store.stage(b"head", content), content, b"head")

    @precondition(lambda self: self.live.messages)
    @rule(pick=PICK, size=SIZES)
    def append_content(self, pick: int, size: int) -> None:
        key, data = self.some_message(pick), bytes([pick % 256]) * size
        message = self.live.messages[key]
        if message.staged and self.live.work_on(key) is None:
            self.store.append_content(key, data)
            self.did("append", key, data)
        elif data:
            with pytest.raises(errors.MessageInUse):
                self.store.append_content(key, data)

    @precondition(lambda self: self.live.messages)
    @rule(pick=PICK, at=PICK, tx=PICK, wait=WAIT)
    def enqueue(self, pick: int, at: int, tx: int, wait: bool) -> None:
        key, queue, into = self.some_message(pick), self.some_queue(at), self.some_tx(tx)
        if (queue, key) in self.held:
            return  # a consumer has it and decides about its place
        refused = self.live.refusal(ENQUEUE, key, queue, into)
        if refused is not None:
            with pytest.raises(getattr(errors, refused)):
                self.store.enqueue(key, self.handle(queue), self.transaction(into), wait=wait)
            return
        lsn = self.store.enqueue(key, self.handle(queue), self.transaction(into), wait=wait)
        self.did("enqueue", key, [queue], into, lsn, wait=wait and into is None)

    @precondition(lambda self: self.live.messages)
    @rule(pick=PICK, at=PICK, tx=PICK, wait=WAIT)
    def dequeue(self, pick: int, at: int, tx: int, wait: bool) -> None:
        key, queue, into = self.some_message(pick), self.some_queue(at), self.some_tx(tx)
        refused = self.live.refusal(DEQUEUE, key, queue, into)
        if refused is not None:
            with pytest.raises(getattr(errors, refused)):
                self.store.dequeue(key, self.handle(queue), self.transaction(into), wait=wait)
            return
        if into is None:
            if (queue, key) in self.held:
                return
            self.forget_place(queue, key)
        self.store.dequeue(key, self.handle(queue), self.transaction(into), wait=wait)
        self.did("dequeue", key, queue, into, wait=wait and into is None)

    @precondition(lambda self: any(self.live.queues.values()))
    @rule(pick=PICK, wait=WAIT)
    def work_off(self, pick: int, wait: bool) -> None:
        """Dequeue all unlocked messages of a queue, so that segments are recycled."""
        queue = self.some_queue(pick)
        keys = [
            place.key
            for place in self.live.queues[queue]
            if not self.live.locked(place.key, queue) and (queue, place.key) not in self.held
        ]
        self.store.dequeue_many(keys, self.handle(queue), wait=wait)
        for key in keys:
            self.forget_place(queue, key)
            self.did("dequeue", key, queue, None)

    @precondition(lambda self: self.live.messages)
    @rule(pick=PICK, wait=WAIT)
    def destroy(self, pick: int, wait: bool) -> None:
        key = self.some_message(pick)
        if self.live.places(key) or self.live.work_on(key) is not None:
            with pytest.raises(errors.MessageInUse):
                self.store.destroy(key, wait=wait)
            return
        self.store.destroy(key, wait=wait)
        self.did("destroy", key, wait=wait)

    # ---- rules: consumers ----

    @rule(pick=PICK, n=st.integers(1, 5), back=st.booleans())
    def acquire(self, pick: int, n: int, back: bool) -> None:
        queue = self.some_queue(pick)
        handle = self.handle(queue)
        self.acquired(queue, self.live.queues[queue], n, lambda: handle.acquire(n), back)

    @precondition(lambda self: any(self.live.queues.values()))
    @rule(pick=PICK, at=PICK, n=st.integers(1, 5), back=st.booleans())
    def acquire_after(self, pick: int, at: int, n: int, back: bool) -> None:
        queue = self.some_queue(pick)
        handle, places = self.handle(queue), self.live.queues[queue]
        listed = list(handle.browse())
        if listed:
            at %= len(listed)
            after = listed[at].position
            assert [message.id for message in handle.browse(after=after)] == [place.key for place in places[at + 1 :]]
            self.acquired(queue, places[at + 1 :], n, lambda: handle.acquire(n, after=after), back)

    @precondition(lambda self: self.live.messages)
    @rule(pick=PICK, picks=st.lists(PICK, min_size=1, max_size=4), back=st.booleans())
    def acquire_ids(self, pick: int, picks: list[int], back: bool) -> None:
        queue = self.some_queue(pick)
        keys = list(dict.fromkeys(self.some_message(each) for each in picks))
        handle = self.handle(queue)
        for key in keys:  # one by one: of several, any that is not durable may be missing
            places = [place for place in self.live.queues[queue] if place.key == key]
            self.acquired(queue, places, 1, lambda key=key: handle.acquire_ids([key, key]), back)

    @rule(pick=PICK, size=SIZES, back=st.booleans(), parts=st.booleans())
    def publish_acquired(self, pick: int, size: int, back: bool, parts: bool) -> None:
        queue, content = self.some_queue(pick), self.fresh_content(size)
        delivery = self.store.publish(
            self.handle(queue), [content[:2], content[2:]] if parts else content, acquire=True
        )
        self.did("publish", delivery.id, content, b"", [queue], None, wait=True)
        self.hold(queue, delivery, recovered=False)
        if back:
            self.release(sorted(self.held).index((queue, delivery.id)), True, False)

    def acquired(
        self,
        queue: int,
        places: list[Any],
        n: int,
        acquire: Callable[[], list[Delivery]],
        back: bool,
        state: str | None = None,
    ) -> None:
        """Acquires; the first n free and durable ones of these places are expected, in this state."""
        free, certain = self.free_and_certain(queue, places, state)
        got = acquire()
        assert [delivery.id for delivery in got] == [place.key for place in free[: len(got)]]
        assert min(n, certain) <= len(got) <= n
        for delivery, place in zip(got, free, strict=False):
            self.hold(queue, delivery, recovered=place.recovered)
        if back and got:
            self.release(sorted(self.held).index((queue, got[0].id)), True, False)

    def waits_for(self, place: Place) -> str | None:
        """``hidden`` or ``expired``, by its times and the clock."""
        not_before, expires = place.times
        if 0 < expires <= self.disk.now_us:
            return "expired"
        return "hidden" if not_before > self.disk.now_us else None

    def is_free(self, queue: int, place: Place, state: str | None = None) -> bool:
        """Whether it may be acquired now, if it is durable; in this state."""
        held = self.live.locked(place.key, queue) or (queue, place.key) in self.held
        return not held and self.waits_for(place) == state

    def free_and_certain(self, queue: int, places: list[Any], state: str | None = None) -> tuple[list[Any], int]:
        """Those of the places that may be acquired, and how many of the first ones certainly can."""
        durable = self.store.durable_lsn
        durably = {place.key for place in self.sure.queues.get(queue, [])}
        free, certain = [], 0
        for place in places:
            if place.order_lsn >= durable:
                break
            if self.is_free(queue, place, state):
                free.append(place)
                # Of a long message the first record may be durable, and the one that enqueues it not yet.
                is_short = len(self.live.messages[place.key].content) < ONE_RECORD_BYTES
                certain += certain == len(free) - 1 and (is_short or place.key in durably)
        return free, certain

    def hold(self, queue: int, delivery: Delivery, *, recovered: bool) -> None:
        at = (queue, delivery.id)
        if at in self.uncounted:
            self.uncounted.discard(at)
            self.counts[at] = delivery.delivery_count - 1
        self.counts[at] = self.counts.get(at, 0) + 1
        assert delivery.delivery_count == self.counts[at] > 0
        assert delivery.redelivered == (recovered or self.counts[at] > 1)
        self.held[at] = delivery

    def some_held(self, pick: int) -> tuple[tuple[int, int], Delivery]:
        places = sorted(self.held)
        at = places[pick % len(places)]
        return at, self.held[at]

    @precondition(lambda self: self.held)
    @rule(pick=PICK, again=st.booleans(), drop=st.booleans())
    def release(self, pick: int, again: bool, drop: bool) -> None:
        """Cancel a consumer, which releases or only drops it; half of the time the next one starts at once."""
        at, delivery = self.some_held(pick)
        if not drop:
            delivery.release()
        del self.held[at], delivery
        if again and at[0] in self.live.queues:
            self.acquire(sorted(self.live.queues).index(at[0]), 5, False)

    @precondition(lambda self: self.held)
    @rule(pick=PICK, wait=WAIT, reject=st.booleans())
    def accept(self, pick: int, wait: bool, reject: bool) -> None:
        (queue, key), delivery = self.some_held(pick)
        settle = delivery.reject if reject else delivery.accept
        if self.live.locked(key, queue):
            with pytest.raises(errors.MessageLocked):
                settle(wait=wait)
            return
        settle(wait=wait)
        self.forget_place(queue, key)
        self.did("dequeue", key, queue, None, wait=wait)

    # ---- rules: transactions ----

    @precondition(lambda self: len(self.live.txs) < 3)
    @rule(pick=PICK, size=SIZES, wait=WAIT, prepared=st.booleans())
    def begin(self, pick: int, size: int, wait: bool, prepared: bool) -> None:
        """Half of the branches are prepared at once, because random steps rarely get there."""
        xid = [None, None, *XIDS][pick % 5]
        if xid is not None and any(tx.xid == xid for tx in self.live.txs.values()):
            with pytest.raises(errors.DuplicateXid):
                self.store.begin(xid)
            return
        transaction = self.store.begin(xid)
        self.txs[transaction.id] = transaction
        self.did("begin", transaction.id, xid)
        if prepared and xid is not None:
            queue, content = self.some_queue(pick), self.fresh_content(size)
            key = self.store.publish(self.handle(queue), content, transaction=transaction)
            self.did("publish", key, content, b"", [queue], transaction.id)
            self.end(transaction.id)
            transaction.prepare(wait=wait)
            self.did("state", transaction.id, "prepared", wait=wait)

    def any_tx(self, pick: int) -> int:
        ids = sorted(self.live.txs)
        return ids[pick % len(ids)]

    def end(self, tx: int) -> None:
        """An ended branch refuses more work, and a refused operation is not logged."""
        self.txs[tx].end()
        self.did("state", tx, "ended")
        before, queue = self.store.next_lsn, self.some_queue(tx)
        with pytest.raises(errors.WrongState):
            self.store.publish(self.handle(queue), b"never", transaction=self.txs[tx])
        for place in self.live.queues[queue][:1]:
            with pytest.raises(errors.WrongState):
                self.store.dequeue(place.key, self.handle(queue), self.txs[tx])
        assert self.store.next_lsn == before

    @precondition(lambda self: self.live.txs)
    @rule(pick=PICK, wait=WAIT, step=st.sampled_from(["end", "prepare", "both"]))
    def prepare(self, pick: int, wait: bool, step: str) -> None:
        tx = self.any_tx(pick)
        known = self.live.txs[tx]
        if step != "prepare":
            if known.xid is None or known.state != "active":
                with pytest.raises(errors.WrongState):
                    self.txs[tx].end()
                return
            self.end(tx)
        if step == "end":
            return
        if known.state != "ended":
            with pytest.raises(errors.WrongState):
                self.txs[tx].prepare(wait=wait)
            return
        self.txs[tx].prepare(wait=wait)
        self.did("state", tx, "prepared", wait=wait)

    def found_by_name(self, tx: int) -> None:
        """Find a transaction in doubt by its xid, as a coordinator without handles does."""
        known = self.live.txs[tx]
        if known.state == "prepared":
            (found,) = [one for one in self.store.in_doubt() if one.xid == known.xid]
            assert found is self.txs[tx]
            assert found.operations == len(known.work)
            with pytest.raises(errors.DuplicateXid):
                self.store.begin(known.xid)

    @precondition(lambda self: self.live.txs)
    @rule(pick=PICK, wait=WAIT)
    def commit(self, pick: int, wait: bool) -> None:
        tx = self.any_tx(pick)
        known = self.live.txs[tx]
        if known.xid is not None and known.state == "active":
            with pytest.raises(errors.WrongState):
                self.txs[tx].commit()
            return
        self.found_by_name(tx)
        before = self.store.next_lsn
        handle = self.txs.pop(tx)
        handle.commit(wait=wait)
        for kind, key, queue in known.work:
            if kind == DEQUEUE:
                self.forget_place(queue, key)
        self.did("commit", tx, before, wait=wait)
        with pytest.raises(errors.TransactionEnded):
            handle.rollback()

    @precondition(lambda self: self.live.txs)
    @rule(pick=PICK, wait=WAIT, abandoned=st.booleans())
    def rollback(self, pick: int, wait: bool, abandoned: bool) -> None:
        """Roll back explicitly, or by freeing the last handle, which does not end a prepared transaction."""
        tx = self.any_tx(pick)
        if abandoned and self.live.txs[tx].state != "prepared":
            del self.txs[tx]
            gc.collect(0)
            self.did("rollback", tx)
            return
        self.found_by_name(tx)
        handle = self.txs.pop(tx)
        handle.rollback(wait=wait)
        self.did("rollback", tx, wait=wait)
        with pytest.raises(errors.TransactionEnded):
            handle.commit()

    @precondition(lambda self: len(self.live.txs) < 3 and any(self.live.queues.values()))
    @rule(pick=PICK, n=st.integers(1, 3))
    def pass_by(self, pick: int, n: int) -> None:
        """A transaction dequeues the front, a consumer takes the next messages, a rollback restores the front."""
        queue = self.some_queue(pick)
        free = [
            place.key
            for place in self.live.queues[queue]
            if not self.live.locked(place.key, queue) and (queue, place.key) not in self.held
        ]
        if not free or self.live.refusal(DEQUEUE, free[0], queue, None) is not None:
            return
        transaction = self.store.begin()
        self.txs[transaction.id] = transaction
        self.did("begin", transaction.id, None)
        self.store.dequeue(free[0], self.handle(queue), transaction)
        self.did("dequeue", free[0], queue, transaction.id)
        at = sorted(self.live.queues).index(queue)
        self.acquire(at, n, False)
        del self.txs[transaction.id]
        transaction.rollback(wait=False)
        self.did("rollback", transaction.id)
        self.acquire(at, n, False)

    # ---- rules: durability ----

    @rule()
    def force(self) -> None:
        self.store.force()
        assert self.store.durable_lsn >= self.store.next_lsn
        self.catch_up()

    @rule()
    def compact(self) -> None:
        self.store.compact()
        self.catch_up()
        assert self.store.stats()["spares"] <= 4

    def reopened(self, candidates: list[State], *, orderly: bool = False) -> None:
        """After an open the store must have one of the possible states; the others are excluded from now on."""
        self.forget_handles()
        self.counts = self.counts if orderly else {}
        shown = shown_by(self.store)
        possible = [candidate for candidate in candidates if candidate.shown(self.counts) == shown]
        assert possible, f"shows {shown}, not one of {[candidate.shown(self.counts) for candidate in candidates]}"
        self.live = possible[-1]
        places = {(queue, place.key) for queue, places in self.live.queues.items() for place in places}
        self.uncounted = self.uncounted & places if orderly else places
        self.counts = {at: count for at, count in self.counts.items() if at in places}
        self.sure = self.live.copy()
        self.unsure = []
        self.txs = {transaction.id: transaction for transaction in self.store.in_doubt()}

    def what_may_be(self) -> list[State]:
        state = self.sure.copy()
        states = [state.recovered(self.catalog)]
        for _, operation in self.unsure:
            state.apply(*operation)
            states.append(state.recovered(self.catalog))
        return states

    @rule(times=st.integers(1, 3))
    def close_and_open(self, times: int) -> None:
        for _ in range(times):
            expected = self.live.recovered(self.catalog, orderly=True)
            self.store.close()
            self.store = self.open()
            assert self.store.recovery.clean
            self.reopened([expected], orderly=True)

    @rule(losses=st.integers(ALL_LOST, BY_SEED), seed=st.integers(1, 1000), times=st.integers(1, 3))
    def crash(self, losses: int, seed: int, times: int) -> None:
        for number in range(times):
            candidates = self.what_may_be()
            self.cut_power(losses, seed + number)
            self.store.close()  # the old one, on the old disk
            self.store = self.open()
            self.reopened(candidates)

    @rule(losses=st.integers(ALL_LOST, BY_SEED), seed=st.integers(1, 1000), nth=st.integers(1, 60))
    def crash_and_crash_again_during_recovery(self, losses: int, seed: int, nth: int) -> None:
        candidates = self.what_may_be()
        self.cut_power(losses, seed)
        self.store.close()
        self.disk.fail(nth, errno.EIO, forever=True)
        try:
            self.store = self.open()
        except errors.StoreError:
            pass
        else:
            self.disk.fail(0, 0)
            self.reopened(candidates)
            candidates = self.what_may_be()
        self.cut_power(losses, seed + 1)
        with contextlib.suppress(errors.StoreError):
            self.store.close()
        self.store = self.open()
        self.reopened(candidates)

    @rule(nth=st.integers(1, 3), forever=st.booleans(), losses=st.integers(-1, BY_SEED), seed=st.integers(1, 1000))
    def fail_and_open_again(self, nth: int, forever: bool, losses: int, seed: int) -> None:
        """A write or sync fails: refused from then on, and after opening again in one of the possible states."""
        self.publish(0, 1, 100, 0, False, False)
        orderly = losses < 0  # unless the fault comes before the close
        self.disk.fail(nth, errno.EIO, forever=forever)
        try:
            self.store.force()
        except errors.OutcomeUnknown:
            orderly = False
            with pytest.raises(errors.StorePoisoned):
                self.store.publish(self.handle(self.some_queue(0)), b"never", wait=False)
        self.disk.fail(0, 0)
        self.catch_up()
        candidates = self.what_may_be()
        if losses >= 0:
            self.cut_power(losses, seed)
        try:
            self.store.close()
        except errors.OutcomeUnknown:
            orderly = False
        self.store = self.open()
        if orderly:
            candidates = [self.live.recovered(self.catalog, orderly=True)]
        self.reopened(candidates, orderly=orderly)

    # ---- invariants ----

    @invariant()
    def the_store_shows_what_was_done(self) -> None:
        assert shown_by(self.store) == self.live.shown(self.counts)
        for key, message in self.live.messages.items():
            assert self.store.load_content(key) == message.content

    @invariant()
    def the_counts_are_those_of_the_places(self) -> None:
        for queue, places in self.live.queues.items():
            handle, size = self.handle(queue), self.size_of
            locked = [place for place in places if self.live.locked(place.key, queue)]
            held = [place for place in places if (queue, place.key) in self.held]
            acquired = [place for place in held if place not in locked]
            rest = [place for place in places if place not in locked and place not in held]
            ready = [place for place in rest if self.waits_for(place) is None]
            assert handle.counts() == QueueCounts(
                len(places),
                len(ready),
                len(acquired),
                len(locked),
                sum(map(size, places)),
                sum(map(size, ready)),
                sum(self.waits_for(place) == "hidden" for place in rest),
                sum(self.waits_for(place) == "expired" for place in rest),
            )
            listed = [(one.id, one.delivery_count, one.locked) for one in handle.acquisitions()]
            assert listed == [(one.key, self.counts[queue, one.key], one in locked) for one in held]

    def size_of(self, place: Place) -> int:
        return len(self.live.messages[place.key].content)

    @invariant()
    def the_lsns_are_in_order(self) -> None:
        assert self.store.durable_lsn <= self.store.next_lsn
        assert self.store.base_lsn <= self.store.durable_lsn
