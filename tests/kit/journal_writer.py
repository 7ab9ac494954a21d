"""A writer process with random work and a journal of it by LSN; and the contents that a copy of its store must have at
one LSN, from the journal.

One thread works, so the journal has the log's order. A commit's record is somewhere in a range of LSNs.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import logstore
from logstore import MessageStore, Xid

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
QUEUES = ("one", "two", "three")
SEGMENT = 512 << 10
TIMEOUT_S = 180


def content_of(number: int, size: int) -> bytes:
    """The content of message ``number``, which no other message has."""
    return random.Random(number).randbytes(size)


class Writer:
    """The work of the process."""

    def __init__(self, store: MessageStore, journal: Path, seed: int) -> None:
        self.store = store
        self.chance = random.Random(seed)
        self.number = seed * 1_000_000
        self.live: list[tuple[int, str]] = []
        self.journal = journal.open("a", encoding="ascii")
        self.recycled = journal.with_suffix(".recycled")

    def note(self, first_lsn: int, end_lsn: int, made: list[Any], gone: list[Any], doubt: str = "") -> None:
        """One event, whose record is in [first_lsn, end_lsn)."""
        self.journal.write(json.dumps([first_lsn, end_lsn, made, gone, doubt]) + "\n")
        self.journal.flush()

    def size(self) -> int:
        return self.chance.choice((0, 10, 300, 1000, 5000, 9000))

    def publish(self) -> None:
        self.number += 1
        size, queues = self.size(), self.chance.sample(QUEUES, self.chance.choice((1, 1, 1, 2, 3)))
        content, wait = content_of(self.number, size), self.chance.random() < 0.2
        found = self.store.publish(queues, content, header=b"%d" % self.number, wait=wait)
        self.note(found, found + 8, [[found, queues, self.number, size]], [])
        self.live += [(found, queue) for queue in queues]

    def publish_chunks(self) -> None:
        self.number += 1
        size, queues = 90_000, self.chance.sample(QUEUES, 2)
        content = content_of(self.number, size)
        found = self.store.stage(b"%d" % self.number, content[:40_000])
        self.store.append_content(found, content[40_000:])
        lsn = self.store.enqueue(found, queues)
        self.note(lsn, lsn + 8, [[found, queues, self.number, size]], [])
        self.live += [(found, queue) for queue in queues]

    def dequeue(self) -> None:
        if self.live:
            found, queue = self.live.pop(self.chance.randrange(len(self.live)))
            lsn = self.store.dequeue(found, queue, wait=self.chance.random() < 0.2)
            self.note(lsn, lsn + 8, [], [[found, queue]])

    def commit(self) -> None:
        made: list[Any] = []
        gone: list[Any] = []
        with self.store.transaction() as tx:
            for _ in range(3):
                self.number += 1
                header = b"%d" % self.number
                found = self.store.publish("one", content_of(self.number, 200), header=header, transaction=tx)
                made.append([found, ["one"], self.number, 200])
            if self.live:
                gone.append(list(self.live.pop()))
                self.store.dequeue(*gone[0], transaction=tx)
            first = self.store.next_lsn
        self.note(first, self.store.next_lsn, made, gone)
        self.live += [(one[0], "one") for one in made]

    def prepare(self, name: bytes) -> None:
        """A transaction that stays in doubt: it published one message and dequeued another."""
        self.number += 1
        kept = self.store.publish("two", b"locked")
        self.note(kept, kept + 8, [[kept, ["two"], 0, -1]], [])
        branch = self.store.begin(Xid(1, name, b""))
        self.store.publish("three", b"in doubt", transaction=branch)
        self.store.dequeue(kept, "two", transaction=branch)
        branch.end()
        first = self.store.next_lsn
        branch.prepare()
        self.note(first, self.store.next_lsn, [], [], name.decode())

    def work(self, stop: Path) -> None:
        self.prepare(b"early")
        self.store.stage(b"", b"never enqueued")
        for _ in range(3):
            self.publish_chunks()
        kept, self.live = self.live, []  # these stay and hold the tail, so that relocation moves them
        rounds = 0
        while not stop.exists():
            rounds += 1
            self.chance.choices((self.publish, self.dequeue, self.commit, self.publish_chunks), (20, 20, 2, 1))[0]()
            while len(self.live) > 150:
                self.dequeue()
            if rounds == 200:
                self.prepare(b"late")
            if rounds % 500 == 0 and kept:
                self.live.append(kept.pop())
            if rounds % 100 == 0:
                self.recycled.write_text(str(self.store.stats()["segments_recycled"]))
        self.store.force()


def main() -> None:
    """``journal_writer.py STORE JOURNAL STOP SEED``"""
    directory, journal, stop, seed = sys.argv[1:]
    with logstore.open(directory, segment_size=SEGMENT) as store:
        for name in QUEUES:
            store.declare_queue(name)
        writer = Writer(store, Path(journal), int(seed))
        print("ready", flush=True)
        writer.work(Path(stop))
        stats = store.stats()
        print(json.dumps({name: stats[name] for name in ("segments_recycled", "relocated_bytes")}), flush=True)


class Running(NamedTuple):
    """A writer at work."""

    store_dir: Path
    journal: Path
    stop: Path
    process: subprocess.Popen[str]

    def wait_for(self, size: int) -> None:
        """Wait until its journal has grown to this size."""
        until = time.monotonic() + TIMEOUT_S
        while self.journal.stat().st_size < size:
            assert self.process.poll() is None, "the writer died"
            assert time.monotonic() < until, "the writer makes no progress"
            time.sleep(0.005)

    def wait_for_recycling(self, segments: int) -> None:
        """Wait until it has recycled more segments than this; holds must advance in the meantime."""
        until = time.monotonic() + TIMEOUT_S
        while not self.recycled.exists() or int(self.recycled.read_text() or 0) <= segments:
            assert self.process.poll() is None, "the writer died"
            assert time.monotonic() < until, "the writer recycles nothing"
            time.sleep(0.005)

    @property
    def recycled(self) -> Path:
        """The file with the number of segments that the writer has recycled."""
        return self.journal.with_suffix(".recycled")

    def end(self) -> dict[str, int]:
        """Let it close its store; its report."""
        self.stop.touch()
        assert self.process.stdout is not None
        said = self.process.stdout.read()
        assert self.process.wait(TIMEOUT_S) == 0
        counted: dict[str, int] = json.loads(said)
        return counted


@contextlib.contextmanager
def running(directory: Path, seed: int) -> Iterator[Running]:
    """A writer, from its first queue on."""
    names = directory / "store", directory / "journal", directory / "stop"
    process = subprocess.Popen(
        [sys.executable, __file__, *map(str, names), str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Running(*names, process)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


class Expected(NamedTuple):
    """The contents of a store as of one LSN."""

    queues: dict[str, dict[int, tuple[int, int]]]  # in order: id to number and size
    doubtful: set[str]


def expected_at(journal: Path, lsn: int) -> list[Expected]:
    """The contents from the journal; two possibilities if a commit may be on either side of that LSN."""
    possible = [Expected({name: {} for name in QUEUES}, set())]
    for line in journal.read_text(encoding="ascii").splitlines():
        first_lsn, end_lsn, made, gone, doubt = json.loads(line)
        if first_lsn >= lsn:
            break
        if first_lsn < lsn < end_lsn and end_lsn - first_lsn > 8:
            possible.append(copy.deepcopy(possible[0]))
        state = possible[0]
        for message, queues, number, size in made:
            for queue in queues:
                state.queues[queue][message] = number, size
        for message, queue in gone:
            del state.queues[queue][message]
        if doubt:
            state.doubtful.add(doubt)
    return possible


def found_in(directory: Path) -> tuple[dict[str, dict[int, tuple[int, int]]], set[str]]:
    """The contents of a store after an open; checks each message's content."""
    queues: dict[str, dict[int, tuple[int, int]]] = {}
    with logstore.open(directory, create=False) as store:
        assert store.recovery.torn_bytes == 0
        for name in QUEUES:
            queues[name] = {}
            for message in store.messages(name):
                content = message.content
                if content == b"locked":
                    assert message.locked
                    queues[name][message.id] = 0, -1
                    continue
                number = int(message.header)
                assert content == content_of(number, len(content))
                queues[name][message.id] = number, len(content)
        doubtful = {one.xid.gtrid.decode() for one in store.in_doubt() if one.xid is not None}
    return queues, doubtful


def assert_is_the_state_at(directory: Path, journal: Path, lsn: int) -> None:
    """The store opens and has exactly the journal's contents of that LSN, in order."""
    queues, doubtful = found_in(directory)
    for state in expected_at(journal, lsn):
        if doubtful == state.doubtful and all(list(queues[q].items()) == list(state.queues[q].items()) for q in QUEUES):
            return
    state = expected_at(journal, lsn)[0]
    for queue in QUEUES:
        assert queues[queue] == state.queues[queue], queue
        assert list(queues[queue]) == list(state.queues[queue]), queue
    assert doubtful == state.doubtful


if __name__ == "__main__":
    main()
