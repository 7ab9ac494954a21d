"""Opening a store: :func:`open` checks the options and makes the :class:`~logstore.MessageStore`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from logstore._core import ffi, lib
from logstore.catalog.backends import TIMEOUT_S as CATALOG_TIMEOUT_S
from logstore.core import arguments
from logstore.store.limit import checked_limit
from logstore.store.message_store import MessageStore

if TYPE_CHECKING:
    import os

SEGMENT_SIZE_MIN: Final = 512 * 1024
SEGMENT_SIZE_MAX: Final = 1 << 30
SECTOR: Final = 4096
PREPARED_MAX: Final = 65_536
TIMEOUT_S_MAX: Final = 100 * 365 * 86_400
CATALOG_TIMEOUT_S_MAX: Final = 3600
SCRUB_RATE_MIN: Final = 4096
SCRUB_RATE_MAX: Final = 1 << 50


def open(  # noqa: A001 - the public name, as in gzip.open
    store_dir: str | os.PathLike[str],
    *,
    create: bool = True,
    segment_size: int | None = None,
    initial_segments: int = 2,
    max_write_buffers: int = 10,
    max_undurable_bytes: int | None = None,
    max_log_bytes: int | str | None = None,
    max_prepared: int = 10_000,
    prepared_timeout: float | None = None,
    scrub_rate: float | None = None,
    durability: str = "strict",
    connect: str | None = None,
    catalog: str | None = None,
    catalog_timeout: float = CATALOG_TIMEOUT_S,
) -> MessageStore:
    """Opens the store in ``store_dir``: recovers it, or makes a new one if ``create`` allows it.

    * ``segment_size``: bytes, default 16 MiB, at least 512 KiB, rounded up to a multiple of 4096. It is fixed when the
      store is made; a different value later is ignored with a warning.
    * ``initial_segments``: the number of segment files that a new store is made with.
    * ``max_write_buffers``: the number of filled batches after which the log forces by itself.
    * ``max_undurable_bytes``: the most bytes that a crash can lose, default two segments; never exceeded.
    * ``max_log_bytes``: the limit of the log on disk in bytes, or a text such as ``"512M"`` or ``"1G"``, spares
      included; at least 6 segments. It is stored in the catalog and applies to later opens, too, until one changes it;
      ``"none"`` removes it. Default: as stored.
    * ``max_prepared``: the most distributed transactions that may be prepared at once.
    * ``prepared_timeout``: seconds (wall clock) after which a prepared transaction is rolled back with a logged
      warning, although its coordinator may still decide to commit. Default: never.
    * ``scrub_rate``: bytes per second at which a thread reads the log from the disk, again and again. Damage is logged
      as a warning and counted in ``stats()``. Default: no such thread.
    * ``durability``: ``"strict"``, or ``"relaxed"``: calls return before the data is on disk, so a crash loses the most
      recent operations.
    * ``connect`` and ``catalog``: the SQLAlchemy URL of a shared catalog and the schema in it. Default: an SQLite file
      in the store directory.
    * ``catalog_timeout``: the most seconds to wait for each answer of that server (for a connection at least 2); then
      the call raises ``CatalogUnavailable``.

    Raises :class:`~logstore.errors.OptionError`, ``NotAStore``, ``StoreLocked``, ``ReplicatedStore``, ``CorruptLog``,
    ``VersionError``, ``CatalogMismatch``, ``CatalogUnavailable``, ``StoreFull``, or ``StoreError`` if the system
    refuses an operation. A failed open changes nothing in the log.
    """
    path = arguments.path("store_dir", store_dir)
    options = ffi.new("ls_options *")
    lib.ls_options_default(options)
    options.create = bool(create)
    options.relaxed = arguments.choice("durability", durability, "strict", "relaxed") == "relaxed"
    if segment_size is not None:
        wanted = max(arguments.integer("segment_size", segment_size, 1, SEGMENT_SIZE_MAX), SEGMENT_SIZE_MIN)
        options.segment_size = -(-wanted // SECTOR) * SECTOR
    options.initial_segments = arguments.integer("initial_segments", initial_segments, 1, 65536)
    options.max_write_buffers = arguments.integer("max_write_buffers", max_write_buffers, 2, 64)
    if max_undurable_bytes is not None:
        options.max_undurable_bytes = arguments.integer("max_undurable_bytes", max_undurable_bytes, 1, 1 << 60)
    limit = None if max_log_bytes is None else checked_limit(max_log_bytes)
    options.max_log_bytes = limit or 0
    options.max_prepared = arguments.integer("max_prepared", max_prepared, 1, PREPARED_MAX)
    arguments.optional(arguments.number, "prepared_timeout", prepared_timeout, 0, TIMEOUT_S_MAX, "seconds")
    arguments.optional(arguments.number, "scrub_rate", scrub_rate, SCRUB_RATE_MIN, SCRUB_RATE_MAX, "bytes a second")
    arguments.number("catalog_timeout", catalog_timeout, 0, CATALOG_TIMEOUT_S_MAX, "seconds")
    arguments.catalog(connect, catalog, called="catalog")
    return MessageStore(
        path,
        options,
        connect=connect,
        catalog=catalog,
        catalog_timeout=catalog_timeout,
        prepared_timeout=prepared_timeout,
        scrub_rate=scrub_rate,
        max_log_bytes=limit,
    )
