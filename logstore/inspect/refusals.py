"""Why an open would be refused though the log is whole: what stands in the place of the files that it needs.

The commands that say whether a store is fine ask here, so that none of them says yes where an open says no. The words
are those of the open. What an open does not need (HINT, CHECKPOINT, a hold) is not looked at; META, CLOSED and the
segments that are only read are met by every reader of the log.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from logstore.catalog.places import SqliteFile
from logstore.codec.records import LSN_LIMIT
from logstore.core.regular_files import open_regular
from logstore.errors import CatalogError
from logstore.inspect.reader import Reader

if TYPE_CHECKING:
    from pathlib import Path


def refusals(store_dir: Path, *, connect: str | None = None, schema: str | None = None) -> list[str]:
    """What this user's open would meet, each as one sentence; none beside a writer, which has opened it.

    Raises as :class:`~logstore.inspect.Reader` does.
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
