"""The catalog's tables and rows, and the checks of names and arguments that it can store.

Nothing here connects to a server or a file: ``backends.py`` does that, and ``catalog.py`` has the operations. Every
value read from a database is checked, because it may not have the type of its column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from logstore.core.imports import late
from logstore.errors import OptionError

if TYPE_CHECKING:  # imported late: SQLAlchemy would double the time of "import logstore"
    from sqlalchemy import Connection, MetaData, Table

NAME_BYTES_MAX = 255  # the limit of an AMQP short string
ARGUMENTS_BYTES_MAX = 64 * 1024
QUEUE_ID_MAX = 2**32 - 2  # the log stores it in four bytes, and 2**32 - 1 means "none"


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue; ``dead_letter`` names the queue that rejected messages go to."""

    id: int
    name: str
    arguments: dict[str, Any]
    dead_letter: str | None


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    """An exchange; ``alternate`` names the exchange for messages that no binding matches."""

    name: str
    type: str = "direct"
    arguments: dict[str, Any] = field(default_factory=dict)
    alternate: str | None = None


@dataclass(frozen=True, slots=True)
class BindingRow:
    """One binding of a queue to an exchange, both by name."""

    exchange: str
    queue: str
    key: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)


# The rows in memory. Arguments stay in their canonical text, so that no caller can change them by accident.


class StoredQueue(NamedTuple):
    """A row of ``queues``. Here ``dead_letter`` is an id, not a name."""

    id: int
    name: str
    arguments: str
    dead_letter: int | None


class WantedQueue(NamedTuple):
    """A queue as it is declared: its checked name, the canonical text of its arguments, and its dead-letter queue."""

    name: str
    arguments: str
    dead_letter: str | None
    transient: bool = False


class StoredExchange(NamedTuple):
    """A row of ``exchanges``."""

    name: str
    type: str
    arguments: str
    alternate: str | None


class StoredBinding(NamedTuple):
    """A row of ``bindings``. All four fields together identify it."""

    exchange: str
    queue_id: int
    key: str
    arguments: str


def checked_name(kind: str, name: object) -> str:
    """Returns the name if it is valid (1 to 255 bytes of UTF-8); raises otherwise."""
    if not isinstance(name, str):
        raise TypeError(f"the name of {kind} is a str, not {type(name).__name__}")
    return checked_text(f"the name of {kind}", name, empty=False)


def checked_text(what: str, text: str, *, empty: bool = True, bytes_max: int = NAME_BYTES_MAX) -> str:
    """Returns the text if every database can store it; raises ``OptionError`` otherwise."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise OptionError(f"{what} is not valid Unicode: {text!r}") from None
    if size == 0 and not empty:
        raise OptionError(f"{what} is empty; give it at least one character")
    if size > bytes_max:
        raise OptionError(f"{what} has {size} bytes in UTF-8, but at most {bytes_max} are allowed: {text[:40]!r}…")
    if "\0" in text:
        raise OptionError(f"{what} contains a NUL character, which the catalog cannot store: {text!r}")
    return text


def canonical(owner: str, arguments: Mapping[str, Any] | None) -> str:
    """The canonical JSON text of the arguments: equal arguments give equal texts."""
    if arguments is None:
        return "{}"
    if not isinstance(arguments, Mapping):
        raise TypeError(f"the arguments of {owner} are a mapping, not {type(arguments).__name__}")
    try:
        plain = dict(arguments)
        _refuse_other_keys(plain)
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        reason = "they are nested too deeply" if isinstance(error, RecursionError) else error
        raise OptionError(f"the arguments of {owner} cannot be stored as JSON: {reason}") from error
    if len(text) > ARGUMENTS_BYTES_MAX:
        raise OptionError(f"the arguments of {owner} have {len(text)} bytes as JSON, but at most 64 KiB are allowed")
    return text


def _refuse_other_keys(value: object) -> None:
    """Refuses keys that are not str. JSON would silently store the key 1 as "1", which is not equal to it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not a str")
            _refuse_other_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _refuse_other_keys(inner)


def parsed(text: str) -> dict[str, Any]:
    """The arguments of a canonical text, as a new dict that the caller may change."""
    if text == "{}":
        return {}
    arguments = json.loads(text)
    if not isinstance(arguments, dict):
        raise TypeError(f"the arguments are not a JSON object: {text[:40]}")
    return arguments


# ---- Tables ----------------------------------------------------------------------------------------------


class Tables(NamedTuple):
    """The tables as SQLAlchemy objects."""

    metadata: MetaData
    store: Table
    queues: Table
    exchanges: Table
    bindings: Table
    config: Table


@lru_cache(16)
def make_tables(schema: str | None) -> Tables:
    """The tables of version 1. A different layout needs another ``CATALOG_VERSION``."""
    late("sqlalchemy")
    import sqlalchemy as sa

    name, number = sa.String(NAME_BYTES_MAX), sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    metadata = sa.MetaData(schema=schema)
    store = sa.Table(
        "store",
        metadata,
        sa.Column("one", sa.Integer, sa.CheckConstraint("one = 1"), primary_key=True, autoincrement=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("catalog_version", sa.Integer, nullable=False),
        sa.Column("next_queue_id", number, nullable=False),
        sa.Column("revision", number, nullable=False),  # counts the changes, which reveals a second writer
    )
    queues = sa.Table(
        "queues",
        metadata,
        sa.Column("id", number, primary_key=True, autoincrement=False),
        sa.Column("name", name, nullable=False, unique=True),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("dead_letter", number, nullable=True),
        sa.CheckConstraint(f"id BETWEEN 1 AND {QUEUE_ID_MAX}"),
    )
    queues.append_constraint(sa.ForeignKeyConstraint([queues.c.dead_letter], [queues.c.id], ondelete="RESTRICT"))
    exchanges = sa.Table(
        "exchanges",
        metadata,
        sa.Column("name", name, primary_key=True),
        sa.Column("type", name, nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("alternate", name, nullable=True),
    )
    exchanges.append_constraint(
        sa.ForeignKeyConstraint([exchanges.c.alternate], [exchanges.c.name], ondelete="RESTRICT")
    )
    bindings = sa.Table(
        "bindings",
        metadata,
        sa.Column("id", number, primary_key=True, autoincrement=True),  # gives the order of creation
        sa.Column("exchange", name, sa.ForeignKey(exchanges.c.name, ondelete="CASCADE"), nullable=False),
        sa.Column("queue_id", number, sa.ForeignKey(queues.c.id, ondelete="CASCADE"), nullable=False, index=True),
        sa.Column("key", name, nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("arguments_sha256", sa.String(64), nullable=False),  # an index cannot hold a text of any length
        sa.UniqueConstraint("exchange", "queue_id", "key", "arguments_sha256"),
    )
    config = sa.Table(
        "config",
        metadata,
        sa.Column("key", name, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    return Tables(metadata, store, queues, exchanges, bindings, config)


@dataclass(slots=True)
class Contents:
    """The contents of all tables, in memory. A change makes a new object, which shares the unchanged parts."""

    next_queue_id: int = 0
    revision: int = 0
    queues: dict[str, StoredQueue] = field(default_factory=dict)
    queue_names: dict[int, str] = field(default_factory=dict)
    exchanges: dict[str, StoredExchange] = field(default_factory=dict)
    bindings: dict[StoredBinding, None] = field(default_factory=dict)  # an ordered set
    config: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, connection: Connection, tables: Tables) -> Contents:
        """Reads all tables. Raises ``ValueError`` or ``TypeError`` for a value that no catalog can hold."""
        late("sqlalchemy")
        import sqlalchemy as sa

        _, store, queues, exchanges, bindings, config = tables

        def rows(*types: Any, of: Table, order: str, columns: Sequence[str]) -> Iterator[Any]:
            selected = sa.select(*(of.c[name] for name in columns)).order_by(of.c[order])
            for row in connection.execute(selected).all():  # all at once: an open cursor would keep its snapshot
                # SQLite stores any type in any column, and the file may be damaged or manipulated.
                for value, wanted in zip(row, types, strict=True):
                    if not isinstance(value, wanted):
                        raise TypeError(f"a value in {of.name} is {value!r}")
                if "arguments" in columns:
                    parsed(row.arguments)
                yield row

        made = cls()
        for row in rows(int, int, of=store, order="one", columns=("next_queue_id", "revision")):
            made.next_queue_id, made.revision = row
        for row in rows(int, str, str, int | None, of=queues, order="id", columns=StoredQueue._fields):
            made.queues[row.name] = StoredQueue(*row)
            made.queue_names[row.id] = row.name
        for row in rows(str, str, str, str | None, of=exchanges, order="name", columns=StoredExchange._fields):
            made.exchanges[row.name] = StoredExchange(*row)
        for row in rows(str, int, str, str, of=bindings, order="id", columns=StoredBinding._fields):
            made.bindings[StoredBinding(*row)] = None
        for row in rows(str, str, of=config, order="key", columns=("key", "value")):
            made.config[row.key] = row.value

        if made.queue_names and max(made.queue_names) >= made.next_queue_id:
            raise ValueError(f"queue id {max(made.queue_names)} is in use, the next one is {made.next_queue_id}")
        return made
