"""A transaction keeps its identity when its start, its segments and the messages that it worked on are gone.

An outcome always follows its operations, and only the position connects them. These tests try to break that: with
transactions far longer than the log, starts far below the base, kills in between, reused xids, and threads that race
for one outcome. Damaged and missing records are tested in test_transaction_damage.py.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.killed import and_then_killed, quick_directory, remove
from kit.simulated import ALL_LOST, BY_SEED, Disk
from kit.store_model import ENQUEUE, State, shown_by
from kit.stores import SMALL_SEGMENT, contents
from logstore import Xid, errors
from logstore.codec.records import Record, RecordType
from logstore.inspect import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logstore import MessageStore, Transaction

OUTCOMES = (RecordType.TX_COMMIT, RecordType.TX_ROLLBACK)
STARTS = (RecordType.TX_START, RecordType.DTX_START)


@pytest.fixture
def path() -> Iterator[Path]:
    made = quick_directory("logstore-identity-")
    yield made / "store"
    remove(made)


def turn_over(store: MessageStore, segments: int, queue: str = "noise") -> None:
    """Publishes and consumes until the log has grown by this many segments; the base follows if nothing holds it."""
    until = store.next_lsn + segments * store.segment_size
    while store.next_lsn < until:
        ids = store.publish_many(queue, [bytes(store.segment_size // 40)] * 8, wait=False)
        store.dequeue_many(ids, queue, wait=False)
    store.force()
    move_base(store)


def move_base(store: MessageStore) -> None:
    """Moves the base past dead segments without relocation, unlike a compaction: the next durable batch names it."""
    store.force()
    store.dequeue(store.publish("noise", b""), "noise")


WHOLE_LOG = 32 << 20  # a segment so large that nothing here causes relocation


def open_with_noise(path: Path, **options: Any) -> MessageStore:
    options.setdefault("segment_size", SMALL_SEGMENT)
    store = logstore.open(path, **options)
    for name in ("q", "r", "noise"):
        store.declare_queue(name)
    return store


# ---- long transactions ----


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_transaction_over_many_segments_is_one_transaction_through_every_restart(path: Path, outcome: str) -> None:
    rounds = 6

    def work(path: Path, kept: list[Any]) -> None:
        store = open_with_noise(path)
        old = list(store.publish_many("q", [b"old %d" % i for i in range(rounds)]))
        turn_over(store, 2)
        distributed, local = store.begin(Xid(1, b"long")), store.begin()
        kept += [store, distributed, local]
        for number in range(rounds):
            turn_over(store, 1)
            store.publish("q", b"new %d" % number, transaction=distributed)
            store.dequeue(old[number], "q", distributed)
            store.enqueue(old[number], "r", distributed)
            store.publish("r", b"local %d" % number, transaction=local)
        distributed.end()
        distributed.prepare()
        turn_over(store, 1)
        assert store.next_lsn - distributed.id > rounds * SMALL_SEGMENT

    def resolve(path: Path, kept: list[Any]) -> None:
        store = logstore.open(path)
        kept.append(store)
        assert store.recovery.transactions_abandoned == 1
        assert [(m.content, m.locked) for m in store.messages("q")] == [(b"old %d" % i, True) for i in range(rounds)]
        assert contents(store.queue("r")) == []
        (tx,) = store.in_doubt()
        assert (tx.xid, tx.operations) == (Xid(1, b"long"), 3 * rounds)
        turn_over(store, 3)
        getattr(tx, outcome)()

    def look(path: Path, turns: int, kept: list[Any]) -> None:
        store = logstore.open(path)
        kept.append(store)
        assert store.in_doubt() == []
        old, new = [b"old %d" % i for i in range(rounds)], [b"new %d" % i for i in range(rounds)]
        expected = (new, old) if outcome == "commit" else (old, [])
        assert (contents(store.queue("q")), contents(store.queue("r"))) == expected
        turn_over(store, turns)

    and_then_killed(work, path)
    and_then_killed(resolve, path)
    for turns in (1, 4, 1):
        and_then_killed(look, path, turns)


@pytest.mark.parametrize("distributed", [False, True], ids=["local", "distributed"])
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_work_far_above_a_start_that_the_base_has_passed_has_its_outcome(
    path: Path, outcome: str, distributed: bool
) -> None:
    """The start is recycled while work and outcome stay: the work names an LSN that is no longer in the log."""

    def work(path: Path, kept: list[Any]) -> tuple[int, int]:
        store = open_with_noise(path)
        kept.append(store)
        early = store.publish("q", b"early")
        tx = store.begin(Xid(1, b"far") if distributed else None)
        brief = store.publish("r", b"dies in its first transaction", transaction=tx)
        store.dequeue(brief, "r", tx)
        turn_over(store, 4)
        kept_one = store.publish("q", b"late", transaction=tx)
        store.dequeue(early, "q", tx)
        stays = store.publish(["q", "r"], b"there")
        store.dequeue(stays, "q", tx)
        if distributed:
            tx.end()
            if outcome == "commit":
                tx.prepare()
        getattr(tx, outcome)()
        if outcome == "rollback":
            store.dequeue(early, "q")
        move_base(store)
        turn_over(store, 1)
        assert tx.id < store.base_lsn <= stays
        assert outcome == "rollback" or store.base_lsn <= kept_one
        return tx.id, store.base_lsn

    def look(path: Path, kept: list[Any]) -> list[list[str]]:
        store = logstore.open(path)
        kept.append(store)
        assert store.in_doubt() == []
        assert store.stats()["transactions"] == 0
        store.begin(Xid(1, b"far")).rollback()
        return [[content.decode() for content in contents(store.queue(name))] for name in ("q", "r")]

    tx_id, base = and_then_killed(work, path)
    with Reader(path) as reader:
        records = list(reader.records())
    mine = [record for record in records if record.id == tx_id]
    assert not any(record.type in STARTS for record in mine)
    assert {record.type for record in mine} >= {RecordType[f"TX_{outcome.upper()}"]}
    assert [record for record in records if getattr(record.body, "tx_id", 0) == tx_id]
    assert all(record.lsn >= base for record in records)
    for _ in range(3):
        assert and_then_killed(look, path) == ([["late"], ["there"]] if outcome == "commit" else [["there"], ["there"]])


def test_an_id_is_never_reused_even_if_the_transaction_never_reached_the_disk(path: Path) -> None:
    disk = Disk()
    highest = 0
    for seed in range(1, 9):
        store = disk.open(path)
        found = [store.begin(), store.begin(Xid(1, b"g"))]
        for tx in found:
            store.publish(store.declare_queue("q"), b"x", transaction=tx)
        assert all(tx.id > highest for tx in found)
        highest = max(tx.id for tx in found)
        disk = disk.crash(ALL_LOST if seed % 2 else BY_SEED, seed)
    assert contents(disk.open(path).queue("q")) == []


def test_a_reused_xid_names_only_its_last_transaction(path: Path) -> None:
    """Each use of the xid has its own outcome, whatever happened to earlier uses."""
    disk, xid = Disk(), Xid(-1, b"again", b"\0")
    store = disk.open(path)
    store.declare_queue("q")
    expected: list[bytes] = []
    ids = set()
    fates = ["commit", "rollback", "one-phase", "abandoned", "commit after a crash", "rollback after a crash", "killed"]
    for number, fate in enumerate(fates * 4):
        tx = store.begin(xid)
        ids.add(tx.id)
        store.publish("q", b"%d" % number, transaction=tx)
        if fate not in ("abandoned", "killed"):
            tx.end()
        if fate == "one-phase":
            tx.commit()
        elif fate == "abandoned":
            del tx
        elif fate == "killed":
            store.force()
            disk = disk.crash()
            store = disk.open(path)
        else:
            tx.prepare()
            if fate.endswith("crash"):
                disk = disk.crash()
                store = disk.open(path)
                (tx,) = store.in_doubt()
                assert tx.xid == xid
            getattr(tx, fate.split()[0])()
        expected += [b"%d" % number] if fate.startswith(("commit", "one")) else []
        assert contents(store.queue("q")) == expected
        assert store.in_doubt() == []
    assert len(ids) == len(fates) * 4
    store = disk.crash().open(path)
    assert contents(store.queue("q")) == expected
    store.close()


class Churn:
    """Overlapping transactions across many tiny segments, against the model, with restarts at any point."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.chance = path, random.Random(seed)
        self.disk = Disk()
        self.store = self.disk.open(path)
        self.model = State()
        self.txs: dict[int, Transaction] = {}
        self.queues = [self.store.declare_queue(name).id for name in ("a", "b")]
        for queue in self.queues:
            self.model.apply("declare_queue", queue)
        self.number = 0
        self.recycled = 0
        self.outlived = 0  # transactions that ended more than three segments after their start
        self.passed: set[int] = set()  # those whose start the base had passed at a restart

    def handle(self, queue: int) -> Any:
        return next(known for known in self.store.queues() if known.id == queue)

    def tx(self, of: int | None) -> Transaction | None:
        return None if of is None else self.txs[of]

    def active(self) -> list[int | None]:
        return [None, None, *(tx for tx, known in self.model.txs.items() if known.state == "active")]

    def step(self) -> None:
        kind = self.chance.random()
        if kind < 0.08 and len(self.model.txs) < 6:
            self.begin()
        elif kind < 0.45:
            self.publish()
        elif kind < 0.95:
            self.work()
        elif self.model.txs:
            self.finish(self.chance.choice(sorted(self.model.txs)))

    def begin(self) -> None:
        self.number += 1
        xid = Xid(self.number, b"churn") if self.chance.random() < 0.5 else None
        tx = self.store.begin(xid)
        self.txs[tx.id] = tx
        self.model.apply("begin", tx.id, xid)

    def publish(self) -> None:
        self.number += 1
        content = b"%d " % self.number + bytes(self.chance.randrange(3000))
        queues = sorted(self.chance.sample(self.queues, self.chance.choice([1, 1, 2])))
        into = self.chance.choice(self.active())
        targets = [self.handle(queue) for queue in queues]
        key = self.store.publish(targets, content, transaction=self.tx(into), wait=False)
        self.model.apply("publish", key, content, b"", queues, into)

    def work(self) -> None:
        """Mostly ends the oldest, so that segments become dead; sometimes relocates one."""
        queue = self.chance.choice(self.queues)
        places = [place.key for place in self.model.queues[queue]]
        for key in places[:3] if self.chance.random() < 0.8 else self.chance.sample(places, min(2, len(places))):
            into = self.chance.choice(self.active())
            self.attempt("dequeue", key, queue, into)
            if into is not None and self.chance.random() < 0.5:
                self.attempt("enqueue", key, self.chance.choice(self.queues), into)

    def attempt(self, kind: str, key: int, queue: int, into: int | None) -> None:
        refused = self.model.refusal(kind, key, queue, into)
        call = getattr(self.store, kind)
        if refused is not None:
            with pytest.raises(getattr(errors, refused)):
                call(key, self.handle(queue), self.tx(into), wait=False)
            return
        lsn = call(key, self.handle(queue), self.tx(into), wait=False)
        self.model.apply(kind, key, *(([queue], into, lsn) if kind == ENQUEUE else (queue, into)))

    def finish(self, tx: int) -> None:
        known = self.model.txs[tx]
        if known.xid is not None and known.state == "active":
            self.txs[tx].end()
            self.model.apply("state", tx, "ended")
            if self.chance.random() < 0.6:
                self.txs[tx].prepare(wait=False)
                self.model.apply("state", tx, "prepared")
                return
        outlived = self.store.next_lsn - tx > 3 * self.store.segment_size
        self.outlived += outlived
        if outlived:
            self.passed.add(tx)
        if self.chance.random() < 0.6:
            self.txs.pop(tx).commit(wait=False)
            self.model.apply("commit", tx, self.store.next_lsn)
        else:
            self.txs.pop(tx).rollback(wait=False)
            self.model.apply("rollback", tx)

    def restart(self) -> int:
        """Returns the number of ended transactions whose start lay below the base of the opened log."""
        self.recycled += self.store.stats()["segments_recycled"]
        orderly = self.chance.random() >= 0.7
        if not orderly:
            self.store.force()
            self.disk = self.disk.crash(self.chance.choice([ALL_LOST, BY_SEED]), self.chance.randrange(1, 1000))
        else:
            self.store.close()
        self.store = self.disk.open(self.path)
        self.model = self.model.recovered(set(self.queues), orderly=orderly)
        self.txs = {tx.id: tx for tx in self.store.in_doubt()}
        assert shown_by(self.store) == self.model.shown({})
        return sum(tx < self.store.recovery.base_lsn for tx in self.passed)


@pytest.mark.parametrize("seed", range(6))
def test_outcomes_hold_while_segments_are_recycled_under_overlapping_transactions(path: Path, seed: int) -> None:
    churn = Churn(path, seed)
    below = 0
    rounds = 0
    while rounds < 12 or (churn.outlived <= 3 and rounds < 60):  # segments are recycled in the background
        for _ in range(90):
            churn.step()
        below += churn.restart()
        rounds += 1
    assert churn.recycled > 3
    assert churn.outlived > 3
    assert below > 0
    for tx in list(churn.model.txs):
        churn.finish(tx)
    assert shown_by(churn.store) == churn.model.shown({})
    churn.restart()
    churn.store.close()


# ---- by position alone ----


def check_positions(records: list[Record]) -> dict[int, RecordType]:
    """The outcome of each transaction in the log; checks that its records lie between its start and its outcome."""
    started: set[int] = set()
    outcome: dict[int, RecordType] = {}
    prepared: set[int] = set()
    last: dict[int, int] = {}
    for record in records:
        tx_id = getattr(record.body, "tx_id", 0)
        if tx_id:
            assert tx_id in started
            assert tx_id not in outcome, f"an operation at {record.lsn} follows the outcome of {tx_id}"
            assert tx_id not in prepared
        if record.type in STARTS:
            assert record.id == record.lsn
            started.add(record.id)
        elif record.type in (RecordType.TX_END, RecordType.TX_PREPARE, *OUTCOMES):
            assert record.id in started
            assert record.id not in outcome
            if record.type == RecordType.TX_PREPARE:
                prepared.add(record.id)
            elif record.type in OUTCOMES:
                outcome[record.id] = RecordType(record.type)
        elif record.type == RecordType.TX_DELETE:
            assert record.id in outcome
        if record.id in started:
            assert record.prev == last.get(record.id, 0)
            last[record.id] = record.lsn
    return outcome


def test_every_outcome_follows_its_operations_when_many_threads_work(path: Path) -> None:
    store = open_with_noise(path, segment_size=WHOLE_LOG)
    store.publish("r", b"holds the base where it is")

    def work(name: int) -> None:
        chance = random.Random(name)
        for number in range(40):
            tx = store.begin(Xid(name, b"%d" % number) if chance.random() < 0.5 else None)
            for _ in range(chance.randrange(1, 6)):
                key = store.publish("q", bytes(chance.randrange(3000)), transaction=tx)
                if chance.random() < 0.3:
                    store.dequeue(key, "q", tx)
            if tx.xid is not None:
                tx.end()
                if chance.random() < 0.5:
                    tx.prepare()
            (tx.commit if chance.random() < 0.6 else tx.rollback)()

    run_threads(work, 6)
    store.close()
    with Reader(path) as reader:
        outcome = check_positions(list(reader.records()))
    assert len(outcome) == 240
    assert set(outcome.values()) == set(OUTCOMES)


def run_threads(work: Any, count: int) -> None:
    failed: list[BaseException] = []

    def guarded(name: int) -> None:
        try:
            work(name)
        except BaseException as problem:  # noqa: BLE001 - raised in the test below
            failed.append(problem)

    threads = [threading.Thread(target=guarded, args=(name,)) for name in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not any(thread.is_alive() for thread in threads)
    if failed:
        raise failed[0]


def test_work_that_races_with_its_outcome_comes_before_it_or_is_refused(path: Path) -> None:
    """Two threads on one transaction are misuse; it may be refused, but may never split the transaction."""
    store = open_with_noise(path, segment_size=WHOLE_LOG)
    store.publish("r", b"holds the base where it is")
    taken: dict[int, list[int]] = {}
    refused = [0]

    for number in range(120):
        tx = store.begin()
        mine = taken.setdefault(tx.id, [])
        gate = threading.Barrier(2)

        def race(
            name: int,
            tx: Transaction = tx,
            mine: list[int] = mine,
            gate: threading.Barrier = gate,
            least: int = number % 4,
        ) -> None:
            gate.wait(60)
            if name == 1:
                deadline = time.monotonic() + 60
                while len(mine) < least and time.monotonic() < deadline:
                    time.sleep(0.0001)
                (tx.commit if tx.id % 16 else tx.rollback)(wait=False)
                return
            with pytest.raises(errors.TransactionEnded):
                while True:
                    mine.append(store.publish("q", b"%d" % tx.id, transaction=tx))
            refused[0] += 1

        run_threads(race, 2)
        assert tx.state in ("committed", "rolled_back")
    store.close()
    assert refused[0] == 120
    with Reader(path) as reader:
        outcome = check_positions(list(reader.records()))
    assert sum(map(len, taken.values())) > 0
    store = logstore.open(path)
    visible = [message.id for message in store.messages("q")]
    committed = [key for tx, mine in taken.items() if outcome[tx] == RecordType.TX_COMMIT for key in mine]
    assert visible == committed
    store.close()


def test_of_two_threads_that_race_for_the_outcome_one_gives_it(path: Path) -> None:
    store = open_with_noise(path)
    expected = []
    for number in range(80):
        tx = store.begin(Xid(number, b"race"))
        store.publish("q", b"%d" % number, transaction=tx)
        tx.end()
        tx.prepare(wait=False)
        gate, won = threading.Barrier(2), []

        def settle(name: int, tx: Transaction = tx, gate: threading.Barrier = gate, won: list[str] = won) -> None:
            how = ("commit", "rollback")[name]
            gate.wait(60)
            try:
                getattr(tx, how)(wait=False)
            except errors.TransactionEnded:
                return
            won.append(how)

        run_threads(settle, 2)
        assert len(won) == 1
        assert tx.state == {"commit": "committed", "rollback": "rolled_back"}[won[0]]
        expected += [b"%d" % number] if won == ["commit"] else []
    assert contents(store.queue("q")) == expected
    assert store.in_doubt() == []
    store.close()
    store = logstore.open(path)
    assert contents(store.queue("q")) == expected
    store.close()
