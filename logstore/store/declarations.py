"""The declaration of a queue, and the checks of a batch: its size, and how an error names one of its entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from logstore.core.arguments import items
from logstore.errors import OptionError, QueueExists, UnknownExchange, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from logstore.store.queues import Queue

__all__ = ["BATCH_MAX", "QueueDeclaration", "batch_of", "each", "refuse_twice"]

_Entry = TypeVar("_Entry")
_Made = TypeVar("_Made")

BATCH_MAX: Final = 10_000
"""Entries of one batch. It bounds how long one call keeps the catalog from others: about half a second."""

_OF_ONE_ENTRY: Final = (OptionError, QueueExists, UnknownExchange, UnknownQueue, TypeError)


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    """A queue as :meth:`MessageStore.declare_queues` declares it; the fields are those of ``declare_queue``."""

    name: str
    arguments: Mapping[str, Any] | None = None
    dead_letter: Queue | str | None = None
    """In a batch also the name of a queue that an earlier declaration makes."""
    transient: bool = False


def batch_of(name: str, values: object, what: str) -> list[Any]:
    """The entries of a batch. Raises ``TypeError``, and ``OptionError`` if it is empty or too large."""
    entries: list[Any] = []
    for entry in items(name, values, what):
        if len(entries) == BATCH_MAX:
            raise OptionError(f"{name} has more than {BATCH_MAX} entries; make several batches")
        entries.append(entry)
    if not entries:
        raise OptionError(f"{name} is empty; name at least one")
    return entries


def each(name: str | None, entries: Iterable[_Entry], work: Callable[[_Entry], _Made]) -> list[_Made]:
    """The results of ``work`` for each entry. An error names the entry's position in the batch called ``name``."""
    made = []
    for position, entry in enumerate(entries):
        try:
            made.append(work(entry))
        except _OF_ONE_ENTRY as problem:
            if name is None:
                raise
            raise type(problem)(f"{name}[{position}]: {problem}") from problem
    return made


def refuse_twice(seen: set[Any], key: object, what: str) -> None:
    """Notes the key. Raises ``OptionError`` for one that an earlier entry of the batch has."""
    if key in seen:
        raise OptionError(f"{what} occurs twice in the batch; name each once")
    seen.add(key)
