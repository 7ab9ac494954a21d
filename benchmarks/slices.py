"""One slice: a store does one kind of work in one mode for a fraction of a second. Also the record of its messages."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from peers.base import Peer, Wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

IDLE_S = 0.004
SETTLED_AFTER_S = 0.25


@dataclass(frozen=True)
class Mode:
    """The number of concurrent workers, and the size of a durable unit."""

    name: str
    threads: int = 1
    batch: int = 1
    in_flight: int = 0


MODES = (
    Mode("1 thread"),
    Mode("8 threads", threads=8),
    Mode("64 threads", threads=64),
    Mode("batches of 10", batch=10),
    Mode("batches of 100", batch=100),
    Mode("batches of 1000", batch=1000),
    Mode("asyncio, 1000 in flight", in_flight=1000),
)
PUBLISH, CONSUME, BOTH = "publish", "consume + ack", "publish, consume + ack"
WORKS = (PUBLISH, CONSUME, BOTH)


@dataclass
class Span:
    """The longest duration and the most content of a slice."""

    seconds: float
    max_bytes: int


class Book:
    """Messages published and not consumed yet, in order if there was one publisher."""

    def __init__(self) -> None:
        self.runs: deque[deque[bytes] | Counter[bytes]] = deque()
        self.waiting = 0

    def published(self, bodies: Sequence[bytes], *, ordered: bool) -> None:
        self.runs.append(deque(bodies) if ordered else Counter(bodies))
        self.waiting += len(bodies)

    def consumed(self, bodies: Sequence[bytes], *, ordered: bool) -> None:
        """Raises Wrong if these are not the oldest."""
        position = 0
        self.waiting -= len(bodies)
        rest = None if ordered else Counter(bodies)
        while position < len(bodies):
            if not self.runs:
                raise Wrong(f"{len(bodies) - position} messages came that were not published")
            run = self.runs[0]
            size = len(run) if isinstance(run, deque) else run.total()
            count = min(size, len(bodies) - position)
            if rest is not None:
                self._take_unordered(rest, run, count, last=count < size)
            elif isinstance(run, deque):
                if any(run.popleft() != body for body in bodies[position : position + count]):
                    raise Wrong("messages came in another order, or changed")
            else:
                self._take(Counter(bodies[position : position + count]), run)
            if count == size:
                self.runs.popleft()
            position += count

    @staticmethod
    def _take(some: Counter[bytes], run: Counter[bytes]) -> None:
        run.subtract(some)
        if min(run.values()) < 0:
            raise Wrong("a message came twice, or changed")

    def _take_unordered(
        self, rest: Counter[bytes], run: deque[bytes] | Counter[bytes], count: int, *, last: bool
    ) -> None:
        """The contents of the whole run, or only those from this message on."""
        if not last:
            self._take(Counter(run), rest)
        elif isinstance(run, deque):
            self._take(Counter(run.popleft() for _ in range(count)), rest)
        else:
            self._take(rest, run)

    def verify(self, peer: Peer) -> None:
        """Open the store again and check that it has exactly the remaining messages."""
        left = list(peer.remaining())
        if len(left) != self.waiting:
            raise Wrong(f"{peer.name} holds {len(left)} messages, not {self.waiting}")
        try:
            self.consumed(left, ordered=True)
        except Wrong as problem:
            raise Wrong(f"{peer.name}, opened again: {problem}") from None


@dataclass
class Worker:
    """The work of one thread or task."""

    units: int = 0
    taken: list[list[bytes]] = field(default_factory=list)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop if it is installed, as in the broker."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def settle() -> None:
    """Waits until the remaining work of a slice (compaction, spare files) no longer takes processor time."""
    end = time.perf_counter() + SETTLED_AFTER_S
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(IDLE_S)
        if time.process_time() - before < IDLE_S / 10:
            return


class Slices:
    """Of one open store."""

    def __init__(self, peer: Peer, bodies: Sequence[bytes]) -> None:
        self.peer = peer
        self.bodies = bodies
        self.size = len(bodies[0])
        self.book = Book()
        self._groups: dict[int, list[list[bytes]]] = {}
        self._processor_us = 0.0

    @classmethod
    def open(cls, kind: type[Peer], path: Path, room_bytes: int, bodies: Sequence[bytes]) -> Slices:
        """On a new store of this kind."""
        return cls(kind(path, room_bytes), bodies)

    def close(self) -> None:
        """Close the store, open it again, and check that it has exactly the remaining messages."""
        self.peer.close()
        self.book.verify(self.peer)

    def segments_created(self) -> int:
        """Since the open, if the store counts them."""
        return getattr(self.peer, "segments_created", 0)

    def groups(self, batch: int) -> list[list[bytes]]:
        """Batches, made before the clock starts."""
        if batch not in self._groups:
            count = len(self.bodies)
            self._groups[batch] = [[self.bodies[(n * batch + i) % count] for i in range(batch)] for n in range(count)]
        return self._groups[batch]

    def fill(self, count: int) -> None:
        """Publish until this many messages wait; not measured."""
        publish = self.peer.publisher()
        while self.book.waiting < min(count, self.peer.prefill_max):
            batch = self.groups(min(100, max(1, (8 << 20) // self.size)))[0]
            publish(batch)
            self.book.published(batch, ordered=True)
        settle()

    def make_reusable(self, max_messages: int, max_bytes: int) -> None:
        """Publishes and consumes enough that a store that reuses space has freed space."""
        count = min(max_messages, max_bytes // self.size, self.peer.prefill_max)
        batch = self.groups(min(1000, max(1, (4 << 20) // self.size)))[0]
        publish, consume = self.peer.publisher(), self.peer.consumer()
        while self.book.waiting < count:
            publish(batch)
            self.book.published(batch, ordered=True)
        while self.book.waiting:
            self.book.consumed(consume(len(batch)), ordered=True)

    def rate(self, work: str, mode: Mode, span: Span) -> float:
        """Messages a second. Returns when the remaining work of the slice is done."""
        made = self._in_flight(work, mode, span) if mode.in_flight else self._of_threads(work, mode, span)
        settle()
        return made

    def processor_us(self) -> float:
        """Of this process, for each message of the last slice."""
        return self._processor_us

    def _of_threads(self, work: str, mode: Mode, span: Span) -> float:
        groups = self.groups(mode.batch)
        limit = max(1, span.max_bytes // (self.size * mode.batch * mode.threads))
        workers = [Worker() for _ in range(mode.threads)]
        processor_s = time.process_time()
        if mode.threads == 1:
            seconds = self._loop(work, mode.batch, groups, limit, workers[0])(time.perf_counter() + span.seconds)
        else:
            seconds = self._threads(work, mode, groups, limit, workers, span)
        return self._rate(work, mode, workers, seconds, time.process_time() - processor_s)

    def _rate(self, work: str, mode: Mode, workers: list[Worker], seconds: float, processor_s: float) -> float:
        self._enter(work, mode, workers)
        messages = self._messages(work, mode, workers)
        self._processor_us = processor_s / max(1, messages) * 1e6
        return messages / seconds

    @staticmethod
    def _messages(work: str, mode: Mode, workers: list[Worker]) -> int:
        """That went all the way."""
        published = sum(worker.units for worker in workers) * mode.batch
        taken = sum(len(bodies) for worker in workers for bodies in worker.taken)
        return {PUBLISH: published, CONSUME: taken, BOTH: min(published, taken)}[work]

    def _loop(
        self, work: str, batch: int, groups: list[list[bytes]], limit: int, worker: Worker
    ) -> Callable[[float], float]:
        """One thread's work until a moment; returns its duration."""
        publish = self.peer.publisher() if work != CONSUME else None
        consume = self.peer.consumer() if work != PUBLISH else None
        count, clock, taken = len(groups), time.perf_counter, worker.taken

        def run(end: float) -> float:
            units, now = 0, clock()
            start = now
            while units == 0 or (units < limit and now < end):
                if publish is not None:
                    publish(groups[units % count])
                if consume is not None:
                    bodies = consume(batch)
                    if not bodies and publish is None:
                        break
                    taken.append(bodies)
                units += 1
                now = clock()
            worker.units = units
            return now - start

        return run

    def _threads(
        self, work: str, mode: Mode, groups: list[list[bytes]], limit: int, workers: list[Worker], span: Span
    ) -> float:
        ready = threading.Barrier(mode.threads + 1)
        problems: list[BaseException] = []

        def run(worker: Worker) -> None:
            loop = self._loop(work, mode.batch, groups, limit, worker)
            ready.wait()
            try:
                loop(time.perf_counter() + span.seconds)
            except BaseException as problem:  # noqa: BLE001 - told by the thread that started this one
                problems.append(problem)

        threads = [threading.Thread(target=run, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        ready.wait()
        start = time.perf_counter()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - start
        if problems:
            raise problems[0]
        return seconds

    def _in_flight(self, work: str, mode: Mode, span: Span) -> float:
        """Tasks of one event loop; each handles its next message when the last one is durable."""
        peer: Any = self.peer
        bodies, count = self.bodies, len(self.bodies)
        limit = max(1, span.max_bytes // (self.size * mode.in_flight))
        workers = [Worker() for _ in range(mode.in_flight)]
        got: list[bytes] = []

        async def run(worker: Worker, end: float) -> None:
            while worker.units == 0 or (worker.units < limit and time.perf_counter() < end):
                if work != CONSUME:
                    await peer.publish_in_flight(bodies[worker.units % count])
                if work != PUBLISH:
                    body = await peer.consume_in_flight()
                    if body is None and work == CONSUME:
                        return
                    if body is not None:
                        got.append(body)
                worker.units += 1

        async def every() -> tuple[float, float]:
            start, processor = time.perf_counter(), time.process_time()
            await asyncio.gather(*(run(worker, start + span.seconds) for worker in workers))
            return time.perf_counter() - start, time.process_time() - processor

        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            seconds, processor_s = runner.run(every())
        for worker in workers:
            worker.taken = []
        workers[0].taken = [got]
        return self._rate(work, mode, workers, seconds, processor_s)

    def _enter(self, work: str, mode: Mode, workers: list[Worker]) -> None:
        """Update the record, after the clock has stopped."""
        groups = self.groups(mode.batch)
        lone = len(workers) == 1
        if work != CONSUME:
            bodies = [body for worker in workers for n in range(worker.units) for body in groups[n % len(groups)]]
            self.book.published(bodies, ordered=lone)
        if work != PUBLISH:
            bodies = [body for worker in workers for taken in worker.taken for body in taken]
            self.book.consumed(bodies, ordered=lone)
