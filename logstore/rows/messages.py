"""Messages as rows: one pass over the log yields one row for each message that has ended.

The core keeps the open messages and fills the columns (csrc/analysis/message_rows.h); this module adds the types,
without a copy. A pass may stop anywhere; a new pass from there with the open set gives the same rows as one pass.
"""

from __future__ import annotations

import array
import itertools
import tempfile
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any, Final, Self

from logstore._core import ffi, lib
from logstore.core import arguments
from logstore.core.binary_arrays import parts_of
from logstore.core.extras import require
from logstore.core.native import check, failure, owned
from logstore.errors import OptionError, StoreClosed
from logstore.inspect import LogRecycled, Reader
from logstore.rows.scan import REASONS, column_array
from logstore.rows.schema import MESSAGE_COLUMNS, message_schema, open_schema

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType

    import pyarrow as pa

    from logstore._core import ls_columns_ptr, ls_message_rows_ptr
    from logstore._hot import Owner
    from logstore.holds import Hold

__all__ = ["OUTCOMES", "REST_KEY", "MessageScan"]

OUTCOMES: Final = ("dequeued", "queue_deleted", "destroyed", "rolled_back", "dropped")
"""How a message ended."""

REST_KEY: Final = b"logstore.scan"
"""The key in the metadata of an open set's schema: the state of the pass as a whole."""

BATCH_ROWS: Final = 1 << 16
BODY_BYTES_MAX: Final = 1 << 30
_FACTS: Final = len(MESSAGE_COLUMNS)  # columns of the row itself; the columns of places follow
_DICTIONARIES: Final = frozenset({"queue", "outcome", "reason"})


class MessageScan:
    """The messages that ended from ``start_lsn`` (default: the log's beginning) to before ``stop_lsn`` (default: its
    end).

    A context manager; iterating over it yields record batches of :attr:`schema`, sorted by (``end_lsn``, ``id``), of at
    most ``batch_rows`` rows. After the last batch, :meth:`open_rows` returns the messages that are open at
    :attr:`stop_lsn`. A message that began before ``start_lsn`` is known from ``seed``, the open set of a pass that
    ended there, or from its next relocation.

    ``body``: the length in bytes to which a message's content is cut in the column ``body``; None: there is no such
    column. It is the whole message's content, or null where a part of it cannot be read any more. The bodies of the
    messages in ``seed`` are in its column ``body``, or in ``seed_bodies``, batches with ``id`` and ``body``; meanwhile
    they are kept in an unnamed file in ``spill_dir`` (default: the system's directory for such files).

    ``queue_names`` gives the names of queues by id. ``hold`` and ``keep_lsn`` (for another process's hold) keep the log
    while it is read; without one, a running writer may recycle it. ``end_lsn`` is that of
    :class:`~logstore.inspect.Reader`. Raises ``OptionError`` for an invalid seed,
    ``CorruptLog`` if the log is damaged, ``LogRecycled`` if the writer recycled the log, ``MissingExtra``, and the
    errors of opening a :class:`~logstore.inspect.Reader`. One thread at a time uses it.
    """

    def __init__(
        self,
        store_dir: str | os.PathLike[str],
        *,
        start_lsn: int | None = None,
        stop_lsn: int | None = None,
        seed: pa.Table | None = None,
        hold: Hold | None = None,
        keep_lsn: int | None = None,
        end_lsn: int | None = None,
        queue_names: Mapping[int, str],
        batch_rows: int = BATCH_ROWS,
        body: int | None = None,
        seed_bodies: Iterable[pa.RecordBatch] | None = None,
        spill_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        arrow = require("arrow", "pyarrow")
        start = _lsn("start_lsn", start_lsn, 0)
        rows = arguments.integer("batch_rows", batch_rows, 1, lib.LS_MESSAGE_ROWS_MAX)
        names_by_id = arguments.names_by_id("queue_names", queue_names)
        if seed is not None:
            arguments.instance("seed", seed, arrow.Table, what="a pyarrow.Table, as open_rows() gives it")
        self._body = arguments.optional(arguments.integer, "body", body, 1, BODY_BYTES_MAX)
        self._files = ExitStack()
        self._spill: IO[bytes] | None = None
        self._reader = Reader(store_dir, from_lsn=start, hold=hold, keep_lsn=keep_lsn, end_lsn=end_lsn)
        try:
            stop = _lsn("stop_lsn", stop_lsn, self._reader.info.end_lsn)
            self.start_lsn = start
            """The first LSN that counts."""
            self.stop_lsn = max(start, min(stop, self._reader.info.end_lsn))
            """The end of the rows: a pass that begins here continues with the open messages."""
            named = sorted(names_by_id)
            names = arrow.array([names_by_id[number] for number in named], arrow.string())
            self._dictionaries = {
                "queue": names,
                "outcome": arrow.array(OUTCOMES, arrow.string()),
                "reason": arrow.array(REASONS, arrow.string()),
            }
            self.schema: pa.Schema = _with_dictionaries(message_schema(body=body is not None))
            """The schema of the batches."""
            self._owner, made = owned("message_rows")
            ids = ffi.new("uint32_t[]", named)
            check(lib.ls_message_rows_new(start, self.stop_lsn, ids, len(named), rows, made))
            self._c: ls_message_rows_ptr | None = made[0]
            self._began = False
            if body is not None:
                if seed is not None:
                    self._spill = self._files.enter_context(_unnamed_file(spill_dir))
                file = -1 if self._spill is None else self._spill.fileno()
                check(lib.ls_message_rows_bodies(self._handle(), body, file))
            if seed is not None:
                self._seed(seed)
                self._seed_bodies(seed, seed_bodies)
        except BaseException:
            self._close_files()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Releases files and memory; returned batches stay valid. A second call does nothing."""
        self._c = None
        self._owner.free()
        self._close_files()

    def _close_files(self) -> None:
        self._reader.close()
        self._files.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            owner, made = owned("columns")
            code = lib.ls_message_rows_next(self._handle(), self._reader.handle, made)
            if code == lib.LS_END:
                return
            if code == lib.LS_RECYCLED and not self._began:
                raise LogRecycled(failure(code).message)
            if code != 0:
                raise self._reader._explained(code)
            self._began = True
            if made[0] != ffi.NULL:  # otherwise the read limit of one call was reached
                yield self._batch(owner, made[0], self.schema)

    def open_rows(self) -> pa.Table:
        """The messages that are open at the end of the rows, by id; only after all batches were read.

        Keep the metadata of its schema too: the next pass needs it. Raises ``WrongState`` before the end.
        """
        batches = list(self.open_batches())
        return require("arrow", "pyarrow").Table.from_batches(batches, schema=self.open_schema())

    def open_batches(self) -> Iterator[pa.RecordBatch]:
        """The same as batches of :meth:`open_schema`, which need less memory."""
        arrow = require("arrow", "pyarrow")
        schema, told = _with_dictionaries(open_schema(body=self._body is not None)), None
        while True:
            owner, made = owned("columns")
            code = lib.ls_message_rows_open(self._handle(), made)
            if code == lib.LS_END:
                return
            if code != 0:
                raise self._reader._explained(code)
            told = self.open_schema() if told is None else told
            table = arrow.Table.from_batches([self._batch(owner, made[0], schema)])
            yield from table.cast(told).to_batches()

    def open_schema(self) -> pa.Schema:
        """The schema of :meth:`open_rows`, with its metadata; only after all batches were read."""
        bytes_, count = ffi.new("uint8_t **"), ffi.new("size_t *")
        check(lib.ls_message_rows_rest(self._handle(), ffi.cast("const uint8_t **", bytes_), count))
        rest = bytes(ffi.buffer(bytes_[0], count[0])) if count[0] else b""
        return open_schema(body=self._body is not None).with_metadata({REST_KEY: rest.hex().encode()})

    # ---- From C to Arrow

    def _handle(self) -> ls_message_rows_ptr:
        if self._c is None:
            raise StoreClosed("this scan is closed: make another one")
        return self._c

    def _batch(self, owner: Owner, batch: ls_columns_ptr, schema: pa.Schema) -> pa.RecordBatch:
        arrow = require("arrow", "pyarrow")
        columns, rows = ffi.new("ls_column[]", lib.LS_MESSAGE_COLUMNS), ffi.new("uint64_t *")
        lib.ls_columns_get(batch, columns, lib.LS_MESSAGE_COLUMNS, rows)
        at = {name: columns[number] for number, name in enumerate(MESSAGE_COLUMNS)}
        arrays = []
        for field in schema:
            if field.name == "places":
                child = self._places(field.type.value_type, columns, owner)
                arrays.append(column_array(at["places"], field.type, rows[0], owner, child))
            else:
                arrays.append(self._array(field, at[field.name], rows[0], owner))
        return arrow.RecordBatch.from_arrays(arrays, schema=schema)

    def _array(self, field: pa.Field, column: Any, rows: int, owner: Any) -> pa.Array:
        arrow = require("arrow", "pyarrow")
        if field.name not in _DICTIONARIES:
            return column_array(column, field.type, rows, owner)
        indices = column_array(column, arrow.int32() if field.name == "queue" else arrow.int8(), rows, owner)
        made = arrow.DictionaryArray.from_arrays(indices, self._dictionaries[field.name], safe=False)
        return made if arrow.types.is_dictionary(field.type) else made.dictionary_decode()

    def _places(self, kind: pa.DataType, columns: Any, owner: Any) -> pa.Array:
        """The elements of all rows' lists."""
        arrow = require("arrow", "pyarrow")
        items = columns[_FACTS].rows
        fields = [kind[i] for i in range(kind.num_fields)]
        arrays = [self._array(field, columns[_FACTS + i], items, owner) for i, field in enumerate(fields)]
        return arrow.StructArray.from_arrays(arrays, fields=fields)

    def _seed(self, table: pa.Table) -> None:
        missing = {"id", "state"} - set(table.schema.names)
        if missing:
            raise OptionError(
                f"seed is an open set, with the columns id and state, and this one lacks {' and '.join(missing)}"
            )
        types = require("arrow", "pyarrow").types
        if not types.is_integer(table.schema.field("id").type) or not types.is_binary(table.schema.field("state").type):
            raise OptionError(
                "seed is an open set whose id is no number or whose state is no bytes: take it as a pass left it"
            )
        rest = (table.schema.metadata or {}).get(REST_KEY, b"")
        try:
            told = bytes.fromhex(rest.decode("ascii"))
        except ValueError:
            raise OptionError(f"the {REST_KEY.decode()} of seed is not what a pass left") from None
        if told:
            check(lib.ls_message_rows_seed_rest(self._handle(), told, len(told)))
        arrow = require("arrow", "pyarrow")
        wanted = arrow.schema([("id", arrow.int64()), ("state", arrow.binary())])
        try:
            batches = table.select(["id", "state"]).cast(wanted).to_batches()
        except arrow.ArrowInvalid as problem:
            raise OptionError(f"seed is a damaged table: {problem}. Take it as a pass left it") from None
        for batch in batches:
            ids, states = batch.columns
            if ids.null_count or states.null_count:
                raise OptionError("a row of seed has no id or no state: take it as a pass left it")
            rows, parts = batch.num_rows, parts_of(states, wide=False)
            private = bytes(parts.data[: sum(parts.sizes)])  # the core judges a state before it reads it
            offsets = ffi.from_buffer("int32_t[]", array.array("i", itertools.accumulate(parts.sizes, initial=0)))
            numbers = ffi.from_buffer("int64_t[]", _numbers(ids))
            check(lib.ls_message_rows_seed_all(self._handle(), numbers, private, offsets, rows))

    def _seed_bodies(self, seed: pa.Table, batches: Iterable[pa.RecordBatch] | None) -> None:
        """Puts the bodies into the file, and tells the core where each is."""
        if self._spill is None:
            return
        arrow = require("arrow", "pyarrow")
        if batches is None:
            batches = seed.select(["id", "body"]).to_batches() if "body" in seed.schema.names else ()
        wanted, at = arrow.schema([("id", arrow.int64()), ("body", arrow.binary())]), 0
        for batch in batches:
            known = arrow.Table.from_batches([batch]).select(wanted.names).cast(wanted).drop_null()
            for ids, bodies in (each.columns for each in known.to_batches()):
                parts = parts_of(bodies, wide=False)
                numbers, sizes = ffi.from_buffer("int64_t[]", _numbers(ids)), ffi.from_buffer("uint64_t[]", parts.sizes)
                starts = array.array("Q", itertools.accumulate(parts.sizes, initial=at))
                places = ffi.from_buffer("uint64_t[]", starts)
                self._spill.write(parts.data[: starts[-1] - at])
                at = starts[-1]
                check(lib.ls_message_rows_seed_bodies(self._handle(), numbers, places, sizes, len(ids)))
        self._spill.flush()


def _numbers(ids: pa.Array) -> bytes:
    """A copy of the values of an int64 array, which no other thread changes."""
    values = ids.buffers()[1]
    found = b"" if values is None else bytes(memoryview(values).cast("B")[8 * ids.offset : 8 * (ids.offset + len(ids))])
    if len(found) != 8 * len(ids):
        raise OptionError("the ids of seed have fewer values than rows; validate() it first")
    return found


@contextmanager
def _unnamed_file(directory: str | os.PathLike[str] | None) -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile(dir=directory) as file:
        yield file


def _with_dictionaries(schema: pa.Schema) -> pa.Schema:
    """The same schema with dictionaries for strings that repeat."""
    arrow = require("arrow", "pyarrow")
    for number, field in enumerate(schema):
        if field.name in _DICTIONARIES:
            index = arrow.int32() if field.name == "queue" else arrow.int8()
            schema = schema.set(number, field.with_type(arrow.dictionary(index, arrow.string())))
    return schema


def _lsn(name: str, value: object, otherwise: int) -> int:
    return otherwise if value is None else arguments.integer(name, value, 0, arguments.LSN_MAX)
