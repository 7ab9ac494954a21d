"""The limit of the log on disk as the catalog keeps it: one row of the configuration.

An open with the option ``max_log_bytes`` writes the row when it has succeeded, and so does
:meth:`logstore.MessageStore.set_max_log_bytes`; an open without the option applies it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from logstore.core import arguments
from logstore.core.sizes import size_of
from logstore.errors import CatalogError, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

__all__ = ["LIMIT_KEY", "LIMIT_SEGMENTS_MIN", "StoredLimit", "checked_limit", "keep_limit"]

LIMIT_KEY: Final = "logstore.max_log_bytes"
LIMIT_SEGMENTS_MIN: Final = 6  # the core refuses less


@dataclass(frozen=True, slots=True)
class StoredLimit:
    """The limit, and when it was set."""

    max_log_bytes: int
    set_at: datetime

    @classmethod
    def of(cls, config: Mapping[str, str]) -> StoredLimit | None:
        """The limit in a catalog's configuration; None if there is none. Raises ``CatalogError`` if it is no limit."""
        text = config.get(LIMIT_KEY)
        if text is None:
            return None
        try:
            entry = json.loads(text)
            size, set_at = entry["bytes"], datetime.fromisoformat(entry["set_at"])
        except (ValueError, TypeError, KeyError, RecursionError):
            size, set_at = None, datetime.now(UTC)
        if type(size) is not int or not 0 < size < 1 << 62 or set_at.tzinfo is None:
            raise CatalogError(
                f"the configuration entry {LIMIT_KEY!r} of the catalog is not a limit: {text[:60]!r}. Give "
                "max_log_bytes at the open (serve --max-log-bytes), a size or 'none'"
            )
        return cls(size, set_at)


def keep_limit(config: MutableMapping[str, str], max_log_bytes: int) -> None:
    """Stores the limit with the present time, unless it is stored already; 0 removes it. Durable on return."""
    if max_log_bytes == 0:
        config.pop(LIMIT_KEY, None)
        return
    try:
        stored = StoredLimit.of(config)
    except CatalogError:
        stored = None
    if stored is None or stored.max_log_bytes != max_log_bytes:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        config[LIMIT_KEY] = json.dumps({"bytes": max_log_bytes, "set_at": now})


def checked_limit(value: int | str) -> int:
    """The bytes of ``max_log_bytes``; 0 for ``none``. Raises ``OptionError`` for anything else, and ``TypeError``."""
    size: object = value
    if isinstance(value, str):
        if value.strip().lower() == "none":
            return 0
        size = size_of(value)
        if size is None:
            raise OptionError(f"max_log_bytes is a size such as 512M or 1G, or 'none', not {arguments.shown(value)}")
    return arguments.integer("max_log_bytes", size, 1, 1 << 62)
