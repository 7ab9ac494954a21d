"""Checks of passwords, off the event loop: one thread, one check at a time, the addresses of the clients in turn.

A check is slow on purpose. The same name and password is checked once for all who wait for it. Each address has a queue
of its own, and the thread takes one check of each in turn: an address that sends many passwords delays only itself. A
check that nobody waits for any more is not made.

The thread lives while there is something to check. It is a daemon, so the end of the broker does not wait for it.
"""

from __future__ import annotations

import asyncio
import collections
from queue import SimpleQueue
from typing import TYPE_CHECKING

from logstore.broker.limits import PASSWORD_CHECKS_MAX
from logstore.core.counts import counted
from logstore.core.threads import start
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable


class TooManyChecks(Exception):
    """So many passwords of one address wait already."""

    def __init__(self, address: str, count: int) -> None:
        super().__init__(f"{counted(count, 'password')} from {address} waiting for a check: try again later")


class _Check:
    """One password, and how many logins of each address wait for its result."""

    def __init__(self, work: Callable[[], bool], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.loop = loop
        self.result: asyncio.Future[bool] = loop.create_future()
        self.waiting: collections.Counter[str] = collections.Counter()


class PasswordChecks:
    """The checks that wait, and the one in progress; belongs to one event loop."""

    def __init__(self, of_address_max: int = PASSWORD_CHECKS_MAX) -> None:
        self._of_address_max = of_address_max
        self._checks: dict[bytes, _Check] = {}  # all, by what they prove
        # The keys of the checks that wait, by address. The next check is the first one of the first address.
        self._queues: collections.OrderedDict[str, dict[bytes, None]] = collections.OrderedDict()
        self._inbox: SimpleQueue[tuple[bytes, _Check] | None] | None = None  # of the thread; None: there is none
        self._running: _Check | None = None

    async def result(self, address: str, key: bytes, work: Callable[[], bool]) -> bool:
        """The result of `work`, which is called in the thread, once for all who wait for the same `key`.

        Raises the exception of `work`, and `TooManyChecks` if the address has its share of waiting checks.
        """
        check = self._checks.get(key)
        if check is None:
            check = _Check(work, asyncio.get_running_loop())
        if check is not self._running:
            queue = self._queues.get(address, {})
            if key not in queue and len(queue) >= self._of_address_max:
                raise TooManyChecks(address, len(queue))
            self._queues.setdefault(address, queue)[key] = None
        self._checks[key] = check
        check.waiting[address] += 1
        if self._inbox is None:
            self._start()
        try:
            return await asyncio.shield(check.result)
        finally:
            if not check.result.done():
                self._leave(address, key, check)

    def _leave(self, address: str, key: bytes, check: _Check) -> None:
        """A login waits no longer."""
        check.waiting[address] -= 1
        if check.waiting[address]:
            return
        del check.waiting[address]
        self._take_out(address, key)
        if not check.waiting and check is not self._running:
            del self._checks[key]

    def _take_out(self, address: str, key: bytes) -> None:
        queue = self._queues.get(address)
        if queue is not None:
            queue.pop(key, None)
            if not queue:
                del self._queues[address]

    def _start(self) -> None:
        inbox: SimpleQueue[tuple[bytes, _Check] | None] = SimpleQueue()
        try:
            start("logstore-logins", self._work, inbox)
        except (RuntimeError, StoreError) as error:  # no more threads, or the interpreter ends
            for check in self._checks.values():
                check.result.set_exception(error)
            self._checks.clear()
            self._queues.clear()
            return
        self._inbox = inbox
        self._hand_out()

    def _hand_out(self) -> None:
        """Give the thread its next check, or let it end."""
        assert self._inbox is not None
        if not self._queues:
            self._inbox.put(None)
            self._inbox = None
            return
        first, queue = next(iter(self._queues.items()))
        key = next(iter(queue))
        check = self._running = self._checks[key]
        for address in check.waiting:
            self._take_out(address, key)
        if first in self._queues:
            self._queues.move_to_end(first)
        self._inbox.put((key, check))

    def _work(self, inbox: SimpleQueue[tuple[bytes, _Check] | None]) -> None:
        while (given := inbox.get()) is not None:
            key, check = given
            try:
                result: bool | Exception = check.work()
            except Exception as error:  # noqa: BLE001 - raised again on the loop
                result = error
            try:
                check.loop.call_soon_threadsafe(self._finish, key, check, result)
            except RuntimeError:  # the loop is closed
                return

    def _finish(self, key: bytes, check: _Check, result: bool | Exception) -> None:
        del self._checks[key]
        self._running = None
        if isinstance(result, bool):
            check.result.set_result(result)
        elif check.waiting:
            check.result.set_exception(result)
        self._hand_out()
