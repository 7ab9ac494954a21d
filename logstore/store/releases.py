"""Calls the listeners when a place comes back to a queue: released, or unlocked by a rollback.

A delivery may be dropped, and a transaction abandoned, on any thread at any moment. So their finalizers only queue a
notice; a thread of the store, started with the first listener, gives dropped deliveries back and calls the listeners.
"""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING

from logstore import errors
from logstore.core.threads import Worker, start
from logstore.store.completions import call_all
from logstore.store.listeners import Listener, Listeners

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore.store.message_store import MessageStore
    from logstore.store.queues import Queue


class Releases:
    """The listeners of one store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = weakref.ref(store)  # so that the thread does not keep an unused store open
        self._listeners = Listeners()
        #: True: a transaction was abandoned; None: a delivery was dropped; False: the thread ends
        self._notices: SimpleQueue[bool | None] = SimpleQueue()
        self.thread: Worker | None = None

    def add(self, callback: Callable[[Queue], object], *, weak: bool) -> Listener:
        """Adds a listener. Called under the store's lock."""
        store = self._store()
        if store is None or store._closed:
            raise errors.StoreClosed("the store was closed; open it again")
        self._start()
        return self._listeners.add(callback, weak=weak)

    def watch(self) -> None:
        """From now on places of dropped deliveries come back at once, for those that wait for a message."""
        if self.thread is None or self.thread.failure is not None:
            store = self._store()
            if store is not None:
                with store._lock:
                    self._start()

    def _start(self) -> None:
        store = self._store()
        if store is None or store._closed:
            return
        if self.thread is None or self.thread.failure is not None:
            store._notify = self._notices.put  # it takes no lock that a finalizer could wait for
            self._notices.put(None)  # for those that were dropped before
            self.thread = start("logstore-releases", self._run)

    def tell(self, queue: Queue) -> None:
        """Calls the listeners: a place came back to this queue."""
        call_all(self._listeners, queue, kind="release")

    def rolled_back(self) -> None:
        """Calls the listeners for every queue: a rollback may have unlocked places on any of them."""
        self._tell_all_queues()

    def abandoned(self) -> None:
        """Like :meth:`rolled_back`, for a finalizer: takes no lock; the store's thread calls the listeners."""
        if self._listeners:
            self._notices.put(True)

    def close(self) -> None:
        """Ends the thread after it has reported all earlier notices. Called after the store's ``_closed`` was set."""
        if self.thread is not None:
            self._notices.put(False)
            if self.thread is not threading.current_thread():
                self.thread.join()
        self._listeners.end()

    def _run(self) -> None:
        while (notice := self._notices.get()) is not False:
            if notice is None:
                self._tell_dropped()
            else:
                self._tell_all_queues()

    def _tell_dropped(self) -> None:
        store = self._store()
        if store is not None:
            for queue_id in store._released_queues():
                if queue_id in (queues := store._all_queues()):
                    self.tell(queues[queue_id])

    def _tell_all_queues(self) -> None:
        store = self._store()
        if store is not None and self._listeners:
            for queue in store._all_queues().values():
                self.tell(queue)
