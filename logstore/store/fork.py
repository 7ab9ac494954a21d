"""A store belongs to the process that opened it."""

from __future__ import annotations

import os

from logstore.errors import StoreForked


def refuse_fork(pid: int) -> None:
    """Raises ``StoreForked`` if this process is not ``pid``, the one that opened the store."""
    if os.getpid() != pid:
        raise StoreForked("this process is a fork of the one that opened the store; open it again after fork")
