"""Holds: a hold keeps the writer from reusing segments that another process has not read yet.

A writer reuses a segment as soon as it contains no live record. A reader that needs the whole log (an export, a backup)
takes a hold first. From then on everything at or above the hold's LSN is kept, until the reader releases or advances
the hold, or the hold expires. A hold never keeps a log for ever: it ends with its process, when its time has passed,
and when it alone would keep more bytes than its limit. Segments kept only by holds do not count against
``max_log_bytes`` and do not cause relocation.

Reading a part of the log that was reused raises :class:`~logstore.holds.LogRecycled`, so a loss is never silent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from logstore._core import ffi, lib
from logstore.core import arguments
from logstore.core.locks import Lock
from logstore.core.native import failure, filled, listed, owned
from logstore.errors import OptionError, StoreClosed, StoreError, StoreForked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from logstore._core import Pointer, ls_hold_ptr, ls_reader_ptr
    from logstore._hot import Owner

__all__ = ["LASTS_S", "LIMIT_BYTES", "Hold", "HoldInfo", "LogRecycled", "hold", "list_holds"]

LIMIT_BYTES: Final = 1 << 30
LASTS_S: Final = 3600.0
LIMIT_BYTES_MAX: Final = 1 << 62
_LASTS_S_MAX: Final = lib.LS_HOLD_DAYS_MAX * 86_400

_STATES: Final = {
    lib.LS_HOLD_HONOURED: "honoured",
    lib.LS_HOLD_EXPIRED: "expired",
    lib.LS_HOLD_OVER_LIMIT: "over its limit",
    lib.LS_HOLD_ABANDONED: "abandoned",
    lib.LS_HOLD_DAMAGED: "damaged",
    lib.LS_HOLD_FOREIGN: "of another store",
    lib.LS_HOLD_OVERTAKEN: "overtaken",
}


class LogRecycled(StoreError):
    """The writer reused segments before this reader had read them.

    Everything read before is complete. Start again with a new reader: it starts at the new base.
    """


@dataclass(frozen=True, slots=True)
class HoldInfo:
    """One hold, as its file in the store directory describes it."""

    name: str
    lsn: int
    """Everything at or above this LSN is kept."""
    kept_bytes: int
    """Bytes of the segments from ``lsn`` on that only holds keep."""
    limit_bytes: int
    """The most bytes that it may keep; 0 means no limit."""
    created: datetime
    age_s: float
    """Seconds since it was taken."""
    expires: datetime
    left_s: float
    """Seconds until it expires; 0 if it has expired."""
    state: str
    """``honoured``, or why not: ``expired``, ``over its limit``, ``overtaken`` (it expired, and part of the log that it
    kept is gone), ``abandoned`` (its process has ended; the writer removes it), ``damaged``, ``of another store``."""
    pid: int | None
    """The process that owns it; None if the system does not say."""

    @property
    def honoured(self) -> bool:
        """Whether a writer keeps anything for it."""
        return self.state == "honoured"

    @property
    def alive(self) -> bool:
        """Whether its owner process still runs."""
        return self.state != "abandoned"


class Hold:
    """A hold that this process has taken, made by :func:`hold`. A context manager that releases the hold at its end.

    Usable from several threads, but not in a forked child.
    """

    def __init__(self, owner: Owner, handle: ls_hold_ptr, store_dir: Path, lasts_us: int) -> None:
        self._owner = owner
        self._c: ls_hold_ptr | None = handle
        self._pid = os.getpid()
        self._lock = Lock("the hold")
        self._lasts_us = lasts_us
        self.path = store_dir
        """The store directory."""

    def _described(self) -> Any:
        self._not_forked()
        with self._lock:
            return filled("ls_hold_info", lambda info: lib.ls_hold_describe(self._usable(), info))

    def _usable(self) -> ls_hold_ptr:
        """The core's handle; under the lock, for as long as it is used."""
        if self._c is None:
            raise StoreClosed("this hold was released: take another one")
        return self._c

    def _not_forked(self) -> None:
        if os.getpid() != self._pid:
            raise StoreForked("this hold was taken by the parent process: take one in this process")

    @property
    def name(self) -> str:
        """The name it was taken with."""
        return _text(self._described().name)

    @property
    def lsn(self) -> int:
        """Everything at or above this LSN is kept."""
        return int(self._described().lsn)

    @property
    def limit_bytes(self) -> int:
        """The most bytes that it may keep."""
        return int(self._described().limit_bytes)

    @property
    def expires(self) -> datetime:
        """When it expires unless it is renewed."""
        return _moment(self._described().expires_us)

    def advance(self, lsn: int, *, expires_s: float | None = None) -> None:
        """Releases the log below ``lsn``, which has been read, and restarts the hold's time.

        ``expires_s`` is the new time in seconds; without it the time is as before. Raises ``LogRecycled`` if the hold
        had expired and part of the log from ``lsn`` on is gone, and ``OptionError`` for an ``lsn`` below the present
        one.
        """
        self._advance(_checked_lsn(lsn), expires_s)

    def renew(self, expires_s: float | None = None) -> None:
        """Restarts the hold's time: ``expires_s`` seconds, or the same as before. Raises as :meth:`advance` does."""
        self._advance(0, expires_s)

    def _advance(self, lsn: int, expires_s: float | None) -> None:
        if expires_s is not None:
            self._lasts_us = _lasts_us(expires_s)
        self._not_forked()
        with self._lock:
            _check(lib.ls_hold_advance(self._usable(), lsn, self._lasts_us))

    def _open_reader(self, from_lsn: int, made: Pointer[ls_reader_ptr]) -> None:
        """Makes the core's reader of the held log, for :class:`~logstore.inspect.Reader`."""
        self._not_forked()
        with self._lock:
            _check(lib.ls_hold_read(self._usable(), from_lsn, made))

    def release(self) -> None:
        """Releases the hold. A second call does nothing, nor does a call in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._c = None
        self._owner.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_c", None) is not None:
            self.release()

    def __repr__(self) -> str:
        return f"<Hold on {str(self.path)!r}{' released' if self._c is None else ''}>"


def hold(
    store_dir: str | os.PathLike[str],
    name: str,
    *,
    lsn: int | None = None,
    limit_bytes: int = LIMIT_BYTES,
    expires_s: float = LASTS_S,
) -> Hold:
    """Takes a hold: everything at or above ``lsn`` (by default the base) is kept while the hold lasts.

    ``name`` is 1 to 64 of the characters ``A-Z a-z 0-9 . _ -``; only one running process can have a name. The hold
    lasts ``expires_s`` seconds (default one hour) unless it is renewed. It is ignored once it alone would keep more
    than ``limit_bytes`` (default 1 GiB). Works with and without a running writer.

    Raises ``OptionError``; ``LogRecycled`` if the base has passed ``lsn`` and no other hold keeps it; ``StoreError`` if
    the name is taken or there are 64 holds; and every error of opening a :class:`~logstore.inspect.Reader`.
    """
    path = arguments.path("store_dir", store_dir)
    wanted = 0 if lsn is None else _checked_lsn(lsn)
    limit = arguments.integer("limit_bytes", limit_bytes, 1, LIMIT_BYTES_MAX)
    lasts_us = _lasts_us(expires_s)
    owner, made = owned("hold")
    c_name = arguments.instance("name", name, str).encode("utf-8", "backslashreplace")
    if b"\0" in c_name:
        raise OptionError("a hold's name cannot contain a NUL character; it is 1 to 64 of A-Z a-z 0-9 . _ -")
    _check(lib.ls_hold_take(ffi.NULL, os.fsencode(path), c_name, wanted, limit, lasts_us, made))
    return Hold(owner, made[0], path, lasts_us)


def list_holds(store_dir: str | os.PathLike[str]) -> list[HoldInfo]:
    """All holds of the store, sorted by name. Nothing is changed. Raises ``NotAStore`` or ``StoreError``."""
    path = arguments.path("store_dir", store_dir)
    found = listed("ls_hold_info", lambda *into: lib.ls_holds(ffi.NULL, os.fsencode(path), *into))
    owners = _owners(path / "holds") if found else {}
    now = datetime.now(UTC)
    return [_info(each, now, owners) for each in found]


def _info(raw: Any, now: datetime, owners: dict[str, int]) -> HoldInfo:
    name = _text(raw.name)
    created, expires = _moment(raw.created_us), _moment(raw.expires_us)
    state = _STATES[raw.state]
    return HoldInfo(
        name=name,
        lsn=raw.lsn,
        kept_bytes=raw.kept_bytes,
        limit_bytes=raw.limit_bytes,
        created=created,
        age_s=max(0.0, (now - created).total_seconds()),
        expires=expires,
        left_s=max(0.0, (expires - now).total_seconds()),
        state=state,
        pid=None if state == "abandoned" else owners.get(name),
    )


def _owners(directory: Path) -> dict[str, int]:
    """The process that has locked each hold, from /proc/locks; empty if the kernel does not list them."""
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii", errors="replace")
        inodes = {(os.major(stat.st_dev), os.minor(stat.st_dev), stat.st_ino): name for name, stat in _stats(directory)}
    except OSError:
        return {}
    found: dict[str, int] = {}
    for line in locks.splitlines():
        words = line.split()  # 1: FLOCK ADVISORY WRITE 4711 08:01:1234 0 EOF
        if len(words) < 6 or words[1] != "FLOCK" or words[3] != "WRITE":
            continue
        try:
            major, minor, inode = words[5].split(":")
            name = inodes.get((int(major, 16), int(minor, 16), int(inode)))
            if name is not None and int(words[4]) > 0:
                found[name] = int(words[4])
        except ValueError:
            continue
    return found


def _stats(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    for entry in os.scandir(directory):
        if entry.name.endswith(".hold"):
            yield entry.name.removesuffix(".hold"), entry.stat(follow_symlinks=False)


def _moment(us: int) -> datetime:
    try:
        return datetime.fromtimestamp(us / 1_000_000, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.max.replace(tzinfo=UTC)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _checked_lsn(lsn: object) -> int:
    return arguments.integer("lsn", lsn, 1, arguments.LSN_MAX)


def _lasts_us(expires_s: object) -> int:
    return max(1, int(arguments.number("expires_s", expires_s, 0, _LASTS_S_MAX, "seconds") * 1_000_000))


def _check(code: int) -> None:
    if code == 0:
        return
    failed: StoreError = failure(code)
    if code == lib.LS_RECYCLED:
        raise LogRecycled(failed.message)
    raise failed
