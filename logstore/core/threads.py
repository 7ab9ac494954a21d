"""The one way in which the package starts a thread of its own: no thread fails silently.

Any exception from the thread's work, even ``SystemExit``, ends the thread. It is logged as an error with the thread's
name, and kept for the store's ``stats()`` and for the code that waits for the thread.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import traceback
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("logstore")


class Worker(threading.Thread):
    """A daemon thread, made by :func:`start`."""

    def __init__(self, name: str, work: Callable[..., object], *arguments: object) -> None:
        super().__init__(target=work, name=name, args=arguments, daemon=True)
        self.failure: str | None = None
        """The exception that ended the thread early, as one line; None if there was none."""

    def run(self) -> None:
        """Does the work and records its failure."""
        try:
            super().run()
        except BaseException as problem:  # noqa: BLE001 - a thread has no caller to raise to
            self.failure = "".join(traceback.format_exception_only(problem)).strip()
            log_error(problem, "thread %s has ended before its time: %s", self.name, self.failure)


class Stop:
    """The request that a thread end its work.

    Unlike ``threading.Event``, whose lock stays held for ever if a signal handler raises in the middle of ``set``, this
    has no lock that Python code takes.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._wakeups: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Asks the thread to end, and wakes it."""
        self._is_set = True
        self._wakeups.put(None)

    def is_set(self) -> bool:
        """Whether the thread was asked to end."""
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Waits for the request, at most this long. Whether it was made."""
        if not self._is_set:
            with contextlib.suppress(Empty):
                self._wakeups.get(timeout=max(seconds, 0))
        return self._is_set


def start(name: str, work: Callable[..., object], *arguments: object) -> Worker:
    """Starts and returns a thread that does this work. Raises ``RuntimeError`` if the system has no more threads.

    Raises ``StoreError`` in a finalizer at the end of the interpreter: the thread could never run, and before CPython
    3.12 the start would wait for it for ever.
    """
    if sys.is_finalizing():
        raise StoreError("the interpreter is ending, so no thread can be started any more")
    made = Worker(name, work, *arguments)
    made.start()
    return made


def log_error(problem: BaseException, text: str, *arguments: object) -> None:
    """Logs the exception with its traceback. An exception from a log handler is ignored."""
    with contextlib.suppress(BaseException):
        _log.error(text, *arguments, exc_info=problem)
