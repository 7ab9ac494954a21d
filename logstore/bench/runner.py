"""A durable performance run on one store, similar to qpid-perftest: :func:`run` executes a :class:`Plan`.

A store with other queues is refused before anything is written to it, unless the caller allows it. The run compares the
published messages with the consumed and remaining ones, by count and by the sum of the ids. Every difference is a
problem in the report.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import logstore
from logstore.bench.counts import sum_of
from logstore.bench.load import Contents, Load
from logstore.bench.plan import QUEUE_PREFIX
from logstore.bench.report import Moment, Report
from logstore.bench.watch import Watch, log_bytes
from logstore.bench.workers import Accepter, Consumer, Dequeuer, Publisher
from logstore.core.counts import counted
from logstore.core.xid import Xid
from logstore.errors import NotAStore, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logstore import MessageStore
    from logstore.bench.plan import Plan

STUCK_QUEUE: Final = f"{QUEUE_PREFIX}stuck"
PREPARED_QUEUE: Final = f"{QUEUE_PREFIX}prepared"
XID_FORMAT: Final = 0x6C6F67
RETURN_S: Final = 30.0  # the longest wait for the log to shrink
LOOK_S: Final = 0.25  # the interval of progress reports
SEGMENTS_MIN: Final = 4


def bound_bytes(segment_size: int, counted_bytes: int) -> int:
    """The most bytes that a log may use on disk after relocation, spares included."""
    return max(SEGMENTS_MIN * segment_size, 2 * counted_bytes) + segment_size


class Refused(OptionError):
    """The store contains queues that do not belong to a benchmark."""


def refuse_foreign(store_dir: Path, *, connect: str | None = None, schema: str | None = None) -> None:
    """Raises :class:`Refused` if the directory holds a store with queues of others. Changes nothing."""
    from logstore.inspect import Reader, read_catalog

    try:
        with Reader(store_dir) as reader:
            names = [row.name for row in read_catalog(store_dir, reader.info, connect=connect, schema=schema).queues]
    except NotAStore:
        return  # opening reports the problem, or makes a store
    foreign = [name for name in names if not name.startswith(QUEUE_PREFIX)]
    if foreign:
        raise Refused(
            f"{store_dir} holds a store with {counted(len(foreign), 'queue that does', 'queues that do')} not "
            f"belong to a benchmark ({foreign[0]!r}); "
            "choose another directory, or use --existing to run next to them"
        )


@dataclass
class _Stay:
    """The messages that stay during the run, as (queue name, id, number of the content), and prepared transactions."""

    stuck: list[tuple[str, int, int | None]] = field(default_factory=list)
    prepared: int = 0


def run(
    store_dir: Path,
    plan: Plan,
    *,
    existing: bool = False,
    connect: str | None = None,
    schema: str | None = None,
    tell: Callable[[Moment], object] | None = None,
) -> Report:
    """Executes the plan and returns the report; calls ``tell`` with the progress a few times per second.

    Makes the store if there is none. Raises the errors of opening; :class:`Refused` for a store with queues of others,
    unless ``existing``; ``StoreFull`` if there is no room although no message waits to be consumed.
    """
    if not existing:
        refuse_foreign(store_dir, connect=connect, schema=schema)

    def opened() -> MessageStore:
        return logstore.open(store_dir, connect=connect, catalog=schema, **plan.options())

    contents = Contents(plan.size)
    report = Report(plan)
    with opened() as store, Watch(store_dir) as watch:
        report.starts(store)
        stay = _prepare(store, plan, contents, report)
        _drive(store, plan, contents, report, stay, watch, tell)
        if plan.must_return:
            _wait_for_return(store, store_dir, report, "with what stayed")
        report.ends(store, watch, log_bytes(store_dir))
        reopen = plan.verify or plan.must_return
        if not reopen:
            _clean_up(store, plan, report)
    if reopen:
        with opened() as store:
            _compare(store, plan, report, stay, contents)
            _clean_up(store, plan, report)
            if plan.must_return:
                _wait_for_return(store, store_dir, report, "empty")
    report.closed(log_bytes(store_dir))
    return report


# ---- before ----


def _prepare(store: MessageStore, plan: Plan, contents: Contents, report: Report) -> _Stay:
    """Makes the queues, the stuck messages and the prepared transactions."""
    stay = _Stay()
    for number in range(plan.all_queues):
        store.declare_queue(f"{QUEUE_PREFIX}{number}")
    if plan.stuck:
        queue = store.declare_queue(STUCK_QUEUE)
        report.left_before[STUCK_QUEUE] = queue.depth
        ids = store.publish_many(queue, contents.some(0, plan.stuck))
        stay.stuck = [(STUCK_QUEUE, message_id, number) for number, message_id in enumerate(ids)]
    if plan.prepared:
        queue = store.declare_queue(PREPARED_QUEUE)
        run_id = os.urandom(8)
        for number in range(plan.prepared):
            transaction = store.begin(Xid(XID_FORMAT, run_id, number.to_bytes(4, "big")))
            store.publish(queue, contents.some(number, 1)[0], transaction=transaction)
            transaction.end()
            transaction.prepare(wait=number == plan.prepared - 1)
        stay.prepared = plan.prepared
        report.run_id = run_id
    return stay


# ---- the run ----


def _drive(
    store: MessageStore,
    plan: Plan,
    contents: Contents,
    report: Report,
    stay: _Stay,
    watch: Watch,
    tell: Callable[[Moment], object] | None,
) -> None:
    """Runs publishers and consumers from start to end, and puts their counters into the report."""
    queues = [store.queue(f"{QUEUE_PREFIX}{number}") for number in range(plan.all_queues)]
    for queue in queues:
        report.left_before[queue.name] = queue.depth
    load = Load(store, plan, queues, contents, sum(report.left_before[q.name] for q in queues) if plan.acquire else 0)
    publishers = [Publisher(load, number) for number in range(plan.publishers)]
    kind: type[Consumer] = Accepter if plan.acquire else Dequeuer
    consumers = [kind(load, number) for number in range(plan.consumers)]
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    load.quota.start()

    def look() -> None:
        if tell is not None:
            totals = [[worker.tally for worker in side] for side in (publishers, consumers)]
            tell(Moment.of(store, time.monotonic() - started, totals[0], totals[1], load.backlog.waiting, watch))

    with _ending(load, publishers + consumers):
        for worker in (*publishers, *consumers):
            worker.start()
        _join(publishers, look)
        if not plan.wait or plan.durability != "strict":
            store.force()  # only durable messages can be acquired
        report.published_s = time.monotonic() - started
        load.end_publishing()
        _join(consumers, look)
        if not plan.wait:
            store.force()
    report.seconds = time.monotonic() - started
    if load.problem is not None:
        raise load.problem
    report.usage(before, resource.getrusage(resource.RUSAGE_SELF))
    report.published = sum_of([worker.tally for worker in publishers])
    report.consumed = sum_of([worker.tally for worker in consumers])
    stay.stuck += [(left.queue.name, left.id, left.number) for worker in consumers for left in worker.left]
    report.survivors = sum(len(worker.left) for worker in consumers)
    _balance(report, [left.id for worker in consumers for left in worker.left])


@contextlib.contextmanager
def _ending(load: Load, workers: list[Publisher | Consumer]) -> Iterator[None]:
    """Stops and joins all threads if the block raises."""
    try:
        yield
    except BaseException:
        load.stop()
        for worker in workers:
            if worker.ident is not None:
                worker.join()
        raise


def _join(workers: list[Publisher] | list[Consumer], look: Callable[[], None]) -> None:
    for worker in workers:
        while worker.is_alive():
            worker.join(LOOK_S)
            look()


def _balance(report: Report, left: list[int]) -> None:
    """Checks that the published places are exactly the consumed and the remaining ones."""
    plan, published, consumed = report.plan, report.published, report.consumed
    if consumed.wrong:
        report.problems.append(f"{consumed.wrong} contents differ from the published ones")
    if plan.consumers == 0 or plan.publishers == 0 or any(report.left_before[n] for n in report.left_before):
        return  # the numbers cannot match: messages remained, or messages of earlier runs were consumed
    if published.places != consumed.places + len(left):
        report.problems.append(
            f"{counted(published.places, 'message was', 'messages were')} put on queues, but {consumed.places} "
            f"were consumed and {len(left)} "
            "remain"
        )
    elif published.id_sum != consumed.id_sum + sum(left):
        report.problems.append("the consumed messages are not the published ones: the sums of their ids differ")


# ---- afterwards ----


def _wait_for_return(store: MessageStore, store_dir: Path, report: Report, when: str) -> None:
    """Waits until the store has shrunk the log to its bound by itself; reports a problem if it does not."""
    started = time.monotonic()
    while True:
        size, limit = log_bytes(store_dir), bound_bytes(store.segment_size, store.stats()["counted_bytes"])
        took = time.monotonic() - started
        if size <= limit or took > RETURN_S:
            break
        time.sleep(0.01)
    report.returns.append({"when": when, "bytes": size, "bound": limit, "seconds": took, "returned": size <= limit})
    if size > limit:
        report.problems.append(f"the log did not shrink to {limit} bytes ({when}): it has {size} bytes")


def _compare(store: MessageStore, plan: Plan, report: Report, stay: _Stay, contents: Contents) -> None:
    """Checks after a restart that exactly the remaining messages exist, byte by byte."""
    report.recovery_us = store.recovery.total_us
    wrong = sum(not contents.is_right(store.load_content(message_id), number) for _, message_id, number in stay.stuck)
    report.compared = len(stay.stuck)
    if wrong:
        report.problems.append(f"after a restart {wrong} of {len(stay.stuck)} contents differ from the published ones")
    expected: dict[str, int] = dict(report.left_before)
    for name, _, _ in stay.stuck:
        expected[name] = expected.get(name, 0) + 1
    for name, depth in expected.items():
        if plan.consumers and plan.publishers and (found := store.queue(name).depth) != depth:
            report.problems.append(
                f"after a restart {counted(found, 'message is', 'messages are')} on queue {name!r}, not {depth}"
            )
    mine = [one for one in store.in_doubt() if one.xid is not None and one.xid.gtrid == report.run_id]
    if len(mine) != stay.prepared:
        report.problems.append(
            f"after a restart {counted(len(mine), 'transaction is', 'transactions are')} in doubt, not {stay.prepared}"
        )


def _clean_up(store: MessageStore, plan: Plan, report: Report) -> None:
    """Rolls back the run's transactions, and deletes the benchmark's queues unless they are kept."""
    for one in store.in_doubt():
        if one.xid is not None and one.xid.format_id == XID_FORMAT and one.xid.gtrid == report.run_id:
            one.rollback(wait=False)
    store.force()
    if plan.keep:
        return
    for queue in store.queues():
        if queue.name.startswith(QUEUE_PREFIX):
            store.delete_queue(queue)
