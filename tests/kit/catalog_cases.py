"""Shared by the tests of the catalog: a store's UUID, rows of every kind, and every change to a catalog."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from logstore.catalog.catalog import Catalog
from logstore.catalog.rows import StoredBinding, WantedQueue

ROOT = Path(__file__).resolve().parents[2]
UUID = bytes(range(16))
OTHER_UUID = bytes(range(1, 17))


@contextmanager
def reopened(directory: Path, **options: Any) -> Iterator[Catalog]:
    with closing(Catalog.open(directory, store_uuid=UUID, **options)) as opened:
        yield opened


def everything(catalog: Catalog) -> tuple[object, ...]:
    rows = (catalog.queues(), catalog.exchanges(), catalog.bindings())
    return (*rows, dict(catalog.config), catalog.next_queue_id)


def fill(catalog: Catalog) -> None:
    catalog.declare_queue("dead")
    catalog.declare_queue("orders", arguments={"x-max": 5, "ä": [1, None]}, dead_letter="dead")
    catalog.declare_exchange("rest", type="fanout")
    catalog.declare_exchange("market", type="topic", arguments={"a": True}, alternate="rest")
    catalog.bind("market", "orders", "eu.#")
    catalog.bind("market", "orders", "eu.#", arguments={"match": "all"})
    catalog.bind("rest", "dead")
    catalog.config["colour"] = "blue"


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def within_changes(change: Callable[[Catalog], object]) -> Callable[[Catalog], object]:
    """A batch, whose caller keeps other changes out."""

    def made(catalog: Catalog) -> object:
        with catalog.changes():
            return change(catalog)

    return made


def bindings_of(catalog: Catalog, *keys: str) -> list[StoredBinding]:
    return [catalog.checked_binding("market", "dead", key, {"n": 1}) for key in keys]


CHANGES: dict[str, Callable[[Catalog], object]] = {
    "declare_queue": lambda catalog: catalog.declare_queue("new", arguments={"n": 1}, dead_letter="dead"),
    "delete_queue": lambda catalog: catalog.delete_queue(2),
    "declare_exchange": lambda catalog: catalog.declare_exchange("new", alternate="rest"),
    "delete_exchange": lambda catalog: catalog.delete_exchange("market"),
    "bind": lambda catalog: catalog.bind("rest", "orders", "k"),
    "unbind": lambda catalog: catalog.unbind("market", "orders", "eu.#"),
    "config": lambda catalog: catalog.config.update({"colour": "red", "size": "5"}),
    "make_queues": within_changes(
        lambda catalog: catalog.make_queues(
            [
                WantedQueue("first", "{}", "dead"),
                WantedQueue("second", '{"n":1}', "first"),
                WantedQueue("3", "{}", None),
            ]
        )
    ),
    "update_queue": within_changes(lambda catalog: catalog.update_queue(1, '{"n":1}')),
    "declare_exchanges": within_changes(
        lambda catalog: catalog.declare_exchanges(
            [
                catalog.checked_exchange("first", "topic", {"n": 1}, "rest"),
                catalog.checked_exchange("second", "direct", None, "first"),
            ]
        )
    ),
    "delete_exchanges": within_changes(
        lambda catalog: catalog.delete_exchanges(
            {one.name for one in catalog.exchanges()} - {one.alternate for one in catalog.exchanges()}
        )
    ),
    "bind_many": within_changes(lambda catalog: catalog.bind_many(bindings_of(catalog, "a", "b"))),
    "unbind_many": within_changes(
        lambda catalog: catalog.unbind_many(
            [*bindings_of(catalog, "a"), catalog.checked_binding("rest", "dead", "", None)],
        )
    ),
    "delete_queues": within_changes(lambda catalog: catalog.delete_queues([one.id for one in catalog.queues()])),
}
