"""Rolls back prepared transactions that exceed ``prepared_timeout``; runs only in a store opened with that option."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from logstore.core.threads import Stop, start
from logstore.errors import StoreClosed, StoreError, StorePoisoned

if TYPE_CHECKING:
    from logstore.store.message_store import MessageStore

logger = logging.getLogger("logstore.overdue")

_INTERVAL_S_MIN: Final = 0.05
_INTERVAL_S_MAX: Final = 5.0


class Overdue:
    """A thread that rolls back transactions which have been prepared for longer than ``timeout`` seconds.

    XA calls this a heuristic outcome: the coordinator may have decided to commit. So each rollback is logged as a
    warning with the xid and counted in :attr:`rolled_back`. Ages are measured with the wall clock.
    """

    def __init__(self, store: MessageStore, timeout: float) -> None:
        self._store = store
        self._timeout = timeout
        self._stop = Stop()
        self.rolled_back = 0
        self.thread = start("logstore-overdue", self._run)

    def stop(self) -> None:
        """Ends the thread. May also be called from that thread."""
        self._stop.set()
        if self.thread is not threading.current_thread():
            self.thread.join()

    def _run(self) -> None:
        interval_s = min(max(self._timeout / 4, _INTERVAL_S_MIN), _INTERVAL_S_MAX)
        while not self._stop.wait(interval_s):
            try:
                self._roll_back_overdue()
            except (StoreClosed, StorePoisoned):
                return
            except StoreError as problem:
                logger.warning("cannot look for overdue transactions: %s", problem)

    def _roll_back_overdue(self) -> None:
        now = time.time()
        for transaction in self._store.in_doubt():
            age = now - transaction.prepared_us / 1e6
            if age <= self._timeout or self._stop.is_set():
                continue
            try:
                transaction.rollback()
            except StoreError as problem:  # another thread gave it an outcome first, or the store has failed
                logger.warning("overdue transaction %s could not be rolled back: %s", transaction.xid, problem)
                continue
            self.rolled_back += 1
            logger.warning(
                "transaction %s was prepared %.0f s ago, longer than prepared_timeout: it has been rolled back",
                transaction.xid,
                age,
            )
