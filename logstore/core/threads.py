"""The one way in which the package starts a thread of its own: none ends before its time without a word.

What a thread's work raises, be it ``SystemExit``, ends that thread, is logged as an error with the thread's name, and
is kept for ``stats()`` of the store and for what waits for the thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("logstore")


class Worker(threading.Thread):
    """A daemon thread, made by :func:`start`."""

    def __init__(self, name: str, work: Callable[..., object], *arguments: object) -> None:
        super().__init__(target=work, name=name, args=arguments, daemon=True)
        self.failure: str | None = None
        """What ended it before its time, as one line."""

    def run(self) -> None:
        """The work, to its end."""
        try:
            super().run()
        except BaseException as problem:  # noqa: BLE001 - a thread has nobody to raise to
            self.failure = "".join(traceback.format_exception_only(problem)).strip()
            log_error(problem, "thread %s has ended before its time: %s", self.name, self.failure)


def start(name: str, work: Callable[..., object], *arguments: object) -> Worker:
    """A thread that does this work, started. Raises ``RuntimeError`` if the system gives no more threads."""
    made = Worker(name, work, *arguments)
    made.start()
    return made


def log_error(problem: BaseException, text: str, *arguments: object) -> None:
    """Logs it with its traceback; what a handler of the log raises ends nothing."""
    with contextlib.suppress(BaseException):
        _log.error(text, *arguments, exc_info=problem)
