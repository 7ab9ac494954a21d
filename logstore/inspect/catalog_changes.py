"""Reads from a replicated store's log the changes of its catalog that the catalog's file lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from logstore.catalog.changes import Change, ChangedCatalog, applied_lsn
from logstore.codec.bodies import CatalogChange
from logstore.codec.records import RecordFlag, RecordType
from logstore.core.arguments import LSN_MAX
from logstore.errors import CatalogMismatch, StoreError
from logstore.holds import LogRecycled
from logstore.inspect.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logstore.codec.bodies import CatalogRow
    from logstore.inspect.reader import ReaderInfo


COMES_FROM_THE_LOG: Final = (
    "the log of a replicated store has the changes of its catalog, which are made when the member starts; if it does "
    "not start, take a fresh copy with `logstore cluster rebuild`"
)
"""What to do about a copy's catalog that does not fit its log."""


def changes_in(reader: Reader, to_lsn: int) -> Iterator[Change]:
    """The changes that this reader gives, up to the last one that begins below ``to_lsn``."""
    parts: tuple[CatalogRow, ...] = ()
    for record in reader.records(RecordType.CATALOG_CHANGE):
        if record.lsn >= to_lsn and not parts:
            break
        assert isinstance(record.body, CatalogChange)
        parts = (*(parts if record.body.part else ()), *record.body.rows)
        if RecordFlag.PART not in record.flags:
            yield Change(record.lsn + record.length, parts)
            parts = ()


def changes_between(store_dir: Path, from_lsn: int, to_lsn: int) -> list[Change]:
    """The changes of this part of a store's log, also below the base as long as the segments are there.

    ``from_lsn`` is where a catalog stands. Raises ``CatalogMismatch`` if a change may be missing there, ``StoreError``
    if the log ends before ``to_lsn``, and the errors of :class:`Reader`.
    """
    try:
        with Reader(store_dir, keep_lsn=from_lsn, from_lsn=from_lsn) as reader:
            if reader.info.end_lsn < to_lsn:
                raise StoreError(
                    f"the log of {store_dir} is durable up to LSN {reader.info.end_lsn} now, and its changes of the "
                    f"catalog are wanted up to {to_lsn}: run this again"
                )
            return list(changes_in(reader, to_lsn))
    except LogRecycled as problem:
        raise CatalogMismatch(
            f"the catalog in {store_dir} has the changes of its log up to LSN {from_lsn}, and the log has lost what "
            f"follows ({problem}): put back the catalog that belongs to the log, or take a fresh copy with "
            "`logstore cluster rebuild`"
        ) from problem


def changes_since(store_dir: Path, applied: int, info: ReaderInfo) -> list[Change]:
    """The changes from ``applied`` to the end of a log that no writer has open; ``info`` is from the log's reader.

    Raises as :func:`changes_between` does.
    """
    below = changes_between(store_dir, applied, info.base_lsn) if applied < info.base_lsn else []
    with Reader(store_dir, undurable=True, from_lsn=max(applied, info.base_lsn)) as reader:
        return below + list(changes_in(reader, info.end_lsn))


def follows_its_log(store_dir: Path, store_uuid: bytes) -> bool:
    """Whether a member's catalog has changes from its log; False: the store's program kept them out of the log.

    Raises ``CatalogMismatch`` if the log has changes, and the file does not say which of them it has.
    """
    if applied_lsn(store_dir, store_uuid) is not None:
        return True
    with Reader(store_dir, undurable=True) as reader:
        if next(changes_in(reader, reader.info.end_lsn), None) is not None:
            raise says_nothing(store_dir)
    return False


def says_nothing(store_dir: Path) -> CatalogMismatch:
    """The error for a catalog that does not note its changes, although its log has some."""
    return CatalogMismatch(
        f"the catalog in {store_dir} does not say which changes of its log it has, so it is not a member's: "
        "take a fresh copy with `logstore cluster rebuild`"
    )


def take_undurable(store_dir: Path, *, below_base_in: Path | None = None) -> int:
    """Gives a catalog all changes of its log, also those that no majority is known to have; the end of the log.

    Only where replication ends: another leader might cut them else. What the log of ``store_dir`` does not have below
    its base is read from ``below_base_in``, the copy that it was made of. Raises as :func:`changes_between` does.
    """
    with Reader(store_dir, undurable=True, from_lsn=LSN_MAX) as reader:
        info = reader.info
    if follows_its_log(store_dir, info.uuid.bytes):
        with ChangedCatalog(store_dir, info.uuid.bytes) as catalog:
            give_changes(catalog, store_dir, info, below_base_in or store_dir)
            catalog.advance(info.end_lsn)
    return info.end_lsn


def give_changes(catalog: ChangedCatalog, store_dir: Path, info: ReaderInfo, below_base_in: Path) -> None:
    """Gives a catalog the changes of a log up to its end, one by one; changes before damaged bytes are kept.

    ``info`` is that of the log in ``store_dir``. Raises as :func:`changes_between` does.
    """
    applied = catalog.applied_lsn or 0
    if applied < info.base_lsn:
        catalog.apply(changes_between(below_base_in, applied, info.base_lsn))
    with Reader(store_dir, undurable=True, from_lsn=max(applied, info.base_lsn)) as reader:
        for change in changes_in(reader, info.end_lsn):
            catalog.apply([change])
