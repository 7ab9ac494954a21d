"""Reports to Python that the log has become durable: callbacks and awaitables, driven by the core's eventfds.

The core never calls Python. After each group commit it adds to eventfds. Each event loop in which a task awaits an LSN,
or for which a callback is registered, watches its own eventfd; one more wakes the thread that runs the other callbacks,
once per group commit. After a failed write or sync every waiter and every callback gets the exception once.

A loop that has no callback and no waiter left gives its eventfd back: in its next turn after the last callback was
closed, else after a few group commits, so that a task may wait for one LSN after another with one eventfd. So does the
thread at the next group commit. The thread stays, and sleeps; it also calls the listeners of queues and of the
store (queue_events.py, store_events.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from typing import TYPE_CHECKING
from weakref import WeakSet

from logstore import errors
from logstore._core import ffi, lib
from logstore._hot import Waiters
from logstore.core import arguments
from logstore.core.locks import Lock
from logstore.core.native import check
from logstore.core.threads import Worker, start
from logstore.store.fullness import fullness_of
from logstore.store.listeners import Listener, Listeners, call_all, tell_all
from logstore.store.queue_events import EventInbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore._core import ls_store_ptr
    from logstore._hot import Owner

_LSN_END = (1 << 64) - 1
_IDLE_MAX = 16  # group commits without a waiter, after which a loop gives its eventfd back
_STOP_POLL_MS = 1000  # so that the thread ends even if it missed its last event


def runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this thread runs the loop now."""
    return asyncio._get_running_loop() is loop


class _FullnessListeners(Listeners):
    """They are called when the store has become full, or nearly full, and when it has room again."""

    def __init__(self, handle: ls_store_ptr, unused: Callable[[], object] | None = None, *, near: bool = False) -> None:
        super().__init__(unused)
        self._c = handle
        self._count = lib.ls_near_full_changes if near else lib.ls_fullness_changes
        self._changes = 0  # of which the listeners know

    def add(self, callback: Callable[..., object], *, weak: bool) -> Listener:
        if not self:
            self._changes = self._count(self._c)
        return super().add(callback, weak=weak)

    def tell(self) -> None:
        """Calls them if the fullness has changed since."""
        if self and (changes := self._count(self._c)) != self._changes:
            self._changes = changes
            with contextlib.suppress(errors.StoreClosed):
                call_all(self, fullness_of(self._c), kind="fullness")


class _Loop(Waiters):
    """The waiters and callbacks of one event loop, which watches its own eventfd: no thread is between it and the core.

    Used in that loop's thread only, or after the loop was closed.
    """

    def __init__(self, handle: ls_store_ptr, all_of: Completions, loop: asyncio.AbstractEventLoop) -> None:
        done = loop.create_future()
        done.set_result(None)
        super().__init__(loop, done)
        self._c, self._all_of = handle, all_of
        self.callbacks = Listeners(self._unused)
        self.room = Listeners(self._unused)
        self.fullness = _FullnessListeners(handle, self._unused)
        self.near = _FullnessListeners(handle, self._unused, near=True)
        self._idle = 0  # group commits for which nobody waited
        # Takes the answer back that is with the store; meanwhile a group commit may be without a signal.
        self._take_back: Callable[[], object] | None = None
        self._fd = -1
        fd = ffi.new("int *")
        check(lib.ls_event_fd(handle, fd))
        self._fd = int(fd[0])
        try:
            loop.add_reader(self._fd, self._ready)
            loop.call_soon(self._ready)  # reports what became durable before the eventfd existed
        except BaseException:
            self.end()
            raise

    @property
    def is_used(self) -> bool:
        """Whether a task waits, or a callback is registered."""
        return bool(self.waiting or self.callbacks or self.room or self.fullness or self.near)

    def _unused(self) -> None:
        """The last listener of one kind was closed, on any thread."""
        if self.loop.is_closed():
            with contextlib.suppress(errors.ReentrantCall):  # of a finalizer: the next loop finds it
                self._all_of.retire(self)
        else:
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self.loop.call_soon_threadsafe(self._all_of.retire, self)

    def _ready(self) -> None:
        if self._fd < 0:
            return
        try:  # noqa: SIM105 - at each group commit, and suppress() takes longer than the read
            os.eventfd_read(self._fd)
        except OSError:  # the first call is not of the eventfd
            pass
        durable: int = lib.ls_durable_lsn(self._c)
        if durable > self.reported_lsn:
            self.reported_lsn = durable
            try:
                call_all(self.callbacks, durable)
            finally:
                self._wake(durable)
        else:  # the spare thread has ended a try, or the fullness changed
            call_all(self.room, None, kind="room")
        self.fullness.tell()
        self.near.tell()
        if lib.ls_poisoned(self._c):
            self.fail(_unknown_outcome)
        if self.is_used:
            self._idle = 0
            return
        self._idle += 1
        if self._idle > _IDLE_MAX:
            self._all_of.retire(self)

    # The answer to one client, which the store sends (`ls_event_answer`).

    def answer(self, lsn: int, socket: int, data: bytes, take_back: Callable[[], object]) -> bool:
        """Leaves bytes for a socket with the store: it sends them when ``lsn`` is durable, without waking the loop.

        Once something else of the loop begins to wait for group commits, ``take_back`` is called, which calls
        :meth:`answered`. False: the store does not take them, or something else waits already: a task, or a callback
        besides that of the caller.
        """
        if self.waiting or len(self.callbacks) > 1 or self.failed is not None or self._take_back is not None:
            return False
        if lib.ls_event_answer(self._c, self._fd, lsn, socket, data, len(data)) != lib.LS_OK:
            return False
        self._take_back = take_back
        return True

    @property
    def answering_fd(self) -> int:
        """The eventfd of the loop if the next answer may be left in place of the last one; -1 if not."""
        if self._take_back is None or self.waiting or len(self.callbacks) > 1 or self.failed is not None:
            return -1
        return self._fd

    def answered(self) -> int:
        """Takes the answer back. Returns the number of bytes sent; -1: its LSN was not durable, and none are sent."""
        self._take_back = None
        return int(lib.ls_event_answered(self._c, self._fd))

    def must_hear(self) -> None:
        """A task is about to wait for a group commit."""
        if self._take_back is not None:
            self._take_back()
            self.loop.call_soon(self._ready)

    def fail(self, failed: Callable[[], Exception], *, callbacks: bool = True) -> None:
        """Gives every waiter an exception that ``failed`` makes. The loop has then no further use for this store."""
        if self.failed is not None:
            return
        self.failed = failed
        self.end()
        try:
            if callbacks:
                tell_all(tuple(self.callbacks), failed)
        finally:
            self._wake(_LSN_END)

    def close(self) -> None:
        """Called after the core's close: reports the last group commit, then ``StoreClosed``."""
        self._ready()
        self.fail(_closed, callbacks=False)
        for each in (self.callbacks, self.room, self.fullness, self.near):
            each.end()

    def end(self) -> None:
        """Closes the eventfd, once: later another file may have its number."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if not self.loop.is_closed():
                self.loop.remove_reader(fd)
            lib.ls_event_end(self._c, fd)

    def forked(self) -> None:
        """Called in a forked child: leaves the eventfd to the parent. Waiters get ``StoreForked`` if the loop runs."""
        self._fd = -1
        self.failed = _forked
        with contextlib.suppress(Exception):  # any loop may refuse that in a child
            self.loop.call_soon(self._wake, _LSN_END)


def check_loop(loop: object) -> None:
    """Raises ``TypeError`` if it is not an event loop, ``OptionError`` if it is closed or runs in another thread."""
    if not isinstance(loop, asyncio.AbstractEventLoop):
        raise TypeError(f"loop is an asyncio event loop, not {arguments.shown(loop)}")
    if loop.is_closed():
        raise errors.OptionError("loop is an event loop that is closed; pass the running one")
    if loop.is_running() and not runs_here(loop):
        raise errors.OptionError("loop is an event loop that runs in another thread; make the call in that thread")


class Completions:
    """All waiters of one store: event loops, each with its own eventfd, and callbacks, which one thread calls.

    The thread starts with the first callback.
    """

    def __init__(self, handle: ls_store_ptr, owner: Owner) -> None:
        self._c, self._owner = handle, owner
        self._lock = Lock("the store's list of callbacks")
        self._callbacks = Listeners()
        self._fullness = _FullnessListeners(handle)
        self._near = _FullnessListeners(handle, near=True)
        self.loops: dict[asyncio.AbstractEventLoop, _Loop] = {}  # of any thread; changed under the lock
        self.thread: Worker | None = None
        self._wake = -1  # an eventfd for the thread
        self._fd = -1  # the core's eventfd for the thread, while it has callbacks; closed by the thread only
        self._reported_lsn = 0
        self._inbox: EventInbox | None = None  # of the listeners that the thread calls
        self._failed: Callable[[], Exception] | None = None  # makes the exception
        self._closed = False
        _COMPLETIONS.add(self)

    def add_callback(
        self,
        callback: Callable[[int | Exception], object],
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        weak: bool = False,
    ) -> Listener:
        """Calls ``callback`` with the new durable LSN after every group commit from now on.

        Without ``loop`` the store's thread calls it. With ``loop`` the loop calls it; this method must then be called
        from that loop's thread.
        """
        if loop is not None:
            mine = self.of(loop)
            mine.must_hear()
            return mine.callbacks.add(callback, weak=weak)
        with self._lock:
            self._listen()
            made = self._callbacks.add(callback, weak=weak)
            failed = self._failed
        if failed is not None:
            tell_all([callback], failed)
        return made

    def add_fullness_callback(
        self, callback: Callable[..., object], loop: asyncio.AbstractEventLoop | None, *, near: bool, weak: bool
    ) -> Listener:
        """Calls ``callback`` when the store has become full or has room again; threads as for :meth:`add_callback`.

        With ``near`` when it has become nearly full, and when that is over.
        """
        if loop is not None:
            mine = self.of(loop)
            return (mine.near if near else mine.fullness).add(callback, weak=weak)
        with self._lock:
            self._listen()
            return (self._near if near else self._fullness).add(callback, weak=weak)

    def inbox(self) -> EventInbox:
        """For the listeners of queues and of the store that the thread calls."""
        with self._lock:
            if self._inbox is None:
                self._check_open()
                self._inbox = EventInbox(self._c)
            self._run_thread()
            return self._inbox

    def of(self, loop: asyncio.AbstractEventLoop) -> _Loop:
        """The waiters of this loop. Raises the failure if the log has failed, ``StoreClosed`` after the close."""
        with self._lock:
            mine = self.loops.get(loop)
            if mine is not None and mine.failed is not None:
                raise mine.failed()
            if self._closed:
                raise _closed()
            if mine is None:
                for other in [other for other in self.loops if other.is_closed()]:
                    self.loops.pop(other).end()
                mine = self.loops[loop] = _Loop(self._c, self, loop)
            return mine

    def retire(self, mine: _Loop) -> None:
        """Gives its eventfd back if nothing uses it. Called in the loop's thread, or after the loop was closed."""
        with self._lock:
            if not mine.is_used and mine.failed is None and self.loops.get(mine.loop) is mine:
                del self.loops[mine.loop]
                mine.end()

    def close(self) -> None:
        """Called after the core's close: reports the last group commit; remaining waiters get ``StoreClosed``."""
        with self._lock:
            self._closed = True
            thread = self.thread
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)
        for mine in tuple(self.loops.values()):
            try:
                mine.loop.call_soon_threadsafe(mine.close)
            except RuntimeError:  # the loop is closed, so none of its waiters is ever resumed
                mine.end()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            self._end()

    def forked(self) -> None:
        """Called in a forked child: forgets the parent's loops."""
        for mine in self.loops.values():
            mine.forked()
        self.loops = {}

    # ---- the thread ----

    def _listen(self) -> None:
        """There will be a callback for the thread. Called under the lock."""
        self._check_open()
        if self._fd < 0:
            fd = ffi.new("int *")
            check(lib.ls_event_fd(self._c, fd))
            self._reported_lsn = int(lib.ls_durable_lsn(self._c))  # read here, so that later progress is reported
            self._fd = int(fd[0])
        self._run_thread()

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()

    def _run_thread(self) -> None:
        """The thread runs, and watches all eventfds that there are now. Called under the lock."""
        self._check_open()
        if self._wake < 0:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        if self.thread is None or self.thread.failure is not None:
            self.thread = start("logstore-completions", self._run)
        else:
            os.eventfd_write(self._wake, 1)  # it watches the eventfd from now on

    def _run(self) -> None:
        watched: tuple[int, ...] = ()
        poll = select.poll()
        while True:
            if watched != self._eventfds():
                watched = self._eventfds()
                poll = select.poll()
                for fd in watched:
                    if fd >= 0:
                        poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(_STOP_POLL_MS):
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 8)
            closed = self._closed
            self._report()
            if closed:
                self._end()
                return
            if self._fd >= 0 and not self._thread_listeners():
                self._stop_listening()

    def _eventfds(self) -> tuple[int, int, int]:
        return self._wake, self._fd, -1 if self._inbox is None else self._inbox.fd

    def _report(self) -> None:
        if self._inbox is not None and not self._closed:
            self._inbox.tell()
        durable = lib.ls_durable_lsn(self._c)
        if durable > self._reported_lsn:
            self._reported_lsn = durable
            call_all(self._callbacks, durable)
        self._fullness.tell()
        self._near.tell()
        if self._failed is None and lib.ls_poisoned(self._c):
            with self._lock:  # a callback that is added meanwhile is called by one of the two
                callbacks, self._failed = tuple(self._callbacks), _unknown_outcome
            tell_all(callbacks, _unknown_outcome)

    def _thread_listeners(self) -> bool:
        return bool(self._callbacks or self._fullness or self._near)

    def _stop_listening(self) -> None:
        with self._lock:
            if not self._thread_listeners():
                fd, self._fd = self._fd, -1
                lib.ls_event_end(self._c, fd)

    def _end(self) -> None:
        """The store is closed, and the thread does nothing more."""
        for each in (self._callbacks, self._fullness, self._near):
            each.end()
        if self._inbox is not None:
            self._inbox.end()
        with self._lock:
            fd, self._wake = self._wake, -1
        if fd >= 0:
            os.close(fd)


_COMPLETIONS: WeakSet[Completions] = WeakSet()


def _forget_loops() -> None:
    for each in list(_COMPLETIONS):
        each.forked()


os.register_at_fork(after_in_child=_forget_loops)


def _unknown_outcome() -> errors.OutcomeUnknown:
    return errors.OutcomeUnknown(
        "a write or sync of the log failed, so operations that were not yet durable may or may not be on disk; "
        "close the store, check the disk, and open it again to find out"
    )


def _closed() -> errors.StoreClosed:
    return errors.StoreClosed("the store was closed; open it again")


def _forked() -> errors.StoreForked:
    return errors.StoreForked("this process is a fork of the one that opened the store; open it again after fork")
