"""A message that is rejected to a dead-letter queue is on exactly one of the two queues after a kill at any point."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from kit.killed import and_then_killed, quick_directory, remove
from kit.stores import SMALL_SEGMENT, contents
from logstore import Delivery, MessageStore, Queue, Transaction, errors
from logstore.inspect import Reader

NONE_DONE, ALL_DONE = ([b"no"], []), ([], [b"no"])

# The methods that write one record each, in any order. Where no moves may be written a reject is a transaction.
WRITERS: dict[str, tuple[tuple[Any, str], ...]] = {
    "a move": ((Queue, "_move"),),
    "a transaction": ((MessageStore, "begin"), (MessageStore, "enqueue"), (Queue, "_dequeue"), (Transaction, "commit")),
}
SECTOR = 512  # bytes, the least that a disk writes


@pytest.fixture
def place() -> Iterator[Path]:
    made = quick_directory("reject-")
    yield made
    remove(made)


def make(path: Path) -> None:
    with logstore.open(path, segment_size=SMALL_SEGMENT) as store:
        store.declare_queue("dead")
        store.publish(store.declare_queue("q", dead_letter="dead"), b"no")


def by_queue(queue: Queue, delivery: Delivery, *, wait: bool) -> None:
    queue.reject(delivery, wait=wait)


def by_delivery(_: Queue, delivery: Delivery, *, wait: bool) -> None:
    delivery.reject(wait=wait)


def no_move(*_: object, **__: object) -> None:
    raise errors.WrongState("a member does not know moves")


WAYS = {"queue": by_queue, "delivery": by_delivery}


def reject_and_stop(path: Path, way: str, form: str, wait: bool, records: int, durable: bool, kept: list[Any]) -> int:
    """A thread rejects and stops for good after this many records; returns the number written."""
    store = logstore.open(path, create=False)
    (delivery,) = store.queue("q").acquire()
    written, stopped = 0, threading.Event()

    def stopping(really: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal written
            if written == records:
                stopped.set()
                threading.Event().wait()
            done = really(*arguments, **options)
            written += 1
            if durable:
                store.force()
            return done

        return call

    if form != "a move":
        Queue._move = no_move  # type: ignore[method-assign, assignment] # in a process of its own
    for kind, name in WRITERS[form]:
        setattr(kind, name, stopping(getattr(kind, name)))

    def work() -> None:
        WAYS[way](store.queue("q"), delivery, wait=wait)
        stopped.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert stopped.wait(60)
    kept += [store, thread]
    return written


def places(path: Path) -> tuple[list[bytes], list[bytes]]:
    with logstore.open(path, create=False) as store:
        return contents(store.queue("q")), contents(store.queue("dead"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("durable", [True, False], ids=["each record forced", "as it is"])
def test_a_kill_between_any_two_records_of_a_reject_leaves_the_message_in_one_place(
    way: str, form: str, wait: bool, durable: bool, place: Path
) -> None:
    found = []
    make(place / "fresh")
    count = len(WRITERS[form])
    for records in range(count + 1):
        path = Path(shutil.copytree(place / "fresh", place / str(records)))
        assert and_then_killed(reject_and_stop, path, way, form, wait, records, durable) == records
        found.append(places(path))
        assert places(path) == found[-1], "a second open changes nothing"
    assert found[:count] == [NONE_DONE] * count
    assert found[count] == ALL_DONE if wait or durable else found[count] in (NONE_DONE, ALL_DONE)


def records_of_the_reject(path: Path, form: str) -> tuple[str, list[int]]:
    """The segment with the records of the reject, each a batch of its own, and the places at which its log may end.

    Where the segment stands is read from the log: when its file was made, and which others exist, is the business of
    the thread that makes spares. The places, in bytes, are where a batch begins, its middle, its end, and every sector.
    """
    with Reader(path) as reader:
        segment = reader.segments()[-1]
        batches = [batch for batch in reader.batches() if batch.first_lsn == segment.first_lsn]
    assert len(batches) == len(WRITERS[form])
    lsns = [lsn for batch in batches for lsn in (batch.lsn, (batch.lsn + batch.end_lsn) // 2, batch.end_lsn)]
    ends = {lsn - segment.first_lsn for lsn in lsns}
    return segment.name, sorted(ends | set(range(0, max(ends), SECTOR)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", WRITERS)
def test_a_log_that_ends_anywhere_among_the_records_of_a_reject_has_the_message_in_one_place(
    way: str, form: str, place: Path
) -> None:
    """Each record is forced alone, and the log is cut after it, as by a power cut."""
    make(place / "fresh")
    whole = Path(shutil.copytree(place / "fresh", place / "whole"))
    and_then_killed(reject_and_stop, whole, way, form, True, len(WRITERS[form]), True)
    segment, ends = records_of_the_reject(whole, form)
    unwritten = bytes(SMALL_SEGMENT)  # no file of so young a store had another use before
    found = []
    for at in ends:
        cut = Path(shutil.copytree(whole, place / f"cut {at}"))
        handle = os.open(cut / segment, os.O_WRONLY)
        try:
            os.pwrite(handle, unwritten[at:], at)
        finally:
            os.close(handle)
        (cut / "HINT").unlink(missing_ok=True)
        found.append(places(cut))
    assert found == [NONE_DONE] * (len(ends) - 1) + [ALL_DONE], "done with the last byte of the last record"
