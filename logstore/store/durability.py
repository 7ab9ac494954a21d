"""The durability of a store's operations: forces the log, waits for an LSN, and reports what became durable.

The properties and the usual call of ``_undurable`` are in :mod:`logstore._hot`.
"""

from __future__ import annotations

from asyncio import get_running_loop
from typing import TYPE_CHECKING

from logstore._core import lib
from logstore._hot import StoreCalls
from logstore.core import arguments
from logstore.core.native import check
from logstore.store.completions import check_loop
from logstore.store.fork import refuse_fork
from logstore.store.listeners import check_callback

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from logstore._core import ls_store_ptr
    from logstore.store.completions import Completions, _Loop
    from logstore.store.listeners import Listener


class Durability(StoreCalls):
    """The part of :class:`~logstore.MessageStore` that makes operations durable and reports it."""

    _c: ls_store_ptr
    _pid: int
    _relaxed: bool
    _completions: Completions

    def _durable_lsn_slow(self) -> int:
        """``durable_lsn`` in a forked child."""
        refuse_fork(self._pid)
        return int(lib.ls_durable_lsn(self._c))

    def _room_percent_slow(self) -> int:
        """``room_percent`` where another thread holds the store's lock, and in a forked child."""
        refuse_fork(self._pid)
        return int(lib.ls_room_percent(self._c))

    def _next_lsn_slow(self) -> int:
        """``next_lsn`` where another thread holds the store's lock, and in a forked child."""
        lsn: int = lib.ls_next_lsn(self._c)
        if lsn == 0:
            refuse_fork(self._pid)
        return lsn

    def force(self, lsn: int | None = None) -> None:
        """Makes everything up to ``lsn`` durable; by default everything appended so far.

        Raises ``OutcomeUnknown``, and ``OptionError`` for an LSN beyond :attr:`next_lsn`, where nothing can be durable.
        """
        check(lib.ls_force(self._c, 0 if lsn is None else max(arguments.integer("lsn", lsn, 0, arguments.LSN_MAX), 1)))

    def force_unless_relaxed(self) -> None:
        """Forces the log unless the store's durability is relaxed: the end of a batch with ``wait=True``."""
        if not self._relaxed:
            self.force()

    async def durable(self, lsn: int) -> None:
        """Returns once :attr:`durable_lsn` has reached ``lsn``. Raises ``OutcomeUnknown`` if it never will."""
        wanted = self._undurable(lsn)
        if wanted:
            try:
                loop = get_running_loop()
            except RuntimeError:
                refuse_fork(self._pid)  # asyncio runs no loop of the parent in a child
                raise
            all_of = self._completions
            while (waiters := all_of.loops.get(loop) or all_of.of(loop)).reported_lsn < wanted:
                waiters.must_hear()
                await waiters.until(wanted)

    def _undurable_slow(self, lsn: int) -> int:
        """``_undurable`` where another thread holds the store's lock, and for every form of its argument."""
        lsn = arguments.integer("lsn", lsn, 0, arguments.LSN_MAX)
        return 0 if lib.ls_durable_soon(self._c, lsn, 0) else lsn

    def on_durable(
        self,
        callback: Callable[[int | Exception], object],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        weak: bool = False,
    ) -> Listener:
        """Calls ``callback`` with the new durable LSN once per group commit, until the listener is closed.

        If the log fails, it is called once with the exception. A thread of the store calls it; with ``loop``, that
        event loop calls it, and this method must be called from that loop's thread. With ``weak`` the callback is a
        method, whose object is not kept: the listener ends with it. Exceptions of the callback are logged.
        """
        check_callback(callback, weak=weak)
        if loop is not None:
            check_loop(loop)
        refuse_fork(self._pid)
        return self._completions.add_callback(callback, loop, weak=weak)

    def _on_room(self, callback: Callable[[None], object], *, loop: asyncio.AbstractEventLoop) -> Listener:
        """That loop calls ``callback`` when :attr:`room_percent` may have grown without a group commit.

        Call it from that loop, as :meth:`on_durable`, whose callbacks are called at each group commit.
        """
        return self._completions.of(loop).room.add(callback, weak=False)

    def _answers_of(self, loop: asyncio.AbstractEventLoop) -> _Loop:
        """Where a program leaves the answer to one client with the store. Call it from that loop."""
        return self._completions.of(loop)
