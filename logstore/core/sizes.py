"""Sizes in bytes as texts, as commands and options take them."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["size_of"]

_SIZE: Final = re.compile(r"(\d{1,18}) ?(?:([kmgt])(i?b)?|b)?", re.IGNORECASE | re.ASCII)
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}


def size_of(text: str) -> int | None:
    """The number of bytes of a text such as ``65536``, ``64K``, ``16MiB`` or ``1G``; None for any other text.

    K, M, G, T and KiB, MiB … mean powers of 1024, and kB, MB … powers of 1000.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    number, unit, suffix = found.groups()
    step = 1000 if (suffix or "").lower() == "b" else 1024
    return int(number) * int(step ** _POWERS.get((unit or "").lower(), 0))
