"""Prepared transactions that have waited too long: only for a store that was opened with ``prepared_timeout``."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from logstore.core.threads import start
from logstore.errors import StoreClosed, StoreError, StorePoisoned

if TYPE_CHECKING:
    from logstore.store.message_store import MessageStore

logger = logging.getLogger("logstore.overdue")

_LOOK_S_MIN: Final = 0.05
_LOOK_S_MAX: Final = 5.0


class Overdue:
    """Rolls back what has been prepared for longer than ``timeout`` seconds, from a thread of its own.

    That is a heuristic outcome in XA's words: the coordinator may have decided otherwise, so each is logged as a
    warning with its xid and counted in :attr:`rolled_back`. Ages are by the wall clock.
    """

    def __init__(self, store: MessageStore, timeout: float) -> None:
        self._store = store
        self._timeout = timeout
        self._stop = threading.Event()
        self.rolled_back = 0
        self.thread = start("logstore-overdue", self._run)

    def stop(self) -> None:
        """Ends the thread; from within it, too."""
        self._stop.set()
        if self.thread is not threading.current_thread():
            self.thread.join()

    def _run(self) -> None:
        pause = min(max(self._timeout / 4, _LOOK_S_MIN), _LOOK_S_MAX)
        while not self._stop.wait(pause):
            try:
                self._look()
            except (StoreClosed, StorePoisoned):
                return
            except StoreError as problem:
                logger.warning("overdue transactions cannot be looked for: %s", problem)

    def _look(self) -> None:
        now = time.time()
        for transaction in self._store.in_doubt():
            age = now - transaction.prepared_us / 1e6
            if age <= self._timeout or self._stop.is_set():
                continue
            try:
                transaction.rollback()
            except StoreError as problem:  # somebody was quicker, or the store has failed
                logger.warning("overdue transaction %s could not be rolled back: %s", transaction.xid, problem)
                continue
            self.rolled_back += 1
            logger.warning(
                "transaction %s was prepared %.0f s ago, longer than prepared_timeout: it has been rolled back",
                transaction.xid,
                age,
            )
