"""The queue that a command's argument names, by its name or its id."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from logstore.errors import UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from logstore.inspect import CatalogView

_ID_DIGITS_MAX = 10


def queue_id_of(view: CatalogView, name: str) -> int:
    """The id of the queue with this name or id; a deleted queue only has an id. Raises ``UnknownQueue``."""
    for queue in view.queues:
        if queue.name == name:
            return queue.id
    if name.isdecimal() and len(name) <= _ID_DIGITS_MAX and 0 < int(name) < view.next_queue_id:
        return int(name)
    raise unknown_queue(name, (queue.name for queue in view.queues))


def unknown_queue(name: str, names: Iterable[str]) -> UnknownQueue:
    """The error for a name that no queue has; it says which names are like it."""
    near = get_close_matches(name, list(names), n=3)
    like = f"; there is {' and '.join(map(repr, near))}" if near else ""
    return UnknownQueue(f"there is no queue {name!r}{like}; 'logstore queues' lists the queues")


def queue_text(queue_id: int, names: Mapping[int, str]) -> str:
    """A queue for people: its name, or its id if it has none (any more)."""
    name = names.get(queue_id)
    return f"queue {queue_id}" if name is None else f"queue '{name}'"
