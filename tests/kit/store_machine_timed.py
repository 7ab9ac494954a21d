"""More rules of the state machine in store_machine.py: times of places, and the clock.

The clock jumps by whole hours, and times are in the middle of an hour. The clock's small steps, one microsecond for
each call of the disk, never add up to half an hour, so no time comes in the middle of a call.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kit.store_machine import PICK, SIZES, WAIT
from kit.store_machine_moving import HEADERS, NOTES, MovingMachine
from kit.store_model import ENQUEUE, Times, as_time, as_us
from logstore import errors
from logstore.store import times as package_times

HOUR_US: Final = 3_600_000_000
HOURS = st.integers(1, 6)
MAYBE_HOURS = st.one_of(st.none(), HOURS)


class TimedMachine(MovingMachine):
    """The machine with places that wait for a time, or that expire."""

    def __init__(self) -> None:
        super().__init__()
        self.began_us = self.disk.now_us
        self.hours = 0
        self.patches.setattr(package_times, "now_us", lambda: self.disk.now_us)

    def in_hours(self, hours: int | None) -> int:
        """The middle of the hour that begins so many hours from now, in microseconds; None: 0, no time."""
        return 0 if hours is None else self.began_us + (self.hours + hours) * HOUR_US - HOUR_US // 2

    def times(self, hidden: int | None, lives: int | None) -> tuple[Times, dict[str, Any]]:
        """Times for the model, and for the store: seconds in one case, and a datetime in the other."""
        expires = None if lives is None else lives + (hidden or 0)
        made = self.in_hours(hidden), self.in_hours(expires)
        given = {
            "not_before": made[0] / 1e6 if made[0] else None,
            "expires": as_time(made[1]) if made[1] else None,
        }
        return made, given

    @rule(hours=HOURS)
    def the_clock_goes_on(self, hours: int) -> None:
        self.disk.jump(hours * HOUR_US)
        self.hours += hours

    @rule(
        pick=PICK,
        fan=st.integers(1, 3),
        size=SIZES,
        tx=PICK,
        wait=WAIT,
        parts=st.booleans(),
        hidden=MAYBE_HOURS,
        lives=MAYBE_HOURS,
    )
    def publish_timed(
        self,
        pick: int,
        fan: int,
        size: int,
        tx: int,
        wait: bool,
        parts: bool,
        hidden: int | None,
        lives: int | None,
    ) -> None:
        queues = sorted({self.some_queue(pick + i) for i in range(fan)})
        content, into = self.fresh_content(size), self.some_tx(tx)
        times, given = self.times(hidden, lives)
        key = self.store.publish(
            [self.handle(queue) for queue in queues],
            [content[:2], content[2:]] if parts else content,
            transaction=self.transaction(into),
            wait=wait,
            **given,
        )
        self.did("publish", key, content, b"", queues, into, times, wait=wait and into is None)

    @rule(pick=PICK, sizes=st.lists(SIZES, max_size=5), tx=PICK, wait=WAIT, hidden=MAYBE_HOURS, lives=HOURS)
    def publish_many_timed(
        self, pick: int, sizes: list[int], tx: int, wait: bool, hidden: int | None, lives: int
    ) -> None:
        queue, into = self.some_queue(pick), self.some_tx(tx)
        contents = [self.fresh_content(size) for size in sizes]
        times, given = self.times(hidden, lives)
        keys = self.store.publish_many(
            self.handle(queue), contents, transaction=self.transaction(into), wait=wait, **given
        )
        for key, content in zip(keys, contents, strict=True):
            self.did("publish", key, content, b"", [queue], into, times)
        assert not (wait and into is None and keys) or self.store.durable_lsn >= self.store.next_lsn

    @precondition(lambda self: self.live.messages)
    @rule(pick=PICK, at=PICK, tx=PICK, wait=WAIT, hidden=HOURS, lives=MAYBE_HOURS)
    def enqueue_timed(self, pick: int, at: int, tx: int, wait: bool, hidden: int, lives: int | None) -> None:
        key, queue, into = self.some_message(pick), self.some_queue(at), self.some_tx(tx)
        if (queue, key) in self.held:
            return
        times, given = self.times(hidden, lives)
        refused = self.live.refusal(ENQUEUE, key, queue, into)
        if refused is not None:
            with pytest.raises(getattr(errors, refused)):
                self.store.enqueue(key, self.handle(queue), self.transaction(into), wait=wait, **given)
            return
        lsn = self.store.enqueue(key, self.handle(queue), self.transaction(into), wait=wait, **given)
        self.did("enqueue", key, [queue], into, lsn, times, wait=wait and into is None)

    @precondition(lambda self: self.held)
    @rule(pick=PICK, at=PICK, note=st.one_of(st.none(), NOTES), header=HEADERS, wait=WAIT, hidden=HOURS)
    def move_timed(self, pick: int, at: int, note: bytes | None, header: bytes | None, wait: bool, hidden: int) -> None:
        (queue, key), delivery = self.some_held(pick)
        to = self.some_queue(at)
        if self.live.locked(key, queue) or (to != queue and self.live.refusal(ENQUEUE, key, to, None) is not None):
            return
        times, given = self.times(hidden, None)
        before = self.store.next_lsn
        self.handle(queue).move(delivery, self.handle(to), header=header, note=note, wait=wait, **given)
        self.forget_place(queue, key)
        self.did("move", key, queue, to, before, note, header, times, wait=wait)

    @precondition(lambda self: self.held)
    @rule(pick=PICK, hours=HOURS, wait=WAIT, unseen=st.booleans())
    def release_later(self, pick: int, hours: int, wait: bool, unseen: bool) -> None:
        (queue, key), delivery = self.some_held(pick)
        if self.live.locked(key, queue):
            return
        delay_us = self.in_hours(hours) - self.disk.now_us - 1000  # the clock goes on until the core has it
        delivery.release(delay=delay_us / 1e6, wait=wait, unseen=unseen)
        del self.held[queue, key]
        self.counts[queue, key] -= unseen
        (not_before,) = (shown.not_before for shown in self.store.messages(self.handle(queue)) if shown.id == key)
        assert not_before is not None
        assert abs((not_before - as_time(self.in_hours(hours))).total_seconds()) < 1
        self.did("delay", key, queue, as_us(not_before), wait=wait)

    @rule(pick=PICK, n=st.integers(1, 5), back=st.booleans())
    def acquire_expired(self, pick: int, n: int, back: bool) -> None:
        queue = self.some_queue(pick)
        handle = self.handle(queue)
        self.acquired(queue, self.live.queues[queue], n, lambda: handle.expired(n), back, "expired")
