"""Three copies of one store in one process: what the leader publishes is durable when two of them have it."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING

import pytest

import logstore
from kit.patience import wait_until
from logstore import errors
from logstore.cluster.replica import Batch, Copy, LeadingStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Group:
    """The copies, one of which may lead; a thread moves its batches to those that are reached."""

    def __init__(self, place: Path, copies: int = 3) -> None:
        self.paths = [place / f"copy-{number}" for number in range(copies)]
        with logstore.open(self.paths[0]) as store:
            store.declare_queue("orders")
            store.publish("orders", content=b"before")
        for path in self.paths[1:]:
            shutil.copytree(self.paths[0], path)
        self.copies: list[Copy | None] = [Copy(path) for path in self.paths]
        self.reached = set(range(copies))
        self.leading: LeadingStore | None = None
        self.sent: list[Batch] = []
        self._stops = threading.Event()
        self._mover = threading.Thread()

    def copy(self, number: int) -> Copy:
        found = self.copies[number]
        assert found is not None
        return found

    def lead(self, number: int, term: int | None = None) -> logstore.MessageStore:
        info = self.copy(number).info()
        config = b"1,2,3" if info.index == 0 else None
        self.leading = leading = self.copy(number).lead(info.least_term if term is None else term, config)
        self.copies[number] = None
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

    def _following(self) -> list[Copy]:
        return [copy for number, copy in enumerate(self.copies) if copy is not None and number in self.reached]

    def cease(self) -> None:
        """The leader stops, and follows."""
        assert self.leading is not None
        self._stops.set()
        self._mover.join()
        path = self.leading.path
        self.leading.cease()
        self.leading = None
        self.copies[self.paths.index(path)] = Copy(path)

    def close(self) -> None:
        if self.leading is not None:
            self.cease()
        for copy in self.copies:
            if copy is not None:
                copy.close()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    yield made
    made.close()


def test_what_the_leader_publishes_is_in_every_copy(group: Group) -> None:
    store = group.lead(0)
    for number in range(100):
        store.publish("orders", content=f"message {number}".encode(), wait=number % 10 == 9)
    assert store.durable_lsn == store.next_lsn
    wait_until(lambda: all(group.copy(each).info().messages == 101 for each in (1, 2)), "both have applied all")
    group.cease()
    store = group.lead(2)
    assert [message.id for message in store.messages("orders")] == sorted(
        message.id for message in store.messages("orders")
    )
    assert len(list(store.messages("orders"))) == 101


def test_a_copy_that_follows_writes_a_checkpoint_while_it_is_used(group: Group) -> None:
    store = group.lead(0)
    for number in range(10):
        store.publish("orders", content=b"%d" % number)
    group.cease()
    copy = group.copy(1)
    assert copy.checkpoint_ended()
    assert copy.begin_checkpoint()
    assert not copy.begin_checkpoint()
    wait_until(copy.checkpoint_ended, "the checkpoint is written")
    assert copy.info().stats["checkpoints"] == 1
    assert (group.paths[1] / "CHECKPOINT").exists()


def test_a_copy_opens_as_no_ordinary_store(group: Group) -> None:
    group.lead(0).publish("orders", b"one")
    group.close()
    with pytest.raises(errors.ReplicatedStore, match="logstore cluster detach"):
        logstore.open(group.paths[1])


def test_a_detached_copy_is_a_single_store_and_may_be_replicated_again(group: Group, tmp_path: Path) -> None:
    store = group.lead(0)
    ids = [store.publish("orders", content=f"message {number}".encode()) for number in range(20)]
    group.cease()
    last = group.copy(1).info()
    group.copy(1).detach(highest_term=last.term + 5)
    group.copies[1] = None
    with logstore.open(group.paths[1]) as single:
        assert set(ids) < {message.id for message in single.messages("orders")}
        ids.append(single.publish("orders", content=b"after"))
        assert ids[-1] >> 40 > last.term + 65_536
    with Copy(group.paths[1]) as alone:
        assert alone.info().index == 0
        with pytest.raises(errors.OptionError, match="not replicated"):
            alone.detach()
    for path in (group.paths[0], group.paths[2]):  # a new group of three, from the single store
        group.copy(group.paths.index(path)).close()
        shutil.rmtree(path)
        shutil.copytree(group.paths[1], path)
    group.copies = [Copy(path) for path in group.paths]
    store = group.lead(2)
    assert set(ids) < {message.id for message in store.messages("orders")}
    group.cease()
    assert group.copy(0).info().index > last.index  # the indexes go on


def test_a_call_that_waits_when_its_leader_ceases_has_an_unknown_outcome(group: Group) -> None:
    store = group.lead(0)
    group.reached = {0}  # nobody else: nothing becomes durable any more
    problems: list[BaseException] = []

    def publish() -> None:
        try:
            store.publish("orders", content=b"nobody has it")
        except errors.StoreError as problem:
            problems.append(problem)

    before = store.next_lsn
    waiting = threading.Thread(target=publish)
    waiting.start()
    wait_until(lambda: store.next_lsn > before and not store.durable_lsn > before, "the message is in the log")
    group.cease()
    waiting.join()
    assert [type(problem) for problem in problems] == [errors.OutcomeUnknown]
    assert "no longer leads" in str(problems[0])


def test_a_batch_that_does_not_follow_is_refused_with_both_places(group: Group) -> None:
    store = group.lead(0)
    store.publish("orders", content=b"one")
    group.cease()
    last = group.sent[-1]
    copy = group.copy(1)
    before = copy.info()
    with pytest.raises(errors.BatchRefused, match=rf"batch {last.index} of term {last.term}.*Nothing was written"):
        copy.take(last)
    with pytest.raises(errors.BatchRefused, match="is durable"):
        copy.cut(1)
    spoiled = Batch(
        last.term, last.index + 1, last.end_lsn, last.end_lsn + len(last.data), last.first_lsn, 0, None, last.data
    )
    with pytest.raises(errors.BatchRefused):
        copy.take(spoiled)
    assert copy.info() == before
