"""Resumes the tasks that wait for messages of a queue, ``await queue.get()``, and calls a loop's listeners.

Each event loop in which a task waits, or that calls a listener of a queue, of deaths or of transactions in doubt, has
an inbox in the core with an eventfd of its own. The core signals it when a taker of the loop was served, or has ended,
or there is an event (:mod:`queue_events`, :mod:`store_events`); so nothing wakes the loop while nothing happens for it.
A loop gives its inbox back after its last listener was closed, unless a task waits.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from logstore import errors
from logstore._core import ffi, lib
from logstore.core.locks import Lock
from logstore.store.queue_events import EventInbox

if TYPE_CHECKING:
    import asyncio

    from logstore._core import ls_store_ptr

_AT_ONCE: Final = 256


class Inbox(EventInbox):
    """The waiting tasks and the listeners of one event loop.

    Used in that loop's thread only, or after the loop was closed; but any thread may close a listener.
    """

    def __init__(self, handle: ls_store_ptr, all_of: Inboxes, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(handle)
        self.loop, self._all_of = loop, all_of
        self._numbers = itertools.count(1)
        self._served = ffi.new("uint64_t[]", _AT_ONCE)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        try:
            loop.add_reader(self._fd, self._ready)
        except BaseException:
            super().end()
            raise

    def expect(self) -> tuple[int, asyncio.Future[None]]:
        """A number for a taker, and a future that is done once that taker was served or has ended."""
        number, future = next(self._numbers), self.loop.create_future()
        self._waiting[number] = future
        return number, future

    def forget(self, number: int) -> None:
        """The taker has ended, or never began."""
        self._waiting.pop(number, None)

    def _ready(self) -> None:
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            os.eventfd_read(self._fd)
        self._resume()
        self.tell()

    def _resume(self) -> None:
        while count := lib.ls_inbox_next(self._made[0], self._served, _AT_ONCE):
            for number in self._served[0:count]:
                future = self._waiting.pop(number, None)
                if future is not None and not future.done():  # done: its time is over, or its task was cancelled
                    future.set_result(None)

    @property
    def is_used(self) -> bool:
        """Whether a task waits, or there is a listener."""
        return bool(self._waiting or self.has_listeners)

    def unused(self) -> None:
        """A queue, or the store, lost its last listener here: the loop gives back its inbox if that is unused."""
        if self.is_used:
            return
        if self.loop.is_closed():
            with contextlib.suppress(errors.ReentrantCall):  # of a finalizer: the next loop's inbox finds it
                self._all_of.retire(self)
        else:
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self.loop.call_soon_threadsafe(self._all_of.retire, self)

    def close(self) -> None:
        """Called after the core's close, which has ended all takers; in the loop, or after the loop was closed."""
        if self._fd >= 0:
            self._resume()
            self.end()

    def end(self) -> None:
        """Closes the eventfd; see :meth:`close`."""
        if self._fd >= 0 and not self.loop.is_closed():
            self.loop.remove_reader(self._fd)
        super().end()

    def forked(self) -> None:
        """Called in a forked child. Its tasks get ``StoreForked`` if the loop ever runs there."""
        self._fd = -1
        for future in self._waiting.values():
            with contextlib.suppress(Exception):  # any loop may refuse that in a child
                self.loop.call_soon(_resume, future)


def _resume(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Inboxes:
    """Those of one store."""

    def __init__(self, handle: ls_store_ptr) -> None:
        self._c = handle
        self._lock = Lock("the store's list of inboxes")
        self._all: dict[asyncio.AbstractEventLoop, Inbox] = {}
        self._closed = False
        _INBOXES.add(self)

    def of(self, loop: asyncio.AbstractEventLoop) -> Inbox:
        """The inbox of the running loop. Raises ``StoreClosed``."""
        mine = self._all.get(loop)
        if mine is not None:
            return mine
        with self._lock:
            if self._closed:
                raise errors.StoreClosed("the store was closed; open it again")
            for other in [other for other in self._all if other.is_closed()]:
                self._all.pop(other).end()
            mine = self._all[loop] = Inbox(self._c, self, loop)
            return mine

    def retire(self, mine: Inbox) -> None:
        """Ends an inbox if nothing uses it. Called in the loop's thread, or after the loop was closed."""
        with self._lock:
            if not mine.is_used and self._all.get(mine.loop) is mine:
                del self._all[mine.loop]
                mine.end()

    def close(self) -> None:
        """Called after the core's close."""
        with self._lock:
            self._closed = True
        for loop, mine in tuple(self._all.items()):  # none comes any more
            try:
                loop.call_soon_threadsafe(mine.close)
            except RuntimeError:  # the loop is closed, so none of its tasks is ever resumed
                mine.end()

    def forked(self) -> None:
        """Called in a forked child."""
        for mine in self._all.values():
            mine.forked()
        self._all = {}


_INBOXES: WeakSet[Inboxes] = WeakSet()


def _forget_loops() -> None:
    for each in list(_INBOXES):
        each.forked()


os.register_at_fork(after_in_child=_forget_loops)
