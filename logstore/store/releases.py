"""Who is told when a place comes back to a queue: released, or unlocked by a rollback.

A transaction that is abandoned is rolled back by its finalizer, which runs on any thread, in the middle of anything: it
only leaves a word, and a thread of the store's, started for the first listener, tells the listeners of it.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING

from logstore.core.threads import Worker, start
from logstore.store.completions import call_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore.store.message_store import MessageStore
    from logstore.store.queues import Queue


class Releases:
    """The listeners of one store, and the count of its rollbacks."""

    def __init__(self, store: MessageStore) -> None:
        self._store = weakref.ref(store)  # the thread keeps no store open that nobody has any more
        self._listeners: tuple[Callable[[Queue], object], ...] = ()  # replaced as a whole
        self._numbers = itertools.count(1)
        self._abandoned: SimpleQueue[bool] = SimpleQueue()  # True: one more; False: the end
        self.rollbacks = 0
        """Another number after each rollback, never one that it had before."""
        self.thread: Worker | None = None

    def add(self, listener: Callable[[Queue], object]) -> None:
        """From now on it is told. Called under the store's lock."""
        self._listeners = (*self._listeners, listener)
        store = self._store()
        is_open = store is not None and not store._closed
        if is_open and (self.thread is None or self.thread.failure is not None):
            self.thread = start("logstore-releases", self._run)

    def tell(self, queue: Queue) -> None:
        """A place came back to this queue."""
        call_all(self._listeners, queue, kind="release")

    def rolled_back(self) -> None:
        """Places may have come back to any queue."""
        self.count_rollback()
        self._tell_of_all()

    def count_rollback(self) -> None:
        """Queues are to look for what it has unlocked."""
        self.rollbacks = next(self._numbers)

    def abandoned(self) -> None:
        """The same as :meth:`rolled_back`, for a finalizer: takes no lock and calls nobody."""
        self.count_rollback()
        if self._listeners:
            self._abandoned.put(True)

    def close(self) -> None:
        """After the store's ``_closed`` was set: those who are to hear of what was abandoned before are told first."""
        if self.thread is not None:
            self._abandoned.put(False)
            if self.thread is not threading.current_thread():
                self.thread.join()

    def _run(self) -> None:
        while self._abandoned.get():
            self._tell_of_all()

    def _tell_of_all(self) -> None:
        store = self._store()
        if store is not None and self._listeners:
            for queue in store._all_queues().values():
                self.tell(queue)
