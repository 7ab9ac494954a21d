"""A writer with a journal of its work, and the rows that its log must therefore give.

The expected rows come only from the journal, that is from calls and their results, never from the log. The writer works
in processes that are killed; its last force makes all of its work durable. It publishes, fans out, sends contents in
chunks, uses transactions that commit, roll back, stay open at a kill or in doubt, deletes queues, and leaves messages
that must be relocated while the rest of the log is recycled.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import logstore
from kit.killed import and_then_killed
from logstore import Xid

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Event = list[Any]
SEGMENT = 512 << 10
SIZES = (0, 10, 300, 3000, 12_000)
LARGE = 70_000  # in chunks
QUEUES = 4


@dataclass
class Place:
    """A message's place on a queue in the journal. An LSN is 0 if the store did not return it."""

    queue_id: int
    enqueue_tx: int
    enqueue_lsn: int
    dequeue_tx: int = 0
    dequeue_lsn: int = 0
    reason: str = ""
    delivery_count: int = 0
    open: bool = True

    def text(self) -> str:
        """As :func:`message_text` has it."""
        numbers = [self.queue_id, self.enqueue_tx, self.enqueue_lsn, self.dequeue_tx, self.dequeue_lsn]
        return ",".join(map(str, [*numbers, self.reason, self.delivery_count]))


@dataclass
class Message:
    """A message in the journal."""

    id: int
    header_bytes: int
    content_bytes: int
    published: bool
    enqueued: bool = False
    places: list[Place] = field(default_factory=list)
    work: list[Event] = field(default_factory=list)  # undecided operations, in order
    outcome: str = ""
    ended: Place | None = None

    def open_place(self, queue_id: int) -> Place | None:
        return next((place for place in self.places if place.queue_id == queue_id and place.open), None)

    def text(self) -> str:
        """As :func:`message_text` has it."""
        facts = [self.id, self.outcome, self.header_bytes, self.content_bytes, len(self.places)]
        return "|".join(map(str, [*facts, ";".join(place.text() for place in self.places)]))


class Journal:
    """The events, and the state after them."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events: list[Event] = []
        self.messages: dict[int, Message] = {}  # open ones
        self.closed: list[Message] = []
        self.transactions: dict[int, list[int]] = {}  # open ones: messages with work of it
        self.prepared: set[int] = set()
        self.outcomes: dict[int, str] = {}
        self.dequeues: list[Event] = []
        self.started: dict[int, Message] = {}
        self.deleted: set[int] = set()
        for event in events:
            self.note(event)

    def note(self, event: Event) -> None:
        """One more event."""
        self.events.append(event)
        getattr(self, f"_{event[0]}")(*event[1:])

    def _start(self, message_id: int, header_bytes: int, content_bytes: int, published: bool) -> None:
        made = Message(message_id, header_bytes, content_bytes, published)
        self.messages[message_id] = self.started[message_id] = made

    def _append(self, message_id: int, content_bytes: int) -> None:
        self.messages[message_id].content_bytes += content_bytes

    def _begin(self, tx: int) -> None:
        self.transactions[tx] = []

    def _prepare(self, tx: int) -> None:
        self.prepared.add(tx)

    def _enqueue(self, message_id: int, queue_id: int, tx: int, lsn: int) -> None:
        if tx:
            self._work(message_id, ["enqueue", queue_id, tx, 0, "", 0])
        else:
            self._take_effect(message_id, ["enqueue", queue_id, 0, lsn, "", 0])

    def _dequeue(self, message_id: int, queue_id: int, tx: int, lsn: int, reason: str, count: int) -> None:
        self.dequeues.append([message_id, queue_id, tx, lsn, reason, count])
        if tx:
            self._work(message_id, ["dequeue", queue_id, tx, 0, reason, count])
        else:
            self._take_effect(message_id, ["dequeue", queue_id, 0, lsn, reason, count])
            self._close_if_over(message_id)

    def _work(self, message_id: int, work: Event) -> None:
        self.messages[message_id].work.append(work)
        self.transactions[work[2]].append(message_id)

    def _take_effect(self, message_id: int, work: Event) -> None:
        kind, queue_id, tx, lsn, reason, count = work
        message = self.messages[message_id]
        message.enqueued = message.enqueued or kind == "enqueue"
        if queue_id in self.deleted:
            return
        if kind == "enqueue":
            message.places.append(Place(queue_id, tx, lsn))
            return
        self._end(message, queue_id, reason)
        assert message.ended is not None
        message.ended.dequeue_tx, message.ended.dequeue_lsn, message.ended.delivery_count = tx, lsn, count

    def _end(self, message: Message, queue_id: int, reason: str) -> None:
        place = message.open_place(queue_id)
        assert place is not None
        place.open, place.reason = False, reason
        message.ended = place

    def _close_if_over(self, message_id: int, otherwise: str = "") -> None:
        message = self.messages[message_id]
        if message.work or any(place.open for place in message.places):
            return
        if message.enqueued:
            gone = message.ended is None or message.ended.reason == "queue_deleted"
            self._close(message, "queue_deleted" if gone else "dequeued")
        elif otherwise:
            self._close(message, otherwise)

    def _close(self, message: Message, outcome: str) -> None:
        message.outcome = outcome
        self.closed.append(self.messages.pop(message.id))

    def _destroy(self, message_id: int) -> None:
        self._close(self.messages[message_id], "destroyed")

    def _commit(self, tx: int) -> None:
        self._decide(tx, "committed")

    def _rollback(self, tx: int) -> None:
        self._decide(tx, "rolled_back")

    def _decide(self, tx: int, outcome: str, dropped: str = "") -> None:
        self.outcomes[tx] = outcome
        self.prepared.discard(tx)
        for message_id in dict.fromkeys(self.transactions.pop(tx)):
            message = self.messages[message_id]
            mine = [work for work in message.work if work[2] == tx]
            message.work = [work for work in message.work if work[2] != tx]
            for work in mine if outcome == "committed" else ():
                self._take_effect(message_id, work)
            self._close_if_over(message_id, "rolled_back" if message.published else dropped)

    def _delete_queue(self, queue_id: int) -> None:
        self.deleted.add(queue_id)
        for message in list(self.messages.values()):
            if message.open_place(queue_id) is not None:
                self._end(message, queue_id, "queue_deleted")
                self._close_if_over(message.id)

    def _restart(self) -> None:
        """Apply a recovery: it ends transactions that are not prepared, and messages that were never enqueued."""
        for tx in [tx for tx in self.transactions if tx not in self.prepared]:
            self._decide(tx, "rolled_back", "dropped")
        for message in [one for one in self.messages.values() if not one.enqueued and not one.work]:
            self._close(message, "dropped")

    def dequeue_texts(self) -> list[str]:
        """As :func:`dequeue_text` has them."""
        facts = [[*each[:3], 0 if each[2] or each[4] else each[3], *each[4:]] for each in self.dequeues]
        return [",".join(map(str, each)) for each in facts]

    def sums(self) -> tuple[int, int, int]:
        """The number of messages made, and the bytes of all their contents and headers."""
        made = self.started.values()
        return len(made), sum(one.content_bytes for one in made), sum(one.header_bytes for one in made)

    def free(self) -> list[Message]:
        """Messages that no transaction has work on, in an order that is always the same."""
        return [message for message in self.messages.values() if not message.work]


# ---- The rows as text: the same facts for every reader


def message_text(row: dict[str, Any]) -> str:
    """The part of a closed message's row that the journal knows, without LSNs of transactions' work."""
    places = [
        Place(
            place["queue_id"],
            place["enqueue_tx"] or 0,
            0 if place["enqueue_tx"] else place["enqueue_lsn"],
            place["dequeue_tx"] or 0,
            0 if place["dequeue_tx"] or place["reason"] else place["dequeue_lsn"] or 0,
            place["reason"] or "",
            place["delivery_count"] or 0,
        ).text()
        for place in row["places"]
    ]
    facts = [row["id"], row["outcome"], row["header_bytes"], row["content_bytes"], row["place_count"]]
    return "|".join(map(str, [*facts, ";".join(places)]))


def dequeue_text(row: dict[str, Any]) -> str:
    """The part of a DEQUEUE record's row that the journal knows."""
    lsn = 0 if row["tx_id"] or row["reason"] else row["lsn"]
    numbers = [row["id"], row["queue_id"], row["tx_id"] or 0, lsn, row["reason"] or "", row["delivery_count"] or 0]
    return ",".join(map(str, numbers))


def md5(texts: Iterable[str]) -> list[str]:
    """The md5 of each text, sorted, for comparing two readers of the same rows."""
    return sorted(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() for text in texts)


# ---- The writer


class Writer:
    """The work of one of the processes."""

    def __init__(self, path: Path, seed: int, events: list[Event]) -> None:
        self.chance = random.Random(seed)
        self.journal = Journal(events)
        if events:
            self.journal.note(["restart"])
        self.before = len(events)
        self.store = logstore.open(path, segment_size=SEGMENT, durability="relaxed")
        for number in range(0 if events else QUEUES):
            self.store.declare_queue(f"queue {number}")
        self.handles = {tx.id: tx for tx in self.store.in_doubt()}

    def queues(self) -> list[logstore.Queue]:
        return sorted(self.store.queues(), key=lambda queue: queue.id)

    def content(self, size: int) -> bytes:
        return self.chance.randbytes(size)

    def publish(self) -> None:
        header = self.content(self.chance.choice((0, 5, 50)))
        queues = self.chance.sample(self.queues(), self.chance.choice((1, 1, 1, 2, 3)))
        handle = self.any_transaction() if self.chance.random() < 0.4 else None
        size = self.chance.choice(SIZES if handle is None else [*SIZES, LARGE])
        made = self.store.publish(queues, self.content(size), header=header, transaction=handle, wait=False)
        self.journal.note(["start", made, len(header), size, True])
        for queue in queues:
            self.journal.note(["enqueue", made, queue.id, handle.id if handle else 0, made])

    def any_transaction(self) -> logstore.Transaction | None:
        active = [self.handles[tx] for tx in self.journal.transactions if tx not in self.journal.prepared]
        return self.chance.choice(active) if active else None

    def begin(self) -> None:
        if len(self.journal.transactions) < 5:
            tx = self.store.begin(
                Xid(1, b"%d" % self.chance.getrandbits(60), b"") if self.chance.random() < 0.6 else None
            )
            self.handles[tx.id] = tx
            self.journal.note(["begin", tx.id])

    def settle(self) -> None:
        if not self.journal.transactions:
            return
        tx = self.handles[self.chance.choice(list(self.journal.transactions))]
        if tx.xid is not None and tx.id not in self.journal.prepared:
            tx.end()
            tx.prepare()
            self.journal.note(["prepare", tx.id])
            if self.chance.random() < 0.5:
                return  # in doubt
        what = self.chance.choice(("commit", "commit", "rollback"))
        getattr(tx, what)()
        self.journal.note([what, tx.id])

    def stage(self) -> None:
        size = self.chance.choice([*SIZES, LARGE])
        made = self.store.stage(b"staged", self.content(size))
        self.journal.note(["start", made, 6, size, False])
        if self.chance.random() < 0.5:
            self.store.append_content(made, self.content(size))
            self.journal.note(["append", made, size])

    def use_staged(self) -> None:
        staged = [message for message in self.journal.free() if not message.enqueued]
        if not staged:
            return
        message = self.chance.choice(staged)
        if self.chance.random() < 0.3:
            self.store.destroy(message.id)
            self.journal.note(["destroy", message.id])
            return
        handle = self.any_transaction() if self.chance.random() < 0.5 else None
        queue = self.chance.choice(self.queues())
        lsn = self.store.enqueue(message.id, queue, handle)
        self.journal.note(["enqueue", message.id, queue.id, handle.id if handle else 0, lsn])

    def dequeue(self) -> None:
        open_ones = [(one, place.queue_id) for one in self.journal.free()[2:] for place in one.places if place.open]
        if not open_ones:
            return
        message, queue_id = self.chance.choice(open_ones)
        handle = self.any_transaction() if self.chance.random() < 0.3 else None
        queue = next(queue for queue in self.queues() if queue.id == queue_id)
        lsn = self.store.dequeue(message.id, queue, handle, wait=False)
        self.journal.note(["dequeue", message.id, queue_id, handle.id if handle else 0, lsn, "", 0])

    def consume(self) -> None:
        queue = self.chance.choice(self.queues())
        for delivery in queue.acquire(self.chance.randint(1, 4)):
            kept = next(iter(self.journal.messages))  # the first message stays for ever
            if delivery.id == kept or self.chance.random() < 0.3:
                delivery.release(unseen=True)  # else the place would have a count that only the store knows
                continue
            what = self.chance.choice(("accept", "accept", "reject"))
            getattr(delivery, what)()
            facts = [delivery.id, queue.id, 0, 0, f"{what}ed", delivery.delivery_count]
            self.journal.note(["dequeue", *facts])

    def delete_queue(self) -> None:
        kept = {place.queue_id for place in next(iter(self.journal.messages.values())).places}
        # An open drops work on a deleted queue, and with it a staged message that has no other: in doubt or not.
        staged = [one for one in self.journal.messages.values() if not one.enqueued and not one.published]
        kept |= {work[1] for one in staged for work in one.work}
        others = [one for one in self.queues() if one.id not in kept]
        if not others:
            return
        queue = self.chance.choice(others)
        self.store.delete_queue(queue)
        self.journal.note(["delete_queue", queue.id])
        self.store.declare_queue(f"queue {queue.id} anew")

    def run(self, steps: int) -> None:
        """Run this many steps, then enough short-lived messages that the base advances."""
        acts = [self.publish] * 6 + [self.dequeue, self.consume, self.begin, self.settle] * 3
        acts += [self.stage, self.use_staged] * 2
        self.publish() if not self.journal.messages else None
        for step in range(steps):
            self.chance.choice(acts)()
            if step == steps // 2:
                self.delete_queue()
        queue = self.queues()[-1]
        for _ in range(120):
            made = self.store.publish(queue, self.content(16_000), wait=False)
            self.journal.note(["start", made, 0, 16_000, True])
            self.journal.note(["enqueue", made, queue.id, 0, made])
            lsn = self.store.dequeue(made, queue, wait=False)
            self.journal.note(["dequeue", made, queue.id, 0, lsn, "", 0])


def _epoch(path: Path, seed: int, events: list[Event], steps: int, kept: list[object]) -> list[Event]:
    writer = Writer(path, seed, events)
    kept.append(writer)
    writer.run(steps)
    writer.store.compact()
    writer.publish()  # a batch after the last one proves that it was durable
    writer.store.force()
    return writer.journal.events[writer.before :]


def write_epoch(path: Path, seed: int, events: list[Event], *, steps: int = 150) -> list[Event]:
    """The events so far, and those of one more process, which is killed after its work.

    A reader in between has a hold on the log, so that nothing is recycled before it was read.
    """
    return events + list(and_then_killed(_epoch, path, seed, events, steps))


def new_store(path: Path) -> None:
    """For the first epoch; so that a hold can be taken before it."""
    logstore.open(path, segment_size=SEGMENT).close()


# ---- The same texts from Parquet files, made by independent software

_DUCKDB_PLACE = """
concat_ws(',', p.queue_id, coalesce(p.enqueue_tx, 0), if(p.enqueue_tx is null, p.enqueue_lsn, 0),
    coalesce(p.dequeue_tx, 0), if(p.dequeue_tx is null and p.reason is null, coalesce(p.dequeue_lsn, 0), 0),
    coalesce(p.reason, ''), coalesce(p.delivery_count, 0))
"""
_DUCKDB_MESSAGES = f"""
select md5(concat_ws('|', id, outcome, header_bytes, content_bytes, place_count,
    array_to_string(list_transform(places, lambda p: {_DUCKDB_PLACE}), ';'))) from read_parquet($files)
"""
_DUCKDB_DEQUEUES = """
select md5(concat_ws(',', id, queue_id, coalesce(tx_id, 0), if(tx_id is null and reason is null, lsn, 0),
    coalesce(reason, ''), coalesce(delivery_count, 0))) from read_parquet($files) where type = 'MESSAGE_DEQUEUE'
"""
_DUCKDB_SUMS = """
select count(*), count(distinct id), sum(content_bytes)::bigint, sum(header_bytes)::bigint from read_parquet($files)
where not relocated and type in ('MESSAGE_START', 'MESSAGE_CHUNK')
"""


class ByDuckDB:
    """DuckDB's texts from the files of both data sets."""

    def __init__(self, records: list[str], messages: list[str]) -> None:
        import duckdb

        self._query = lambda words, files: duckdb.connect().execute(words, {"files": files}).fetchall()
        self._records, self._messages = records, messages

    def messages(self) -> list[str]:
        """The md5 of every message's text, sorted."""
        return sorted(row[0] for row in self._query(_DUCKDB_MESSAGES, self._messages))

    def dequeues(self) -> list[str]:
        """The md5 of every dequeue's text, sorted."""
        return sorted(row[0] for row in self._query(_DUCKDB_DEQUEUES, self._records))

    def sums(self) -> tuple[int, ...]:
        """Of original START and CHUNK records: how many, of how many messages, bytes of content and of headers."""
        return tuple(self._query(_DUCKDB_SUMS, self._records)[0])


class ByPolars:
    """Polars' texts from the files of both data sets."""

    def __init__(self, records: list[str], messages: list[str]) -> None:
        import polars as pl

        self._pl = pl
        self._records = pl.scan_parquet(records)
        self._messages = pl.scan_parquet(messages)

    def _md5(self, frame: Any, text: Any) -> list[str]:
        return md5(frame.select(text.alias("text")).collect()["text"].to_list())

    def messages(self) -> list[str]:
        """The md5 of every message's text, sorted."""
        pl = self._pl
        of = pl.element().struct.field
        none = pl.lit(0, pl.Int64)
        direct = of("dequeue_tx").is_null() & of("reason").is_null()
        place = pl.concat_str(
            of("queue_id"),
            of("enqueue_tx").fill_null(0),
            pl.when(of("enqueue_tx").is_null()).then(of("enqueue_lsn")).otherwise(none),
            of("dequeue_tx").fill_null(0),
            pl.when(direct).then(of("dequeue_lsn").fill_null(0)).otherwise(none),
            of("reason").cast(pl.String).fill_null(""),
            of("delivery_count").fill_null(0),
            separator=",",
        )
        facts = [
            pl.col(name).cast(pl.String) for name in ("id", "outcome", "header_bytes", "content_bytes", "place_count")
        ]
        places = pl.col("places").list.eval(place).list.join(";")
        return self._md5(self._messages, pl.concat_str(*facts, places, separator="|"))

    def dequeues(self) -> list[str]:
        """The md5 of every dequeue's text, sorted."""
        pl = self._pl
        direct = pl.col("tx_id").is_null() & pl.col("reason").is_null()
        text = pl.concat_str(
            "id",
            "queue_id",
            pl.col("tx_id").fill_null(0),
            pl.when(direct).then("lsn").otherwise(pl.lit(0, pl.Int64)),
            pl.col("reason").cast(pl.String).fill_null(""),
            pl.col("delivery_count").fill_null(0),
            separator=",",
        )
        return self._md5(self._records.filter(pl.col("type").cast(pl.String) == "MESSAGE_DEQUEUE"), text)

    def sums(self) -> tuple[int, ...]:
        """Of original START and CHUNK records: how many, of how many messages, bytes of content and of headers."""
        pl = self._pl
        contents = pl.col("type").cast(pl.String).is_in(["MESSAGE_START", "MESSAGE_CHUNK"]) & ~pl.col("relocated")
        told = self._records.filter(contents).select(
            pl.len(), pl.col("id").n_unique(), pl.sum("content_bytes"), pl.sum("header_bytes").cast(pl.Int64)
        )
        return tuple(told.rename({"len": "records", "id": "messages"}).collect().row(0))
