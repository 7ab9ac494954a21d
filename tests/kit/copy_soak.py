"""A soak of three copies in one process: reign after reign, all kinds of work, and a model that knows what is durable.

Each reign begins with an election of the most up to date of a majority. The copy that leads publishes, consumes, runs
transactions in two phases, declares and deletes queues; one message stays on its queue for ever. A follower lags, is
closed and opened again, or takes a checkpoint. At the end of most reigns the leader has lost its majority, so what it
did last has an unknown outcome, and the next leader cuts some of it. Now and then a follower's copy is removed, or it
falls so far behind that only an update brings it back (kit/copy_updates.py), while the leader goes on.

The catalog is not in the log here: what changes it copies it to all copies.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import struct
import threading
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import logstore
from kit.copy_updates import Behind
from kit.patience import wait_until
from logstore import errors
from logstore.cluster.replica import HEADER_BYTES, Batch, Copy, LeadingStore, create, detach
from logstore.inspect import Reader
from logstore.inspect.reader import segment_name
from logstore.verify.verification import Verification

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logstore import MessageStore

COPIES = 3
CLUSTER = bytes(range(16))
SEGMENT = 512 << 10
KEPT = 4000  # batches; a follower never lags further
INDEX_AT = 88  # in a batch's bytes, before the known durable LSN
TRANSIENT = 3  # queues that come and go


@dataclass
class Branch:
    """A transaction in two phases, and what is known of it."""

    xid: logstore.Xid
    put: list[int]
    taken: list[int]
    state: str  # active, prepared, or the outcome that was asked for and not confirmed: preparing, committing, undoing


@dataclass
class Model:
    """What the queue ``orders`` must have, and what it may have."""

    certain: dict[int, bytes] = field(default_factory=dict)
    maybe_put: set[bytes] = field(default_factory=set)
    maybe_taken: set[int] = field(default_factory=set)
    branches: list[Branch] = field(default_factory=list)

    def settle(self, store: MessageStore) -> None:
        """Compares the store with what is known, and learns what became of the rest."""
        doubtful = {transaction.xid for transaction in store.in_doubt()}
        known = {branch.xid for branch in self.branches}
        assert doubtful <= known, f"in doubt, and never prepared: {doubtful - known}"
        for branch in list(self.branches):
            if branch.xid in doubtful:
                branch.state = "prepared"
                continue
            self.branches.remove(branch)
            assert branch.state != "prepared", f"the prepared transaction {branch.xid} is gone"
            self.end(branch, committed=branch.state == "committing")
        found = {one.id: bytes(one.content) for one in store.messages("orders", load=True)}
        lost = {key: body for key, body in self.certain.items() if found.get(key) != body}
        assert set(lost) <= self.maybe_taken, f"lost: {sorted(set(lost) - self.maybe_taken)[:5]}"
        more = [key for key, body in found.items() if key not in self.certain and body not in self.maybe_put]
        assert not more, f"nobody put them: {more[:5]}"
        self.certain = found
        self.compared += len(found)
        self.maybe_put, self.maybe_taken = set(), set()

    def end(self, branch: Branch, *, committed: bool) -> None:
        """The branch has an outcome, which settle then compares with the queue."""
        if committed:
            self.certain |= {key: self.bodies.pop(key) for key in branch.put}
            for key in branch.taken:
                self.certain.pop(key, None)

    bodies: dict[int, bytes] = field(default_factory=dict)  # of messages that branches put
    compared: int = 0  # messages, with what is known of them

    @property
    def free(self) -> list[int]:
        """Messages that no branch has taken and that surely are there."""
        held = {key for branch in self.branches for key in branch.taken} | self.maybe_taken
        return [key for key in self.certain if key not in held]


class Soak:
    """Three copies and the model. ``run`` does reigns; ``finish`` judges each copy, also as a single store."""

    def __init__(self, place: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.place = place
        self.members = [place / f"member-{number + 1}" for number in range(COPIES)]
        self.paths = [member / "copy-1" for member in self.members]
        self.model = Model()
        for member in self.members:
            member.mkdir()
        with logstore.open(self.paths[0], segment_size=SEGMENT) as store:
            store.declare_queue("orders")
            store.publish(store.declare_queue("stuck"), b"for ever")
        for path in self.paths[1:]:
            shutil.copytree(self.paths[0], path)
        for number, member in enumerate(self.members):
            create(member, number + 1, CLUSTER)
        self.copies = [Copy.open(member) for member in self.members]
        self.terms: list[dict[int, int]] = [{} for _ in self.paths]  # of each copy's batches, by index
        self.sent: dict[tuple[int, int], Batch] = {}  # by index and term
        self.reached: set[int] = set(range(COPIES))
        self.behind: Behind | None = None
        self.serves = False
        self.is_last = False  # the reign after which all copies are equal
        self.number: int = -1  # of the copy that leads; -1: none
        self.leader: LeadingStore | None = None
        self.lock = threading.Lock()  # on all of the above
        self.stops = threading.Event()
        self.mover = threading.Thread()
        self.failed: BaseException | None = None
        self.durable = 0  # the index that a majority has
        self.names: list[str] = []  # queues that come and go
        self.made = 0
        names = (
            "reigns",
            "published",
            "taken",
            "prepared",
            "unknown",
            "waited",
            "cut",
            "reopened",
            "checkpoints",
            "queues",
            "updates",
            "removed",
            "given up",
            "recycled",
            "refused",
            "waited for a sender",
            "bytes",
        )
        self.counts = dict.fromkeys(names, 0)

    # ---- batches

    def _move(self, leader: LeadingStore) -> None:
        try:
            while not self.stops.is_set():
                with self.lock:
                    moved = self._step(leader)
                if not moved:
                    self.stops.wait(0.001)
        except BaseException as problem:  # the calls that wait for it must end
            self.failed = problem
            leader.cease()
            raise

    def _step(self, leader: LeadingStore) -> bool:
        mine = self.terms[self.number]
        handed = self._bring()
        while (batch := leader.next()) is not None:
            self.sent[batch.index, batch.term] = batch
            mine[batch.index] = batch.term
            self.sent.pop((batch.index - KEPT, mine.pop(batch.index - KEPT, 0)), None)
            handed = True
        ends = [self._send(number) for number in self.followers()]
        forced = min(leader.forced, max(ends, default=0))
        if forced <= self.durable or mine[forced] != max(mine.values()):  # of an older term: only with one of this term
            return handed
        self.durable = forced
        end_lsn = self.sent[forced, mine[forced]].end_lsn
        leader.majority_has(end_lsn)
        for number, end in zip(self.followers(), ends, strict=True):
            if end >= forced and self.random.random() < 0.7:
                self.copies[number].durable(end_lsn)
        return True

    def _bring(self) -> bool:
        """A step of the update; whether there is one under way."""
        if self.behind is None or not self.serves:
            return False
        if self.behind.step():
            self.behind = None
        return self.behind is not None and self.behind.update is not None

    def place_of(self, number: int) -> None:
        """The directory of the member's present copy, which changes with a removal and an update."""
        self.paths[number] = self.members[number] / f"copy-{self.copies[number].member().copy}"

    def up_to_date(self) -> list[int]:
        """The copies that get the leader's batches, if they are reached."""
        return [number for number in range(COPIES) if self.behind is None or number != self.behind.number]

    def followers(self) -> list[int]:
        return [number for number in self.up_to_date() if number != self.number and number in self.reached]

    def _send(self, number: int) -> int:
        """Sends the copy what it lacks, after a cut if it has what the leader's log has not. Its last index."""
        copy, its, mine = self.copies[number], self.terms[number], self.terms[self.number]
        end, term = max(its, default=0), max(mine.values())
        if copy.member().term < term:
            copy.vote(term, 0)
        if its and mine.get(end) != its[end]:
            common = max((index for index in its if mine.get(index) == its[index]), default=0)
            copy.cut(common)
            self.counts["cut"] += end - common
            for index in range(common + 1, end + 1):
                del its[index]
            end = common
        while end + 1 in mine:
            end += 1
            copy.take(self.sent[end, mine[end]])
            its[end] = mine[end]
            its.pop(end - KEPT, None)
        return end

    # ---- one reign

    def lead(self) -> MessageStore:
        """The most up to date of two copies leads."""
        with self.lock:
            able = self.up_to_date()
            for number in able:
                end = self.copies[number].info().index
                self.terms[number] = {index: term for index, term in self.terms[number].items() if index <= end}
            voters = self.random.sample(able, 2)
            self.number = max(voters, key=lambda number: self._tail(number))
            least = max(self.copies[number].info().least_term for number in able)
            term = max(least, *(copy.member().term + 1 for copy in self.copies))
            term += self.random.randrange(3)
            for number in voters:
                self.copies[number].vote(term, self.number + 1)
            self.reached = set(voters)
            copy = self.copies[self.number]
            config = b"1,2,3" if copy.info().index == 0 else None
            self.leader = leader = copy.lead(term, config)
        self.stops.clear()
        self.mover = threading.Thread(target=self._move, args=(leader,))
        self.mover.start()
        wait_until(lambda: self.failed or leader.serve(), "the first batch is durable")
        store = leader.serve()
        assert store is not None, self.failed
        with self.lock:
            self.reached = set(range(COPIES))
            self.serves = True
        return store

    def _tail(self, number: int) -> tuple[int, int]:
        info = self.copies[number].info()
        return info.term, info.index

    def cease(self) -> None:
        """The leader follows; what no majority has stays in its log for now."""
        assert self.leader is not None
        self.stops.set()
        self.mover.join()
        assert self.failed is None, self.failed
        number, self.number, self.serves = self.number, -1, False
        self.leader.cease()
        self.leader = None
        self.copies[number].close()
        self._learn(number)
        self.copies[number] = Copy.open(self.members[number])

    def _learn(self, number: int) -> None:
        """The batches that the leader wrote after the last one that was sent, from its files."""
        its, path = self.terms[number], self.paths[number]
        last = max(its)
        with Reader(path, from_lsn=self.sent[last, its[last]].end_lsn, undurable=True) as reader:
            for one in reader.batches():
                index, known_durable_lsn = struct.unpack_from("<QQ", one.raw, INDEX_AT)
                begins = one.lsn == one.first_lsn + HEADER_BYTES
                with (path / segment_name(one.lsn, SEGMENT)).open("rb") as file:
                    header = file.read(HEADER_BYTES) if begins else None
                numbers = (one.epoch, index, one.lsn, one.end_lsn, one.first_lsn, known_durable_lsn)
                self.sent[index, one.epoch] = Batch(*numbers, header, one.raw)
                its[index] = one.epoch

    def run(self, until: Callable[[], bool]) -> None:
        """Reigns until ``until`` says so, and one more, which reaches all copies."""
        while True:
            last = self.is_last = until()
            store = self.lead()
            self.model.settle(store)
            assert [bytes(one.content) for one in store.messages("stuck", load=True)] == [b"for ever"]
            for _ in range(self.random.randrange(2, 40)):
                self._work(store)
                if not last:
                    self._disturb()
            self.counts["reigns"] += 1
            if last:
                store.force()
                self.reach_all()
                self.model.settle(store)
                self.cease()
                return
            if self.random.random() < 0.7:
                self._lose_majority(store)
            else:
                self.cease()

    def _work(self, store: MessageStore) -> None:
        draw, model = self.random.random(), self.model
        if draw < 0.4:
            bodies = [self.random.randbytes(self.random.choice((10, 300, 300, 20_000))) for _ in range(20)]
            model.certain |= dict(zip(store.publish_many("orders", bodies), bodies, strict=True))
            self.counts["published"] += len(bodies)
        elif draw < 0.75 and len(model.free) > 40:
            ids = self.random.sample(model.free, self.random.randrange(1, 40))
            store.dequeue_many(ids, "orders")
            for key in ids:
                del model.certain[key]
            self.counts["taken"] += len(ids)
        elif draw < 0.85 and len(model.branches) < 4:
            self._prepare(store)
        elif draw < 0.95 and model.branches:
            branch = model.branches[0]
            found = next(one for one in store.in_doubt() if one.xid == branch.xid)
            committed = self.random.random() < 0.5
            found.commit() if committed else found.rollback()
            model.branches.remove(branch)
            model.end(branch, committed=committed)
        else:
            self._change_queues(store)

    def _prepare(self, store: MessageStore) -> None:
        self.made += 1
        transaction = store.begin(logstore.Xid(1, str(self.made).encode()))
        bodies = [self.random.randbytes(100) for _ in range(3)]
        put = list(store.publish_many("orders", bodies, transaction=transaction))
        taken = self.random.sample(self.model.free, min(3, len(self.model.free)))
        store.dequeue_many(taken, "orders", transaction)
        transaction.end()
        transaction.prepare()
        self.model.bodies |= dict(zip(put, bodies, strict=True))
        assert transaction.xid is not None
        self.model.branches.append(Branch(transaction.xid, put, taken, "prepared"))
        self.counts["prepared"] += 1

    def _change_queues(self, store: MessageStore) -> None:
        """A queue comes, with messages, or the oldest one goes with its own; the catalog rows go to all copies."""
        if len(self.names) < TRANSIENT:
            self.made += 1
            name = f"queue-{self.made}"
            store.declare_queue(name)
            self.names.append(name)
            self._copy_catalog()
            store.publish_many(name, [b"gone with its queue"] * self.random.randrange(200))
            self.counts["queues"] += 1
        else:
            store.delete_queue(self.names.pop(0))
            self._copy_catalog()

    def _copy_catalog(self) -> None:
        with self.lock, closing(sqlite3.connect(self.paths[self.number] / "catalog.sqlite")) as source:
            for number, path in enumerate(self.paths):
                if number != self.number and path.exists():
                    with closing(sqlite3.connect(path / "catalog.sqlite")) as target:
                        source.backup(target)

    def _disturb(self) -> None:
        draw = self.random.random()
        with self.lock:
            others = [number for number in self.up_to_date() if number != self.number]
            self.copies[others[0]].note_tail()
            number = self.random.choice(others)
            if draw < 0.1:
                self.reached = {self.number, number}
            elif draw < 0.2:
                self.reached = set(range(COPIES))
            elif draw < 0.25:
                self.copies[number].close()
                self.copies[number] = Copy.open(self.members[number])
                self.counts["reopened"] += 1
            elif draw < 0.3:
                self.counts["checkpoints"] += self.copies[number].checkpoint()
            elif draw < 0.34:
                self._fall_behind(number, removed=draw < 0.32)

    def _fall_behind(self, number: int, *, removed: bool) -> None:
        """The other follower then has all that is durable, and is reached."""
        if self.behind is not None:
            if removed and not self.behind.is_empty:
                self.behind.remove()
            return
        other = next(one for one in range(COPIES) if one not in (self.number, number))
        if max(self.terms[other], default=0) >= self.durable > 0:
            self.reached.add(other)
            self.behind = Behind(self, number, removed=removed)

    def _lose_majority(self, store: MessageStore) -> None:
        """What the leader does from now on has an unknown outcome. A call that waits for room ends when it ceases."""
        with self.lock:
            self.reached = set()
        work = threading.Thread(target=self._work_alone, args=(store,))
        work.start()
        work.join(0.2)  # it has ended, or it waits: both are right
        self.counts["waited"] += work.is_alive()
        self.cease()
        work.join()
        self.counts["unknown"] += 1

    def _work_alone(self, store: MessageStore) -> None:
        model = self.model
        bodies = [self.random.randbytes(50) for _ in range(5)]
        taken = self.random.sample(model.free, 5) if len(model.free) > 10 else []
        branch = model.branches[-1] if model.branches and self.random.random() < 0.5 else None
        model.maybe_put |= set(bodies)
        model.maybe_taken |= set(taken)
        with suppress(errors.OutcomeUnknown, errors.StorePoisoned, errors.StoreClosed):
            store.publish_many("orders", bodies, wait=False)
            store.dequeue_many(taken, "orders", wait=False)
            if branch is not None:
                found = next(one for one in store.in_doubt() if one.xid == branch.xid)
                branch.state = self.random.choice(("committing", "undoing"))
                found.commit(wait=False) if branch.state == "committing" else found.rollback(wait=False)

    def reach_all(self) -> None:
        with self.lock:
            self.reached = set(range(COPIES))
        wait_until(lambda: self.failed or self._are_equal(), "all copies have all")

    def _are_equal(self) -> bool:
        with self.lock:
            followers = [self.copies[number] for number in self.followers()]
            for copy in followers:
                if copy.info().index == self.durable:
                    copy.durable(copy.info().end_lsn)
            end = max(self.terms[self.number])
            return self.behind is None and all(copy.info().applied_index == end for copy in followers)

    # ---- the judgement

    def finish(self) -> None:
        """Each copy is clean, and as a single store it has what the others have."""
        contents = []
        for copy, member, path in zip(self.copies, self.members, self.paths, strict=True):
            copy.close()
            verification = Verification(path)
            verification.run(lambda done: None, connect=None, schema=None)
            verification.close()
            assert not verification.findings.problems, verification.findings.problems
            with logstore.open(detach(member)) as store:
                queues = [(queue.name, queue.id, queue.depth) for queue in store.queues()]
                messages = {
                    name: [(one.id, bytes(one.content)) for one in store.messages(name, load=True)]
                    for name, _, _ in queues
                }
                contents.append((queues, messages, [(one.id, one.xid, one.operations) for one in store.in_doubt()]))
        assert contents[0] == contents[1] == contents[2]
        assert dict(contents[0][1]["orders"]) == self.model.certain
