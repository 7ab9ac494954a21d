"""Calls the listeners of all queues when a place comes back to one: released, or unlocked by a rollback.

The core marks the queues to which places came back (queue_events.py has the same for single queues). The thread that
released or rolled back takes the marks and calls the listeners.

A delivery may be dropped, and a transaction abandoned, on any thread at any moment. So their finalizers only queue a
notice; a thread of the store, started with the first listener, gives dropped deliveries back and calls the listeners.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from logstore import errors
from logstore._core import ffi, lib
from logstore.core.native import check, owned
from logstore.core.threads import Worker, start
from logstore.store.listeners import Listener, Listeners, call_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore._hot import Owner
    from logstore.core.locks import Lock
    from logstore.store.message_store import MessageStore
    from logstore.store.queues import Queue

_AT_ONCE: Final = 256


class Releases:
    """The listeners of one store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = weakref.ref(store)  # so that the thread does not keep an unused store open
        self._listeners = Listeners(self._unwatch)
        self._inbox: tuple[Owner, Any] | None = None  # made with the first listener
        self._is_watching = False
        #: True: a transaction was abandoned; None: a delivery was dropped; False: the thread ends
        self._notices: SimpleQueue[bool | None] = SimpleQueue()
        self.thread: Worker | None = None

    def add(self, callback: Callable[[Queue], object], *, weak: bool) -> Listener:
        """Adds a listener. Called under the store's lock."""
        store = self._store()
        if store is None or store._closed:
            raise errors.StoreClosed("the store was closed; open it again")
        self._start()
        if self._inbox is None:
            owner, made = owned("inbox")
            check(lib.ls_inbox_new(store._c, made, ffi.new("int *")))  # nobody waits for its eventfd
            self._inbox = owner, made
        if not self._is_watching:
            check(lib.ls_inbox_watch(self._inbox[1][0], 0, lib.LS_RELEASED))
            self._is_watching = True
        return self._listeners.add(callback, weak=weak)

    def _unwatch(self) -> None:
        """Nobody listens: the core marks no queue any more. Called on any thread."""
        store = self._store()
        with contextlib.suppress(errors.ReentrantCall):  # of a finalizer: the next release finds it
            if store is not None:
                self._unwatch_under(store._lock)

    def _unwatch_under(self, lock: Lock) -> None:
        with lock:
            if self._inbox is not None and self._is_watching and not self._listeners:
                lib.ls_inbox_watch(self._inbox[1][0], 0, 0)
                self._is_watching = False

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

    def tell(self) -> None:
        """Calls the listeners for each queue to which places came back since the last call, on whatever thread."""
        store, inbox = self._store(), self._inbox
        if store is None or inbox is None or not self._is_watching:
            return
        if not self._listeners:
            self._unwatch()
            return
        found = ffi.new("ls_event[]", _AT_ONCE)
        while count := lib.ls_inbox_events(inbox[1][0], found, _AT_ONCE):
            for queue_id in [event.queue_id for event in found[0:count]]:
                queue = store._queue_of(queue_id)
                if queue is not None:
                    call_all(self._listeners, queue, kind="release")

    def abandoned(self) -> None:
        """Like :meth:`tell`, for a finalizer: takes no lock; the store's thread calls the listeners."""
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
            store = self._store()
            if store is not None:
                if notice is None:
                    store._released_queues()
                self.tell()
            del store
