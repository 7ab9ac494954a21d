"""The queue that a command's argument names, by its name or its id."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

import click

from logstore.codec.records import LSN_LIMIT
from logstore.errors import CatalogError, StoreError, UnknownQueue
from logstore.inspect import CatalogView, Reader, read_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    F = TypeVar("F", bound=Callable[..., object])

_ID_DIGITS_MAX = 10


def queue_argument(function: F) -> F:
    """``QUEUE``, which a shell completes if ``DIR`` is a store."""
    return click.argument("queue", shell_complete=_completed)(function)


def _completed(context: click.Context, _param: click.Parameter, text: str) -> list[str]:
    """The queues whose names begin with the text. A name that a shell would take apart is not offered."""
    store_dir = context.params.get("store_dir")
    if store_dir is None:
        return []
    try:
        place = context.params.get("connect"), context.params.get("schema")
        names = queue_names(Path(store_dir).expanduser(), *place).values()
    except (StoreError, OSError):
        return []
    return sorted(name for name in names if name.startswith(text) and quote(name) == name)


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
    return UnknownQueue(f"there is no queue {name!r}{like}; 'logstore queues DIR' lists the queues")


def nameless_text(row: Mapping[str, Any]) -> str:
    """For a queue that the catalog does not have: ``transient`` in its row says why."""
    return "(transient)" if row.get("transient") else "(being deleted)"


def queue_names(store_dir: Path, connect: str | None, schema: str | None) -> dict[int, str]:
    """The names of the queues by id; none if the catalog cannot be read, which is no reason not to show a log."""
    try:
        with Reader(store_dir, from_lsn=LSN_LIMIT - 1) as reader:
            view = read_catalog(store_dir, reader.info, connect=connect, schema=schema)
    except CatalogError:
        return {}
    return {queue.id: queue.name for queue in view.queues}
