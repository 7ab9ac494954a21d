"""The maintenance of an open store (compaction, backup, checkpoint), and its reports: recovery, counters, tail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore import errors
from logstore._core import lib
from logstore._hot import StoreCalls
from logstore.core import arguments
from logstore.core.imports import late
from logstore.core.native import check, filled
from logstore.core.reports import Checkpoint, Recovery, stats_from_c
from logstore.store.base_holders import HOLDERS, Compaction, Tail, compaction_of, read_tail
from logstore.store.completions import check_loop
from logstore.store.counting import counts_in_core
from logstore.store.fork import refuse_fork
from logstore.store.fullness import Fullness, fullness_of
from logstore.store.limit import checked_limit, keep_limit
from logstore.store.listeners import check_callback

if TYPE_CHECKING:
    import asyncio
    import os
    from collections.abc import Callable, MutableMapping
    from pathlib import Path

    from logstore._core import ls_store_ptr
    from logstore.backup import BackupReport
    from logstore.catalog.transient import TransientIds
    from logstore.core.locks import Lock
    from logstore.holds import HoldInfo
    from logstore.store.completions import Completions
    from logstore.store.listeners import Listener
    from logstore.store.overdue import Overdue
    from logstore.store.queues import Queue
    from logstore.store.releases import Releases
    from logstore.store.scrub import Scrub


class Maintenance(StoreCalls):
    """The part of :class:`~logstore.MessageStore` that reports about the store and maintains it."""

    _c: ls_store_ptr
    _pid: int
    _path: Path
    _completions: Completions
    _limit_lock: Lock
    _overdue: Overdue | None
    _scrub: Scrub | None
    _releases: Releases
    _earlier_transient: TransientIds  # ids of transient queues of earlier opens
    _catalog_arguments: tuple[str | None, str | None]  # the arguments connect and catalog of the open

    if TYPE_CHECKING:

        def queues(self) -> list[Queue]:
            """Of Names."""

        @property
        def config(self) -> MutableMapping[str, str]:
            """Of Names."""

    @property
    def base_lsn(self) -> int:
        """The tail: the first LSN that is still needed."""
        refuse_fork(self._pid)
        return int(lib.ls_base_lsn(self._c))

    @property
    def recovery(self) -> Recovery:
        """The report of the recovery at open."""
        return Recovery._of(self._c)._with_transient(self._earlier_transient)

    def _stats_native(self) -> Any:
        """A copy of the core's ``ls_stats``."""
        refuse_fork(self._pid)
        return filled("ls_stats", lambda stats: lib.ls_stats_get(self._c, stats))

    def stats(self) -> dict[str, Any]:
        """Counters by name, the ``durability`` in force, and per queue ``depth``, ``locked``, ``hidden``,
        ``expired`` and ``acquired``, which here counts the locked places that a consumer has, too.

        ``threads_failed`` names each thread of the store that has failed, with its exception.
        """
        self._release_dropped()
        counters = self._counters()
        per_queue: dict[str, dict[str, int]] = {}
        for queue in self.queues():
            try:
                counts = counts_in_core(self._c, queue.id)
            except errors.UnknownQueue:
                continue  # deleted meanwhile
            acquired = counts.acquired + counts.acquired_locked
            per_queue[queue.name] = {
                "depth": counts.depth,
                "locked": counts.locked,
                "acquired": acquired,
                "hidden": counts.hidden,
                "expired": counts.expired,
            }
        counters["queues"] = per_queue
        return counters

    def _counters(self) -> dict[str, Any]:
        """:meth:`stats` without the queues, which takes the same time for any number of them."""
        counters = stats_from_c(self._stats_native())
        counters["holds"] = sum(each.honoured for each in self._list_holds())
        counters["overdue_rolled_back"] = self._overdue.rolled_back if self._overdue is not None else 0
        if self._scrub is not None:
            counters |= self._scrub.stats()
        owners = (self._completions, self._releases, self._overdue, self._scrub)
        threads = (one.thread for one in owners if one is not None)
        counters["threads_failed"] = [
            f"{one.name}: {one.failure}" for one in threads if one is not None and one.failure is not None
        ]
        return counters

    def _nearly_full_slow(self) -> bool:
        """``nearly_full`` in a forked child."""
        refuse_fork(self._pid)
        return bool(lib.ls_near_full_changes(self._c) & 1)

    def look_for_room(self) -> None:
        """Asks a thread of the store to look whether the log may grow again, for example because its disk has room.

        Returns at once; the listeners of :meth:`on_fullness` hear what it finds. Only for programs that publish nothing
        while the store is full, as each publish looks, too.
        """
        refuse_fork(self._pid)
        lib.ls_look_for_room(self._c)

    def fullness(self) -> Fullness:
        """Whether the store accepts appends that grow its log; if not, since when and why."""
        refuse_fork(self._pid)
        return fullness_of(self._c)

    def on_fullness(
        self,
        callback: Callable[[Fullness], object],
        *,
        near: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
        weak: bool = False,
    ) -> Listener:
        """Calls ``callback`` when the store has become full, and when it has room again, until the listener is closed.

        With ``near`` when it has become nearly full (:attr:`nearly_full`), and when that is over. It is called once for
        each change, or once for several that follow closely. ``loop``, ``weak`` and exceptions as for
        :meth:`on_durable`.
        """
        check_callback(callback, weak=weak)
        if loop is not None:
            check_loop(loop)
        refuse_fork(self._pid)
        return self._completions.add_fullness_callback(callback, loop, near=near, weak=weak)

    def set_max_log_bytes(self, max_log_bytes: int | str) -> None:
        """Changes the limit of the log on disk while the store is in use, as the option of :func:`logstore.open` does.

        Bytes, a text such as ``"1G"``, or ``"none"``. Stored for later opens, and durable on return. A log that is
        longer already stays so, and does not grow. Raises ``OptionError`` for less than 6 segments, and
        ``CatalogUnavailable``; then the limit is as before.
        """
        refuse_fork(self._pid)
        limit = checked_limit(max_log_bytes)
        with self._limit_lock:
            before = self.fullness().max_log_bytes or 0
            try:
                check(lib.ls_limit_log(self._c, limit))
                keep_limit(self.config, limit)
            except BaseException:
                lib.ls_limit_log(self._c, before)  # it fails only if the store is closed
                raise

    def tail(self, limit: int = HOLDERS) -> Tail:
        """Which messages and transactions keep the base from advancing, what would free them, and segment usage.

        At most ``limit`` holders are listed (never more than 1000), the lowest LSN first. All are counted.
        """
        refuse_fork(self._pid)
        limit = arguments.integer("limit", limit, 0, arguments.LSN_MAX)
        names = {queue.id: queue.name for queue in self.queues()}
        return read_tail(self._c, names, self._list_holds(), limit)

    def compact(self, *, dry_run: bool = False) -> Compaction:
        """Makes the log as small as possible while the store is in use.

        It relocates the live records of the oldest segments, recycles segments below the base, and deletes surplus
        files, if the log becomes smaller by that; otherwise nothing is done, and ``shrinks`` of the result is False.
        With ``dry_run`` it only estimates the result. Raises ``CorruptLog`` if a segment cannot be relocated,
        and ``StoreFull`` if there is no room to relocate; the space gained until then stays free.
        """
        refuse_fork(self._pid)
        return compaction_of(self._c, dry_run=bool(dry_run))

    def backup(
        self,
        target: str | os.PathLike[str],
        *,
        rate_bytes_s: float | None = None,
        hold_limit_bytes: int | None = None,
        progress: Callable[[int, int], None] = lambda *_: None,
    ) -> BackupReport:
        """Copies the whole durable state to ``target``, an absent or empty directory, while the store is in use.

        Raises the errors of :func:`logstore.backup.back_up`; after any of them, no backup was made.
        """
        late("logstore.backup")
        from logstore.backup import back_up

        refuse_fork(self._pid)
        connect, schema = self._catalog_arguments
        return back_up(
            self._path,
            target,
            connect=connect,
            catalog=schema,
            rate_bytes_s=rate_bytes_s,
            hold_limit_bytes=hold_limit_bytes,
            progress=progress,
        )

    def _list_holds(self) -> list[HoldInfo]:
        """The store's holds; an empty list if their files cannot be read."""
        late("logstore.holds")
        from logstore.holds import list_holds

        try:
            return list_holds(self._path)
        except errors.StoreError:
            return []

    def checkpoint(self) -> Checkpoint:
        """Writes a checkpoint while the store is in use: the next open replays only the log after it.

        Durable on return. A checkpoint is optional, so a failure (``StoreFull`` if the disk is full, or a
        ``StoreError``) leaves the store and the earlier checkpoint unchanged.
        """
        info = filled("ls_checkpoint_info", lambda into: lib.ls_checkpoint(self._c, into))
        return Checkpoint(info.lsn, info.bytes, info.messages, info.transactions, info.took_us / 1e6)

    def checkpoint_size(self) -> Checkpoint:
        """An estimate of the checkpoint that :meth:`checkpoint` would write now."""
        info = filled("ls_checkpoint_info", lambda into: lib.ls_checkpoint_size(self._c, into))
        return Checkpoint(self.next_lsn, info.bytes, info.messages, info.transactions, 0.0)
