"""The three descriptions of the layout agree: docs/format.md, csrc/format/layout.def and the Python decoder.

Each was written by hand: the page is the contract, and the two codecs are independent implementations. An offset counts
from the start of the record, the row or the file.
"""

from __future__ import annotations

import re
import struct
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from logstore.codec import files
from logstore.codec.files import Closed, Hint, Hold, Mark, Meta, Seen, SegmentHeader, Vote
from logstore.codec.records import (
    HEADER,
    RECORD_HEADER_BYTES,
    Body,
    CatalogRow,
    ChunkPlace,
    PendingWork,
    PlacedPlace,
    PlacedWork,
    QueuePlace,
    RecordFlag,
    RecordType,
    StateRow,
    TypeCount,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/format.md").read_text(encoding="utf-8")
DECLARED = re.sub(r"/\*.*?\*/", "", (ROOT / "csrc/format/layout.def").read_text(encoding="utf-8"), flags=re.DOTALL)

NUMBER_BYTES = {1, 2, 4, 8}
XIDS = {"DTX_START": "XID", "TX_PREPARE": "XID"}
COUNTS = {  # by the counted part: the name of its count
    "header": "header_bytes",
    "content": "content_bytes",
    "gtrid": "gtrid_bytes",
    "bqual": "bqual_bytes",
    "queues": "queue_count",
    "chunks": "chunk_count",
    "places": "place_count",
    "pending": "pending_count",
    "counts": "n",
    "config": "config_bytes",
    "rows": "row_count",
    "row": "row_bytes",
    "note": "note_bytes",
    "reserved space": "zero",
}
ROWS: dict[str, type[Body]] = {
    "RELOCATED_CHUNK": ChunkPlace,
    "RELOCATED_PLACE": QueuePlace,
    "RELOCATED_WORK": PendingWork,
    "TYPE_COUNT": TypeCount,
}
FILES = {
    "SEGMENT_HEADER": SegmentHeader,
    "META": Meta,
    "HINT": Hint,
    "CLOSED": Closed,
    "SEEN": Seen,
    "HOLD": Hold,
    "VOTE": Vote,
    "MARK": Mark,
}
FILE_SIZES = {"VOTE": "VOTE_SLOT", "MARK": "MARK_SLOT"}  # files of two slots
A_ROW_IS = "A row is:"
CHECKPOINT_ROWS = {"deletion": "DELETION_ROW", "transaction": "TRANSACTION_ROW", "state": "PLACE_STATE_ROW"}


class Field(NamedTuple):
    """A number of a record, a row or a file."""

    offset: int
    bytes: int
    name: str


# ---- The three descriptions


def by_c(owner: str) -> list[Field]:
    """The numbers that layout.def declares."""
    found = re.findall(rf"^FIELD\({owner}, (\w+), (\d+), (\d)\)", DECLARED, re.MULTILINE)
    return [Field(int(offset), int(size), name) for name, offset, size in found]


def sizes_by_c() -> dict[str, int]:
    return {owner: int(size) for owner, size in re.findall(r"^SIZE\((\w+), (\d+)\)", DECLARED, re.MULTILINE)}


def types_by_c() -> dict[str, tuple[int, str, RecordFlag, int]]:
    """Code, place in a chain, flags, and the length of every record of the type (0: they differ)."""
    sizes = sizes_by_c()
    found = re.findall(r"^RECORD\((\w+), (\w+), (\w+), ([^,]+), (\w+)\)", DECLARED, re.MULTILINE)
    made = {}
    for name, code, link, flags, size in found:
        bits = RecordFlag(0)
        for flag in flags.split(" | ") if flags != "0" else ():
            bits |= RecordFlag[flag.removeprefix("FLAG_")]
        made[name] = int(code, 0), link, bits, sizes[size.removesuffix("_BYTES")] if size != "0" else 0
    return made


def by_python(body: type[Body], offset: int) -> list[Field]:
    """The numbers of a body class up to the first part without a fixed offset."""
    found = []
    for part in body.parts:
        if part.width == 0:
            break
        if part.width in NUMBER_BYTES:
            found.append(Field(offset, part.width, part.name if part.is_field else COUNTS[part.name]))
        offset += part.width
    return found


def paragraph(title: str) -> str:
    """The part of the page that begins with this name in bold, alone or among others, up to the next such name."""
    for part in re.split(r"\n(?=\*\*`|#|An `INLINE`|First come)", PAGE):
        if f"**`{title}`**" in part.split("\n")[0]:
            return part
    raise AssertionError(f"docs/format.md has no paragraph on {title}")


def by_page(text: str) -> list[Field]:
    """The numbers in tables (``| 48 | 8 | `epoch` |``) and in sentences (``48: `offset` (8)``)."""
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", text, re.MULTILINE)
    told = re.findall(r"\b(\d+): (?:`(\w+)`|(0)) \((\d+)[,;)]", text)
    found = [Field(int(offset), int(size), name) for offset, size, name in rows]
    found += [Field(int(offset), int(size), name or "zero") for offset, name, _, size in told]
    return sorted(field for field in found if field.bytes in NUMBER_BYTES and field.name != "magic")


def fields_of_file(structure: type[Any]) -> list[Field]:
    """The numbers of a file in the Python codec, after the store's UUID."""
    found, offset = [], 32
    for field in fields(structure)[1:]:
        size = 16 if field.type == "UUID" else 8
        found.append(Field(offset, size, field.name))
        offset += size
    return [field for field in found if field.bytes in NUMBER_BYTES]


def rows_by_page(cell: str) -> list[Field]:
    """The numbers of a row that the page lists without offsets: ``lsn` (8), `offset` (8), 0 (4)``."""
    found, offset = [], 0
    for name, _, size in re.findall(r"(?:`(\w+)`|\b(0))[^(`]*\((\d)[;)]", cell):
        found.append(Field(offset, int(size), name or "zero"))
        offset += int(size)
    return found


# ---- Types


def types_by_page() -> Iterator[tuple[str, int, str, bool]]:
    for name, code, stream, first in re.findall(r"^\| `(\w+)` \| (0x\w{4}) \| (\w+) \| ([^|]*)\|", PAGE, re.MULTILINE):
        yield name, int(code, 16), stream, first.startswith("yes")


def test_the_page_and_both_codecs_have_the_same_types_in_the_same_order() -> None:
    page = list(types_by_page())
    assert [(kind.name, int(kind), kind.stream.name.lower(), kind.first) for kind in RecordType] == page
    assert [(name, code) for name, (code, *_) in types_by_c().items()] == [(name, code) for name, code, *_ in page]


def test_both_codecs_have_the_same_flags_chain_places_and_lengths_for_each_type() -> None:
    links = {True: "FIRST", False: "LATER"}
    for name, (_, link, flags, size) in types_by_c().items():
        kind = RecordType[name]
        assert flags == kind.flags, name
        assert link == (links[kind.first] if kind.chained else "NONE"), name
        assert size == fixed_bytes(kind), name


def fixed_bytes(kind: RecordType) -> int:
    widths = [part.width for part in kind.body.parts]
    return RECORD_HEADER_BYTES + sum(widths) if 0 not in widths else 0


def test_the_page_names_the_types_of_each_flag() -> None:
    for name, bit, kinds in re.findall(r"^\| `(\w+)` \| (\d) \| (.*?) \|", PAGE, re.MULTILINE):
        flag = RecordFlag[name]
        assert flag == 1 << int(bit)
        told = {one for one in re.findall(r"`(\w+)`", kinds) if one in RecordType.__members__}
        assert told == {kind.name for kind in RecordType if flag in kind.flags}, name


def test_the_lengths_on_the_page_are_those_of_both_codecs() -> None:
    told = {}
    for line in re.findall(r"^\*\*`.*", PAGE, re.MULTILINE):
        if size := re.search(r"\*\* \((\d+) bytes\)", line):
            told |= {name: int(size[1]) for name in re.findall(r"\*\*`(\w+)`\*\*", line)}
    by_type = {name: size for name, (*_, size) in types_by_c().items() if size}
    by_file = {name: sizes_by_c()[name] for name in ("META", "HINT", "CLOSED", "SEEN")}
    assert told == by_type | by_file


# ---- Fields


@pytest.mark.parametrize("kind", RecordType, ids=lambda kind: kind.name)
def test_the_page_and_both_codecs_have_the_same_fields_of_a_record(kind: RecordType) -> None:
    declared = by_c(XIDS.get(kind.name, kind.name))
    assert by_python(kind.body, RECORD_HEADER_BYTES) == declared
    assert by_page(paragraph(kind.name).split(A_ROW_IS)[0]) == declared


def test_the_page_and_both_codecs_have_the_same_fields_of_a_catalog_row() -> None:
    told = re.findall(
        r"^\| (\d+) \| (\d) \| (?:`(\w+)`|(0)) \|", paragraph("CATALOG_CHANGE").split(A_ROW_IS)[1], re.MULTILINE
    )
    page = [Field(int(offset), int(size), name or "zero") for offset, size, name, _ in told]
    declared = [field._replace(name=field.name.removeprefix("more_")) for field in by_c("CATALOG_ROW")]
    assert by_python(CatalogRow, 0) == declared == page
    assert sizes_by_c()["CATALOG_ROW"] == sum(field.bytes for field in page)


def test_the_page_and_the_core_have_the_same_fields_of_a_checkpoints_row_of_replication() -> None:
    cell = re.findall(r"which nothing else has: (.*); the configuration \|", PAGE)[0]
    told = [
        (name, int(size))
        for name, size in re.findall(r"`(\w+)` \((\d)\)", cell.replace("`members_id` (8) and", "`members_id` (8);"))
    ]
    assert told == [(field.name, field.bytes) for field in by_c("REPLICATION_ROW")]
    assert sizes_by_c()["REPLICATION_ROW"] == sum(size for _, size in told)


def test_the_page_and_both_codecs_have_the_same_fields_of_a_row() -> None:
    relocated = re.findall(
        r"^\| \S+ \| (\d+) × `\w+` \| [a-z ]+ \| (.*) \|", paragraph("MESSAGE_RELOCATED"), re.MULTILINE
    )
    counted = re.findall(r"n pairs (.*?), ascending", paragraph("FOOTER"))
    told = [(int(size), cell) for size, cell in relocated] + [(8, counted[0])]
    for (size, cell), (owner, body) in zip(told, ROWS.items(), strict=True):
        assert by_c(owner) == by_python(body, 0) == rows_by_page(cell), owner
        assert sizes_by_c()[owner] == size == sum(part.width for part in body.parts)


def test_the_page_and_both_codecs_have_the_same_fields_of_rows_with_the_state_of_a_place() -> None:
    text = paragraph("MESSAGE_RELOCATED_PLACED").split(A_ROW_IS)[1]
    told = re.findall(r"^\| (\d+) \| (\d) \| (?:`(\w+)`|0) \| (?:`(\w+)`|0) \|", text, re.MULTILINE)
    for n, owner, row in ((2, "PLACED_PLACE", PlacedPlace), (3, "PLACED_WORK", PlacedWork)):
        page = [Field(int(one[0]), int(one[1]), one[n] or "zero") for one in told]
        declared = [field._replace(name=field.name.removeprefix("more_")) for field in by_c(owner)]
        assert by_python(row, 0) == declared == page, owner
        assert sizes_by_c()["PLACED_ROW"] == sum(field.bytes for field in page)


def test_the_page_and_both_codecs_have_the_same_fields_of_a_row_of_place_states() -> None:
    cell = paragraph("PLACE_STATES").split("A row is of 32 bytes:")[1]
    assert by_python(StateRow, 0) == by_c("STATE_ROW") == rows_by_page(cell)
    assert sizes_by_c()["STATE_ROW"] == 32


def test_the_page_and_both_codecs_have_the_same_fields_of_the_record_header() -> None:
    table = PAGE.split("## 5. Record header")[1].split("| flag |")[0]
    widths = [struct.calcsize(letter) for letter in HEADER.format.lstrip("<")]
    assert [field.bytes for field in by_c("RECORD_HEADER")] == widths
    assert by_page(table) == by_c("RECORD_HEADER")


@pytest.mark.parametrize("owner", FILES)
def test_the_page_and_both_codecs_have_the_same_fields_of_a_file(owner: str) -> None:
    section = PAGE.split("## 4. Segment header")[1].split("## 5.")[0]
    text = {"SEGMENT_HEADER": section, "HOLD": PAGE.split("**`holds/NAME.hold`**")[-1].split("\n\n")[0]}.get(owner)
    told = [field for field in by_page(text or paragraph(owner)) if field.offset >= 32]
    declared = [field for field in by_c(owner) if field.name != "checksum"]
    assert [field for field in told if field.name != "checksum"] == declared
    assert fields_of_file(FILES[owner]) == declared
    size = sizes_by_c()[FILE_SIZES.get(owner, owner)]
    assert by_c(owner)[-1] == Field(size - 8, 8, "checksum")
    assert size == getattr(FILES[owner], "BYTES", files.SEGMENT_HEADER_BYTES)


def test_the_page_and_the_core_have_the_same_fields_of_a_checkpoint() -> None:
    section = PAGE.split("## 8.")[1].split("## 9.")[0]
    header, blocks = section.split("| `LSTRCKPT` |")[1].split("\n| 0 | 8 | `checksum`")
    assert [field for field in by_page(header) if field.offset >= 32] == by_c("CHECKPOINT")
    assert [Field(0, 8, "checksum"), *by_page(blocks.split("First come")[0])] == by_c("CHECKPOINT_BLOCK")
    for name, owner in CHECKPOINT_ROWS.items():
        size, cell = re.findall(rf"^\| {name} \| \d \| (\d+) \| (.*) \|", section, re.MULTILINE)[0]
        assert by_page(cell) == [field for field in by_c(owner) if field.offset > 0], name
        assert int(size) == sizes_by_c()[owner]
    cell = section.split("With bit 1 or bit 2 rows of 24 bytes follow it")[1].split("An operation's state")[0]
    told = [(name, int(size)) for name, size in re.findall(r"`(\w+)` \((\d)\)", cell)]
    assert told == [(field.name, field.bytes) for field in by_c("OWN_BYTES_ROW") if field.name != "zero"]
    assert sizes_by_c()["OWN_BYTES_ROW"] == sum(field.bytes for field in by_c("OWN_BYTES_ROW")) == 24


def test_the_declared_fields_lie_side_by_side() -> None:
    for owner in set(re.findall(r"^FIELD\((\w+),", DECLARED, re.MULTILINE)):
        declared = by_c(owner)
        for one, following in pairwise(declared):
            assert one.offset + one.bytes <= following.offset, (owner, following.name)
            assert following.offset % following.bytes == 0, (owner, following.name)
