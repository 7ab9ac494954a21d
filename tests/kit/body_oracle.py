"""The bodies of messages, joined by hand from the contents of their records: what the core must find as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kit.row_oracle import RELOCATED, STARTS
from logstore.codec.records import InlineCopy, MessageChunk, OrderedCopy, RecordFlag
from logstore.inspect import Reader

if TYPE_CHECKING:
    import os

    from logstore.codec.records import Record
    from logstore.holds import Hold

Rows = list[dict[str, Any]]


class Contents:
    """The contents of all messages that the records so far tell of, at least their first ``limit`` bytes.

    None: the message began before the log, and a record with these bytes is gone.
    """

    def __init__(self, limit: int) -> None:
        self.of: dict[int, bytes | None] = {}
        self._limit = limit
        self._pieces: dict[int, bytes] = {}  # by the record's LSN
        self._parts: list[Any] = []  # of the state that is being read

    def add(self, record: Record) -> None:
        """The next record of the log."""
        body = record.body
        copied = RecordFlag.COPY in record.flags
        if isinstance(body, (*STARTS, MessageChunk)):
            self._pieces[record.lsn] = body.content
        if isinstance(body, STARTS) and (not copied or isinstance(body, InlineCopy | OrderedCopy)):
            self._learn(record.id, body.content)
        elif isinstance(body, MessageChunk) and not copied:
            self._goes_on(record.id, body)
        elif isinstance(body, RELOCATED):
            self._parts = [*(self._parts if body.part else []), body]
            if RecordFlag.PART not in record.flags and len(self._parts) == body.part + 1:
                self._learn(record.id, self._relocated())

    def _learn(self, message: int, content: bytes | None) -> None:
        if self.of.get(message) is None:
            self.of[message] = content

    def _goes_on(self, message: int, chunk: MessageChunk) -> None:
        so_far = self.of.get(message)
        if so_far is not None and not chunk.content:
            self.of[message] = so_far[: chunk.offset]
        elif so_far is not None and len(so_far) < self._limit:
            assert chunk.offset == len(so_far)
            self.of[message] = so_far + chunk.content

    def _relocated(self) -> bytes | None:
        chunks = [chunk.lsn for part in self._parts for chunk in part.chunks if chunk.offset < self._limit]
        lsns = [self._parts[-1].start_lsn, *chunks]
        whole = all(lsn in self._pieces for lsn in lsns)
        return b"".join(self._pieces[lsn] for lsn in lsns) if whole else None


def contents(store_dir: str | os.PathLike[str], limit: int, *, hold: Hold | None = None) -> dict[int, bytes | None]:
    """The contents of the messages of a log by their ids."""
    made = Contents(limit)
    with Reader(store_dir, hold=hold) as reader:
        for record in reader.records():
            made.add(record)
    return made.of


def with_bodies(rows: Rows, of: dict[int, bytes | None], limit: int) -> Rows:
    """The rows with the column ``body``, cut to this many bytes."""
    return [row | {"body": None if (content := of[row["id"]]) is None else content[:limit]} for row in rows]
