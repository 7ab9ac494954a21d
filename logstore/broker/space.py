"""Room in the log of one host: publishers wait while there is little, and are refused only after `blocked_timeout_s`.

While the store is nearly full, a connection whose next frame publishes is not read (`Pause.SPACE`). What the store
refuses all the same, such as a message that needs more than is left, is kept by its sender and tried again when there
is room (`taken`). Both are told with `connection.blocked`, and so is everybody who has published.

Nobody waits for ever: when a connection has waited for `blocked_timeout_s`, the store decides at once about this and
every further publish of it, until there is room. A store that is nearly full takes a message as long as it is not full.

Invariant: the frames of a connection keep their order. Connections that do not publish notice nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeVar

from logstore.broker.receiving import Pause
from logstore.errors import StoreError, StoreFull

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from logstore.broker.connection import Connection
    from logstore.broker.host import Host
    from logstore.broker.server import Server
    from logstore.store.fullness import Fullness

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S: Final = 1.0  # between two looks whether the disk has room: nobody else looks while nobody publishes

_REMEDIES: Final = {
    "limit": "consume messages or raise max_log_bytes",
    "disk": "consume messages or make room on the disk",
    "files": "close connections or raise the limit of open files",
}


class _Wait:
    """The wait of one connection."""

    def __init__(self, since: float, timer: asyncio.TimerHandle) -> None:
        self.since = since
        self.timer = timer  # ends it
        self.is_paused = False  # it is not read
        self.wakes: list[asyncio.Future[None]] = []  # of publishes that were refused and are tried again
        self.is_over = False  # it has waited for `blocked_timeout_s`

    @property
    def waits(self) -> bool:
        return self.is_paused or bool(self.wakes)

    def wake(self) -> None:
        wakes, self.wakes = self.wakes, []
        for each in wakes:
            if not each.done():
                each.set_result(None)


class Space:
    """The waits for room of one host. Belongs to the event loop; hears of group commits while it waits (`Waiter`)."""

    def __init__(self, server: Server, host: Host) -> None:
        self._loop = server.loop
        self._host = host
        self._store = host.store
        self._timeout_s = server.limits.blocked_timeout_s
        self._waits: dict[Connection, _Wait] = {}
        self._timer: asyncio.TimerHandle | None = None  # of the next look
        self._has_stopped = False
        self.reason: str | None = None  # why the publishers of the host are blocked; None: they are not
        self._listener = self._store.on_fullness(self._on_near, near=True, loop=server.loop)
        self._look()

    def stop(self) -> None:
        """The host ends: nobody waits any more, and the store decides about every publish that has waited."""
        self._has_stopped = True
        self._listener.close()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._waits):
            self.forget(connection)

    # Connections.

    def waits(self, connection: Connection) -> bool:
        """Whether it waits for room."""
        wait = self._waits.get(connection)
        return wait is not None and wait.waits

    def waits_since(self, connection: Connection) -> float | None:
        """The time by the loop's clock since which it waits; None: it does not."""
        return self._waits[connection].since if self.waits(connection) else None

    @property
    def is_short(self) -> bool:
        """Whether publishers wait now."""
        return self._store.nearly_full and not self._has_stopped

    def holds(self, connection: Connection) -> bool:
        """Whether a connection that is about to publish waits. Then it is resumed from `Pause.SPACE` later."""
        self._look()
        if not self.is_short:
            return False
        wait = self._wait_of(connection)
        wait.is_paused = not wait.is_over
        return wait.is_paused

    def published(self, connection: Connection) -> None:
        """The store has taken something: the next wait of the connection is another one."""
        wait = self._waits.get(connection)
        if wait is not None and not wait.waits and not wait.is_over:
            self.forget(connection)

    def forget(self, connection: Connection) -> None:
        """It waits no longer: it has ended, or got its room."""
        wait = self._waits.pop(connection, None)
        if wait is not None:
            wait.timer.cancel()
            wait.wake()
            connection.tell_unblocked()

    def may_wait(self, connection: Connection) -> bool:
        """Whether a publish that the store has just refused is to be kept, and tried again."""
        wait = self._waits.get(connection)
        return not (self._has_stopped or self._host.has_ended or connection.has_given_up or (wait and wait.is_over))

    async def room(self, connection: Connection, refusal: StoreFull) -> bool:
        """Returns when a publish that was refused is to be tried again; False: it has waited long enough."""
        if not self.may_wait(connection):
            return False
        wake = self._loop.create_future()
        self._wait_of(connection).wakes.append(wake)
        connection.has_published = True
        connection.tell_blocked(self.reason or self._text(str(refusal)))
        self._host.wakeups.await_commit(self)
        self._look_later()
        await wake
        return self.may_wait(connection)

    async def taken(self, connection: Connection, put: Callable[[], Awaitable[T]]) -> T:
        """The result of a call that may grow the log, which is made again while the store refuses it for want of room.

        Raises `StoreFull` if it has waited long enough.
        """
        while True:
            try:
                result = await put()
            except StoreFull as refusal:
                if not await self.room(connection, refusal):
                    raise
            else:
                self.published(connection)
                return result

    def _wait_of(self, connection: Connection) -> _Wait:
        wait = self._waits.get(connection)
        if wait is None:
            timer = self._loop.call_later(self._timeout_s, self._time_out, connection)
            wait = self._waits[connection] = _Wait(self._loop.time(), timer)
        return wait

    def _time_out(self, connection: Connection) -> None:
        wait = self._waits[connection]
        if not wait.waits:  # it had room, and has not used it
            self.forget(connection)
            return
        logger.debug("%s has waited %g s for room in %s", connection, self._timeout_s, self._host.store_text)
        wait.is_over = True
        self._go_on(connection, wait)
        wait.wake()

    @staticmethod
    def _go_on(connection: Connection, wait: _Wait) -> None:
        if wait.is_paused:
            wait.is_paused = False
            connection.receiving.resume(Pause.SPACE)

    # The store.

    def _on_near(self, _: Fullness) -> None:
        self._look()

    def settle(self, durable_lsn: int) -> bool:  # noqa: ARG002 - of `Waiter`
        """After a group commit, or when the log can grow again: see whether there is room."""
        self._look()
        return bool(self._waits)

    def _look(self) -> None:
        """See whether publishers wait, and wake those that do not have to wait any more."""
        if self._has_stopped or self._host.has_ended:
            return
        try:
            if self._store.nearly_full:
                if self.reason is None:
                    self._begin(self._store.fullness())
                return
            has_room = bool(self._waits) and not self._store.fullness().full
        except StoreError:  # it has ended, and the host ends soon
            logger.debug("%s has ended", self._host.store_text)
            return
        had_reason, self.reason = self.reason, None
        for connection, wait in list(self._waits.items()):
            self._go_on(connection, wait)
            if has_room and wait.is_over:
                self.forget(connection)
            elif has_room:
                wait.wake()
        if had_reason is not None:
            self._end()

    def _begin(self, found: Fullness) -> None:
        remedy = _REMEDIES.get(found.cause or "", "see to the disk")
        self.reason = self._text(f"the store is nearly full: {remedy}; {found.reason}")
        logger.warning(
            "%s is nearly full: %s. Publishers wait for room, each for %g s at most: 'logstore info %s' says what "
            "would free it",
            self._host.store_text,
            found.reason,
            self._timeout_s,
            self._store.path,
        )
        self._host.wakeups.await_commit(self)
        self._look_later()
        for connection in self._host.connections:
            if connection.has_published:
                connection.tell_blocked(self.reason)

    def _end(self) -> None:
        logger.info("%s is not nearly full any more: publishers go on", self._host.store_text)
        for connection in self._host.connections:
            connection.tell_unblocked()

    def _text(self, what: str) -> str:
        return f"virtual host '{self._host.name}': {what}"

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._ask)

    def _ask(self) -> None:
        """Ask the store to look whether its disk has room; it tells what it finds."""
        self._timer = None
        if self._has_stopped or self._host.has_ended or not (self._waits or self.reason):
            return
        try:
            self._store.look_for_room()
        except StoreError:
            return
        self._look()
        self._look_later()
