"""The core's codec for Python tests: encode_record and decode_record by the C code that stores use.

Values pass as plain numbers, strings and tables, in the order of docs/format.md. A refusal of the core becomes the
exception that the Python codec raises for the same verdict.
"""

from __future__ import annotations

import struct
from dataclasses import fields
from typing import Any
from uuid import UUID

from kit.checkpoints import CheckpointHeader
from kit.testing import ffi, lib
from logstore.codec import records
from logstore.codec.files import Closed, Hint, Hold, Mark, Meta, Seen, SegmentHeader, Vote
from logstore.codec.records import (
    BODIES,
    Body,
    Buffer,
    CatalogAction,
    CatalogChange,
    CatalogObject,
    CatalogRow,
    InvalidRecord,
    MalformedRecord,
    MessageRelocatedPlaced,
    NewerVersion,
    PlacedPlace,
    PlacedWork,
    Record,
    RecordFlag,
)

Fixed = SegmentHeader | Meta | Hint | Closed | Seen | Hold | CheckpointHeader | Vote | Mark
KINDS = {
    SegmentHeader: lib.LS_TEST_SEGMENT_HEADER,
    Meta: lib.LS_TEST_META,
    Hint: lib.LS_TEST_HINT,
    Hold: lib.LS_TEST_HOLD,
    Closed: lib.LS_TEST_CLOSED,
    Seen: lib.LS_TEST_SEEN,
    CheckpointHeader: lib.LS_TEST_CHECKPOINT,
    Vote: lib.LS_TEST_VOTE,
    Mark: lib.LS_TEST_MARK,
}
REFUSALS = {
    lib.LS_TEST_REFUSED: InvalidRecord,
    lib.LS_TEST_MALFORMED: MalformedRecord,
    lib.LS_TEST_NEWER: NewerVersion,
}


def encode_by_c(record: Record, seed: int) -> bytes:
    """As encode_record, by the core; without its checks."""
    numbers, strings, tables = _parted(record.body)
    room = ffi.new("uint8_t[]", record.length + 4096)
    given = ffi.new(
        "ls_test_record *",
        {"lsn": record.lsn, "id": record.id, "prev": record.prev, "type": record.type, "flags": record.flags},
    )
    given.numbers[0 : len(numbers)] = numbers
    alive = []
    for i, string in enumerate(strings):
        alive.append(ffi.new("uint8_t[]", string))
        given.strings[i], given.string_bytes[i] = alive[-1], len(string)
    for i, rows in enumerate(tables):
        alive.append(ffi.new("uint64_t[]", [cell for row in rows for cell in row]))
        given.tables[i], given.rows[i] = alive[-1], len(rows)
    length = lib.ls_test_encode(given, seed, room, len(room))
    assert length == given.length
    assert not any(ffi.buffer(room)[length:])
    return bytes(ffi.buffer(room, length))


def decode_by_c(buffer: Buffer, offset: int, seed: int, expected_lsn: int) -> Record:
    """As decode_record, by the core; it gets a buffer without slack."""
    raw = bytes(buffer)[offset:] if 0 <= offset <= len(buffer) else b""
    given = ffi.new("uint8_t[]", raw or 1)
    cells = ffi.new("uint64_t[]", len(raw) // 4 + 1)
    found = ffi.new("ls_test_record *")
    _raise_for(lib.ls_test_decode(given, len(raw), seed, expected_lsn, cells, found), offset)
    code = found.type
    body = _joined(records.body_class(code, found.flags), found)
    kind = records.RecordType(code) if code in BODIES else code
    return Record(found.lsn, kind, RecordFlag(found.flags), found.id, found.prev, found.length, body)


def encode_fixed_by_c(fixed: Fixed) -> bytes:
    """As the structure's encode, by the core; without its checks."""
    numbers: list[int] = []
    for field in fields(fixed)[1:]:
        value = getattr(fixed, field.name)
        numbers += struct.unpack("<2Q", value.bytes) if isinstance(value, UUID) else [value]
    room = ffi.new("uint8_t[]", fixed.BYTES)
    written = lib.ls_test_encode_file(KINDS[type(fixed)], fixed.uuid.bytes, [*numbers, 0, 0], room)
    return bytes(ffi.buffer(room, written))


def decode_fixed_by_c(kind: type[Fixed], buffer: Buffer) -> Fixed:
    """As the class's decode, by the core. A segment header is expected at the position that it names."""
    raw = bytes(buffer)
    uuid, numbers = ffi.new("uint8_t[16]"), ffi.new("uint64_t[13]")
    if kind is SegmentHeader and len(raw) >= 48:
        ffi.memmove(uuid, raw[16:32], 16)
        numbers[0], numbers[1] = struct.unpack_from("<QQ", raw, 32)
    given = ffi.new("uint8_t[]", raw or 1)
    _raise_for(lib.ls_test_decode_file(KINDS[kind], given, len(raw), uuid, numbers), 0)
    build: Any = kind
    values: list[Any] = list(numbers[0:13])
    if kind is Vote:
        values[0:2] = [UUID(bytes=struct.pack("<2Q", *values[0:2]))]
    return build(UUID(bytes=bytes(ffi.buffer(uuid))), *values[0 : len(fields(kind)) - 1])


def _raise_for(verdict: int, offset: int) -> None:
    if verdict != lib.LS_TEST_VALID:
        raise REFUSALS[verdict]("the core refuses it", offset)


def _parted(body: Body) -> tuple[list[int], list[bytes], list[list[list[int]]]]:
    numbers: list[int] = []
    strings: list[bytes] = []
    tables: list[list[list[int]]] = []
    if isinstance(body, CatalogChange):
        data = b"".join(row.row for row in body.rows)
        return [body.part], [data], [[[row.action, row.object, row.queue_id, len(row.row)] for row in body.rows]]
    if isinstance(body, MessageRelocatedPlaced):
        states: list[PlacedPlace | PlacedWork] = [*body.places, *body.pending]
        chunks = [_parted(chunk)[0] for chunk in body.chunks]
        placed = [[_placed_cells(row) for row in rows] for rows in (body.places, body.pending)]
        strings = [b"".join(row.note + row.header for row in states)]
        return [body.content_bytes, body.start_lsn, body.part], strings, [chunks, *placed]
    for field in fields(body):  # type: ignore[arg-type]
        value = getattr(body, field.name)
        if isinstance(value, bytes):
            strings.append(value)
        elif isinstance(value, tuple):
            tables.append([[row] if isinstance(row, int) else _parted(row)[0] for row in value])
        else:
            numbers.append(value & 2**64 - 1)
    return numbers, strings, tables


def _placed_cells(row: PlacedPlace | PlacedWork) -> list[int]:
    return [*_parted(row)[0], len(row.note), len(row.header)]


def _relocated_placed(found: Any) -> MessageRelocatedPlaced:
    data = bytes(ffi.buffer(found.strings[0], found.string_bytes[0])) if found.string_bytes[0] else b""
    rows: list[list[Any]] = [[], []]
    for n, row_class in enumerate((PlacedPlace, PlacedWork)):
        width = len(fields(row_class))  # the lengths of note and header stand in their place
        for i in range(found.rows[n + 1]):
            *numbers, note, header = found.tables[n + 1][width * i : width * (i + 1)]
            if row_class is PlacedWork:
                numbers[3] = records.PendingKind(numbers[3])
            rows[n].append(row_class(*numbers, data[:note], data[note : note + header]))
            data = data[note + header :]
    chunks = _rows("ChunkPlace", found.tables[0], found.rows[0])
    content_bytes, start_lsn, part = found.numbers[0:3]
    return MessageRelocatedPlaced(content_bytes, start_lsn, part, chunks, tuple(rows[0]), tuple(rows[1]))


def _catalog_change(found: Any) -> CatalogChange:
    data = bytes(ffi.buffer(found.strings[0], found.string_bytes[0])) if found.string_bytes[0] else b""
    rows = []
    for i in range(found.rows[0]):
        action, of, queue_id, size = found.tables[0][4 * i : 4 * i + 4]
        rows.append(CatalogRow(CatalogAction(action), CatalogObject(of), queue_id, data[:size]))
        data = data[size:]
    return CatalogChange(found.numbers[0], tuple(rows))


def _joined(body_class: type[Body], found: Any) -> Body:
    if body_class is CatalogChange:
        return _catalog_change(found)
    if body_class is MessageRelocatedPlaced:
        return _relocated_placed(found)
    values: list[Any] = []
    at = {"number": 0, "string": 0, "table": 0}

    def following(kind: str) -> int:
        at[kind] += 1
        return at[kind] - 1

    for field in fields(body_class):  # type: ignore[arg-type]
        of = str(field.type)
        if of.endswith("bytes"):
            i = following("string")
            values.append(bytes(ffi.buffer(found.strings[i], found.string_bytes[i])) if found.string_bytes[i] else b"")
        elif of.startswith("tuple["):
            i = following("table")
            values.append(_rows(of[len("tuple[") :].split(",", maxsplit=1)[0], found.tables[i], found.rows[i]))
        else:
            number = found.numbers[following("number")]
            signed = number - 2**64 if field.name == "format_id" and number >= 2**63 else number
            values.append(signed if of == "int" else getattr(records, of)(signed))
    build: Any = body_class
    return build(*values)


def _rows(of: str, cells: Any, count: int) -> tuple[Any, ...]:
    if of == "int":
        return tuple(cells[0:count]) if count else ()
    row_class = getattr(records, of)
    row_fields = fields(row_class)
    width = len(row_fields)
    rows = []
    for i in range(count):
        row = [
            cell if field.type == "int" else getattr(records, str(field.type))(cell)
            for field, cell in zip(row_fields, cells[width * i : width * (i + 1)], strict=True)
        ]
        rows.append(row_class(*row))
    return tuple(rows)
