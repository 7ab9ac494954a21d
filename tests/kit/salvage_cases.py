"""Stores with known contents, ways to damage them, and the checks on everything salvaged from them."""

from __future__ import annotations

import os
import random
import shutil
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import logstore
from logstore import errors
from logstore._core import ffi, lib
from logstore.codec.records import Record
from logstore.codec.state import Message
from logstore.inspect import Reader
from logstore.salvage.catalog import Names, read_names
from logstore.salvage.extent import Extent, losses
from logstore.salvage.log import Log, read_log
from logstore.salvage.run import Contents
from logstore.salvage.source import Source
from logstore.salvage.state import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SEGMENT = 64 << 10  # the core's smallest: so a little work fills many of them


def open_small(path: Path) -> logstore.MessageStore:
    """A store of small segments."""
    options = ffi.new("ls_options *")
    lib.ls_options_default(options)
    options.segment_size, options.initial_segments, options.create = SEGMENT, 2, True
    options.max_write_buffers, options.background = 10, False  # so that a copy is one moment
    return logstore.MessageStore(path, options)


# ---- The known contents


class Live(NamedTuple):
    """A message as its writer knows it."""

    content: bytes
    header: bytes
    queues: frozenset[str]


@dataclass(repr=False)
class Truth:
    """The contents of a store, and the positions of its records."""

    messages: dict[int, Live] = field(default_factory=dict)
    order: dict[str, list[int]] = field(default_factory=dict)
    pending: dict[int, set[tuple[str, int, str]]] = field(default_factory=dict)  # of prepared ones: kind, id, queue
    hidden: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)  # with pending enqueues only
    names: dict[int, str] = field(default_factory=dict)
    chains: dict[int, list[Record]] = field(default_factory=lambda: defaultdict(list))
    transactions_of: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))  # by message
    base_lsn: int = 0
    records: list[Record] = field(default_factory=list)

    def touched(self, chain: int, damage: Iterable[tuple[int, int]]) -> bool:
        """Whether any record of a message, or of a transaction that worked on it, lies in the damaged LSN ranges."""
        records = [record for one in (chain, *self.transactions_of[chain]) for record in self.chains[one]]
        return any(record.lsn < end and low < record.lsn + record.length for record in records for low, end in damage)


def take_truth(store: logstore.MessageStore) -> Truth:
    """The contents of a store at this moment."""
    truth = Truth()
    contents: dict[int, tuple[bytes, bytes]] = {}
    places = defaultdict(set)
    for queue in store.queues():
        truth.names[queue.id] = queue.name
        truth.order[queue.name] = [message.id for message in store.messages(queue)]
        for message_id in truth.order[queue.name]:
            places[message_id].add(queue.name)
            if message_id not in contents:
                contents[message_id] = store.load_content(message_id), store.header(message_id)
    truth.messages = {one: Live(*contents[one], frozenset(places[one])) for one in contents}
    return truth


def add_records(truth: Truth, path: Path) -> None:
    """The positions of all records in an undamaged log."""
    with Reader(path) as reader:
        truth.base_lsn = reader.info.base_lsn
        for record in reader.records():
            truth.records.append(record)
            truth.chains[record.id].append(record)
            body: Any = record.body
            if getattr(body, "tx_id", 0):
                truth.transactions_of[record.id].add(body.tx_id)
            for work in getattr(body, "pending", ()):
                truth.transactions_of[record.id].add(work.tx_id)


# ---- Work


class Work:
    """Random work on a store, journaled."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.random = path, random.Random(seed)
        self.store = open_small(path)
        self.names = ["one", "two", "three", "four"]
        for name in self.names:
            self.store.declare_queue(name)
        self.store.declare_exchange("news", type="fanout")
        self.store.bind("news", "one", "key")
        self.store.config["color"] = "blue"
        self.prepared: dict[int, Any] = {}
        self.pending: dict[int, set[tuple[str, int, str]]] = {}
        self.hidden: dict[int, tuple[bytes, bytes]] = {}

    def content(self) -> bytes:
        size = self.random.choice((0, 1, 7, 50, 200, 200, 900, 900, 3000, 9000, 20000))
        return self.random.randbytes(size)

    def pick(self) -> list[str]:
        return self.random.sample(self.names, self.random.choice((1, 1, 1, 2, 3)))

    def publish(self) -> None:
        self.store.publish(self.pick(), self.content(), header=b"h%d" % self.random.randrange(99), wait=False)

    def stage(self) -> None:
        made = self.store.stage(b"staged", self.content())
        for _ in range(self.random.randrange(3)):
            self.store.append_content(made, self.content())
        if self.random.random() < 0.8:
            for queue in self.pick():
                self.store.enqueue(made, queue, wait=False)
        elif self.random.random() < 0.5:
            self.store.destroy(made, wait=False)

    def somewhere(self) -> tuple[int, str] | None:
        queue = self.random.choice(self.names)
        there = [message.id for message in self.store.messages(queue) if not message.locked]
        if not there:
            return None
        return self.random.choice((there[0], there[0], self.random.choice(there))), queue

    def dequeue(self) -> None:
        if place := self.somewhere():
            self.store.dequeue(*place, wait=False)

    def transact(self) -> None:
        distributed = self.random.random() < 0.4
        xid = logstore.Xid(1, self.random.randbytes(8), b"b") if distributed else None
        tx = self.store.begin(xid)
        done: set[tuple[str, int, str]] = set()
        hidden: dict[int, tuple[bytes, bytes]] = {}
        for _ in range(self.random.randrange(1, 5)):
            if self.random.random() < 0.6:
                queues, content = self.pick(), self.content()
                made = self.store.publish(queues, content, header=b"tx", transaction=tx)
                done |= {("ENQUEUE", made, queue) for queue in queues}
                hidden[made] = content, b"tx"
            elif place := self.somewhere():
                with suppress(errors.MessageLocked, errors.NotEnqueued):
                    self.store.dequeue(*place, transaction=tx)
                    done.add(("DEQUEUE", *place))
        if not distributed:
            (tx.commit if self.random.random() < 0.7 else tx.rollback)(wait=False)
            return
        tx.end()
        tx.prepare(wait=False)
        self.prepared[tx.id], self.pending[tx.id] = tx.xid, done
        self.hidden |= hidden
        if self.random.random() < 0.6:
            self.settle()

    def settle(self) -> None:
        """An outcome for a transaction in doubt."""
        found = {one.id: one for one in self.store.in_doubt()}
        tx_id = self.random.choice(list(self.prepared))
        (found[tx_id].commit if self.random.random() < 0.5 else found[tx_id].rollback)(wait=False)
        for _, message_id, _ in self.pending.pop(tx_id):
            self.hidden.pop(message_id, None)
        del self.prepared[tx_id]

    def restart(self) -> None:
        self.store.close()
        self.store = open_small(self.path)

    def crash(self) -> None:
        """Kill the process; forced work survives."""
        self.store.force()
        copy = self.path.with_name(self.path.name + ".crashed")
        shutil.copytree(self.path, copy)
        self.store.close()
        shutil.rmtree(self.path)
        copy.rename(self.path)
        self.store = open_small(self.path)

    def run(self, steps: int) -> None:
        todo = [self.publish] * 8 + [self.stage] * 2 + [self.dequeue] * 12 + [self.transact] * 4
        for step in range(steps):
            self.random.choice(todo)()
            if step % 150 == 149:
                self.random.choice((self.restart, self.crash))()
        self.store.force()

    def truth(self) -> Truth:
        truth = take_truth(self.store)
        truth.pending = {tx_id: set(done) for tx_id, done in self.pending.items()}
        truth.hidden = {one: kept for one, kept in self.hidden.items() if one not in truth.messages}
        return truth


def make_store(path: Path, seed: int, *, steps: int = 320, end: str = "closed") -> Truth:
    """A store after random work that was ``closed``, ``killed``, or whose last batch is ``torn``; and its truth."""
    work = Work(path, seed)
    work.run(steps)
    truth = work.truth()
    if end == "closed":
        work.store.close()
        add_records(truth, path)
        return truth
    kept = path.with_name(path.name + ".kept")
    if end == "killed":
        shutil.copytree(path, kept)
        work.store.close()
    else:
        hint = (path / "HINT").read_bytes()
        for _ in range(3):
            work.store.publish(work.names[0], b"never acknowledged" * 9, wait=False)
        work.store.force()
        shutil.copytree(path, kept)
        work.store.close()
        (kept / "HINT").write_bytes(hint)
        tear(kept)
    shutil.rmtree(path)
    kept.rename(path)
    add_records(truth, path)
    return truth


def tear(path: Path) -> None:
    """Cut the log's last batch in the middle, as a crash does."""
    with Reader(path) as reader:
        last = [batch for batch in reader.batches() if len(batch.raw) > 104][-1]
    with (path / f"{last.first_lsn:016x}.seg").open("r+b") as file:
        file.seek(last.lsn - last.first_lsn + len(last.raw) // 2)
        file.write(bytes(len(last.raw)))


# ---- Damage


class Harm(NamedTuple):
    """Damage of a file: the bytes of the LSNs from ``low`` to ``end`` are arbitrary now."""

    low: int
    end: int


def segments(path: Path) -> list[Path]:
    """The segment files, oldest first."""
    return sorted(path.glob("*.seg"))


def damage_bytes(file: Path, offset: int, new: bytes) -> Harm:
    """Overwrite some bytes of a segment."""
    first_lsn = int(file.name[:16], 16)
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(new)
    return Harm(first_lsn + offset, first_lsn + offset + len(new))


def truncate(file: Path, size: int) -> Harm:
    """Cut off the end of a segment."""
    first_lsn = int(file.name[:16], 16)
    os.truncate(file, size)
    return Harm(first_lsn + size, first_lsn + SEGMENT)


def remove(file: Path) -> Harm:
    """Remove a segment."""
    first_lsn = int(file.name[:16], 16)
    file.unlink()
    return Harm(first_lsn, first_lsn + SEGMENT)


def swap_sectors(file: Path, one: int, other: int) -> list[Harm]:
    """Swap two sectors."""
    raw = file.read_bytes()
    return [
        damage_bytes(file, one, raw[other : other + 512]),
        damage_bytes(file, other, raw[one : one + 512]),
    ]


# ---- Salvaging, without writing


@dataclass
class Examined:
    """The result of a salvage."""

    log: Log
    state: State
    contents: dict[int, tuple[bytes, bytes]]
    names: dict[int, str]

    def covered(self) -> list[tuple[int, int]]:
        """LSN ranges that the report names as unreadable."""
        ranges = [(gap.lsn, gap.end_lsn) for gap in self.log.gaps]
        ranges += [(one.lsn, one.end_lsn) for one in self.log.damaged]
        return [*ranges, (self.log.torn.lsn, self.log.torn.end_lsn)] if self.log.torn is not None else ranges


def examine(path: Path, names: Names | None = None) -> Examined:
    """Everything that a salvage of this directory would recover and lose; with the catalog if it was read before."""
    with Source(path) as source:
        log = read_log(source, lambda *_: None)
        names = names or read_names(path, source.uuid, connect=None, schema=None)
        names.forget(log.replay.deleted_queues)
        state = log.replay.finish(names.is_gone)
        contents = Contents(source)
        read = {one: whole(contents, message) for one, message in (state.messages | state.found).items()}
        return Examined(log, state, read, {one: queue.name for one, queue in names.queues.items()})


def whole(contents: Contents, message: Message) -> tuple[bytes, bytes]:
    """A message's content and header."""
    start: Any = contents.read(message.start_lsn).body
    chunks: list[Any] = [contents.read(piece.lsn).body for _, piece in sorted((message.chunks or {}).items())]
    return b"".join((start.content, *(chunk.content for chunk in chunks))), start.header


# ---- The checks


def wrong(truth: Truth, found: Examined, harm: list[Harm]) -> Iterator[str]:
    """The errors of a salvage: every known message must be either recovered or reported as lost, and no other
    recovered.
    """
    state, names = found.state, found.names
    lost = {one.id for one in state.lost}
    doubtful = {one.id for one in state.doubtful}
    again = {one.id for one in state.lost_transactions if one.in_doubt}  # their work may be decided already
    doubtful |= {work.message_id for one in again for work in state.transactions[one].work}
    covered = found.covered()
    recovered = {
        message_id: frozenset(names.get(place.queue_id, "?") for place in message.places)
        for message_id, message in state.messages.items()
    }
    maybe = {one for one, message in state.messages.items() if message.last_lsn < state.doubt_lsn}
    yield from (f"{one} is recovered and lost" for one in recovered.keys() & lost)
    for one, live in truth.messages.items():
        named = one in lost or truth.touched(one, covered)
        if one not in recovered:
            if not named:
                yield f"{one} is neither recovered nor lost"
            continue
        if found.contents[one] != (live.content, live.header):
            yield f"{one} is recovered with another content"
        if not live.queues <= recovered[one] and not named and one not in doubtful:
            yield f"{one} lost a place: {sorted(live.queues - recovered[one])}"
        if not recovered[one] <= live.queues and one not in doubtful | maybe:
            yield f"{one} has a place too many: {sorted(recovered[one] - live.queues)}"
    for one in truth.messages:
        if not truth.touched(one, harm) and one in lost:
            yield f"{one} was not harmed, and is lost"
        if not truth.touched(one, harm) and recovered.get(one, frozenset()) < truth.messages[one].queues:
            yield f"{one} was not harmed, and is not where it was"
    for one in recovered.keys() - truth.messages.keys() - truth.hidden.keys():
        if one not in truth.chains:
            yield f"{one} is recovered but never existed"
        elif one not in doubtful | maybe:
            yield f"{one} had ended, and is recovered without a note"
    for one, kept in truth.hidden.items():
        if one in found.contents and found.contents[one] != kept:
            yield f"{one}, in doubt, is recovered with another content"
        if one not in recovered and one not in lost and not truth.touched(one, covered):
            yield f"{one}, in doubt, is neither recovered nor lost"
        if not truth.touched(one, harm) and one not in recovered:
            yield f"{one}, in doubt, was not harmed, and is not recovered"
    yield from wrong_order(truth, found)
    yield from wrong_transactions(truth, found, covered)


def wrong_extents(truth: Truth, found: Examined) -> Iterator[str]:
    """The true losses lie within the bounds, in all and on every queue. What a torn tail touches may count or not."""
    bounds = losses(found.log, found.state)
    torn = found.log.torn
    tail = [] if torn is None else [(torn.lsn, torn.end_lsn)]
    in_tail = {one for one in truth.messages.keys() | truth.hidden.keys() if truth.touched(one, tail)}
    back = found.state.messages.keys() | found.state.found.keys()
    yield from _outside("messages", (truth.messages.keys() | truth.hidden.keys()) - back, in_tail, bounds.messages)
    names = {queue_id: found.names.get(queue_id, name) for queue_id, name in truth.names.items()}
    for queue_id, name in names.items():
        there = {
            message_id
            for message_id, message in found.state.messages.items()
            if queue_id in {one.queue_id for one in (*message.places, *(message.pending or ()))}
        }
        lost = set(truth.order[truth.names[queue_id]]) - there
        yield from _outside(f"queue {name!r}", lost, in_tail, bounds.on(queue_id))


def _outside(what: str, lost: set[int], in_tail: set[int], told: Extent) -> Iterator[str]:
    if len(lost) < told.least or (told.most is not None and len(lost - in_tail) > told.most):
        yield f"{what}: {len(lost)} are lost, {len(lost & in_tail)} of them in the torn tail, and the bounds are {told}"


def wrong_order(truth: Truth, found: Examined) -> Iterator[str]:
    """The recovered messages of a queue are in their order."""
    by_queue = defaultdict(list)
    doubtful = {one.id for one in found.state.doubtful}
    for message_id, message in found.state.messages.items():
        for place in message.places:
            name = found.names.get(place.queue_id, "?")
            if message_id in set(truth.order.get(name, ())) - doubtful:
                by_queue[name].append((place.order_lsn, place.order_index, message_id))
    for name, places in by_queue.items():
        shown = [message_id for *_, message_id in sorted(places)]
        kept = set(shown)
        if shown != [one for one in truth.order[name] if one in kept]:
            yield f"queue {name!r} is in another order"


def wrong_transactions(truth: Truth, found: Examined, covered: list[tuple[int, int]]) -> Iterator[str]:
    """Transactions in doubt stay so, with all their work that can be read."""
    told = {one.id for one in found.state.lost_transactions}
    for tx_id, done in truth.pending.items():
        kept = found.state.transactions.get(tx_id)
        if kept is None:
            if tx_id not in told and not any(
                low <= record.lsn < end for record in truth.chains[tx_id] for low, end in covered
            ):
                yield f"transaction {tx_id} is no longer in doubt"
            continue
        work = {(one.kind.name, one.message_id, found.names.get(one.queue_id, "?")) for one in kept.work}
        for kind, message_id, queue in done - work:
            lost = message_id in {one.id for one in found.state.lost} or truth.touched(message_id, covered)
            if not lost:
                yield f"transaction {tx_id} forgot {kind} of {message_id} on {queue!r}"
    for tx_id in found.state.transactions.keys() - truth.pending.keys() - told:
        yield f"transaction {tx_id} is in doubt again without a note"
