"""Telling Python that the log has become durable: callbacks and awaitables, fed by the core's eventfd.

The core never calls Python. It counts group commits into an eventfd; one thread here waits for it and passes the new
durable LSN on: to every callback once per group commit, and to the event loops of those who await an LSN, all of a
loop's in one call. After a failed write or sync everybody is told once, with the exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import os
import select
import threading
from typing import TYPE_CHECKING, Any

from logstore import errors
from logstore._core import ffi, lib
from logstore._native import check

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("logstore")

_STOP_POLL_MS = 1000  # a thread that missed its last event still ends


class Completions:
    """The waiting thread of one store, started when somebody first asks."""

    def __init__(self, handle: Any) -> None:
        self._c = handle
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[int | Exception], object]] = []
        self._waiting: list[tuple[int, int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._fd = -1
        self._failure: Exception | None = None
        self._closed = False
        self._fd = -1

    def add_callback(self, callback: Callable[[int | Exception], object]) -> None:
        """Calls it with the new durable LSN after every group commit from now on."""
        with self._lock:
            self._callbacks.append(callback)
            failure = self._failure
            self._start()
        if failure is not None:
            self._call([callback], failure)

    async def wait(self, lsn: int) -> None:
        """Returns once everything below ``lsn`` is durable; raises ``OutcomeUnknown`` if it never will be."""
        if lib.ls_durable_lsn(self._c) >= lsn:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise errors.StoreClosed("the store was closed; open it again")
            heapq.heappush(self._waiting, (lsn, next(self._numbers), loop, future))
            self._start()
        check(lib.ls_flush_soon(self._c))
        if lib.ls_durable_lsn(self._c) >= lsn:
            return
        await future

    def close(self) -> None:
        """After the core's close: the last group is told, who still waits learns that the store is closed."""
        with self._lock:
            self._closed = True
            thread = self._thread
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)  # so that it need not wait to see it
        if thread is not None and thread is not threading.current_thread():
            os.eventfd_write(self._fd, 1)  # it may have taken the core's last event before it could see _closed
            thread.join()

    # ---- the thread ----

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            fd = ffi.new("int *")
            check(lib.ls_event_fd(self._c, fd))
            self._fd = int(fd[0])
            self._fd = fd[0]
            self._thread = threading.Thread(
                target=self._run, args=(self._fd,), name="logstore-completions", daemon=True
            )
            self._thread.start()

    def _run(self, fd: int) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        told = lib.ls_durable_lsn(self._c)
        while True:
            if poll.poll(_STOP_POLL_MS):
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 8)
            closed = self._closed
            durable = lib.ls_durable_lsn(self._c)
            if durable > told:
                told = durable
                self._tell(durable)
            if self._failure is None and lib.ls_poisoned(self._c):
                self._fail(
                    errors.OutcomeUnknown(
                        "a write or sync of the log failed, so what was not yet durable may or may not be on disk; "
                        "close the store, look at the disk, and open it again to see"
                    )
                )
            if closed:
                self._fail(errors.StoreClosed("the store was closed; open it again"), callbacks=False)
                return

    def _tell(self, durable: int) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        with self._lock:
            callbacks = list(self._callbacks)
            while self._waiting and self._waiting[0][0] <= durable:
                _, _, loop, future = heapq.heappop(self._waiting)
                by_loop.setdefault(loop, []).append(future)
        for loop, futures in by_loop.items():
            self._settle(loop, futures, None)
        self._call(callbacks, durable)

    def _fail(self, failure: Exception, *, callbacks: bool = True) -> None:
        with self._lock:
            self._failure = failure
            waiting, self._waiting = self._waiting, []
            told = list(self._callbacks) if callbacks else []
        for _, _, loop, future in waiting:
            self._settle(loop, [future], failure)
        self._call(told, failure)

    @staticmethod
    def _settle(
        loop: asyncio.AbstractEventLoop, futures: list[asyncio.Future[None]], failure: Exception | None
    ) -> None:
        def settle() -> None:
            for future in futures:
                if future.done():
                    continue
                if failure is None:
                    future.set_result(None)
                else:
                    future.set_exception(failure)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(settle)

    @staticmethod
    def _call(callbacks: list[Callable[[int | Exception], object]], what: int | Exception) -> None:
        for callback in callbacks:
            try:
                callback(what)
            except Exception:  # noqa: BLE001 - a stranger's code must not end this thread
                _log.exception("a completion callback failed")
