"""A process of the cluster's benchmarks: a member or a single store, and a publisher that works while it leads.

    python benchmarks/cluster_worker.py DIR PARENT_PID [single]

Commands and answers are JSON lines over its standard input and output. The process ends with the one that started it.
Times are of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import logstore
from logstore.cluster import config
from logstore.cluster.member import Member
from logstore.cluster.pacing import Pacing
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logstore import MessageStore, Queue
    from logstore.cluster.replica import Batch

HOST = "main"
QUEUE = "measured"
BODY = bytes(range(256)) * 4
KEPT_MESSAGES = 5000  # of those that the publisher publishes; older ones are dequeued
LOOK_S = 0.002
PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """SIGKILL for this process when its driver ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Worker:
    """Publishes on command, and says what that took."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.stops = threading.Event()
        self.confirmed: list[tuple[float, float]] = []  # when, and after how long
        self.messages = 0
        self.first_confirm = 0.0  # of this process's present lead
        self.problem = ""

    # ---- what kinds of worker have ----

    def store(self) -> MessageStore | None:
        """The store, while it serves here."""
        raise NotImplementedError

    def copy_stats(self) -> dict[str, int]:
        """Of the log's files here: forces and bytes."""
        raise NotImplementedError

    # ---- commands ----

    def declare(self) -> None:
        """Makes the queue."""
        store = self.store()
        assert store is not None
        store.declare_queue(QUEUE)

    def fill(self, count: int) -> None:
        """Publishes messages that stay."""
        store = self.store()
        assert store is not None
        store.declare_queue("kept")
        for begin in range(0, count, 1000):
            store.publish_many("kept", [BODY] * min(1000, count - begin))

    def load(self, window: int, batch: int, drains: bool) -> None:
        """Begins to publish, whenever this process serves: batches of this many messages, so many at once."""
        self.stops.clear()
        self.confirmed, self.messages, self.first_confirm, self.problem = [], 0, 0.0, ""
        self.thread = threading.Thread(target=self._load, args=(window, batch, drains))
        self.thread.start()

    def unload(self) -> None:
        """Stops publishing."""
        self.stops.set()
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def figures(self, begin: float, end: float) -> dict[str, float]:
        """Of the publishes that were confirmed in this time: calls a second, and seconds until they were confirmed."""
        found = sorted(took for at, took in self.confirmed if begin <= at < end)
        if not found:
            return {"rate": 0.0, "p50": 0.0, "p99": 0.0, "max": 0.0}
        at = [found[len(found) // 2], found[len(found) * 99 // 100], found[-1]]
        return {"rate": len(found) / (end - begin), "p50": at[0], "p99": at[1], "max": at[2]}

    def usage(self) -> dict[str, Any]:
        """What the process has used so far."""
        status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        memory = {line.split()[0][:-1]: int(line.split()[1]) << 10 for line in status if line.startswith("Vm")}
        rss, most = memory["VmRSS"], memory["VmHWM"]
        found = {"cpu_s": time.process_time(), "rss": rss, "rss_max": most, "messages": self.messages}
        return found | self.copy_stats()

    def forget_peak(self) -> None:
        """``rss_max`` begins anew."""
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    # ---- the publisher ----

    def _load(self, window: int, batch: int, drains: bool) -> None:
        while not self.stops.is_set():
            try:
                store = self.store()
                if store is None:
                    self.stops.wait(LOOK_S)
                    continue
                self.first_confirm = 0.0
                self._publish(store, store.queue(QUEUE), window, batch, drains)
            except StoreError as error:
                self.problem = f"{type(error).__name__}: {error}"
                self.stops.wait(LOOK_S)

    def _publish(self, store: MessageStore, queue: Queue, window: int, batch: int, drains: bool) -> None:
        bodies = [BODY] * batch
        waiting: deque[tuple[int, float]] = deque()
        undrained = queue.depth
        while not self.stops.is_set():
            while len(waiting) < window:
                began = time.monotonic()
                if batch == 1:
                    store.publish(queue, BODY, wait=False)
                else:
                    store.publish_many(queue, bodies, wait=False)
                waiting.append((store.next_lsn, began))
                undrained += batch
            store.force(waiting[0][0])
            durable, now = store.durable_lsn, time.monotonic()
            self.first_confirm = self.first_confirm or now
            while waiting and waiting[0][0] <= durable:
                self.confirmed.append((now, now - waiting.popleft()[1]))
                self.messages += batch
            if drains and undrained > 2 * KEPT_MESSAGES:
                deliveries = queue.acquire(KEPT_MESSAGES)
                queue.accept_many(deliveries, wait=False)
                undrained -= len(deliveries)


class SingleWorker(Worker):
    """A store of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._store = logstore.open(directory)

    def store(self) -> MessageStore:
        return self._store

    def copy_stats(self) -> dict[str, int]:
        stats = self._store.stats()
        return {name: int(stats[key]) for name, key in (("forces", "syncs"), ("bytes", "device_bytes"))}

    def close(self) -> None:
        """Ends in order."""
        self.unload()
        self._store.close()


class MemberWorker(Worker):
    """A member with one host."""

    def __init__(self, member: Member) -> None:
        super().__init__()
        self.member = member

    def store(self, host: str = HOST) -> MessageStore | None:
        try:
            return self.member.store(host, within_s=0.0)
        except StoreError:
            return None

    def _group(self, host: str = HOST) -> Any:
        return self.member._running.group(host)

    def copy_stats(self) -> dict[str, int]:
        return self.host_stats(HOST)

    def host_stats(self, host: str) -> dict[str, int]:
        """Of one host's log here."""
        store = self.store(host)
        if store is not None:
            stats = store.stats()
            return {name: int(stats[key]) for name, key in (("forces", "syncs"), ("bytes", "device_bytes"))}
        group = self._group(host)
        stats = group.thread.executor.submit(lambda: group._copy.info().stats).result()
        return {"forces": stats["forces"], "bytes": stats["device_bytes"]}

    def standing(self) -> dict[str, Any]:
        """How the host stands here."""
        found = self.member.standings().get(HOST)
        if found is None:
            return {"state": "joins", "index": 0, "durable_index": 0}
        names = ("state", "term", "leader", "index", "durable_index", "paced_by", "problem")
        seats = {seat.member: seat.acknowledged for seat in self.member.members(HOST)}
        voters = sum(seat.voter for seat in self.member.members(HOST))
        return {name: getattr(found, name) for name in names} | {
            "member": self.member.config.member,
            "acknowledged": seats,
            "voters": voters,
            "first_confirm": self.first_confirm,
        }

    def transfer(self, member: int) -> None:
        """Hands over to that voter; 0: to any."""
        self.member.transfer(HOST, member)

    def remove(self, member: int) -> None:
        """Removes a member from the host."""
        self.member.remove(HOST, member, within_s=60.0)

    def slow(self, batch_s: float) -> None:
        """From now on this copy takes at least so long for each batch."""
        copy = self._group()._copy
        take_many = copy.take_many

        def take(batches: Sequence[Batch]) -> int:
            taken: int = take_many(batches)
            time.sleep(batch_s * taken)
            return taken

        copy.take_many = take

    def unpaced(self) -> None:
        """This member paces nobody when it leads, as before there was pacing."""
        Pacing.confirms = lambda *_: True  # type: ignore[method-assign]

    def close(self) -> None:
        """Ends in order."""
        self.unload()
        self.member.close()


def main() -> None:
    directory, parent, *kind = sys.argv[1:]
    end_with_parent(int(parent))
    path = Path(directory)
    serve(SingleWorker(path) if kind else MemberWorker(Member(path, config.read(path).config(path))))


def serve(worker: Worker) -> None:
    """Commands, until the last."""
    print(json.dumps({"answer": "ready"}), flush=True)
    for line in sys.stdin:
        command, given = json.loads(line)
        try:
            answer = {"answer": getattr(worker, command)(*given)}
        except StoreError as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
        if command == "close":
            return


if __name__ == "__main__":
    main()
