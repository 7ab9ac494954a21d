"""Changes of a replicated store's catalog: in its log first, and then in the SQLite file of each copy.

A ``CATALOG_CHANGE`` has one transaction of the catalog as rows to put and to delete (section 6 of docs/format.md). The
leader writes it, waits until a majority has it, and then changes its own file; a copy that follows changes its file
when the record is durable, in the order of the log. Each file says up to which LSN it has every change (``applied``),
in the same transaction as the change. So a crash between any two steps leaves a file that is behind, and the log has
the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore._core import ffi, lib
from logstore.catalog.changes import (
    Change,
    ChangedCatalog,
    applied_steps,
    decode_rows,
    encode_rows,
    rows_between,
    steps_of,
)
from logstore.catalog.statements import execute
from logstore.codec.bodies import CatalogAction, CatalogObject
from logstore.core.native import check, failure
from logstore.errors import OutcomeUnknown
from logstore.inspect.catalog_changes import changes_between, says_nothing

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from logstore.catalog.catalog import Catalog
    from logstore.catalog.rows import Contents, Tables
    from logstore.catalog.statements import Statements, Step
    from logstore.codec.bodies import CatalogRow


# ---- the copy that leads ---------------------------------------------------------------------------------------------


class Carried:
    """A change on its way through the leader's log."""

    def __init__(self, statements: Statements, rows: tuple[CatalogRow, ...]) -> None:
        self._statements = statements
        self.rows = rows
        self.raw = encode_rows(rows)
        # The object exists before the call, because an exception may follow the call at once.
        self.end_lsn = ffi.new("uint64_t *")

    @property
    def steps(self) -> list[Step]:
        """The statements that the leader's own file executes."""
        return [*steps_of(self._statements, self.rows), *applied_steps(int(self.end_lsn[0]))]


class LeaderLog:
    """The log of a copy that leads, as its catalog uses it (``ChangeLog``)."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def carry(self, statements: Statements, before: Contents, after: Contents) -> Carried:
        """The rows between two LSNs."""
        return Carried(statements, rows_between(before, after))

    def write(self, carried: Carried) -> None:
        """Appends the change to the log and waits until it is durable.

        The deletions of its queues are logged with it, in the same batch.
        """
        ended = [row.queue_id for row in carried.rows if _ends_a_queue(row)]
        raw, count = ffi.from_buffer("uint8_t[]", carried.raw), len(carried.rows)
        check(lib.ls_replica_change_catalog(self._store, raw, len(raw), count, ended, len(ended), carried.end_lsn))

    def has(self, carried: Carried) -> bool:
        """Whether a majority has the change."""
        end_lsn = int(carried.end_lsn[0])
        if end_lsn == 0:
            return False
        if lib.ls_durable_lsn(self._store) < end_lsn:
            raise OutcomeUnknown("a change of the catalog is not known to be on a majority's disks: ask the new leader")
        return True


def _ends_a_queue(row: CatalogRow) -> bool:
    return row.object is CatalogObject.QUEUE and row.action is CatalogAction.DELETE


def note_applied(catalog: Catalog, store: Any) -> int | None:
    """Lets the leader's file say that it has every change below what is durable. None: a change is in progress."""
    said = 0

    def say(connection: Connection, _: Tables) -> None:
        nonlocal said
        said = int(lib.ls_durable_lsn(store))
        execute(connection, applied_steps(said))

    return said if catalog.try_transaction(say) else None


# ---- a copy that follows ---------------------------------------------------------------------------------------------


class FollowedCatalog(ChangedCatalog):
    """The catalog of a copy that follows. One thread at a time uses it."""

    def __init__(self, store_dir: Path, store_uuid: bytes) -> None:
        """Opens the catalog's file. Raises as :meth:`Catalog.open` does."""
        self._path = store_dir
        super().__init__(store_dir, store_uuid)

    def begin(self, *, replicated: bool, changes_from_lsn: int, end_lsn: int) -> None:
        """Reads from the log those changes below ``changes_from_lsn`` that the file lacks; the copy gives later ones.

        A log that is not replicated yet has none: the file has all, whatever it said before. Raises ``CatalogMismatch``
        if a change may be missing.
        """
        if not replicated:
            self.say(end_lsn)
            return
        if self.applied_lsn is None:
            raise says_nothing(self._path)
        if self.applied_lsn < changes_from_lsn:
            self.apply(changes_between(self._path, self.applied_lsn, changes_from_lsn))


def changes_of(host: Any, leads: Any) -> list[Change]:
    """The changes that the core has ready now, see ``ls_host_next_change``."""
    found: list[Change] = []
    one = ffi.new("ls_catalog_rows *")
    while (code := lib.ls_host_next_change(host, leads, one)) == 0:
        found.append(Change(one.end_lsn, decode_rows(bytes(ffi.buffer(one.rows, one.bytes)), one.row_count)))
    if code != lib.LS_END:
        raise failure(code)
    return found
