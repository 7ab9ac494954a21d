"""A process of a chaos run: a member, and four senders and four receivers that work whenever it leads.

    python tools/chaos_member.py JOURNALS RUN SEED DRIVER_PID DIR

Where the member has an address for AMQP, it runs a broker instead, and its clients send and receive (chaos_amqp.py).

Commands and answers are JSON lines over its standard input and output. Its journal says what senders and receivers did.
The process ends with the one that started it.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import itertools
import json
import logging
import os
import random
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from chaos_journal import Journal, Outstanding  # noqa: E402 - found by the line above

from logstore.cluster import config  # noqa: E402
from logstore.cluster.member import Member  # noqa: E402
from logstore.cluster.transport import new_event_loop  # noqa: E402
from logstore.errors import StoreError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from logstore import MessageStore
    from logstore.store.deliveries import Delivery

HOST = "main"
QUEUE = "orders"
SENDERS = 4
RECEIVERS = 4
SENT = 50  # numbers in one publish
HOWS = ("in a transaction", "one by one", *("in one call",) * 6)  # of SENT numbers each, in turn
ACQUIRED_MAX = 60
REJECTED_MAX = 5
DEPTH_MIN = 500  # below it, receivers wait: what is on the queue is what a change of the leader can lose
DEPTH_MAX = 3000  # above it, senders wait
DIED_MAX = 300  # messages that a receiver drops in one term: they are acquired until the leader changes
PACE_S = 0.02
KEPT_BYTES = 1 << 20  # so that a member that was away for a while needs an update
PR_SET_PDEATHSIG = 1
LOG = logging.getLogger("chaos")


def end_with_parent(parent: int) -> None:
    """SIGKILL for this process when the driver ends, however that ends; a stopped process dies of it, too."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Worker:
    """The member, its senders and receivers."""

    def __init__(self, member: Member, journals: Path, run: str, seed: int, broker: Broker | None = None) -> None:
        """With a broker, clients of it send and receive."""
        self.member = member
        self.broker = broker
        self.journal = Journal(journals / f"{run}.jsonl")
        self.outstanding = Outstanding(journals)
        self.groups = itertools.count()
        self.lock = threading.Lock()  # on the two below
        self.store: MessageStore | None = None
        self.term = 0
        self.gate = threading.Condition()
        self.is_paused = True
        self.stops = threading.Event()
        self.idle = 0
        works = [(self.send, number) for number in range(SENDERS)]
        works += [(self.receive, number) for number in range(RECEIVERS)]
        self.threads = [
            threading.Thread(target=self._work, args=(work, number, random.Random(f"{seed} {at}")))
            for at, (work, number) in enumerate(works if broker is None else ())
        ]
        for thread in self.threads:
            thread.start()

    # ---- the store that this member leads ----

    def reign(self) -> tuple[MessageStore, int] | None:
        """The store and its term; None: this member does not lead."""
        try:
            store = self.member.store(HOST, within_s=0.5)
            with self.lock:
                if store is self.store:
                    return store, self.term
                before = self.member.standings()[HOST]
                if self.member.store(HOST, within_s=0) is not store:
                    return None
                after = self.member.standings()[HOST]
                if before.term != after.term or (before.state, after.state) != ("leads", "leads"):
                    return None
                if self.broker is None:
                    self.outstanding.refresh()
                self.store, self.term = store, after.term
                self.journal.write("leads", term=after.term)
        except StoreError:
            return None
        return store, after.term

    # ---- senders and receivers ----

    def _work(self, work: Any, number: int, chance: random.Random) -> None:
        try:
            state: dict[str, Any] = {"term": 0}
            while self._goes_on():
                reign = self.reign()
                if reign is None or not work(number, chance, *reign, state):
                    self.stops.wait(PACE_S)
        except BaseException:
            LOG.exception("a sender or receiver of the driver failed")
            os._exit(3)

    def _goes_on(self) -> bool:
        """Waits while the work is paused; False: it ends."""
        with self.gate:
            self.idle += 1
            self.gate.notify_all()
            self.gate.wait_for(lambda: not self.is_paused or self.stops.is_set())
            self.idle -= 1
        return not self.stops.is_set()

    def send(self, sender: int, chance: random.Random, store: MessageStore, term: int, state: dict[str, Any]) -> bool:
        """One publish, or none; whether to go on at once."""
        if state["term"] != term:
            with self.lock:
                if self.term != term:
                    return True
                state["again"], state["next"] = self.outstanding.of(sender)
            state["term"] = term
        try:
            if store.queue(QUEUE).depth > DEPTH_MAX:
                return False
        except StoreError:
            return False
        first = state["again"].pop(0) if state["again"] else state["next"]
        how = how_sent(first)
        count = 1 if how == "one by one" else SENT
        state["next"] = max(state["next"], first + count)
        self.journal.write("sent", sender=sender, first=first, count=count, whole=how == "in a transaction")
        size = chance.choice((30, 100, 1000))
        try:
            ids = publish(store, [content_of(sender, first + at, size) for at in range(count)], how)
        except StoreError as error:
            self.journal.write("unknown", sender=sender, first=first, count=count, error=type(error).__name__)
            state["again"].insert(0, first)
            return False
        self.journal.write("confirmed", sender=sender, first=first, ids=ids)
        return count == 1

    def receive(self, _: int, chance: random.Random, store: MessageStore, term: int, state: dict[str, Any]) -> bool:
        """One acquire, and what becomes of it; whether to go on at once."""
        count = chance.randrange(1, ACQUIRED_MAX)
        if state["term"] != term:
            state["died"] = 0
        try:
            queue = store.queue(QUEUE)
            if queue.depth <= DEPTH_MIN:
                return False
            group = next(self.groups)
            self.journal.write("acquiring", group=group, term=term, count=count)
            deliveries = queue.acquire(count, load=True)
        except StoreError:
            return False
        numbers = [number_of(delivery.content) for delivery in deliveries]
        self.journal.write("acquired", group=group, ids=[one.id for one in deliveries], numbers=numbers)
        if not deliveries:
            return False
        middle = chance.randrange(len(deliveries) + 1) if chance.random() < 0.3 else len(deliveries)
        rejected = min(REJECTED_MAX, middle) if chance.random() < 0.2 else 0
        if self._settle(store, group, deliveries, 0, rejected, "reject"):
            self._settle(store, group, deliveries, rejected, middle, "accept")
        if middle < len(deliveries):
            how = chance.choice(("released", "died")) if state["died"] < DIED_MAX else "released"
            state["died"] += len(deliveries) - middle if how == "died" else 0
            self.journal.write(how, group=group, start=middle, end=len(deliveries))
            if how == "released":
                for delivery in deliveries[middle:]:
                    try:
                        queue.release(delivery)
                    except StoreError:
                        break
        deliveries.clear()
        state["term"] = term
        return True

    def _settle(
        self, store: MessageStore, group: int, deliveries: list[Delivery], start: int, end: int, how: str
    ) -> bool:
        if start == end:
            return True
        self.journal.write("settling", group=group, start=start, end=end, how=how)
        try:
            queue = store.queue(QUEUE)
            if how == "accept" and group % len(HOWS) == 0:
                with store.transaction() as transaction:
                    for delivery in deliveries[start:end]:
                        queue.accept(delivery, transaction=transaction)
            elif how == "accept":
                queue.accept_many(deliveries[start:end])
            else:
                for delivery in deliveries[start:end]:
                    queue.reject(delivery)
        except StoreError as error:
            self.journal.write("refused", group=group, start=start, end=end, how=how, error=type(error).__name__)
            return False
        self.journal.write("settled", group=group, start=start, end=end, how=how)
        return True

    # ---- commands ----

    def declare(self) -> None:
        """Makes the queue."""
        self.member.store(HOST).declare_queue(QUEUE)

    def standing(self) -> dict[str, Any]:
        """How the host stands here."""
        found = self.member.standings().get(HOST)
        if found is None:
            raise StoreError("this member has no copy yet")
        return {name: getattr(found, name) for name in ("state", "term", "leader", "index", "durable_index", "problem")}

    def seats(self) -> list[int]:
        """How many members and voters the group has."""
        seats = self.member.members(HOST)
        return [len(seats), sum(seat.voter for seat in seats)]

    def resume(self) -> None:
        """Lets senders and receivers work."""
        with self.gate:
            self.is_paused = False
            self.gate.notify_all()

    def pause(self) -> None:
        """Returns when all of them are idle."""
        with self.gate:
            self.is_paused = True
            self.gate.wait_for(lambda: self.idle == len(self.threads))

    def stock(self) -> dict[str, Any]:
        """All messages on the queue."""
        reign = self.reign()
        if reign is None:
            raise StoreError("this member does not lead")
        store, term = reign
        queue = [[one.id, *number_of(one.content)] for one in store.messages(QUEUE, load=True)]
        if self.reign() != reign:
            raise StoreError("this member leads no longer")
        return {"queue": queue, "term": term}

    def transfer(self) -> None:
        """Hands over."""
        self.member.transfer(HOST)

    def close(self) -> None:
        """Ends in order."""
        self.stops.set()
        with self.gate:
            self.gate.notify_all()
        for thread in self.threads:
            thread.join()
        self.store = None
        if self.broker is not None:
            self.broker.stop()
        self.member.close()


class Broker:
    """The broker of the member, on a loop in a thread of its own."""

    def __init__(self, member: Member, directory: Path) -> None:
        from logstore.cluster import brokering, member_users

        file = config.read(directory)
        self._users = member_users.open_users(directory, file.cluster)
        self._brokering = brokering.Brokering(member, file, self._users)
        self._loop = new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._run(self._brokering.start())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        """In order."""
        self._run(self._brokering.stop())
        self._users.close()


def how_sent(first: int) -> str:
    """How these numbers are sent, also when they are sent again."""
    return HOWS[first // SENT % len(HOWS)]


def publish(store: MessageStore, contents: list[bytes], how: str) -> list[int]:
    """Their ids; all are durable on return."""
    if how == "one by one":
        return [store.publish(QUEUE, content) for content in contents]
    if how == "in one call":
        return list(store.publish_many(QUEUE, contents))
    with store.transaction() as transaction:
        return [store.publish(QUEUE, content, transaction=transaction) for content in contents]


def content_of(sender: int, number: int, size: int) -> bytes:
    """The content of a message, of which every byte is known."""
    name = b"%d:%d:%04d:" % (sender, number, size)
    return (name * (size // len(name) + 1))[:size]


def number_of(content: bytes) -> list[int]:
    """Sender and number; -1 if the content is not what was sent."""
    try:
        sender, number, size = map(int, content.split(b":", 3)[:3])
        if content == content_of(sender, number, size):
            return [sender, number]
    except ValueError:
        pass
    return [-1, -1]


def main() -> None:
    journals, run, seed, parent, directory = sys.argv[1:]
    end_with_parent(int(parent))
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    given = replace(config.read(Path(directory)).config(Path(directory)), kept_bytes=KEPT_BYTES)
    member = Member(directory, given)
    broker = Broker(member, Path(directory)) if config.read(Path(directory)).amqp else None
    worker = Worker(member, Path(journals), run, int(seed), broker)
    try:
        serve(worker)
    except BaseException:
        LOG.exception("a command of the driver failed")
        os._exit(3)


def serve(worker: Worker) -> None:
    """Commands, until the last."""
    print(json.dumps({"answer": "ready"}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"answer": getattr(worker, command)()}
        except StoreError as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
        if command == "close":
            return


if __name__ == "__main__":
    main()
