"""The process of a soak that opens the store and dies, and the parent's end of it.

Commands and answers are JSON, one a line, over its standard input and output. The worker believes what it is told and
keeps no account: that is the parent's, who knows what must be there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

ANSWER_S_MAX = 300  # a worker that says nothing for so long hangs, which is a violation too


def content_of(token: str, size: int) -> bytes:
    """What the message of this name holds: its name, and bytes that no other message has."""
    return (token.encode() + b" " + hashlib.shake_128(token.encode()).digest(size))[:size]


def digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=32).hexdigest()


# ---- the parent's end ----


class Died(Exception):
    """The worker was killed before it answered."""


class Refused(Exception):
    """The store answered with an error where the journal expects none, or the worker hangs or crashed."""


class Worker:
    """A worker process."""

    def __init__(self, store: Path, queues: list[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(store), json.dumps(queues)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.killer: threading.Timer | None = None
        self.hangs = False
        self._read("start")

    def kill_after(self, seconds: float) -> None:
        """SIGKILL, whatever it does then; a second call takes the place of the first."""
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
            pass  # reading says how it died
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
        """Dead when it returns."""
        self.stop_killer()
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


# ---- the worker ----


class Session:
    """An open store and the transactions by the names that the parent gave them."""

    def __init__(self, path: str, queues: list[str]) -> None:
        import logstore

        self.Xid = logstore.Xid
        self.store = logstore.open(path, segment_size=512 * 1024)
        for queue in queues:
            self.store.declare_queue(queue)
        self.txs: dict[str, Any] = {tx.xid.gtrid.decode(): tx for tx in self.store.in_doubt()}
        self.ids: dict[str, int] = {}
        for tx in self.txs.values():
            assert tx.state == "prepared"

    def tx(self, command: dict[str, Any]) -> Any:
        return self.txs[command["tx"]] if command["tx"] else None

    def key(self, command: dict[str, Any]) -> int:
        """The message's id: of this worker's own making, or looked up on the queue where it is."""
        token = command["token"]
        if token not in self.ids:
            there = self.store.messages(command["queue"])
            self.ids |= {message.header.decode().split()[0]: message.id for message in there}
        return self.ids[token]

    def stock(self, _: dict[str, Any]) -> dict[str, Any]:
        """Everything that the store shows."""
        queues = {
            queue.name: [
                [message.header.decode(), message.size, digest(message.content), message.locked]
                for message in self.store.messages(queue)
            ]
            for queue in self.store.queues()
        }
        in_doubt = [str(tx.xid) for tx in self.store.in_doubt()]
        stats = self.store.stats()
        return {
            "queues": queues,
            "in_doubt": sorted(in_doubt),
            "messages": stats["messages"],
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
        self.store.dequeue(self.key(command), command["queue"], self.tx(command))

    def end(self, command: dict[str, Any]) -> None:
        self.tx(command).end()

    def prepare(self, command: dict[str, Any]) -> None:
        tx = self.tx(command)
        tx.end()
        tx.prepare()

    def outcome(self, command: dict[str, Any]) -> None:
        getattr(self.txs.pop(command["tx"]), command["how"])()

    def close(self, _: dict[str, Any]) -> None:
        self.store.close()


def main() -> None:
    import logstore.catalog  # noqa: F401 - so that the kill during the open meets the open, not the imports

    print(json.dumps({"answer": "ready"}), flush=True)
    session: Session | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            session = session or Session(sys.argv[1], json.loads(sys.argv[2]))
            answer = {"answer": getattr(session, command["do"])(command)}
        except Exception as problem:  # noqa: BLE001 - the parent judges it
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        print(json.dumps(answer), flush=True)
        if command["do"] == "close":
            return


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
