"""``store.config``: general configuration as a mapping. Each change is one transaction of the catalog.

The mapping is a view of the catalog's memory, which changes only after a commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from logstore.catalog.rows import checked_name, checked_text

if TYPE_CHECKING:
    from logstore.catalog.catalog import Catalog

CONFIG_BYTES_MAX = 1024 * 1024


class Config(MutableMapping[str, str]):
    """A view without contents of its own. Each call is one transaction, also ``update`` and ``clear``."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def _entries(self) -> dict[str, str]:
        return self._catalog._read().config  # never changed in place

    def __getitem__(self, key: str) -> str:
        return self._entries()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    def __repr__(self) -> str:
        return f"<config {self._entries()}>"

    def __setitem__(self, key: str, value: str) -> None:
        self.update({key: value})

    def __delitem__(self, key: str) -> None:
        def removal(now: Mapping[str, str]) -> dict[str, None]:
            now[key]  # raises KeyError, as every mapping does
            return {key: None}

        self._catalog._set_config(removal)

    def update(self, *others: Any, **named: Any) -> None:
        """Like ``dict.update``; makes all changes or none."""
        changes: dict[str, str] = dict(*others, **named)
        for key, value in changes.items():
            checked_name("a configuration entry", key)
            if not isinstance(value, str):
                raise TypeError(f"configuration {key!r} takes a str, not {type(value).__name__}")
            checked_text(f"configuration {key!r}", value, bytes_max=CONFIG_BYTES_MAX)
        self._catalog._set_config(lambda _: changes)

    def clear(self) -> None:
        """Removes every entry, in one transaction."""
        self._catalog._set_config(dict.fromkeys)
