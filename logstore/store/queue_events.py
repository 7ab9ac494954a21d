"""Tells listeners of what happened on their queues: messages arrived or expired, or places came back.

Each event loop with such a listener has an inbox in the core, and so has the thread that calls the others. The core
marks the queues on which something happened, and signals the inbox's eventfd when the first is marked; so nothing runs
for a queue on which nothing happens, and a call stands for all events of the queue since the last one. The mark is
taken off before the listeners are called, so a listener that looks at its queue misses nothing.

A queue is watched in the core while it has listeners. If the last one was closed by a finalizer in the middle of a
change here, or ended with its object, the watch ends with the next event of the queue.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Final

from logstore import errors
from logstore._core import ffi, lib
from logstore.core.locks import Lock
from logstore.core.native import check, owned
from logstore.store.listeners import Listener, Listeners, call_all
from logstore.store.store_events import StoreEvents

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore._core import ls_store_ptr
    from logstore._hot import Owner
    from logstore.store.queues import Queue

_AT_ONCE: Final = 256
_KINDS: Final = {lib.LS_ARRIVED: "queue", lib.LS_RELEASED: "release", lib.LS_EXPIRED: "expiry"}  # for the log


class _Watched:
    """The listeners of one queue."""

    def __init__(self, queue: Queue, unused: Callable[[], object]) -> None:
        self.queue = weakref.ref(queue)  # the store keeps it; so a listener does not keep an unused store open
        self.of = {kind: Listeners(unused) for kind in _KINDS}
        self.wanted = 0  # the kinds that the core tells

    def used(self) -> int:
        """The kinds that have listeners."""
        return sum(kind for kind, listeners in self.of.items() if listeners)


class EventInbox:
    """An inbox of the core, and the listeners that it serves: those of queues, and those of the store."""

    def __init__(self, handle: ls_store_ptr) -> None:
        self.owner: Owner
        self.owner, self._made = owned("inbox")
        fd = ffi.new("int *")
        check(lib.ls_inbox_new(handle, self._made, fd))
        self._fd = int(fd[0])
        self._lock = Lock("the listeners of a store's queues")
        self._watched: dict[int, _Watched] = {}
        self._found = ffi.new("ls_event[]", _AT_ONCE)
        self.of_store = StoreEvents(self._made, self.unused)
        self._ended = False

    @property
    def fd(self) -> int:
        """Its eventfd; -1 once it has ended."""
        return self._fd

    @property
    def has_listeners(self) -> bool:
        """Whether a queue is watched, or the store has a listener here."""
        return bool(self._watched) or self.of_store.has_listeners

    def listen(self, queue: Queue, kind: int, callback: Callable[[Queue], object], *, weak: bool) -> Listener:
        """Calls ``callback`` with the queue after events of this kind. Raises ``UnknownQueue`` and ``StoreClosed``."""
        with self._lock:
            if self._ended:
                raise errors.StoreClosed("the store was closed; open it again")
            mine = self._watched.get(queue.id)
            if mine is None:
                mine = _Watched(queue, functools.partial(self._settle, queue.id))
            wanted = mine.used() | kind
            if wanted != mine.wanted:
                check(lib.ls_inbox_watch(self._made[0], queue.id, wanted))
                mine.wanted = wanted
            self._watched[queue.id] = mine
            return mine.of[kind].add(callback, weak=weak)

    def tell(self) -> None:
        """Calls the listeners of the store, and of every queue on which something happened since the last call."""
        self.of_store.tell()
        while not self._ended and (count := lib.ls_inbox_events(self._made[0], self._found, _AT_ONCE)):
            for queue_id, kinds in [(event.queue_id, event.kinds) for event in self._found[0:count]]:
                mine = self._watched.get(queue_id)
                if mine is not None:
                    self._tell_one(queue_id, mine, kinds)
            if count < _AT_ONCE:
                return

    def _tell_one(self, queue_id: int, mine: _Watched, kinds: int) -> None:
        queue = mine.queue()
        if kinds & lib.LS_QUEUE_DELETED or queue is None:
            self._watched.pop(queue_id, None)
            for listeners in mine.of.values():
                listeners.end()
            self.unused()
            return
        for kind, name in _KINDS.items():
            if kinds & kind:
                call_all(mine.of[kind], queue, kind=name)
        if mine.used() != mine.wanted:
            self._settle(queue_id)

    def _settle(self, queue_id: int) -> None:
        """The core tells no longer what nobody listens to. Called on any thread."""
        try:
            self._watch_used(queue_id)
        except errors.ReentrantCall:
            return  # called by a finalizer or signal handler: the queue's next event settles it
        self.unused()

    def _watch_used(self, queue_id: int) -> None:
        with self._lock:
            mine = self._watched.get(queue_id)
            if mine is None or self._ended:
                return
            wanted = mine.used()
            if wanted != mine.wanted:
                lib.ls_inbox_watch(self._made[0], queue_id, wanted)  # fails only after the close, and in a fork
                mine.wanted = wanted
            if wanted == 0:
                del self._watched[queue_id]

    def unused(self) -> None:
        """A queue, or the store, lost its last listener here. Called on any thread."""

    def end(self) -> None:
        """Ends all listeners and closes the eventfd. Nothing calls :meth:`tell` at the same time."""
        with self._lock:
            self._ended = True
            all_watched, self._watched = self._watched, {}
            fd, self._fd = self._fd, -1
        for mine in all_watched.values():
            for listeners in mine.of.values():
                listeners.end()
        self.of_store.end()
        if fd >= 0:
            self.owner.free()
