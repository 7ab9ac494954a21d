"""Telling Python that the log has become durable: callbacks and awaitables, fed by the core's eventfd.

The core never calls Python. It counts group commits into eventfds. Each event loop in which somebody awaits an LSN
watches one of its own; another feeds the thread that calls the callbacks, once per group commit. After a failed write
or sync everybody is told once, with the exception.
"""

from __future__ import annotations

import asyncio
import bisect
import collections
import contextlib
import os
import select
import threading
from typing import TYPE_CHECKING, TypeVar

from logstore import errors
from logstore._core import ffi, lib
from logstore.core import arguments
from logstore.core.locks import Lock
from logstore.core.native import check
from logstore.core.threads import Worker, log_error, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from logstore._core import ls_store_ptr

_ENDS_PROCESS = (KeyboardInterrupt, SystemExit)
_What = TypeVar("_What")
_STOP_POLL_MS = 1000  # a thread that missed its last event still ends


class _Loop:
    """Who waits in one event loop. The loop itself watches an event of its own: no thread stands between it and the
    core. Used in that loop's thread only; ``lsns`` ascends.
    """

    def __init__(self, handle: ls_store_ptr, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.failure: Exception | None = None
        self._c = handle
        self._told = 0
        self._lsns: collections.deque[int] = collections.deque()
        self._futures: collections.deque[asyncio.Future[None]] = collections.deque()
        self._callbacks: tuple[Callable[[int | Exception], object], ...] = ()
        fd = ffi.new("int *")
        check(lib.ls_event_fd(handle, fd))
        self._fd = int(fd[0])
        loop.add_reader(self._fd, self._ready)
        loop.call_soon(self._ready)  # of what came before there was an event

    def wait(self, lsn: int) -> asyncio.Future[None]:
        future = self.loop.create_future()
        if not self._lsns or lsn >= self._lsns[-1]:
            self._lsns.append(lsn)
            self._futures.append(future)
        else:  # hardly ever: LSNs grow
            at = bisect.bisect_right(self._lsns, lsn)
            self._lsns.insert(at, lsn)
            self._futures.insert(at, future)
        return future

    def add_callback(self, callback: Callable[[int | Exception], object]) -> None:
        self._callbacks = (*self._callbacks, callback)

    def _ready(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_read(self._fd)
        durable = int(lib.ls_durable_lsn(self._c))
        if durable > self._told:
            self._told = durable
            lsns, futures = self._lsns, self._futures
            while lsns and lsns[0] <= durable:
                lsns.popleft()
                future = futures.popleft()
                if not future.done():
                    future.set_result(None)
            call_all(self._callbacks, durable)
        if lib.ls_poisoned(self._c):
            self.fail(_unknown_outcome())

    def fail(self, failure: Exception, *, callbacks: bool = True) -> None:
        """Everybody hears it once; the loop is done with this store."""
        if self.failure is not None:
            return
        self.failure = failure
        self.loop.remove_reader(self._fd)
        lib.ls_event_end(self._c, self._fd)
        self._lsns.clear()
        while self._futures:
            future = self._futures.popleft()
            if not future.done():
                future.set_exception(failure)
        if callbacks:
            call_all(self._callbacks, failure)

    def close(self) -> None:
        """After the core's close: the last group is told, then that there will be no other."""
        if self.failure is None:
            self._ready()
        self.fail(_closed(), callbacks=False)

    def forget(self) -> None:
        """The loop was closed before the store."""
        lib.ls_event_end(self._c, self._fd)


def check_loop(loop: object) -> None:
    """Raises ``TypeError`` for what is no event loop, ``OptionError`` for one that is closed."""
    if not isinstance(loop, asyncio.AbstractEventLoop):
        raise TypeError(f"loop is an asyncio event loop, not {arguments.shown(loop)}")
    if loop.is_closed():
        raise errors.OptionError("loop is an event loop that is closed; give the one that runs")


class Completions:
    """Who waits for one store: event loops, each by itself, and callbacks, called from a thread that is started when
    somebody first asks.
    """

    def __init__(self, handle: ls_store_ptr) -> None:
        self._c = handle
        self._lock = Lock("the store's list of callbacks")
        self._callbacks: tuple[Callable[[int | Exception], object], ...] = ()  # replaced as a whole
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}
        self.thread: Worker | None = None
        self._fd = -1
        self._failure: Exception | None = None
        self._closed = False

    def add_callback(
        self, callback: Callable[[int | Exception], object], loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Calls it with the new durable LSN after every group commit from now on: from a thread of its own, or in the
        loop, whose thread this is.
        """
        if loop is not None:
            self._of(loop).add_callback(callback)
            return
        with self._lock:
            self._start()
            self._callbacks = (*self._callbacks, callback)
            failure = self._failure
        if failure is not None:
            call_all([callback], failure)

    def wait(self, lsn: int) -> asyncio.Future[None]:
        """Done in the running loop once everything below ``lsn`` is durable; ``OutcomeUnknown`` if it never will be."""
        loop = asyncio.get_running_loop()
        mine = self._loops.get(loop)
        if mine is None or mine.failure is not None:
            mine = self._of(loop)
        return mine.wait(lsn)

    def _of(self, loop: asyncio.AbstractEventLoop) -> _Loop:
        with self._lock:
            mine = self._loops.get(loop)
            if mine is not None and mine.failure is not None:
                raise mine.failure
            if self._closed:
                raise _closed()
            if mine is None:
                for other in [other for other in self._loops if other.is_closed()]:
                    self._loops.pop(other).forget()
                mine = self._loops[loop] = _Loop(self._c, loop)
            return mine

    def close(self) -> None:
        """After the core's close: the last group is told, who still waits learns that the store is closed."""
        with self._lock:
            self._closed = True
            thread, loops = self.thread, list(self._loops.values())
        for mine in loops:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                mine.loop.call_soon_threadsafe(mine.close)
        if thread is not None and thread is not threading.current_thread():
            os.eventfd_write(self._fd, 1)  # it may have taken the core's last event before it could see _closed
            thread.join()

    # ---- the thread ----

    def _start(self) -> None:
        if (self.thread is None or self.thread.failure is not None) and not self._closed:
            if self._fd < 0:
                fd = ffi.new("int *")
                check(lib.ls_event_fd(self._c, fd))
                self._fd = int(fd[0])
            told = int(lib.ls_durable_lsn(self._c))  # here: what becomes durable after this call is to be told
            self.thread = start("logstore-completions", self._run, told)

    def _run(self, told: int) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while True:
            if poll.poll(_STOP_POLL_MS):
                with contextlib.suppress(BlockingIOError):
                    os.read(self._fd, 8)
            closed = self._closed
            durable = lib.ls_durable_lsn(self._c)
            if durable > told:
                told = durable
                call_all(self._callbacks, durable)
            if self._failure is None and lib.ls_poisoned(self._c):
                callbacks, failure = self._callbacks, _unknown_outcome()
                self._failure = failure
                call_all(callbacks, failure)
            if closed:
                return


def _unknown_outcome() -> errors.OutcomeUnknown:
    return errors.OutcomeUnknown(
        "a write or sync of the log failed, so what was not yet durable may or may not be on disk; "
        "close the store, look at the disk, and open it again to see"
    )


def _closed() -> errors.StoreClosed:
    return errors.StoreClosed("the store was closed; open it again")


def call_all(callbacks: Iterable[Callable[[_What], object]], what: _What, *, kind: str = "completion") -> None:
    """Calls each, whatever the others raise: that is logged, and ends no thread of the store's."""
    for callback in callbacks:
        try:
            callback(what)
        except BaseException as problem:
            log_error(problem, "a %s callback failed", kind)
            if isinstance(problem, _ENDS_PROCESS) and threading.current_thread() is threading.main_thread():
                raise  # Ctrl-C, in an event loop; of the store's own thread nothing may be the end
