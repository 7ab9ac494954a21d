"""Reports to Python that the log has become durable: callbacks and awaitables, driven by the core's eventfds.

The core never calls Python. After each group commit it adds to eventfds. Each event loop in which a task awaits an LSN
watches its own eventfd; one more wakes the thread that runs the callbacks, once per group commit. After a failed write
or sync every waiter and every callback gets the exception once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from logstore import errors
from logstore._core import ffi, lib
from logstore._hot import Waiters
from logstore.core import arguments
from logstore.core.locks import Lock
from logstore.core.native import check
from logstore.core.threads import Worker, log_error, start
from logstore.store.fullness import Fullness, fullness_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from logstore._core import ls_store_ptr
    from logstore._hot import Owner

_ENDS_PROCESS = (KeyboardInterrupt, SystemExit)
_Argument = TypeVar("_Argument")
_LSN_END = (1 << 64) - 1
_STOP_POLL_MS = 1000  # so that the thread ends even if it missed its last event


class _Loop(Waiters):
    """The waiters of one event loop. The loop watches its own eventfd, without a thread between it and the core.

    Used in that loop's thread only, or after the loop was closed.
    """

    def __init__(self, handle: ls_store_ptr, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        done = loop.create_future()
        done.set_result(None)
        super().__init__(loop, done)
        self._c, self._owner = handle, owner
        self._callbacks: tuple[Callable[[int | Exception], object], ...] = ()
        self._room_callbacks: tuple[Callable[[None], object], ...] = ()
        self._fullness_callbacks: tuple[Callable[[Fullness], object], ...] = ()
        self._fullness_changes = 0  # of which the callbacks know
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

    def add_callback(self, callback: Callable[[int | Exception], object]) -> None:
        self._callbacks = (*self._callbacks, callback)

    def add_room_callback(self, callback: Callable[[None], object]) -> None:
        self._room_callbacks = (*self._room_callbacks, callback)

    def add_fullness_callback(self, callback: Callable[[Fullness], object]) -> None:
        if not self._fullness_callbacks:
            self._fullness_changes = lib.ls_fullness_changes(self._c)
        self._fullness_callbacks = (*self._fullness_callbacks, callback)

    def _tell_fullness(self) -> None:
        changes = lib.ls_fullness_changes(self._c)
        if changes != self._fullness_changes:
            self._fullness_changes = changes
            with contextlib.suppress(errors.StoreClosed):
                call_all(self._fullness_callbacks, fullness_of(self._c), kind="fullness")

    def _ready(self) -> None:
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            os.eventfd_read(self._fd)
        durable = int(lib.ls_durable_lsn(self._c))
        if durable > self.reported_lsn:
            self.reported_lsn = durable
            try:
                call_all(self._callbacks, durable)
            finally:
                self._wake(durable)
        else:  # the spare thread has ended a try, or the fullness changed
            call_all(self._room_callbacks, None, kind="room")
        if self._fullness_callbacks:
            self._tell_fullness()
        if lib.ls_poisoned(self._c):
            self.fail(_unknown_outcome)

    def fail(self, failed: Callable[[], Exception], *, callbacks: bool = True) -> None:
        """Gives every waiter an exception that ``failed`` makes. The loop has then no further use for this store."""
        if self.failed is not None:
            return
        self.failed = failed
        self.end()
        try:
            if callbacks:
                tell_all(self._callbacks, failed)
        finally:
            self._wake(_LSN_END)

    def close(self) -> None:
        """Called after the core's close: reports the last group commit, then ``StoreClosed``."""
        self._ready()
        self.fail(_closed, callbacks=False)

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
    """Raises ``TypeError`` if it is not an event loop, ``OptionError`` if the loop is closed."""
    if not isinstance(loop, asyncio.AbstractEventLoop):
        raise TypeError(f"loop is an asyncio event loop, not {arguments.shown(loop)}")
    if loop.is_closed():
        raise errors.OptionError("loop is an event loop that is closed; pass the running one")


class Completions:
    """All waiters of one store: event loops, each with its own eventfd, and callbacks, which one thread calls.

    The thread starts with the first callback.
    """

    def __init__(self, handle: ls_store_ptr, owner: Owner) -> None:
        self._c, self._owner = handle, owner
        self._lock = Lock("the store's list of callbacks")
        self._callbacks: tuple[Callable[[int | Exception], object], ...] = ()  # replaced as a whole
        self.loops: dict[asyncio.AbstractEventLoop, _Loop] = {}  # of any thread; only `of` changes it
        self.thread: Worker | None = None
        self._fd = -1
        self._failed: Callable[[], Exception] | None = None  # makes the exception
        self._closed = False
        _COMPLETIONS.add(self)

    def add_callback(
        self, callback: Callable[[int | Exception], object], loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Calls ``callback`` with the new durable LSN after every group commit from now on.

        Without ``loop`` the store's thread calls it. With ``loop`` the loop calls it; this method must then be called
        from that loop's thread.
        """
        if loop is not None:
            self.of(loop).add_callback(callback)
            return
        with self._lock:
            self._start()
            self._callbacks = (*self._callbacks, callback)
            failed = self._failed
        if failed is not None:
            tell_all([callback], failed)

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
                mine = self.loops[loop] = _Loop(self._c, self._owner, loop)
            return mine

    def close(self) -> None:
        """Called after the core's close: reports the last group commit; remaining waiters get ``StoreClosed``."""
        with self._lock:
            self._closed = True
            thread = self.thread
        for mine in self.loops.values():  # none comes or goes any more
            try:
                mine.loop.call_soon_threadsafe(mine.close)
            except RuntimeError:  # the loop is closed, so none of its waiters is ever resumed
                mine.end()
        if thread is not None and thread is not threading.current_thread():
            os.eventfd_write(self._fd, 1)  # it may have read the core's last event before _closed was set
            thread.join()

    def forked(self) -> None:
        """Called in a forked child: forgets the parent's loops."""
        for mine in self.loops.values():
            mine.forked()
        self.loops = {}

    # ---- the thread ----

    def _start(self) -> None:
        if (self.thread is None or self.thread.failure is not None) and not self._closed:
            if self._fd < 0:
                fd = ffi.new("int *")
                check(lib.ls_event_fd(self._c, fd))
                self._fd = int(fd[0])
            reported_lsn = int(lib.ls_durable_lsn(self._c))  # read here, so that later progress is reported
            self.thread = start("logstore-completions", self._run, reported_lsn)

    def _run(self, reported_lsn: int) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while True:
            if poll.poll(_STOP_POLL_MS):
                with contextlib.suppress(BlockingIOError):
                    os.read(self._fd, 8)
            closed = self._closed
            durable = lib.ls_durable_lsn(self._c)
            if durable > reported_lsn:
                reported_lsn = durable
                call_all(self._callbacks, durable)
            if self._failed is None and lib.ls_poisoned(self._c):
                with self._lock:  # a callback that is added meanwhile is called by one of the two
                    callbacks, self._failed = self._callbacks, _unknown_outcome
                tell_all(callbacks, _unknown_outcome)
            if closed:
                return


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


def tell_all(callbacks: Iterable[Callable[[Any], object]], failed: Callable[[], Exception]) -> None:
    """Calls every callback with an exception of its own: one that is raised twice would keep both callers' frames."""
    for callback in callbacks:
        call_all((callback,), failed())


def call_all(callbacks: Iterable[Callable[[_Argument], object]], value: _Argument, *, kind: str = "completion") -> None:
    """Calls every callback with ``value``. An exception is logged; it stops neither the others nor the thread."""
    for callback in callbacks:
        try:
            callback(value)
        except BaseException as problem:
            log_error(problem, "a %s callback failed", kind)
            if isinstance(problem, _ENDS_PROCESS) and threading.current_thread() is threading.main_thread():
                raise  # Ctrl-C in an event loop; the store's own thread, in contrast, must survive everything
