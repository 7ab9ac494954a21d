"""A queue in memory with a tiny share behaves as a list does, whatever is in the log."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kit.live_broker import open_store
from logstore.broker.acquired import Acquired
from logstore.broker.arguments import QueueArguments, parse_queue_arguments
from logstore.broker.headers import encode_header
from logstore.broker.memory import Share
from logstore.broker.memory_places import place_bytes
from logstore.broker.memory_queue import MemoryQueue
from logstore.broker.overflow import LargeBody, OverflowLog
from logstore.broker.queues import now_ms
from logstore.broker.turns import Turns, all_of
from logstore.broker.wakeups import WakeUps

if TYPE_CHECKING:
    from logstore import MessageStore

SHARE = 16_000
LARGE = 3000


class OverflowMachine(RuleBasedStateMachine):
    """A message is a number; its body says which."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.store: MessageStore = open_store(Path(self.directory.name) / "store")
        self.loop = uvloop.new_event_loop()
        self.wakeups = WakeUps(self.store, self.loop, Turns(self.loop), self.failed)
        self.log = OverflowLog(self.wakeups)
        self.share = Share(SHARE)
        self.number = 0
        self.other_bytes = 0
        self.make()

    def failed(self, error: Exception) -> None:
        raise error

    def make(self) -> None:
        arguments: QueueArguments = parse_queue_arguments("q", {}, "/")
        self.queue = MemoryQueue(
            "q",
            self.wakeups,
            self.share,
            self.log,
            declared_durable=False,
            exclusive=False,
            auto_delete=False,
            owner=None,
            arguments=arguments,
        )
        self.waiting: list[tuple[int, bytes, bool]] = []  # number, body, redelivered
        self.taken: list[tuple[Acquired, tuple[int, bytes, bool]]] = []

    def run_loop(self) -> None:
        """Until nothing is read and nothing is destroyed."""

        async def wait() -> None:
            while (task := self.queue._reading or self.log._task) is not None:
                await task
            await asyncio.sleep(0)

        self.loop.run_until_complete(wait())

    def teardown(self) -> None:
        self.queue.close()
        for acquired, _ in self.taken:
            acquired.release()
        self.run_loop()
        assert self.log.staged_count == self.log.held_bytes == 0
        assert self.store.stats()["messages"] == 0
        assert self.share.used_bytes == self.other_bytes
        self.wakeups.stop()
        self.store.close()
        self.loop.close()
        self.directory.cleanup()

    def enqueue(self, size: int, *, is_large: bool, expired: bool) -> None:
        async def put() -> None:
            body = b"%d" % self.number + bytes(size)
            header = encode_header(b"\x00\x01q", b"\x00\x00", now_ms() - 10, 1 if expired else None)
            large = None
            if is_large:
                large = LargeBody(self.log, self.store.stage(b"", body), len(body))
            self.queue.make_room(place_bytes(header, 0 if is_large else len(body)))
            self.queue.enqueue(header, b"" if is_large else body, expires=expired, large=large)
            if large is not None:
                large.let_go()
            if not expired:
                self.waiting.append((self.number, body, False))
            self.number += 1

        self.loop.run_until_complete(put())

    @rule(count=st.sampled_from((1, 10, 40, 80)), size=st.sampled_from((0, 30, 2000)))
    def publish(self, count: int, size: int) -> None:
        for _ in range(count):
            self.enqueue(size, is_large=False, expired=False)

    @rule()
    def publish_large(self) -> None:
        self.enqueue(LARGE, is_large=True, expired=False)

    @rule(is_large=st.booleans())
    def publish_what_has_expired(self, is_large: bool) -> None:
        self.enqueue(10, is_large=is_large, expired=True)

    @rule()
    def drain(self) -> None:
        self.take(len(self.waiting))
        for acquired, _ in self.taken:
            self.loop_call(acquired.accept)
        self.taken = []
        assert self.loop_call(lambda: self.queue.acquire(1)) == []
        self.run_loop()

    @rule(count=st.integers(1, 60))
    def take(self, count: int) -> None:
        """All that are wanted come, though parts of them have to be read first."""
        left = min(count, len(self.waiting))
        while left:
            for acquired in self.loop_call(lambda: self.queue.acquire(left)):  # noqa: B023 - called at once
                expected = self.waiting.pop(0)
                assert (self.body_of(acquired), acquired.place.redelivered) == expected[1:]
                self.taken.append((acquired, expected))
                acquired.place.unload()
                left -= 1
            self.run_loop()

    def body_of(self, acquired: Acquired) -> bytes:
        place: Any = acquired.place
        if place.is_streamed:
            return bytes(self.store.load_content(self.queue.stored_id(place)))
        return bytes(place.content)

    def loop_call(self, call: Any) -> Any:
        async def made() -> Any:
            return call()

        return self.loop.run_until_complete(made())

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.taken) - 1))
        acquired, _ = self.taken.pop(at)
        self.loop_call(acquired.accept)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), unseen=st.booleans())
    def release(self, data: st.DataObject, unseen: bool) -> None:
        at = data.draw(st.integers(0, len(self.taken) - 1))
        acquired, (number, body, redelivered) = self.taken.pop(at)
        self.loop_call(lambda: acquired.release(unseen=unseen))
        self.waiting.append((number, body, redelivered or not unseen))
        self.waiting.sort()

    @rule()
    def purge(self) -> None:
        assert self.loop_call(lambda: all_of(self.queue.purge())) >= len(self.waiting)
        self.waiting = []
        assert self.queue.ready_count == 0

    @rule()
    def delete(self) -> None:
        async def delete() -> None:
            self.queue.close()
            for acquired, _ in self.taken:
                acquired.release()

        self.loop.run_until_complete(delete())
        self.make()

    @rule(others=st.integers(0, SHARE))
    def other_queues_have(self, others: int) -> None:
        self.share.used_bytes += others - self.other_bytes
        self.other_bytes = others

    @rule()
    def wait(self) -> None:
        self.run_loop()

    @invariant()
    def it_counts_what_it_has(self) -> None:
        queue = self.queue
        assert queue.ready_count >= len(self.waiting)  # expired ones go when they are first
        assert queue.unacknowledged_count == len(self.taken)
        assert queue.unreadable_count == 0
        if not queue.ready_count and not self.taken:
            assert queue.held_bytes == 0
            assert not queue._read_blocks
        assert self.share.used_bytes == queue.held_bytes + self.other_bytes


TestOverflow = OverflowMachine.TestCase
TestOverflow.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
