"""The grid: every store with contents of 100 B to 1 MiB, durable singly or in batches, from one or many threads or
tasks.

For each content size all stores are open at the same time. A turn is one slice of each store, with the C loop next to
the store under test; every second turn runs in reverse order; samples of one turn are compared with each other. First
all modes of publishing run, then all modes of consuming the waiting messages, then publishing and consuming in turn.

This is the steady state: the store under test begins with existing segments, the C loop reuses a file of zeros, and the
others have published and consumed as much before, so that they have pages and logs to reuse. After a round each store
is closed, opened again and compared with the record of its messages.
"""

from __future__ import annotations

import gc
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figures import size_name
from limits import RawLoop
from slices import BOTH, CONSUME, PUBLISH, Mode, Slices, Span, settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from plan import Context, Plan
    from results import Row

SUITE = "grid"
PROCESSOR = "µs of CPU a message"
UNIT_MAX_BYTES = 32 << 20  # of content at once
RAW_BYTES = 96 << 20
REUSED_MESSAGES = 100_000
DISTINCT = 251
DISTINCT_BYTES = 32 << 20

# Messages a second that no store here exceeds: bounds the room and the waiting messages that a slice needs.
FASTEST = {"1 thread": 20e3, "8 threads": 80e3, "64 threads": 200e3, "asyncio, 1000 in flight": 400e3}
FASTEST_CONSUMER = 600e3


def most(mode: Mode, size: int, span: Span) -> int:
    """The most messages of a slice."""
    fastest = FASTEST.get(mode.name, mode.batch * 15e3)
    return int(min(fastest * span.seconds, span.max_bytes // size)) + mode.batch


def make_bodies(size: int) -> list[bytes]:
    """Random, and different."""
    return [os.urandom(size) for _ in range(max(8, min(DISTINCT, DISTINCT_BYTES // size)))]


def room(plan: Plan, size: int) -> int:
    """Bytes of content that are published in a round before anything is consumed."""
    span = plan.span()
    return sum(
        (plan.turns_for(size, mode, PUBLISH) + 1) * most(mode, size, span) * size
        for mode in plan.modes
        if size * max(mode.batch, mode.in_flight) <= UNIT_MAX_BYTES
    )


class OfSize:
    """One round of one content size: everything open, then closed, compared and removed."""

    def __init__(self, context: Context, size: int, directory: Path) -> None:
        self.context = context
        self.plan = context.plan
        self.size = size
        self.stack = ExitStack()
        bodies = make_bodies(size)
        self.raw = self.stack.enter_context(RawLoop(directory / "raw", RAW_BYTES, "zeros"))
        needed = room(self.plan, size)
        self.slices = [
            (store, store.build.make(Slices.open, store.kind, directory / store.name, needed, bodies))
            for store in context.stores
        ]

    def run(self) -> None:
        """Measure all kinds of work in all modes."""
        os.sync()  # earlier writes and removals must not be charged to this round
        gc.collect()
        for store, slices in self.slices:  # a warm-up, discarded
            slices.rate(BOTH, Mode("warm"), Span(0.02, 1 << 20))
            if store.kind.reuses:
                slices.make_reusable(REUSED_MESSAGES, self.plan.max_bytes)
        settle()
        for work in self.plan.works:
            for mode in self.plan.modes:
                self.context.say(f"{size_name(self.size)}, {work}, {mode.name}")
                steps = self._steps(work, mode)
                for turn in range(self.plan.turns_for(self.size, mode, work)):
                    for step in self.context.turned(steps, turn):
                        step()

    def finish(self) -> None:
        """Close all stores and compare their remaining messages."""
        self.stack.close()
        for _, slices in self.slices:
            slices.close()

    def _row(self, engine: str, work: str, mode: Mode, sync: str, lacks: str | None) -> Row:
        if self.size * max(mode.batch, mode.in_flight) > UNIT_MAX_BYTES:
            lacks = f"more than {UNIT_MAX_BYTES >> 20} MiB at once"
        return self.context.results.row(SUITE, engine, work, mode.name, self.size, sync=sync, reason=lacks)

    def _steps(self, work: str, mode: Mode) -> list[Callable[[], None]]:
        """The stores that are measured, the C loop first."""
        steps: list[Callable[[], None]] = []
        lacks = None
        if work != PUBLISH or mode.threads > 1 or mode.in_flight:
            lacks = "the limit of one thread that publishes"
        row = self._row(RawLoop.name, work, mode, self.raw.sync, lacks)
        if row.reason is None:
            steps.append(lambda: row.samples.append(self.raw.rate(self.size, mode, self.plan.span())))
        for store, slices in self.slices:
            puts, takes = work != CONSUME, work != PUBLISH
            lacks = store.kind.lacks(mode.threads, mode.batch, mode.in_flight, puts=puts, takes=takes)
            of_store = self._row(store.name, work, mode, store.kind.sync, lacks)
            if of_store.reason is None:
                steps.append(self._measured(of_store, slices, work, mode))
        return steps

    def _measured(self, row: Row, slices: Any, work: str, mode: Mode) -> Callable[[], None]:
        def measure() -> None:
            span = self.plan.span()
            if work == CONSUME:
                slices.fill(min(most(mode, self.size, span), int(FASTEST_CONSUMER * span.seconds) + mode.batch))
            made = slices.segments_created()
            row.samples.append(slices.rate(work, mode, span))
            row.notes.setdefault(PROCESSOR, []).append(slices.processor_us())
            made = slices.segments_created() - made
            # segments made are not the steady state
            row.notes["segments made while the clock ran"] = made + row.notes.get(
                "segments made while the clock ran", 0
            )

        return measure


def run(context: Context) -> None:
    """One round."""
    for size in context.plan.sizes:
        with tempfile.TemporaryDirectory(prefix="grid-", dir=context.directory) as made:
            of_size = OfSize(context, size, Path(made))
            of_size.run()
            context.say(f"{size_name(size)}: comparing")
            of_size.finish()
        os.sync()
