"""The soak's worker process, which opens the store and is killed, and the parent's connection to it.

Commands and answers are JSON lines over its standard input and output. The worker keeps no account; the parent knows
what the store must hold.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(Path(__file__).resolve().parent)]

from soak_disturbance import NOISE, Disturbance, Interrupted  # noqa: E402 - found by the line above

ANSWER_S_MAX = 300  # a worker without an answer for this long hangs, which is a violation, too
ACQUIRED_MAX = 200  # more than a queue holds
INTERRUPTED = ("begin", "publish", "move", "consume", "prepare", "outcome")  # commands during which a handler may raise


def content_of(token: str, size: int) -> bytes:
    """The content of the message with this name: the name, and bytes that no other message has."""
    return (token.encode() + b" " + hashlib.shake_128(token.encode()).digest(size))[:size]


def digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=32).hexdigest()


# ---- the parent's side ----


class Died(Exception):
    """The worker was killed before it answered."""


class Refused(Exception):
    """The store answered with an error where the journal expects none, or the worker hangs or crashed."""


class CutShort(Exception):
    """A signal handler raised in the middle of the command. ``state`` is its transaction's, or empty."""

    def __init__(self, state: str) -> None:
        super().__init__(f"the command was interrupted; its transaction is {state or 'none'}")
        self.state = state


class Worker:
    """A worker process."""

    def __init__(self, store: Path, queues: list[str], options: dict[str, Any]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(store), json.dumps(queues), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.killer: threading.Timer | None = None
        self.hangs = False
        self._read("start")

    def kill_after(self, seconds: float) -> None:
        """Send SIGKILL after a delay; a second call replaces the first."""
        self.stop_killer()
        self.killer = threading.Timer(seconds, self.process.kill)
        self.killer.start()

    def stop_killer(self) -> None:
        if self.killer is not None:
            self.killer.cancel()
            self.killer.join()
            self.killer = None

    def ask(self, command: dict[str, Any]) -> Any:
        """Its answer. Raises ``Died`` if there is none, ``Refused`` if it is an error."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the read reports how it died
        return self._read(command)

    def _read(self, asked: Any) -> Any:
        assert self.process.stdout is not None
        watch = threading.Timer(ANSWER_S_MAX, self._give_up)
        watch.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watch.cancel()
        if not line.endswith("\n"):
            status = self.process.wait()
            if self.hangs:
                raise Refused(f"the worker did not answer {asked} within {ANSWER_S_MAX} s")
            if status != -signal.SIGKILL:
                raise Refused(f"the worker ended by itself with status {status} while asked for {asked}")
            raise Died(f"the worker was killed while asked for {asked}")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(f"{asked} was answered with {answer['error']}")
        if "interrupted" in answer:
            raise CutShort(answer["interrupted"])
        return answer["answer"]

    def _give_up(self) -> None:
        self.hangs = True
        self.process.kill()

    def close(self) -> None:
        """An orderly end."""
        self.stop_killer()
        self.ask({"do": "close"})
        self.process.wait(ANSWER_S_MAX)

    def kill(self) -> None:
        """Kill it; it is dead when this returns."""
        self.stop_killer()
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


# ---- the worker ----


def descriptors() -> dict[str, int]:
    """The descriptors of this process: those of segments, which depend on the log's size, and others, which must not
    grow.
    """
    counts = {"segment_descriptors": 0, "descriptors": 0}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists them
            target = os.readlink(f"/proc/self/fd/{number}")
            counts["segment_descriptors" if ".seg" in target else "descriptors"] += 1
    return counts


class Session:
    """An open store, and its transactions by the parent's names.

    With ``disturbed`` in the options, a :class:`~soak_disturbance.Disturbance` works on the store as well.
    """

    def __init__(self, path: str, queues: list[str], options: dict[str, Any]) -> None:
        import logstore

        self.Xid = logstore.Xid
        self.ended = logstore.TransactionEnded
        self.store = logstore.open(
            path,
            segment_size=512 * 1024,
            max_write_buffers=2 if options["disturbed"] else 10,
            prepared_timeout=options["prepared_timeout"],
        )
        for queue in queues:
            self.store.declare_queue(queue)
        self.txs: dict[str, Any] = {tx.xid.gtrid.decode(): tx for tx in self.store.in_doubt()}
        self.ids: dict[str, int] = {}
        self.disturbance = Disturbance(self.store, options["disturbed"]) if options["disturbed"] else None

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run a command. The answer to an interrupted one has the state of its transaction."""
        disturbance = self.disturbance
        raising = disturbance is not None and command["do"] in INTERRUPTED
        answer: dict[str, Any] | None = None
        interrupting = disturbance.interrupting() if disturbance and raising else contextlib.nullcontext()
        with contextlib.suppress(Interrupted), interrupting:
            answer = {"answer": getattr(self, command["do"])(command)}
        if answer is None:  # the exception is gone, and with it the objects of its frames
            answer = {"interrupted": self.after_interruption(command)}
        elif command["do"] == "outcome":
            del self.txs[command["tx"]]
        if disturbance is not None and disturbance.problem is not None:
            return {"error": disturbance.problem}
        return answer

    def after_interruption(self, command: dict[str, Any]) -> str:
        """The state of the command's transaction, which is rolled back if it was not prepared; empty without one."""
        gc.collect()  # a transaction whose begin was interrupted is rolled back by its finalizer
        tx = self.txs.get(command["tx"])
        if tx is None:
            return ""
        if tx.state in ("active", "ended"):
            tx.rollback()
        if tx.state != "prepared":
            del self.txs[command["tx"]]
        return str(tx.state)

    def tx(self, command: dict[str, Any]) -> Any:
        return self.txs[command["tx"]] if command["tx"] else None

    def key(self, command: dict[str, Any]) -> int:
        """The message's id, known from this worker's publish or looked up on its queue."""
        token = command["token"]
        if token not in self.ids:
            there = self.store.messages(command["queue"])
            self.ids |= {message.header.decode().split()[0]: message.id for message in there}
        return self.ids[token]

    def stock(self, command: dict[str, Any]) -> dict[str, Any]:
        """The contents of the store, and the memory and descriptors of the process."""
        with self.disturbance.quiet() if self.disturbance else contextlib.nullcontext():
            found = self.stock_once(command)
            while found != (again := self.stock_once(command)):  # prepared_timeout ended a transaction meanwhile
                found = again
            return found | {
                "resident_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
                **descriptors(),
                "signals": self.disturbance.signals if self.disturbance else 0,
                "raised": self.disturbance.raised if self.disturbance else 0,
                "refused": self.disturbance.refused if self.disturbance else 0,
            }

    def stock_once(self, _: dict[str, Any]) -> dict[str, Any]:
        queues = {
            queue.name: [
                [message.header.decode(), message.size, digest(message.content), message.locked]
                for message in self.store.messages(queue)
            ]
            for queue in self.store.queues()
            if queue.name != NOISE
        }
        noise = sum(queue.depth for queue in self.store.queues() if queue.name == NOISE)
        in_doubt = [str(tx.xid) for tx in self.store.in_doubt()]
        stats = self.store.stats()
        return {
            "queues": queues,
            "in_doubt": sorted(in_doubt),
            "messages": stats["messages"] - noise,
            "transactions": stats["transactions"],
            "base_lsn": self.store.base_lsn,
            "next_lsn": self.store.next_lsn,
        }

    def begin(self, command: dict[str, Any]) -> None:
        xid = self.Xid(1, command["tx"].encode(), b"soak") if command["distributed"] else None
        self.txs[command["tx"]] = self.store.begin(xid)

    def publish(self, command: dict[str, Any]) -> None:
        token, size = command["token"], command["size"]
        header = f"{token} {size}".encode()
        content = content_of(token, size)
        self.ids[token] = self.store.publish(command["queue"], content, header=header, transaction=self.tx(command))

    def move(self, command: dict[str, Any]) -> None:
        key, tx = self.key(command), self.tx(command)
        if tx is not None:
            self.store.dequeue(key, command["queue"], tx)
            self.store.enqueue(key, command["target"], tx)
            return
        with self.store.transaction() as own:
            self.store.dequeue(key, command["queue"], own)
            self.store.enqueue(key, command["target"], own)

    def consume(self, command: dict[str, Any]) -> None:
        """Takes every second message as a broker does: acquired among others, which are dropped and come back."""
        key, tx = self.key(command), self.tx(command)
        queue = self.store.queue(command["queue"])
        if key // 8 % 2:  # an LSN is a multiple of 8
            for delivery in queue.acquire(ACQUIRED_MAX):
                if delivery.id == key:
                    queue.accept(delivery.detach(), transaction=tx)
                    return
        self.store.dequeue(key, queue, tx)

    def end(self, command: dict[str, Any]) -> None:
        self.tx(command).end()

    def prepare(self, command: dict[str, Any]) -> None:
        tx = self.tx(command)
        tx.end()
        tx.prepare()

    def outcome(self, command: dict[str, Any]) -> str:
        """The state of the transaction, which prepared_timeout may have ended first."""
        tx = self.tx(command)
        with contextlib.suppress(self.ended):
            getattr(tx, command["how"])()
        return str(tx.state)

    def close(self, _: dict[str, Any]) -> None:
        if self.disturbance:
            self.disturbance.stop()
        self.store.close()


def main() -> None:
    logging.getLogger("logstore").setLevel(logging.ERROR)  # each transaction that timed out is a warning
    import logstore.catalog  # noqa: F401 - so that the kill during the open meets the open, not the imports

    print(json.dumps({"answer": "ready"}), flush=True)
    session: Session | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            session = session or Session(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
            answer = session.answer(command)
        except Exception as problem:  # noqa: BLE001 - the parent judges it
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        print(json.dumps(answer), flush=True)
        if command["do"] == "close":
            return


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
