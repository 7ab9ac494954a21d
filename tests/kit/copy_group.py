"""Copies of one store in one process, of which one may lead."""

from __future__ import annotations

import queue
import shutil
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import logstore
from kit.patience import PATIENCE_S, wait_until
from kit.stores import SMALL_SEGMENT
from logstore.catalog.catalog import Catalog
from logstore.cluster.replica import Batch, Copy, LeadingStore, create

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CLUSTER = bytes(range(16))


class Group:
    """The members' copies, one of which may lead; a thread moves its batches to those that are reached."""

    def __init__(
        self,
        place: Path,
        copies: int = 3,
        *,
        catalog: bool = False,
        config: bytes = b"1,2,3",
        paths: list[Path] | None = None,
    ) -> None:
        self.config = config
        self.paths = paths or [place / f"member-{number + 1}" for number in range(copies)]
        self.stores = [path / "copy-1" for path in self.paths]
        for path in self.paths:
            path.mkdir()
        with logstore.open(self.stores[0], segment_size=SMALL_SEGMENT) as store:
            store.declare_queue("orders")
            store.publish("orders", content=b"before")
        for path in self.stores[1:]:
            shutil.copytree(self.stores[0], path)
        for number, path in enumerate(self.paths):
            create(path, number + 1, CLUSTER)
        self.catalog = catalog
        self.copies = [self.open(number) for number in range(copies)]
        self.leads: int | None = None
        self.reached = set(range(copies))
        self.leading: LeadingStore | None = None
        self.sent: list[Batch] = []
        self._stops = threading.Event()
        self._asked: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = queue.SimpleQueue()
        self._mover = threading.Thread()

    def open(self, number: int) -> Copy:
        return Copy.open(self.paths[number], kept_bytes=1 << 20, catalog=self.catalog)

    def reopen(self, number: int) -> Copy:
        """As after a death of the member, which follows."""
        self.copies[number].close()
        self.copies[number] = self.open(number)
        return self.copies[number]

    def copy(self, number: int) -> Copy:
        return self.copies[number]

    def lead(self, number: int) -> logstore.MessageStore:
        info = self.copy(number).info()
        config = self.config if info.index == 0 else None
        term = max(info.least_term, *(copy.member().term + 1 for copy in self.copies))
        for copy in self.copies:
            copy.vote(term, number + 1)
        self.leading = leading = self.copy(number).lead(term, config)
        self.leads = number
        self._stops.clear()
        self._mover = threading.Thread(target=self._move, args=(leading,))
        self._mover.start()
        wait_until(leading.serve, "the first batch is durable")
        store = leading.serve()
        assert store is not None
        return store

    def _move(self, leading: LeadingStore) -> None:
        last: Batch | None = None
        while not self._stops.wait(0.0005):
            while not self._asked.empty():
                work, done = self._asked.get()
                work()
                done.set()
            while (batch := leading.next()) is not None:
                self.sent.append(batch)
                last = batch
                for copy in self._following():
                    copy.take(batch)
            if last is not None and leading.forced >= last.index and len(self._following()) + 1 > len(self.paths) // 2:
                leading.majority_has(last.end_lsn)
                for copy in self._following():
                    copy.durable(last.end_lsn)
                last = None

    def forget(self) -> None:
        """The leader's log keeps nothing for its catalog and for other members; done by the thread that uses it."""
        done = threading.Event()

        def work() -> None:
            assert self.leads is not None
            self.copies[self.leads].note_catalog()
            self.copies[self.leads].drop_kept(self.sent[-1].index)

        self._asked.put((work, done))
        assert done.wait(PATIENCE_S)

    def _following(self) -> list[Copy]:
        return [copy for number, copy in enumerate(self.copies) if number != self.leads and number in self.reached]

    def cease(self) -> None:
        """The leader stops, and follows."""
        assert self.leading is not None
        self._stops.set()
        self._mover.join()
        self.leading.cease()
        self.leading = self.leads = None

    def close(self) -> None:
        if self.leading is not None:
            self.cease()
        for copy in self.copies:
            copy.close()


def fill(store: logstore.MessageStore, count: int) -> list[int]:
    """Publishes and takes much, so that the base moves on; the messages that stay."""
    stay = []
    for number in range(count):
        one = store.publish("orders", content=bytes([number % 251]) * 20_000, wait=number % 8 == 0)
        if number % 16 == 0:
            stay.append(one)
        else:
            store.dequeue(one, "orders")
    store.force()
    return stay


def contents(store_dir: Path) -> tuple[object, ...]:
    """All that a copy's file has, but not how often it was changed."""
    with closing(sqlite3.connect(store_dir / "catalog.sqlite")) as database:
        uuid = bytes.fromhex(database.execute("SELECT uuid FROM store").fetchone()[0].replace("-", ""))
    with closing(Catalog.open(store_dir, store_uuid=uuid, read_only=True)) as catalog:
        return catalog.next_queue_id, catalog.queues(), catalog.exchanges(), catalog.bindings(), dict(catalog.config)


def all_agree(group: Group) -> bool:
    """Whether the files of all copies have the same."""
    first, *others = (contents(path) for path in group.stores)
    return all(other == first for other in others)
