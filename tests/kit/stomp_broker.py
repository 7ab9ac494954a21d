"""A real CoilMQ process on a logstore, and a real STOMP client for it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stomp

from kit.patience import PATIENCE_S
from kit.stores import ROOT, SMALL_SEGMENT

if TYPE_CHECKING:
    from collections.abc import Callable


CONFIG = """
[coilmq]
qstore.factory = logstore.plugins.coilmq.make_store
scheduler.subscriber_priority_factory = logstore.plugins.coilmq.make_scheduler
qstore.logstore.data_dir = {data_dir}
qstore.logstore.segment_size = {segment_size}
"""


class Broker:
    """CoilMQ started by its own command, on a port that it chooses; it may be killed and started again."""

    def __init__(self, where: Path, config: str = CONFIG) -> None:
        self._where = where
        self._config = where / "coilmq.cfg"
        self._config.write_text(config.format(data_dir=where / "store", segment_size=SMALL_SEGMENT))
        self._log = where / "coilmq.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self) -> Broker:
        """Returns when it listens."""
        self.spawn()
        self.port = int(self._wait_for(r"listening on 127\.0\.0\.1:(\d+)"))
        return self

    def spawn(self) -> None:
        coilmq = Path(sys.executable).parent / "coilmq"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [coilmq, "--config", self._config, "--host", "127.0.0.1", "--port", "0"],
                cwd=self._where,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def _wait_for(self, pattern: str) -> str:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if found := re.search(pattern, self.log()):
                return found[1]
            assert self._process is not None
            assert self._process.poll() is None, self.log()
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} in: {self.log()}")

    def log(self) -> str:
        """The output since the last start."""
        return self._log.read_text(errors="replace")

    def wait(self) -> int:
        """Its exit status, once it has ended by itself."""
        assert self._process is not None
        return self._process.wait(timeout=PATIENCE_S)

    def stop(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self.wait()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.stop(signal.SIGKILL)


class Client(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py has no types
    """A STOMP 1.1 connection that records and awaits what it receives."""

    def __init__(self, port: int) -> None:
        self._changed = threading.Condition()
        self._receipts: set[str] = set()
        self._numbers = iter(range(1 << 30))
        self.frames: list[tuple[dict[str, str], bytes]] = []
        self.errors: list[str] = []
        self.connected = True
        self._connection = stomp.Connection11(
            [("127.0.0.1", port)], auto_decode=False, reconnect_attempts_max=1, timeout=PATIENCE_S
        )
        self._connection.set_listener("", self)
        self._connection.connect(wait=True)

    # ---- callbacks on the library's thread ----

    def _tell(self, where: list[Any], what: Any) -> None:
        with self._changed:
            where.append(what)
            self._changed.notify_all()

    def on_message(self, frame: Any) -> None:
        self._tell(self.frames, (dict(frame.headers), bytes(frame.body)))

    def on_error(self, frame: Any) -> None:
        self._tell(self.errors, frame.headers["message"])

    def on_receipt(self, frame: Any) -> None:
        with self._changed:
            self._receipts.add(frame.headers["receipt-id"])
            self._changed.notify_all()

    def on_disconnected(self) -> None:
        with self._changed:
            self.connected = False
            self._changed.notify_all()

    # ---- calls of tests ----

    def wait_until(self, condition: Any) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout=PATIENCE_S), (self.frames, self.errors)

    def got(self, count: int) -> list[tuple[dict[str, str], bytes]]:
        """Wait for the first ``count`` messages, and return them."""
        self.wait_until(lambda: len(self.frames) >= count)
        return self.frames[:count]

    def _asked(self, ask: Callable[[str], object]) -> bool:
        """Whether the broker answered with the receipt, and not with an error or its end."""
        errors = len(self.errors)
        receipt = f"r{next(self._numbers)}"
        ask(receipt)
        self.wait_until(lambda: receipt in self._receipts or len(self.errors) > errors or not self.connected)
        return receipt in self._receipts

    def send(self, destination: str, body: bytes, **headers: str) -> bool:
        """Whether the broker gave a receipt for it."""
        to = self._connection
        return self._asked(lambda receipt: to.send(destination, body, headers={**headers, "receipt": receipt}))

    def subscribe(self, destination: str, ack: str = "client", number: str = "1") -> None:
        to = self._connection
        assert self._asked(lambda receipt: to.subscribe(destination, number, ack, receipt=receipt)), self.errors

    def ack(self, headers: dict[str, str], transaction: str | None = None) -> bool:
        """Whether the broker gave a receipt for it."""
        to = self._connection
        return self._asked(lambda receipt: to.ack(headers["message-id"], headers["subscription"], transaction, receipt))

    def begin(self, transaction: str) -> None:
        self._connection.begin(transaction)

    def send_in(self, transaction: str, destination: str, body: bytes) -> None:
        self._connection.send(destination, body, transaction=transaction)

    def commit(self, transaction: str) -> bool:
        return self._asked(lambda receipt: self._connection.commit(transaction, receipt=receipt))

    def abort(self, transaction: str) -> bool:
        return self._asked(lambda receipt: self._connection.abort(transaction, receipt=receipt))

    def disconnect(self) -> None:
        """In an orderly way, without waiting for anything."""
        if self._connection.is_connected():
            self._connection.disconnect()
