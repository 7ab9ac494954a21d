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
from typing import TYPE_CHECKING, TypeVar

from logstore import errors
from logstore._core import ffi, lib
from logstore._hot import Waiters
from logstore.core import arguments
from logstore.core.locks import Lock
from logstore.core.native import check
from logstore.core.threads import Worker, log_error, start

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

    Used in that loop's thread only.
    """

    def __init__(self, handle: ls_store_ptr, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self._done = loop.create_future()
        self._done.set_result(None)
        super().__init__(loop, self._done)
        self._c, self._owner = handle, owner
        self._callbacks: tuple[Callable[[int | Exception], object], ...] = ()
        fd = ffi.new("int *")
        check(lib.ls_event_fd(handle, fd))
        self._fd = int(fd[0])
        loop.add_reader(self._fd, self._ready)
        loop.call_soon(self._ready)  # reports what became durable before the eventfd existed

    def _wake_cancelled(self) -> None:
        self._wake_chosen(_is_cancelled)

    def add_callback(self, callback: Callable[[int | Exception], object]) -> None:
        self._callbacks = (*self._callbacks, callback)

    def _ready(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_read(self._fd)
        durable = int(lib.ls_durable_lsn(self._c))
        if durable > self.reported_lsn:
            self.reported_lsn = durable
            try:
                call_all(self._callbacks, durable)
            finally:
                self._wake(durable)
        if lib.ls_poisoned(self._c):
            self.fail(_unknown_outcome())

    def fail(self, failure: Exception, *, callbacks: bool = True) -> None:
        """Gives every waiter the exception, once. The loop has then no further use for this store."""
        if self.failure is not None:
            return
        self.failure = failure
        self.loop.remove_reader(self._fd)
        lib.ls_event_end(self._c, self._fd)
        try:
            if callbacks:
                call_all(self._callbacks, failure)
        finally:
            self._wake(_LSN_END)

    def close(self) -> None:
        """Called after the core's close: reports the last group commit, then ``StoreClosed``."""
        if self.failure is None:
            self._ready()
        self.fail(_closed(), callbacks=False)

    def forget(self) -> None:
        """Releases the eventfd of a loop that was closed before the store."""
        lib.ls_event_end(self._c, self._fd)


def _is_cancelled(resume: Callable[[object], object]) -> bool:
    """Whether the task to be resumed may have been cancelled. Its function is its own method, in C and in Python."""
    task = getattr(resume, "__self__", None)
    return not isinstance(task, asyncio.Task) or task.cancelling() > 0


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
        self._failure: Exception | None = None
        self._closed = False

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
            failure = self._failure
        if failure is not None:
            call_all([callback], failure)

    def of(self, loop: asyncio.AbstractEventLoop) -> _Loop:
        """The waiters of this loop. Raises the failure if the log has failed, ``StoreClosed`` after the close."""
        with self._lock:
            mine = self.loops.get(loop)
            if mine is not None and mine.failure is not None:
                raise mine.failure
            if self._closed:
                raise _closed()
            if mine is None:
                for other in [other for other in self.loops if other.is_closed()]:
                    self.loops.pop(other).forget()
                mine = self.loops[loop] = _Loop(self._c, self._owner, loop)
            return mine

    def close(self) -> None:
        """Called after the core's close: reports the last group commit; remaining waiters get ``StoreClosed``."""
        with self._lock:
            self._closed = True
            thread, loops = self.thread, list(self.loops.values())
        for mine in loops:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so it has no waiters
                mine.loop.call_soon_threadsafe(mine.close)
        if thread is not None and thread is not threading.current_thread():
            os.eventfd_write(self._fd, 1)  # it may have read the core's last event before _closed was set
            thread.join()

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
            if self._failure is None and lib.ls_poisoned(self._c):
                callbacks, failure = self._callbacks, _unknown_outcome()
                self._failure = failure
                call_all(callbacks, failure)
            if closed:
                return


def _unknown_outcome() -> errors.OutcomeUnknown:
    return errors.OutcomeUnknown(
        "a write or sync of the log failed, so operations that were not yet durable may or may not be on disk; "
        "close the store, check the disk, and open it again to find out"
    )


def _closed() -> errors.StoreClosed:
    return errors.StoreClosed("the store was closed; open it again")


def call_all(callbacks: Iterable[Callable[[_Argument], object]], value: _Argument, *, kind: str = "completion") -> None:
    """Calls every callback with ``value``. An exception is logged; it stops neither the others nor the thread."""
    for callback in callbacks:
        try:
            callback(value)
        except BaseException as problem:
            log_error(problem, "a %s callback failed", kind)
            if isinstance(problem, _ENDS_PROCESS) and threading.current_thread() is threading.main_thread():
                raise  # Ctrl-C in an event loop; the store's own thread, in contrast, must survive everything
