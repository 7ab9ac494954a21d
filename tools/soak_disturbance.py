"""Disturbs a soak's worker from inside: with a thread that keeps the write buffers full, and with a signal handler.

The handler runs at random moments on the working thread. It calls the library again, which must work or raise
``ReentrantCall``; during a command it sometimes raises :class:`Interrupted` instead, as Ctrl-C would. Both use only the
queue ``NOISE``, which is not in the parent's journal.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logstore import MessageStore

NOISE = "noise"
NOISE_LIVE = 64  # messages that the thread leaves on its queue
NOISE_BYTES = 6000
PAUSE_S_MAX = 0.02
RAISES = 0.1  # fraction of the signals during a command


class Interrupted(BaseException):
    """Raised by the signal handler at a random point of the thread."""


class Disturbance:
    """A publisher and a timer, on one open store. Made and used on the main thread."""

    def __init__(self, store: MessageStore, seed: int) -> None:
        import logstore

        self._reentrant = logstore.ReentrantCall
        self._store = store
        self._chance = random.Random(seed)
        self._queue = store.declare_queue(NOISE)
        self._free = threading.Event()
        self._paused = threading.Event()
        self._ended = False
        self._raises = False
        self.problem: str | None = None
        self.signals = self.refused = self.raised = 0
        self._free.set()
        self._thread = threading.Thread(target=self._publish, name="noise", daemon=True)
        self._thread.start()
        signal.signal(signal.SIGALRM, self._interrupt)
        self._arm()

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Within this context the handler may raise."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Within this context only the caller uses the store, and the depth of ``NOISE`` does not change."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._paused.clear()
        self._free.clear()
        while self._thread.is_alive() and not self._paused.wait(0.1):
            pass
        try:
            yield
        finally:
            self._free.set()
            self._arm()

    def stop(self) -> None:
        """Stop thread and timer, before the store is closed."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._ended = True
        self._free.set()
        self._thread.join()

    def _arm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(0.0005, PAUSE_S_MAX))

    def _interrupt(self, *_: Any) -> None:
        self.signals += 1
        try:
            self._enter_again()
        except self._reentrant:
            self.refused += 1
        except Exception as problem:  # noqa: BLE001 - told with the next answer
            self.problem = f"a signal handler got {type(problem).__name__}: {problem}"
        self._arm()
        if self._raises and self._chance.random() < RAISES:
            self._raises = False
            self.raised += 1
            raise Interrupted

    def _enter_again(self) -> None:
        store, queue = self._store, self._queue
        what = self._chance.randrange(6)
        if what == 0:
            taken = queue.acquire(4)
            for delivery in taken[:2]:
                delivery.release()
            for delivery in taken[2:3]:
                queue.release(delivery.detach())  # and the last one is dropped
        elif what == 1:
            store.publish(queue, b"from a handler", wait=False)
        elif what == 2:
            store.declare_queue(NOISE)
        elif what == 3:
            store.stats()
        elif what == 4:
            with contextlib.suppress(StopIteration):
                next(iter(store.messages(queue)))
        else:
            store.config["noise"] = str(self.signals)

    def _publish(self) -> None:
        content = b"n" * NOISE_BYTES
        try:
            while not self._ended:
                if not self._free.is_set():
                    self._paused.set()
                    self._free.wait()
                    continue
                self._store.publish_many(self._queue, [content] * 8, wait=False)
                if self._queue.depth > NOISE_LIVE:
                    self._queue.accept_many(self._queue.acquire(16), wait=False)
        except Exception as problem:  # noqa: BLE001 - told with the next answer
            self.problem = f"the publisher got {type(problem).__name__}: {problem}"
