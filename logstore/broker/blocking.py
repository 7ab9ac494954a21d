"""Tells the publishers of a host that what they published is not durable yet: connection.blocked, connection.unblocked.

While something waits for the disk, or for the majority of a cluster, a mark says where the log ended at some moment.
A mark that is not durable after `blocked_after_s` makes the host slow; the next mark that becomes durable sooner, or
a log that is durable to its end, makes it well. A timer runs only while something waits and the host is well; a slow
host waits for a group commit.

Invariant: a connection is told nothing unless it has published and said that it understands these methods, and it is
told in turns that it is blocked and that it is not.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from logstore.errors import StoreError

if TYPE_CHECKING:
    import asyncio

    from logstore.broker.connection import Connection
    from logstore.broker.host import Host
    from logstore.broker.server import Server

logger = logging.getLogger(__name__)

LOOKS: Final = 4  # in `blocked_after_s`: a wait is noticed at most a quarter of it later


class Blocking:
    """The notices of one host. Belongs to the event loop, and waits for group commits (`Waiter`)."""

    def __init__(self, server: Server, host: Host) -> None:
        self._loop = server.loop
        self._elsewhere = server.elsewhere
        self._host = host
        self._after_s = server.limits.blocked_after_s
        self._mark_lsn = 0
        self._marked_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.since: float | None = None  # of the publish for which a slow host waits; None: it is well
        self.reason: str | None = None  # once it is known for whom the host waits

    @property
    def cause(self) -> str:
        """What a publish waits for: "majority" in a cluster, or "disk"."""
        return "disk" if self._elsewhere is None else "majority"

    def stop(self) -> None:
        """The host ends: nobody is told anything from now on."""
        self._cancel()
        self.since = self.reason = None

    def _cancel(self) -> None:
        for each in (self._timer, self._task):
            if each is not None:
                each.cancel()
        self._timer = self._task = None

    def watch(self, connection: Connection) -> None:
        """A connection has published."""
        connection.has_published = True
        reason = self._host.blocked_reason
        if reason is not None:
            connection.tell_blocked(reason)
        if self._timer is None and self.since is None and not self._host.has_ended:
            self._look_later(self._host.wakeups.settled_lsn)

    # A host that is well.

    def _look_later(self, settled_lsn: int) -> None:
        """Set a timer if something is not durable."""
        if self._mark_lsn <= settled_lsn:
            end_lsn = self._host.store.next_lsn
            if end_lsn <= settled_lsn:
                return
            self._mark_lsn, self._marked_at = end_lsn, self._loop.time()
        self._timer = self._loop.call_later(self._after_s / LOOKS, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._host.has_ended:
            return
        try:
            settled_lsn = self._host.wakeups.settled_lsn
            if self._mark_lsn > settled_lsn and self._loop.time() - self._marked_at >= self._after_s:
                self._begin()
            else:
                self._look_later(settled_lsn)
        except StoreError:  # it has ended, and the host ends soon
            logger.debug("%s has ended", self._host.store_text)

    # A host that is slow.

    def _begin(self) -> None:
        self.since = self._marked_at
        self._host.wakeups.await_commit(self)
        self._task = self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        """Find out for whom the host waits, and tell its publishers."""
        whom = await self._lagging()
        assert self.since is not None  # else it would be cancelled
        waited_s = self._loop.time() - self.since
        what = f"not made durable what was published {waited_s:.1f} s ago"
        self.reason = f"virtual host '{self._host.name}': {whom} {what}"
        logger.warning("%s", self.reason)
        for connection in self._host.connections:
            if connection.has_published:
                connection.tell_blocked(self.reason)

    async def _lagging(self) -> str:
        if self._elsewhere is None:
            return "the disk has"
        try:
            names = await self._elsewhere.lagging(self._host.name)
        except StoreError:  # the host is about to have another leader
            names = []
        if len(names) == 1:
            return f"member {names[0]} has"
        return f"the members {', '.join(names[:-1])} and {names[-1]} have" if names else "a majority has"

    def settle(self, durable_lsn: int) -> bool:
        """After a group commit: see whether the host is well again."""
        if self.since is None or self._host.has_ended:
            return False
        if durable_lsn < self._mark_lsn:
            return True
        now, end_lsn = self._loop.time(), self._host.store.next_lsn
        if durable_lsn < end_lsn and now - self._marked_at >= self._after_s:
            self._mark_lsn, self._marked_at = end_lsn, now
            return True
        self._end(now - self.since)
        self._look_later(durable_lsn)
        return False

    def _end(self, waited_s: float) -> None:
        if self.reason is not None:
            logger.info("virtual host '%s': publishes are durable again, after %.1f s", self._host.name, waited_s)
        self.stop()
        for connection in self._host.connections:
            connection.tell_unblocked()
