"""Repairs a catalog that contradicts itself or is older than its log: for ``logstore repair-catalog``.

It never changes the log, never drops a message on a queue of the catalog, and never changes the catalog of a store that
another process has open.

All changes are one transaction, committed only if an open would accept the result. First a copy of the catalog's file
is kept in the store directory. If the catalog needs no repair, no file is changed or made.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from logstore.catalog.at_rest import copied_at_rest
from logstore.catalog.backends import FILE_NAME, Backend, SqliteFile, backend_for
from logstore.catalog.database import CatalogDatabase
from logstore.catalog.rows import Contents
from logstore.catalog.transient import TransientIds
from logstore.core.counts import counted
from logstore.core.imports import late
from logstore.core.lock_holder import store_locked
from logstore.core.regular_files import force_directory, lock_regular, open_regular, told
from logstore.errors import CatalogError, CatalogUnavailable, ReplicatedStore, StoreError
from logstore.inspect import Inspection
from logstore.inspect.catalog_changes import COMES_FROM_THE_LOG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from logstore.catalog.rows import Tables

KEPT: Final = f"{FILE_NAME}.before-repair"


@dataclass(slots=True)
class Repair:
    """The result of a repair."""

    changes: list[str] = field(default_factory=list)
    """The changes, one line each: made, or (in a dry run) only planned."""
    notes: list[str] = field(default_factory=list)
    """Facts for the operator, about which only the operator can decide."""
    problem: str | None = None
    """Why the catalog cannot be repaired; then nothing was changed."""
    kept: str | None = None
    """The path of the copy of the catalog's file from before the repair."""


class _NotCommitted(Exception):
    """Ends a transaction without a commit."""


def repair_catalog(
    store_dir: Path,
    *,
    connect: str | None = None,
    schema: str | None = None,
    dry_run: bool = False,
    show: Callable[[int], object] = lambda _: None,
) -> Repair:
    """Repairs the catalog of the closed store in ``store_dir``; durable on return.

    With ``dry_run`` the repair is made on a copy, or on a server in a transaction that is rolled back. ``show`` is
    called with the progress of reading the log.

    Raises ``StoreLocked`` while another process has the store open, ``CorruptLog``, ``CatalogMismatch`` for a missing
    catalog or one of another store, ``ReplicatedStore`` for a member's copy, ``CatalogUnavailable``, ``CatalogError``,
    ``VersionError``, or ``StoreError`` if the system refuses an operation.
    """
    with _kept_closed(store_dir, make=not dry_run), Inspection(store_dir) as log:
        if log.info.live:
            raise store_locked(store_dir)
        if log.info.index != 0:
            raise ReplicatedStore(
                f"{store_dir} is a copy of a replicated store: {COMES_FROM_THE_LOG}, or make a single store of this "
                "one with `logstore cluster detach`"
            )
        log.read(show)
        if connect is not None or schema is not None:
            backend = backend_for(store_dir, connect, schema)
            return _mend(backend, log, commit=not dry_run)
        with copied_at_rest(store_dir) as copy:
            would = _mend(SqliteFile(copy, read_only=False), log, commit=False)
            if would.problem is not None:
                would.problem = would.problem.replace(str(copy), str(store_dir))
        if dry_run or would.problem is not None or not would.changes:
            return would
        kept = _keep(store_dir)
        made = _mend(SqliteFile(store_dir, read_only=False), log, commit=True)
        made.kept = str(kept)
        return made


@contextmanager
def _kept_closed(store_dir: Path, *, make: bool) -> Iterator[None]:
    """Keeps writers out with a shared lock on the file that a writer locks. A copied store may lack that file."""
    with ExitStack() as held:
        try:
            flags = os.O_RDWR | os.O_CREAT if make and (store_dir / "META").is_file() else os.O_RDONLY
            held.callback(os.close, lock_regular(store_dir / "LOCK", fcntl.LOCK_SH, flags))
        except BlockingIOError:
            raise store_locked(store_dir) from None
        except (FileNotFoundError, NotADirectoryError):
            pass  # no process has it open; or it is not a store, which the reader of the log reports
        except OSError as error:
            raise StoreError(f"{store_dir}/LOCK cannot be locked ({told(error)}); check the permissions") from error
        yield


def _keep(store_dir: Path) -> Path:
    """Copies the catalog's file to an unused name; durable on return."""
    with copied_at_rest(store_dir) as copy:
        data = (copy / FILE_NAME).read_bytes()
    number = 1
    try:
        while True:
            kept = store_dir / (KEPT if number == 1 else f"{KEPT}-{number}")
            try:
                handle = open_regular(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                break
            except FileExistsError:
                number += 1
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        force_directory(store_dir)
    except OSError as error:
        raise CatalogUnavailable(
            f"the catalog's file cannot be copied to {kept}: {error.strerror}; nothing was changed, check the disk"
        ) from error
    return kept


def _mend(backend: Backend, log: Inspection, *, commit: bool) -> Repair:
    found = Repair()
    with closing(_Repaired(backend, log.info.uuid.bytes, read_only=False)) as database, suppress(_NotCommitted):
        database.mend(log, found, commit=commit)
    return found


class _Repaired(CatalogDatabase):
    """A catalog that may be too damaged for a normal open."""

    def mend(self, log: Inspection, found: Repair, *, commit: bool) -> None:
        """Repairs in one transaction. Raises ``_NotCommitted`` without ``commit``, or if there is nothing to change."""
        with self._transaction() as connection:
            self._check_identity(connection)
            _Mending(connection, self._tables, log, found).mend()
            try:
                self._backend.verify(connection)
                now = Contents.read(connection, self._tables)
                log._drop_queues(now.queue_names, now.next_queue_id)
            except (CatalogError, TypeError, ValueError) as error:
                found.problem = error.message if isinstance(error, CatalogError) else f"{self._backend.where}: {error}"
                raise _NotCommitted from error
            if not commit or not found.changes:
                raise _NotCommitted


class _Mending:
    """Makes the changes that a catalog needs, one after the other, on its present rows."""

    def __init__(self, connection: Connection, tables: Tables, log: Inspection, found: Repair) -> None:
        self._connection = connection
        self._tables = tables
        self._log = log
        self._found = found
        self._store = self._rows(tables.store, for_update=True)[0]  # a commit still under way on a server ends first
        self._queues = {row.id: row.name for row in self._rows(tables.queues, "id")}

    def mend(self) -> None:
        """Makes all changes. Queues come first, so that references to restored queues stay."""
        self._rename_doubles()
        self._remove_deleted()
        self._add_lost()
        self._drop_references()
        self._raise_next_id()
        if not isinstance(self._store.revision, int):
            self._set_revision(1)
            self._say(f"the count of changes is set to 1: it was {self._store.revision!r}")
        elif self._found.changes:
            self._set_revision(self._store.revision + 1)

    def _rows(self, table: Any, order: str | None = None, *, for_update: bool = False) -> list[Any]:
        late("sqlalchemy")
        import sqlalchemy as sa

        selected = sa.select(table)
        selected = selected if order is None else selected.order_by(table.c[order])
        return list(self._connection.execute(selected.with_for_update() if for_update else selected).all())

    def _say(self, line: str) -> None:
        self._found.changes.append(line)

    def _update(self, table: Any, which: Any, **values: Any) -> None:
        late("sqlalchemy")
        import sqlalchemy as sa

        self._connection.execute(sa.update(table).where(which).values(**values))

    def _delete(self, table: Any, which: Any) -> None:
        late("sqlalchemy")
        import sqlalchemy as sa

        self._connection.execute(sa.delete(table).where(which))

    def _set_revision(self, revision: int) -> None:
        self._update(self._tables.store, self._tables.store.c.one == 1, revision=revision)

    def _free_name(self, name: str) -> str:
        taken, free, number = set(self._queues.values()), name, 2
        while free in taken:
            free, number = f"{name}-{number}", number + 1
        return free

    def _rename_doubles(self) -> None:
        first: dict[str, int] = {}
        for queue_id, name in list(self._queues.items()):
            if first.setdefault(name, queue_id) == queue_id:
                continue
            free = self._queues[queue_id] = self._free_name(f"queue-{queue_id}")
            self._update(self._tables.queues, self._tables.queues.c.id == queue_id, name=free)
            self._say(f"queue {queue_id} is renamed to {free!r}: queue {first[name]} is called {name!r}, too")

    def _remove_deleted(self) -> None:
        for queue in self._log.queues():
            if not queue.deleted or queue.id not in self._queues:
                continue
            name = self._queues.pop(queue.id)
            queues, bindings = self._tables.queues, self._tables.bindings
            self._update(queues, queues.c.dead_letter == queue.id, dead_letter=None)
            self._delete(bindings, bindings.c.queue_id == queue.id)
            self._delete(queues, queues.c.id == queue.id)
            self._say(f"queue {queue.id}, {name!r}, is removed with its bindings: the log says that it was deleted")

    def _add_lost(self) -> None:
        """Adds queues that the log has and the catalog lost.

        A missing queue with an id below the catalog's next id was deleted. With a higher id, the catalog is older than
        the log.
        """
        late("sqlalchemy")
        import sqlalchemy as sa

        messages = {queue.id: queue.depth for queue in self._log.queues() if not queue.deleted and queue.depth > 0}
        for transaction in self._log.transactions():
            for work in transaction.work:
                messages.setdefault(work.queue_id, 0)
        next_id = self._store.next_queue_id if isinstance(self._store.next_queue_id, int) else 1
        kept = {row.key: row.value for row in self._rows(self._tables.config) if isinstance(row.value, str)}
        transient = TransientIds.of(kept)
        for queue_id, count in sorted(messages.items()):
            if queue_id in self._queues:
                continue
            if queue_id in transient:
                self._found.notes.append(
                    f"queue {queue_id} is transient, so the catalog does not have it, and the next open drops "
                    f"{counted(count, 'message')} on it"
                )
                continue
            if queue_id < next_id:
                self._found.notes.append(
                    f"queue {queue_id} is not in the catalog, but the catalog has given out its id: it was deleted, "
                    f"and the next open drops {counted(count, 'message')} on it; if it was not deleted, first "
                    "restore a catalog "
                    "that has it"
                )
                continue
            name = self._queues[queue_id] = self._free_name(f"queue-{queue_id}")
            row = {"id": queue_id, "name": name, "arguments": "{}", "dead_letter": None}
            self._connection.execute(sa.insert(self._tables.queues).values(**row))
            self._say(
                f"queue {queue_id} is added as {name!r} without its arguments and bindings, which are lost: the log "
                f"has {counted(count, 'message')} on it, and the catalog is older than the log"
            )

    def _drop_references(self) -> None:
        queues, exchanges, bindings = self._tables.queues, self._tables.exchanges, self._tables.bindings
        for row in self._rows(queues, "id"):
            if row.dead_letter is not None and row.dead_letter not in self._queues:
                self._update(queues, queues.c.id == row.id, dead_letter=None)
                self._say(f"queue {row.name!r} has no dead-letter queue any more: it was {row.dead_letter}, gone")
        names = {row.name for row in self._rows(exchanges)}
        for row in self._rows(exchanges, "name"):
            if row.alternate is not None and row.alternate not in names:
                self._update(exchanges, exchanges.c.name == row.name, alternate=None)
                self._say(f"exchange {row.name!r} has no alternate any more: it was {row.alternate!r}, gone")
        for row in self._rows(bindings, "id"):
            if row.exchange in names and row.queue_id in self._queues:
                continue
            self._delete(bindings, bindings.c.id == row.id)
            gone = f"queue {row.queue_id}" if row.exchange in names else f"exchange {row.exchange!r}"
            self._say(
                f"the binding of queue {row.queue_id} to exchange {row.exchange!r} with key {row.key!r} is removed: "
                f"there is no {gone}"
            )

    def _raise_next_id(self) -> None:
        named = max(self._log.queue_id_max, *(queue.id for queue in self._log.queues()), 0)
        used = max(self._queues, default=0)
        needed, now = max(named, used) + 1, self._store.next_queue_id
        if isinstance(now, int) and now >= needed:
            return
        self._update(self._tables.store, self._tables.store.c.one == 1, next_queue_id=needed)
        why = f"the log names queue {named}" if named > used else f"queue id {used} is in use"
        self._say(f"the next queue id is set to {needed}: it was {now!r}, and {why}")
