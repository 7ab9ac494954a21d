"""The reasons why an open would be refused although the log is whole: problems with the files that it needs.

The commands that report whether a store is fine use this, so that none of them says yes where an open says no. The
texts are those of the open. It does not check files that an open does not need (HINT, CHECKPOINT, a hold); every reader
of the log already checks META, CLOSED and the segments that are only read.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from logstore.catalog.backends import SqliteFile
from logstore.codec.records import LSN_LIMIT
from logstore.core.regular_files import open_regular
from logstore.errors import CatalogError, ReplicatedStore
from logstore.inspect.reader import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.inspect.reader import ReaderInfo


def check_single(info: ReaderInfo) -> None:
    """Raises ``ReplicatedStore`` for a copy of a replicated store, as an open would, however sound the copy is."""
    if info.index != 0 and not info.live:
        raise ReplicatedStore(
            f"the store is a copy of a replicated one (term {info.term}, index {info.index}), and its other copies "
            "count on it. Start its member, or make it a single store with `logstore cluster detach`"
        )


def refusals(store_dir: Path, *, connect: str | None = None, schema: str | None = None) -> list[str]:
    """The errors that an open by this user would meet, one sentence each; none while a writer runs.

    Raises the errors of :class:`~logstore.inspect.Reader`.
    """
    with Reader(store_dir, from_lsn=LSN_LIMIT - 1) as reader:
        if reader.info.live:
            return []
        last = [one.name for one in reader.segments() if one.current]
    found = []
    if not os.access(store_dir, os.W_OK | os.X_OK, effective_ids=True):
        found.append(f"the store directory {store_dir} cannot be written: see to its permissions and its file system")
    try:
        with suppress(FileNotFoundError):
            os.close(open_regular(store_dir / "LOCK", os.O_RDWR))
    except OSError as error:
        found.append(f"{store_dir}/LOCK cannot be opened: {error.strerror}")
    try:
        with suppress(FileNotFoundError):
            os.close(os.open(store_dir / "holds", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError as error:
        found.append(f"the holds directory cannot be opened: {error.strerror}")
    for name in last:
        try:
            os.close(open_regular(store_dir / name, os.O_RDWR))
        except OSError as error:
            found.append(f"the tail of the log ({name}) cannot be rewritten: {error.strerror}")
    if connect is None and schema is None:
        try:
            SqliteFile(store_dir, read_only=False).check_files()
        except CatalogError as error:
            found.append(error.message)
    return found
