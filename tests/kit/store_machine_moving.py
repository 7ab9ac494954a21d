"""More rules of the state machine in store_machine.py: notes, moves, and releases to the back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kit.store_machine import PICK, WAIT
from kit.store_machine_waiting import WaitingMachine
from kit.store_model import DEQUEUE, ENQUEUE
from logstore import errors

NOTES = st.sampled_from([b"", b"n", b"a note", b"x" * 255])
HEADERS = st.sampled_from([None, b"", b"its own header", b"h" * 2000])


class MovingMachine(WaitingMachine):
    """The machine with the operations on the states of places."""

    def states_are_loaded(self, delivery: Any, key: int, queue: int) -> None:
        place = self.live.place(key, queue)
        own = self.live.messages[key].header if place.header is None else place.header
        assert (delivery.note, delivery.header) == (place.note, own)

    @precondition(lambda self: self.live.messages)
    @rule(pick=PICK, at=PICK, note=NOTES, wait=WAIT)
    def annotate(self, pick: int, at: int, note: bytes, wait: bool) -> None:
        key, queue = self.some_message(pick), self.some_queue(at)
        refused = self.live.refusal(DEQUEUE, key, queue, None)
        if refused is not None:
            with pytest.raises(getattr(errors, refused)):
                self.store.annotate(key, self.handle(queue), note, wait=wait)
            return
        self.store.annotate(key, self.handle(queue), note, wait=wait)
        self.did("annotate", key, queue, note, wait=wait)

    @precondition(lambda self: self.held)
    @rule(pick=PICK, at=PICK, note=st.one_of(st.none(), NOTES), header=HEADERS, wait=WAIT)
    def move(self, pick: int, at: int, note: bytes | None, header: bytes | None, wait: bool) -> None:
        (queue, key), delivery = self.some_held(pick)
        to = self.some_queue(at)
        self.states_are_loaded(delivery, key, queue)
        refused = "MessageLocked" if self.live.locked(key, queue) else None
        if refused is None and to != queue:
            refused = self.live.refusal(ENQUEUE, key, to, None)
        source, target = self.handle(queue), self.handle(to)
        if refused is not None:
            with pytest.raises(getattr(errors, refused)):
                source.move(delivery, target, header=header, note=note, wait=wait)
            return
        before = self.store.next_lsn
        source.move(delivery, target, header=header, note=note, wait=wait)
        self.forget_place(queue, key)
        self.did("move", key, queue, to, before, note, header, wait=wait)

    @precondition(lambda self: self.held)
    @rule(pick=PICK, wait=WAIT)
    def release_to_back(self, pick: int, wait: bool) -> None:
        (queue, key), delivery = self.some_held(pick)
        if self.live.locked(key, queue):
            with pytest.raises(errors.MessageLocked):
                delivery.release(to_back=True, wait=wait)
            return
        before, count = self.store.next_lsn, self.counts[queue, key]
        delivery.release(to_back=True, wait=wait)
        self.forget_place(queue, key)
        self.counts[queue, key] = count
        times = (0, self.live.place(key, queue).times[1])
        self.did("move", key, queue, queue, before, None, None, times, wait=wait)
