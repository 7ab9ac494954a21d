"""The directory of a virtual host's store, below that of the host ``/``, from the host's name.

A host's name is any text; a file system forbids some names, and may take two for one. So a directory's name has
lower-case letters, digits, ``-`` and ``_`` as they are, and a dot between others. Any other byte of the name in UTF-8
is ``%`` and two hexadecimal digits. A longer result is cut, and ends in ``+`` and a digest of the whole name.

Invariant: two names never have one directory, even if the file system ignores case or normalises Unicode.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["HOSTS", "ROOT", "host_directory", "host_stores"]

ROOT: Final = "/"  # the host that every broker has; its store has the users and the list of hosts
HOSTS: Final = "hosts"  # below the store of the host "/"
NAME_MAX: Final = 120  # characters of a directory's name; every file system has 255 bytes, tools add suffixes
_DIGEST_CHARACTERS: Final = 32  # 128 bits: two names with the same digest cannot be found
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")
_CUT_ESCAPE: Final = re.compile("%[0-9a-f]?$")


def host_directory(name: str) -> str:
    """The name of the directory for a host's name. Raises ``UnicodeEncodeError`` for a lone surrogate."""
    data = name.encode()
    inside = range(1, len(data) - 1)
    pieces = (
        chr(byte) if byte in _PLAIN or (byte == ord(".") and at in inside) else f"%{byte:02x}"
        for at, byte in enumerate(data)
    )
    escaped = "".join(pieces) or "%"
    if len(escaped) <= NAME_MAX:
        return escaped
    kept = _CUT_ESCAPE.sub("", escaped[: NAME_MAX - 1 - _DIGEST_CHARACTERS])
    return f"{kept}+{hashlib.sha256(data).hexdigest()[:_DIGEST_CHARACTERS]}"


def host_stores(store_dir: Path) -> list[Path]:
    """The directories below ``hosts`` that hold a store, in the order of their names."""
    return sorted(found.parent for found in (store_dir / HOSTS).glob("*/META"))
