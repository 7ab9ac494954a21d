"""The statements that change a catalog's database, each made once: making one takes longer than executing it.

A :class:`Step` is a statement with the values of each execution. A change is a list of steps in one transaction. Rows
go in the order of their foreign keys: a queue's dead-letter queue is put before it and deleted after it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from logstore.core.imports import late

if TYPE_CHECKING:  # imported late: SQLAlchemy would double the time of "import logstore"
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection
    from sqlalchemy.sql import Executable

    from logstore.catalog.rows import StoredBinding, StoredExchange, StoredQueue, Tables

__all__ = ["Statements", "Step", "execute"]


class Step(NamedTuple):
    """A statement, and the values for each of its executions; with no values it is not executed."""

    statement: Executable
    values: Sequence[dict[str, Any]]


def execute(connection: Connection, steps: Iterable[Step]) -> None:
    """Executes the steps in order."""
    for statement, values in steps:
        if values:
            connection.execute(statement, values)


class Statements:
    """The statements for the tables of one catalog."""

    def __init__(self, tables: Tables) -> None:
        late("sqlalchemy")
        late("sqlalchemy.dialects.sqlite")
        import sqlalchemy as sa
        from sqlalchemy.dialects import sqlite

        def given(name: str) -> Any:
            return sa.bindparam(f"given_{name}")  # a column's own name would be taken for a value to set

        _, store, queues, exchanges, bindings, config = tables
        self._count = (
            sa.update(store)
            .where(store.c.uuid == given("uuid"), store.c.revision == given("before"))
            .values(revision=given("revision"), next_queue_id=given("next_queue_id"))
        )
        self._put_queue = sa.insert(queues)
        added = sqlite.insert(queues)
        self._put_queue_again = added.on_conflict_do_update(
            index_elements=[queues.c.id], set_={name: added.excluded[name] for name in ("arguments", "dead_letter")}
        )
        self._change_queue = sa.update(queues).where(queues.c.id == given("id")).values(arguments=given("arguments"))
        self._delete_queue = sa.delete(queues).where(queues.c.id == given("id"))
        self._revise = sa.update(store).values(revision=store.c.revision + 1)
        self._raise_next = (
            sa.update(store)
            .where(store.c.next_queue_id < given("next_queue_id"))
            .values(next_queue_id=given("next_queue_id"))
        )
        self._put_exchange = sa.insert(exchanges)
        self._delete_exchange = sa.delete(exchanges).where(exchanges.c.name == given("name"))
        self._put_binding = sa.insert(bindings)
        self._delete_binding = sa.delete(bindings).where(
            *(bindings.c[name] == given(name) for name in ("exchange", "queue_id", "key", "arguments_sha256"))
        )
        self._add_config = sa.insert(config)
        self._delete_config = sa.delete(config).where(config.c.key == given("key"))

    def count(self, connection: Connection, uuid: str, revision: int, next_queue_id: int) -> bool:
        """Counts a change. False: another process has counted one since the last change of this one."""
        values = {"uuid": uuid, "before": revision - 1, "revision": revision, "next_queue_id": next_queue_id}
        return connection.execute(self._count, _given(values)).rowcount == 1

    def revise(self) -> Step:
        """Counts a change that a log has."""
        return Step(self._revise, [{}])

    def raise_next_queue_id(self, next_queue_id: int) -> Step:
        """The next id is at least this one."""
        return Step(self._raise_next, [{"given_next_queue_id": next_queue_id}])

    def put_queues(self, rows: Iterable[StoredQueue]) -> Step:
        """Rows that are not there yet."""
        return Step(self._put_queue, [row._asdict() for row in rows])

    def put_queue_again(self, row: StoredQueue) -> Step:
        """The row, whether or not it is there with other arguments; for SQLite, where a log's changes are applied."""
        return Step(self._put_queue_again, [row._asdict()])

    def change_queue(self, row: StoredQueue) -> Step:
        """New arguments for a row that is there."""
        return Step(self._change_queue, [_given({"id": row.id, "arguments": row.arguments})])

    def delete_queues(self, queue_ids: Iterable[int]) -> Step:
        """The rows and their bindings."""
        return Step(self._delete_queue, [{"given_id": queue_id} for queue_id in queue_ids])

    def put_exchanges(self, rows: Iterable[StoredExchange]) -> Step:
        """Rows that are not there yet."""
        return Step(self._put_exchange, [row._asdict() for row in rows])

    def delete_exchanges(self, names: Iterable[str]) -> Step:
        """The rows and their bindings."""
        return Step(self._delete_exchange, [{"given_name": name} for name in names])

    def put_bindings(self, rows: Iterable[StoredBinding]) -> Step:
        """Rows that are not there yet."""
        return Step(self._put_binding, [{**row._asdict(), "arguments_sha256": _sha256(row)} for row in rows])

    def delete_bindings(self, rows: Iterable[StoredBinding]) -> Step:
        """These rows."""
        named = ({**row._asdict(), "arguments_sha256": _sha256(row)} for row in rows)
        return Step(self._delete_binding, [_given(row) for row in named])

    def add_config(self, key: str, value: str) -> Step:
        """An entry that is not there yet."""
        return Step(self._add_config, [{"key": key, "value": value}])

    def put_config(self, key: str, value: str) -> list[Step]:
        """The entry, whether or not it is there."""
        return [self.delete_config(key), self.add_config(key, value)]

    def delete_config(self, key: str) -> Step:
        """The entry, if it is there."""
        return Step(self._delete_config, [{"given_key": key}])


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {f"given_{name}": value for name, value in values.items()}


def _sha256(row: StoredBinding) -> str:
    return hashlib.sha256(row.arguments.encode("ascii")).hexdigest()
