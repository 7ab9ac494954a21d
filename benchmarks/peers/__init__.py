"""The stores that are measured, each behind the same few calls. The first one is the store under test."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peers.base import Peer

# The module here, its class, what it imports.
KNOWN = {
    "logstore": ("peers.own", "Logstore", "logstore"),
    "sqlite": ("peers.sqlite", "Sqlite", "sqlite3"),
    "rocksdb": ("peers.rocksdb", "RocksDb", "rocksdict"),
    "lmdb": ("peers.lightning", "Lmdb", "lmdb"),
}


def available(names: list[str]) -> tuple[list[type[Peer]], list[str]]:
    """The classes of the installed stores, and a message for each of the others."""
    classes, missing = [], []
    for name in names:
        module, kind, needs = KNOWN[name]
        if importlib.util.find_spec(needs) is None:
            missing.append(f"{name} is NOT measured: it is not installed (pip install '/path/to/checkout[bench]')")
        else:
            classes.append(getattr(importlib.import_module(module), kind))
    return classes, missing
