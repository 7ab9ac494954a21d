"""Pieces of work on a store on a real disk, each in a process of its own that is killed at its end.

Run as a program it is a host: it imports the package once, reads JSON requests line by line, and forks a child for
each. Its environment chooses the build of the package and the fault in it.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import logstore
from kit.killed import and_then_killed
from kit.real_disk_faults import (
    fail_in_the_catalog,
    go_on_after_the_catalog,
    use_again_what_failed,
    write_while_it_fails,
)
from kit.real_disk_journal import JournalWriter, Place, body, work
from kit.real_disk_server import control_of, end_with_parent
from kit.stores import SMALL_SEGMENT

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUES = ("a", "b", "c")
OPTIONS = {"segment_size": SMALL_SEGMENT}
LARGEST_RECORD = SMALL_SEGMENT // 16
AFTER = "after-0-200"  # the tag of messages published after a recovery


# ---- looking ----


def shown(store: logstore.MessageStore) -> dict[str, Any]:
    """The contents of a store, and whether each message has the content of its tag."""
    return {
        "queues": {queue.name: [_message(message) for message in queue.browse()] for queue in store.queues()},
        "in doubt": sorted(str(tx.xid) for tx in store.in_doubt()),
        "direct": store.recovery.direct,
    }


def _message(message: logstore.Message) -> dict[str, Any]:
    tag = message.header.decode()
    return {"tag": tag, "id": message.id, "locked": message.locked, "whole": message.content == body(tag)}


def look(path: str, kept: list[Any]) -> dict[str, Any]:
    """The contents of a store after recovery; then its process is killed."""
    kept.append(logstore.open(path, **OPTIONS))
    return shown(kept[-1])


def go_on(path: str, kept: list[Any]) -> list[dict[str, Any]]:
    """Recovers again; then decides transactions in doubt, publishes a message, closes and opens the store."""
    store = logstore.open(path, **OPTIONS)
    looks = [shown(store)]
    for tx in store.in_doubt():
        tx.rollback()
    store.publish(store.declare_queue("last"), body(AFTER), header=AFTER.encode())
    looks.append(shown(store))
    store.close()
    with logstore.open(path, **OPTIONS) as store:
        looks.append(shown(store))
    return looks


def fail_and_look(path: str, journal: str, control: str, how: str, kept: list[Any]) -> dict[str, Any]:
    """As `write_while_it_fails`; then this process closes the store and looks at it. `before`: the disk's entries."""
    did = write_while_it_fails(path, journal, control, how, kept)
    with contextlib.suppress(logstore.StoreError):
        kept.pop().close()
    before = control_of(control).entries
    return did | {"before": before, "shown": look(path, kept)}


# ---- working ----


class Worker:
    """One thread's work: every kind of operation, on its own messages, in shared queues."""

    def __init__(self, store: logstore.MessageStore, journal: JournalWriter, name: str, seed: str) -> None:
        self.store = store
        self.journal = journal
        self.name = name
        self.chance = random.Random(seed)
        self.made = 0
        self.mine: list[tuple[int, Place]] = []  # id and place of what may be dequeued
        self.unforced: list[int] = []
        self.prepared: list[tuple[str, logstore.Transaction, list[tuple[int, Place]]]] = []

    def step(self) -> None:
        kinds: list[tuple[int, Callable[[], None]]] = [
            (4, self.publish),
            (3, self.fan_out),
            (2, self.in_chunks),
            (4, self.publish_many),
            (9, self.dequeue_some),
            (3, self.not_waiting),
            (3, self.local),
            (3, self.prepare),
            (2, self.settle),
            (1, self.short_lived_queue),
            (1, self.store.compact),
        ]
        self.chance.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]()

    # ---- pieces ----

    def tag(self, most: int = LARGEST_RECORD - 400) -> str:
        self.made += 1
        size = self.chance.choice([0, 1, 100, self.chance.randint(0, 4000), self.chance.randint(0, most), most])
        return f"{self.name}-{self.made}-{size}"

    def queue(self) -> str:
        return self.chance.choice(QUEUES)

    def done(self, number: int, ids: dict[str, int], places: list[Place], *, durable: bool = True) -> None:
        self.journal.back(number, durable=durable, ids=ids)
        self.mine += [(ids[tag], (tag, queue)) for tag, queue in places]

    def taken(self, most: int) -> list[tuple[int, Place]]:
        """A random existing message, older ones less often: a few stay for ever and must be relocated."""
        n = min(most, len(self.mine))
        return [self.mine.pop(self.chance.randrange(len(self.mine) * 2 // 3, len(self.mine))) for _ in range(n)]

    def _publish(self, tag: str, queues: list[str], **how: Any) -> int:
        return self.store.publish(queues, body(tag), header=tag.encode(), **how)

    # ---- operations ----

    def publish(self) -> None:
        tag, queue = self.tag(), self.queue()
        number = self.journal.begin(work([(tag, queue)]))
        self.done(number, {tag: self._publish(tag, [queue])}, [(tag, queue)])

    def fan_out(self) -> None:
        tag, queues = self.tag(), self.chance.sample(QUEUES, self.chance.randint(2, len(QUEUES)))
        places = [(tag, queue) for queue in queues]
        number = self.journal.begin(work(places))
        self.done(number, {tag: self._publish(tag, queues)}, places)

    def in_chunks(self) -> None:
        """Staged piece by piece, then put on a queue; or published at once and cut by the store."""
        tag, queue = self.tag(3 * LARGEST_RECORD), self.queue()
        content = body(tag)
        number = self.journal.begin(work([(tag, queue)]))
        if self.chance.random() < 0.5:
            key = self._publish(tag, [queue])
        else:
            cuts = sorted(self.chance.randint(0, len(content)) for _ in range(2))
            key = self.store.stage(tag.encode(), content[: cuts[0]])
            self.store.append_content(key, content[cuts[0] : cuts[1]])
            self.store.append_content(key, content[cuts[1] :])
            self.store.enqueue(key, queue)
        self.done(number, {tag: key}, [(tag, queue)])

    def publish_many(self) -> None:
        tags, queue = [self.tag() for _ in range(6)], self.queue()
        number = self.journal.begin(*(work([(tag, queue)]) for tag in tags))
        ids = self.store.publish_many(queue, [body(tag) for tag in tags], headers=[tag.encode() for tag in tags])
        self.done(number, dict(zip(tags, ids, strict=True)), [(tag, queue) for tag in tags])

    def dequeue_some(self) -> None:
        taken = self.taken(5)
        if taken:
            number = self.journal.begin(*(work(minus=[place]) for _, place in taken))
            for key, (_, queue) in taken:
                self.store.dequeue(key, queue, wait=False)
            self.store.force()
            self.journal.back(number)

    def not_waiting(self) -> None:
        """Durable only with the force that follows, sometimes much later."""
        tag, queue = self.tag(4000), self.queue()
        number = self.journal.begin(work([(tag, queue)]))
        self.done(number, {tag: self._publish(tag, [queue], wait=False)}, [(tag, queue)], durable=False)
        self.unforced.append(number)
        if self.chance.random() < 0.5:
            self.store.force()
            self.journal.forced(self.unforced)
            self.unforced = []

    def _in(self, tx: logstore.Transaction) -> tuple[dict[str, int], list[Place], list[tuple[int, Place]]]:
        tags = [self.tag(4000) for _ in range(2)]
        plus = [(tag, self.queue()) for tag in tags]
        ids = {tag: self._publish(tag, [queue], transaction=tx) for tag, queue in plus}
        taken = self.taken(2)
        for key, (_, queue) in taken:
            self.store.dequeue(key, queue, transaction=tx)
        return ids, plus, taken

    def local(self) -> None:
        tx = self.store.begin()
        ids, plus, taken = self._in(tx)
        if self.chance.random() < 0.3:
            tx.rollback()
            self.mine += taken
            return
        number = self.journal.begin(work(plus, [place for _, place in taken]))
        tx.commit()
        self.done(number, ids, plus)

    def prepare(self) -> None:
        xid = logstore.Xid(1, f"{self.name}-{self.made}".encode())
        tx = self.store.begin(xid)
        ids, plus, taken = self._in(tx)
        tx.end()
        number = self.journal.begin(work(plus, [place for _, place in taken], prepares=str(xid)))
        tx.prepare()
        self.journal.back(number, ids=ids)
        self.prepared.append((str(xid), tx, [(ids[tag], (tag, queue)) for tag, queue in plus]))

    def settle(self) -> None:
        if not self.prepared:
            return
        xid, tx, plus = self.prepared.pop(0)
        commits = self.chance.random() < 0.6
        number = self.journal.begin(work(settles=xid, commits=commits))
        if commits:
            tx.commit()
            self.mine += plus
        else:
            tx.rollback()
        self.journal.back(number)

    def short_lived_queue(self) -> None:
        self.made += 1
        name, tags = f"short-{self.name}-{self.made}", [self.tag(4000) for _ in range(2)]
        self.declare(name)
        places = [(tag, name) for tag in tags]
        number = self.journal.begin(*(work([place]) for place in places))
        ids = {tag: self._publish(tag, [name]) for tag in tags}
        self.journal.back(number, ids=ids)
        number = self.journal.begin(work(minus=places, queue=name, deletes=True))
        self.store.delete_queue(name)
        self.journal.back(number)

    def declare(self, name: str) -> None:
        number = self.journal.begin(work(queue=name))
        self.store.declare_queue(name)
        self.journal.back(number)


def work_hard(
    path: str, journal: str, control: str, seed: int, steps: int, fail: dict[str, int], kept: list[Any]
) -> dict[str, Any]:
    """Three threads' work on a new store; the store's counters. A store that fails ends the work.

    `fail` is what is set in the disk's control page before the threads begin.
    """
    writer = JournalWriter(journal, control_of(control))
    kept.append(writer)
    failed: list[str] = []
    try:
        store = logstore.open(path, **OPTIONS)
        kept.append(store)
        writer.note(opened=True)
        workers = [Worker(store, writer, name, f"{seed}-{name}") for name in ("x", "y", "z")]
        for queue in QUEUES:
            workers[0].declare(queue)
    except (logstore.StoreError, OSError) as error:
        return {"failed": [repr(error)], "counted": {}}

    def live(worker: Worker) -> None:
        try:
            for _ in range(steps):
                worker.step()
        except (logstore.StoreError, OSError) as error:
            failed.append(type(error).__name__)
        except BaseException:  # noqa: BLE001 - the test shows it
            failed.append(traceback.format_exc())

    for name, value in fail.items():
        setattr(writer.control, name, value)
    threads = [threading.Thread(target=live, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counted = {name: value for name, value in store.stats().items() if isinstance(value, int)}
    return {"failed": failed, "counted": counted}


# ---- the host ----


def host() -> None:
    faults = (write_while_it_fails, use_again_what_failed, fail_in_the_catalog, go_on_after_the_catalog)
    known: dict[str, Callable[..., Any]] = {do.__name__: do for do in (look, fail_and_look, go_on, work_hard, *faults)}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"returned": and_then_killed(known[request["do"]], *request["with"])}
        except AssertionError as error:
            answer = {"failed": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    end_with_parent()
    assert Path(logstore.__file__).is_file()
    host()
