"""Reading while a writer recycles its segments: complete, in order, never with bytes of an older segment, never
"corrupt".

With a hold, a reader is never overtaken. Everything that readers in other processes saw is compared with the writer's
journal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.journal_writer import running
from kit.stores import ROOT, SMALL_SEGMENT
from logstore.holds import hold
from logstore.inspect import Reader

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 200
RECYCLED = 3  # segments at least, while the readers read

# Reads the log repeatedly until stopped. Prints a line for each pass: how it ended, its expected end, the records. With
# a hold it continues where it stopped; otherwise it starts at the base.
READER = """
import hashlib, json, os, sys
from logstore.holds import hold
from logstore.inspect import LogRecycled, Reader
from logstore.inspect import reader as inspect
from logstore.codec.records import InlineCopy, MessageDequeue, MessageStart, OrderedCopy, RecordFlag

store_dir, stop, held = sys.argv[1], sys.argv[2], sys.argv[3] == "held"
inspect.READ_AHEAD_BYTES = 0 if len(sys.argv) > 4 else inspect.READ_AHEAD_BYTES
keeper = hold(store_dir, f"reader-{os.getpid()}", limit_bytes=1 << 34) if held else None
from_lsn = keeper.lsn if held else 0
rounds = 0
while rounds < 2 or not over:
    rounds += 1
    over = os.path.exists(stop)
    told = {"ended": "whole", "starts": [], "dequeues": [], "last_lsn": 0, "from_lsn": from_lsn}
    try:
        with Reader(store_dir, hold=keeper, from_lsn=from_lsn) as reader:
            told["base_lsn"], told["end_lsn"] = reader.info.base_lsn, reader.info.end_lsn
            for record in reader.records():
                assert record.lsn > told["last_lsn"]
                told["last_lsn"] = record.lsn
                body = record.body
                told["reached"] = record.lsn + record.length
                if isinstance(body, MessageStart | InlineCopy | OrderedCopy):
                    digest = hashlib.sha256(body.content).hexdigest()
                    copy = RecordFlag.COPY in record.flags
                    told["starts"].append([record.id, body.header.decode(), digest, copy])
                elif isinstance(body, MessageDequeue):
                    told["dequeues"].append([record.lsn, record.id])
    except LogRecycled as error:
        told["ended"] = "recycled"
    print(json.dumps(told))
    if held:
        from_lsn = told["end_lsn"]
        keeper.advance(from_lsn)
"""


def reader(store_dir: Path, stop: Path, said: Path, *options: str) -> subprocess.Popen[bytes]:
    """A reader that writes what it read to a file: on a full pipe it would wait for the test, and keep its hold."""
    with said.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-c", READER, str(store_dir), str(stop), *options],
            stdout=out,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


class Truth:
    """The writer's operations, from its journal."""

    def __init__(self, journal: Path) -> None:
        import hashlib

        from kit.journal_writer import content_of

        self.digests: dict[int, tuple[str, str]] = {}  # digests of contents in one record
        self.known: set[int] = set()
        self.dequeues: dict[int, int] = {}
        for line in journal.read_text(encoding="ascii").splitlines():
            first_lsn, end_lsn, made, gone, _ = json.loads(line)
            for message, _, number, size in made:
                self.known.add(message)
                if 0 <= size <= 10_000:
                    digest = hashlib.sha256(content_of(number, size)).hexdigest()
                    self.digests[message] = str(number), digest
            if end_lsn - first_lsn == 8 and gone:
                self.dequeues[first_lsn] = gone[0][0]

    def check(self, told: dict[str, Any]) -> None:
        """Checks that a reader saw nothing but the writer's records."""
        for message, header, digest, _ in told["starts"]:
            if message in self.digests:
                assert (header, digest) == self.digests[message]
        seen: dict[int, int] = dict(told["dequeues"])
        for lsn in seen.keys() & self.dequeues.keys():
            assert seen[lsn] == self.dequeues[lsn]
        if told["ended"] == "whole" and told["last_lsn"]:
            low = max(told["from_lsn"], told["base_lsn"])
            wanted = {lsn for lsn in self.dequeues if low <= lsn < told["end_lsn"]}
            assert wanted <= seen.keys()
            starts = {message for message, _, _, copy in told["starts"] if not copy}
            assert {one for one in self.digests if low <= one < told["end_lsn"]} <= starts


def test_readers_in_other_processes_see_exactly_the_written_records(tmp_path: Path) -> None:
    readers = {}
    with running(tmp_path, seed=3) as writer:
        stop = tmp_path / "readers-stop"
        for name, options in (("free", ("free",)), ("slow", ("free", "no read ahead")), ("held", ("held",))):
            readers[name] = reader(writer.store_dir, stop, tmp_path / f"{name}.said", *options)
        writer.wait_for(150_000)
        writer.wait_for_recycling(RECYCLED)
        stop.touch()
        errors = {name: process.communicate(timeout=TIMEOUT_S)[1] for name, process in readers.items()}
        counted = writer.end()
    truth = Truth(writer.journal)
    assert counted["segments_recycled"] > RECYCLED
    rounds = {}
    for name, process in readers.items():
        assert process.returncode == 0, errors[name]
        rounds[name] = [json.loads(line) for line in (tmp_path / f"{name}.said").read_text("ascii").splitlines()]
        assert len(rounds[name]) >= 2
        for told in rounds[name]:
            truth.check(told)
            if told["ended"] == "whole" and told["last_lsn"]:
                assert told["reached"] == told["end_lsn"]  # it ends at the durable LSN without an error
    held = rounds["held"]
    assert {told["ended"] for told in held} == {"whole"}
    starts = [start[0] for told in held for start in told["starts"] if not start[3]]
    assert len(starts) == len(set(starts))  # it continued where it had stopped: each record once, none missing
    low, high = held[0]["from_lsn"], held[-1]["end_lsn"]
    assert {one for one in truth.digests if low <= one < high} <= set(starts)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["dump", "verify", "info"])
def test_commands_succeed_while_a_fast_writer_runs(tmp_path: Path, command: str) -> None:
    with running(tmp_path, seed=4) as writer:
        writer.wait_for(25_000)
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-m", "logstore", command, writer.store_dir],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                check=False,
            )
            assert done.returncode == 0 or "reused a segment" in done.stderr, done.stderr
            assert "damaged" not in done.stderr
        writer.end()


def test_a_reader_with_a_hold_reads_every_record_that_an_earlier_reader_read(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "store", segment_size=SMALL_SEGMENT) as store, hold(store.path, "a") as held:
        queue = store.declare_queue("q")
        store.publish_many(queue, [bytes(9000)] * 30)
        with Reader(store.path) as early:
            before = [record.lsn for record in early.records()]
        queue.purge()
        for _ in range(4):
            store.dequeue_many(store.publish_many(queue, [bytes(20_000)] * 60), queue)
        assert store.base_lsn > held.lsn
        with Reader(store.path, hold=held) as late:
            after = [record.lsn for record in late.records()]
        assert after[: len(before)] == before
        with Reader(store.path, hold=held, from_lsn=before[-1]) as late:
            assert next(late.records()).lsn == before[-1]
