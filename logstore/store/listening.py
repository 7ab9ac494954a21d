"""Registers listeners of events: of one queue, of messages that died, of transactions in doubt.

The inbox of the event loop that calls the listener serves it, or that of the store's thread (:mod:`queue_events`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore._core import lib
from logstore._hot import StoreCalls
from logstore.store.completions import check_loop
from logstore.store.fork import refuse_fork
from logstore.store.listeners import check_callback

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from logstore.store.completions import Completions
    from logstore.store.inboxes import Inboxes
    from logstore.store.listeners import Listener
    from logstore.store.queue_events import EventInbox
    from logstore.store.queues import Queue
    from logstore.store.store_events import Deaths, InDoubtChanges


class Listening(StoreCalls):
    """The part of :class:`~logstore.MessageStore` that registers listeners of events."""

    _pid: int
    _completions: Completions
    _inboxes: Inboxes

    def on_death(
        self,
        callback: Callable[[Deaths], object],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        weak: bool = False,
    ) -> Listener:
        """Calls ``callback`` with :class:`~logstore.Deaths` after messages died; one call may stand for many.

        A message dies when its last place ends and no transaction has work on it: by an accept, a reject without a
        dead-letter queue, a purge, the deletion of its queue, or a commit of these. One that was staged dies when it is
        destroyed, one that a transaction published with the rollback. A move to another queue is no death. Each death
        from now on is told once, after its record is durable, so what was told stays dead through every crash. Deaths
        during the close and the next open are not told.

        At most 65,536 deaths wait to be told (1 MiB for each loop that listens, and for the store's thread); those
        beyond are counted in ``missed``. ``loop``, ``weak`` and exceptions as for :meth:`on_durable`.
        """
        return self._listen_in(
            lambda inbox: inbox.of_store.listen(lib.LS_NOTICE_DEATHS, callback, weak=weak), callback, loop, weak=weak
        )

    def on_in_doubt(
        self,
        callback: Callable[[InDoubtChanges], object],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        weak: bool = False,
    ) -> Listener:
        """Calls ``callback`` with :class:`~logstore.InDoubtChanges` when transactions come into doubt, or leave it.

        A distributed transaction is in doubt from its prepare to its outcome. Each prepare and each outcome from now on
        is told once, in order, after its record is durable. What was prepared before, also what the open found, is not
        told, but its outcome is: register first, then look at :meth:`in_doubt`. A commit without a prepare is not told.

        At most 4,096 changes wait to be told; those beyond are counted in ``missed``. ``loop``, ``weak`` and exceptions
        as for :meth:`on_durable`.
        """
        return self._listen_in(
            lambda inbox: inbox.of_store.listen(lib.LS_NOTICE_IN_DOUBT, callback, weak=weak), callback, loop, weak=weak
        )

    def _listen(
        self,
        queue: Queue,
        kind: int,
        callback: Callable[[Queue], object],
        loop: asyncio.AbstractEventLoop | None,
        *,
        weak: bool,
    ) -> Listener:
        return self._listen_in(lambda inbox: inbox.listen(queue, kind, callback, weak=weak), callback, loop, weak=weak)

    def _listen_in(
        self,
        listen: Callable[[EventInbox], Listener],
        callback: Callable[[Any], object],
        loop: asyncio.AbstractEventLoop | None,
        *,
        weak: bool,
    ) -> Listener:
        """Checks the arguments of a registering call, and makes it in the inbox of the loop, or of the thread."""
        check_callback(callback, weak=weak)
        if loop is not None:
            check_loop(loop)
        refuse_fork(self._pid)
        inbox = self._completions.inbox() if loop is None else self._inboxes.of(loop)
        try:
            return listen(inbox)
        except BaseException:
            inbox.unused()
            raise
