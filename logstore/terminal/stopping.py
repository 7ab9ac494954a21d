"""Signals that end a command: SIGTERM for one that serves, even if something hangs; Ctrl-C for one that rests."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Final, Self

from logstore.core.threads import start

if TYPE_CHECKING:
    from types import TracebackType

_ASKED: Final = frozenset({signal.SIGTERM})


def rest(seconds: float) -> None:
    """Sleeps in the main thread; Ctrl-C ends it at once.

    ``time.sleep`` would go on to its end if the signal came just before it, when no code checks for signals any more.
    """
    until_s = time.monotonic() + seconds
    told, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    try:
        while (left_s := until_s - time.monotonic()) > 0:
            if select.select([told], [], [], left_s)[0]:
                with contextlib.suppress(BlockingIOError):
                    os.read(told, 64)
    finally:
        signal.set_wakeup_fd(before)
        os.close(told)
        os.close(tell)


class Stopping:
    """A separate thread waits for SIGTERM, so that a hang cannot hide it.

    Made in the main thread before any other thread, because threads inherit that SIGTERM is blocked.

    Until `is_serving` is set, SIGTERM ends the process at once, as usual. Afterwards the main thread gets SIGINT
    instead, and has `timeout_s` seconds to end; then the process exits, like a crash, and the next open recovers.
    """

    def __init__(self, timeout_s: float) -> None:
        self.is_serving = False
        self._timeout_s = timeout_s
        self._is_over = False
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ASKED)
        self._thread = start("logstore-stopping", self._run)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restores SIGTERM if the process never served. Otherwise the process is about to end, and stays watched."""
        if not self.is_serving and self._thread.ident is not None:
            self._is_over = True
            if self._thread.is_alive():
                signal.pthread_kill(self._thread.ident, signal.SIGTERM)
            self._thread.join()
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _run(self) -> None:
        signal.sigwait(_ASKED)
        if self._is_over:
            return
        if not self.is_serving:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKED)
            os.kill(os.getpid(), signal.SIGTERM)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(self._timeout_s)
        # Not with the logging module: the thread that hangs may hold its lock.
        said = f"not ended {self._timeout_s:g} s after SIGTERM: exits without closing the store, as in a crash\n"
        os.write(2, said.encode())
        os._exit(1)
