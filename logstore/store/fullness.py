"""Whether a store accepts appends that grow its log, and if not: since when, why, and what would free room.

A store is full from the first operation that it refuses for want of room until there is room for half a segment again.
It is nearly full before that: from the moment when live records may grow by less than half a segment until they may
grow by 3/4 of one. Dequeues and outcomes work in a full store. Sizes are bytes.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from logstore._core import lib
from logstore.core.counts import counted
from logstore.core.native import filled

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from logstore.holds import HoldInfo
    from logstore.store.message_store import MessageStore

__all__ = ["Fullness", "QueueLoad", "full_document", "fullness_of", "inspected_fullness"]

_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
_NO_BOUND: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """A queue and its messages, as far as they are known."""

    name: str
    messages: int
    content_bytes: int | None = None

    @property
    def text(self) -> str:
        """For people."""
        size = "" if self.content_bytes is None else f", {counted(self.content_bytes, 'byte')}"
        return f"{self.name!r} ({counted(self.messages, 'message')}{size})"


@dataclass(frozen=True, slots=True)
class Fullness:
    """Whether the log may grow, and the figures that decide this."""

    full: bool
    """Growth is refused, or would be."""
    near: bool
    """The store is nearly full: publishers should wait. False for a store that is not open here."""
    since: datetime | None
    """When it was first refused; None if nothing was refused since the open."""
    log_bytes: int
    """Of all files of the log, spares included, but for those that only holds keep."""
    live_bytes: int
    """Of live records in the log."""
    counted_bytes: int
    """Counted against the limit: ``live_bytes``, and 128 for each place on a queue and each open transaction."""
    held_bytes: int
    """Of files that only holds keep."""
    segment_size: int
    max_log_bytes: int | None
    sys_errno: int
    """Why another segment could not be made; 0 if it could, or if ``max_log_bytes`` forbade it."""
    transaction_bytes: int
    """That growth leaves for open transactions, so that these can take messages in a full store."""
    transaction_bytes_left: int | None
    """By which the work of open transactions may grow now; None while the log may grow, or if it is not open here."""
    growth_bytes_left: int | None
    """By which live records may grow before growth is refused; None if no bound is known: the log has no limit and its
    disk has given every file so far, or the store is not open here."""

    @property
    def cause(self) -> str | None:
        """``limit`` (``max_log_bytes``), ``disk``, ``files`` (too many are open) or ``error``.

        None if the store is neither full nor nearly full.
        """
        if not (self.full or self.near):
            return None
        if self.sys_errno == 0:
            return "limit"
        return "disk" if self.sys_errno in _DISK else "files" if self.sys_errno in _FILES else "error"

    @property
    def reason(self) -> str:
        """Why the log cannot grow, with numbers."""
        log = f"the log has {counted(self.log_bytes, 'byte')}, {self.live_bytes} of them live"
        if self.sys_errno == 0:
            counted_too = f" ({self.counted_bytes} counted against the limit)"
            return f"{log}{counted_too}, and max_log_bytes is {self.max_log_bytes}"
        segment = f"another segment of {self.segment_size} bytes"
        if self.cause == "disk":
            return f"{log}, and the disk has no room for {segment}"
        return f"{log}, and {segment} cannot be made: {os.strerror(self.sys_errno)}"

    def _remedies(self, queue: QueueLoad | None = None, holds: Iterable[HoldInfo] = ()) -> list[str]:
        """What would free it, as sentences for an operator; ``queue`` is the one with the most messages."""
        cause = self.cause
        said = [] if queue is None else [f"consume or purge queue {queue.text}"]
        if cause == "limit":
            now = f"raise the limit, now {self.max_log_bytes} bytes"
            said.append(f"{now}: --max-log-bytes of 'logstore vhost', or of the next start")
            return said
        said += [
            f"end hold {one.name!r}, which keeps {one.kept_bytes} bytes"
            for one in holds
            if one.honoured and one.kept_bytes
        ]
        if cause == "disk":
            said.append(f"make room on the disk, at least {self.segment_size} bytes")
        elif cause == "files":
            said.append("close connections, or raise the limit of open files (ulimit -n)")
        else:
            said.append("see to the disk")
        return said

    def _as_dict(self, queue: QueueLoad | None = None, holds: Iterable[HoldInfo] = ()) -> dict[str, Any] | None:
        """For JSON; None if the store is neither full nor nearly full."""
        if not (self.full or self.near):
            return None
        return {
            "level": "full" if self.full else "nearly full",
            "cause": self.cause,
            "since": None if self.since is None else self.since.isoformat(),
            "reason": self.reason,
            "log_bytes": self.log_bytes,
            "live_bytes": self.live_bytes,
            "counted_bytes": self.counted_bytes,
            "max_log_bytes": self.max_log_bytes,
            "growth_bytes_left": self.growth_bytes_left,
            "transaction_bytes": self.transaction_bytes,
            "transaction_bytes_left": self.transaction_bytes_left,
            "remedies": self._remedies(queue, holds),
        }


def full_document(store: MessageStore) -> dict[str, Any] | None:
    """For JSON: why the open store is full or nearly full, and what would free it; None if it is neither."""
    found = store.fullness()
    if not (found.full or found.near):
        return None
    depths = {name: each["depth"] for name, each in store.stats()["queues"].items()}
    longest = max(depths, key=depths.__getitem__, default=None)
    queue = None if longest is None or not depths[longest] else QueueLoad(longest, depths[longest])
    return found._as_dict(queue, store._list_holds())


def fullness_of(store: Any) -> Fullness:
    """Of the core's ``ls_store``, which is open."""
    return _made(filled("ls_fullness", lambda into: lib.ls_fullness_get(store, into)))


def inspected_fullness(store: Any, store_dir: Path, max_log_bytes: int | None, held_bytes: int) -> Fullness:
    """Of an inspected ``ls_store``: full if its writer, or the next one, needs another segment and can make none."""
    found = filled("ls_fullness", lambda into: lib.ls_fullness_get(store, into))
    found.held_bytes = held_bytes
    found.log_bytes = max(found.log_bytes - held_bytes, 0)
    found.max_log_bytes = max_log_bytes or 0
    disk = os.statvfs(store_dir)
    is_dense = found.log_bytes < found.needed_bytes
    if max_log_bytes is not None and found.log_bytes + found.segment_size > max_log_bytes:
        found.full = is_dense
    elif disk.f_bavail * disk.f_frsize < found.segment_size:
        found.full, found.sys_errno = is_dense, errno.ENOSPC
    return _made(found)


def _made(found: Any) -> Fullness:
    return Fullness(
        full=bool(found.full),
        near=bool(found.near),
        since=datetime.fromtimestamp(found.since_us / 1e6, UTC) if found.since_us else None,
        log_bytes=found.log_bytes,
        live_bytes=found.live_bytes,
        counted_bytes=found.counted_bytes,
        held_bytes=found.held_bytes,
        segment_size=found.segment_size,
        max_log_bytes=found.max_log_bytes or None,
        sys_errno=found.sys_errno,
        transaction_bytes=found.pool_bytes,
        transaction_bytes_left=None if found.pool_left == _NO_BOUND else found.pool_left,
        growth_bytes_left=None if found.growth_left == _NO_BOUND else found.growth_left,
    )
