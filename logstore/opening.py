"""How a store is opened: :func:`open` checks the options that :class:`~logstore.store.MessageStore` is made with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from logstore import errors
from logstore._core import ffi, lib
from logstore.store import MessageStore

if TYPE_CHECKING:
    import os

SEGMENT_SIZE_MIN: Final = 512 * 1024
SEGMENT_SIZE_MAX: Final = 1 << 30
SECTOR: Final = 4096
PREPARED_MAX: Final = 65_536
TIMEOUT_S_MAX: Final = 100 * 365 * 86_400
SCRUB_RATE_MIN: Final = 4096
SCRUB_RATE_MAX: Final = 1 << 50


def _whole(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise errors.OptionError(f"{name} is a whole number, not {value!r}")
    if not low <= value <= high:
        raise errors.OptionError(f"{name} is {low} to {high}, not {value}")
    return value


def _check_timeout(value: object) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (number and 0 < value <= TIMEOUT_S_MAX):  # type: ignore[operator]
        raise errors.OptionError(f"prepared_timeout is seconds above 0, not {value!r}")


def _check_scrub_rate(value: object) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (number and SCRUB_RATE_MIN <= value <= SCRUB_RATE_MAX):  # type: ignore[operator]
        raise errors.OptionError(f"scrub_rate is {SCRUB_RATE_MIN} bytes a second or more, not {value!r}")


def open(  # noqa: A001 - the name that section 10 of the design gives it, as in gzip.open
    store_dir: str | os.PathLike[str],
    *,
    create: bool = True,
    segment_size: int | None = None,
    initial_segments: int = 2,
    max_write_buffers: int = 10,
    max_undurable_bytes: int | None = None,
    max_log_bytes: int | None = None,
    max_prepared: int = 10_000,
    prepared_timeout: float | None = None,
    scrub_rate: float | None = None,
    durability: str = "strict",
    connect: str | None = None,
    catalog: str | None = None,
) -> MessageStore:
    """Opens the store in ``store_dir``, making or recovering it first.

    ``segment_size`` (bytes, default 16 MiB, at least 512 KiB, rounded up to the sector) is fixed when the store
    is made;
    a later one that differs is ignored with a warning. ``initial_segments`` files are made with a new store.
    ``max_write_buffers`` batches are filled before the log forces by itself; ``max_undurable_bytes`` (default two
    segments)
    is the most that can be lost by a crash and is never exceeded. ``max_log_bytes`` (at least 6 segments) limits
    the log on
    disk, spares included. At most ``max_prepared`` distributed transactions are prepared at once. With a
    ``prepared_timeout`` (seconds, wall clock) what has been prepared for longer is rolled back although its coordinator
    was promised otherwise, with a warning in the log; without one nothing prepared is ever ended by time.
    With a ``scrub_rate`` (bytes a second) a thread reads the log from the disk, round and round; what it finds damaged
    is logged as a warning and counted in ``stats()``.
    ``durability="relaxed"`` returns before the disk has it: a crash then loses the last moments.
    ``connect`` is an SQLAlchemy URL of a shared catalog and ``catalog`` the schema in it; without them it is an SQLite
    file in the directory.

    Raises :class:`~logstore.errors.OptionError`, ``NotAStore``, ``StoreLocked``, ``CorruptLog``, ``VersionError``,
    ``CatalogMismatch``, ``CatalogUnavailable``, ``StoreFull``, or ``StoreError`` for what the system refuses. A refused
    open changes nothing in the log.
    """
    if durability not in ("strict", "relaxed"):
        raise errors.OptionError(f'durability is "strict" or "relaxed", not {durability!r}')
    options = ffi.new("ls_options *")
    lib.ls_options_default(options)
    options.create = bool(create)
    options.relaxed = durability == "relaxed"
    if segment_size is not None:
        wanted = max(_whole("segment_size", segment_size, 1, SEGMENT_SIZE_MAX), SEGMENT_SIZE_MIN)
        options.segment_size = -(-wanted // SECTOR) * SECTOR
    options.initial_segments = _whole("initial_segments", initial_segments, 1, 65536)
    options.max_write_buffers = _whole("max_write_buffers", max_write_buffers, 2, 64)
    if max_undurable_bytes is not None:
        options.max_undurable_bytes = _whole("max_undurable_bytes", max_undurable_bytes, 1, 1 << 60)
    if max_log_bytes is not None:
        options.max_log_bytes = _whole("max_log_bytes", max_log_bytes, 1, 1 << 62)
    options.max_prepared = _whole("max_prepared", max_prepared, 1, PREPARED_MAX)
    _check_timeout(prepared_timeout)
    _check_scrub_rate(scrub_rate)
    return MessageStore(
        store_dir,
        options,
        connect=connect,
        catalog=catalog,
        prepared_timeout=prepared_timeout,
        scrub_rate=scrub_rate,
    )
