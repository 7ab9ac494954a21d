"""The commands on a store with relocated chains, which is written by hand from docs/format.md."""

from __future__ import annotations

import base64
import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from kit.command import fails, fine, run, told
from logstore.catalog.catalog import Catalog
from logstore.codec.records import RecordFlag, RecordType
from logstore.inspect import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
CHUNKED, INLINE, ORDERED = 0x11068, 0x12068, 0x13068  # chains that began below the base, 0x50000
BRANCH = 0x31000  # a transaction that began below the base


@pytest.fixture(scope="module")
def layout() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        yield importlib.import_module("golden_layout")


def add_relocations(s: Any, layout: ModuleType) -> None:
    copy = layout.COPY | layout.INLINE
    start = s.add("MESSAGE_START", layout.message_start([], b"head", b"one, "), CHUNKED, CHUNKED, layout.COPY)
    chunk = s.add("MESSAGE_CHUNK", layout.message_chunk(5, b"two"), CHUNKED, flags=layout.COPY)
    work = ((BRANCH, BRANCH + 0x80, 1, "DEQUEUE", 0),)
    state = layout.message_relocated(8, start, 0, ((chunk, 5, 3),), ((0x20000, 1, 1, 0, 0),), work)
    s.add("MESSAGE_RELOCATED", state, CHUNKED)
    s.add("MESSAGE_START", layout.inline_copy([1, 2], b"", b"three", 77), INLINE, INLINE, copy)
    draft = layout.ordered_copy([1, 0, 2], b"", b"four", ORDERED + 8, 3)
    s.add("MESSAGE_START", draft, ORDERED, ORDERED, copy | layout.ORDERED)
    draft = layout.tx_relocated("DISTRIBUTED", "PREPARED", 5, 6, 1, b"\xab", b"")
    s.add("TX_RELOCATED", draft, BRANCH, BRANCH)


def add_dequeue(s: Any, layout: ModuleType) -> None:
    s.add("MESSAGE_DEQUEUE", layout.message_dequeue(2, "ACCEPTED", 1), INLINE)


def add_nothing(s: Any, layout: ModuleType) -> None:
    """For a batch without records."""


@pytest.fixture
def make(layout: ModuleType, tmp_path: Path) -> Callable[..., Path]:
    def make(*batches: Callable[[Any, ModuleType], None], **first_batch: int) -> Path:
        """A store of one segment: a batch for each function, then an orderly close."""
        segment = layout.Segment(0x50000, epoch=3, prev_end_lsn=0x4F3A8)
        for add in batches:
            segment.begin(0x50000)
            add(segment, layout)
            if add is batches[0]:
                segment.found["batches"][0]["batch"] |= first_batch
            segment.end()
        segment.begin(0x50000)
        segment.add("CLOSE", layout.empty())
        segment.end()
        path = tmp_path / "store"
        path.mkdir(mode=0o700)
        (path / "META").write_bytes(layout.meta()[0])
        (path / "0000000000050000.seg").write_bytes(segment.raw)
        catalog = Catalog.create(path, store_uuid=UUID(layout.UUID_TEXT).bytes)
        for name in ("one", "two"):
            catalog.declare_queue(name)
        catalog.close()
        return path

    return make


def test_relocated_messages_are_counted_like_others(make: Callable[..., Path]) -> None:
    store = make(add_relocations, add_dequeue)
    said = told("info", store)
    assert (said["state"], said["messages"], said["places"], said["staged"]) == ("closed", 3, 4, 0)
    assert (said["transactions"], said["in_doubt"]) == (1, 1)
    queues = [(one["name"], one["depth"], one["locked"], one["bytes"]) for one in told("queues", store)["queues"]]
    assert queues == [("one", 3, 1, 8 + 5 + 4), ("two", 1, 0, 4)]
    foretold = told("recover", store, "--dry-run")
    assert foretold["in_doubt"] == [{"id": BRANCH, "xid": "1:ab:"}]
    assert (foretold["orphans"], foretold["places_dropped"]) == (0, 0)


def test_verify_finds_nothing_wrong_with_relocations_and_compares_them_by_both_decoders(
    make: Callable[..., Path],
) -> None:
    said = told("verify", make(add_relocations, add_dequeue), "--thorough")
    assert (said["ok"], said["problems"]) == (True, [])
    assert said["compared"] == said["records"] + said["batches"] == 8 + 3


def test_chain_shows_copies_and_states_with_their_flags_and_contents(make: Callable[..., Path]) -> None:
    store = make(add_relocations, add_dequeue)
    records = told("chain", store, CHUNKED, "--bodies")["records"]
    assert [(one["type"], one["flags"]) for one in records] == [
        ("MESSAGE_START", ["COPY"]),
        ("MESSAGE_CHUNK", ["COPY"]),
        ("MESSAGE_RELOCATED", []),
    ]
    assert b"".join(base64.b64decode(one["body"]["content"]) for one in records[:2]) == b"one, two"
    state = records[2]["body"]
    assert (state["start_lsn"], state["content_bytes"]) == (records[0]["lsn"], 8)
    assert [(one["lsn"], one["offset"]) for one in state["chunks"]] == [(records[1]["lsn"], 5)]
    assert [one["kind"] for one in state["pending"]] == ["DEQUEUE"]
    inline, dequeue = told("chain", store, INLINE, "--bodies")["records"]
    assert (inline["flags"], dequeue["prev"]) == (["COPY", "INLINE"], inline["lsn"])
    assert (inline["body"]["enqueue_time_us"], inline["body"]["queues"]) == (77, [1, 2])
    assert base64.b64decode(inline["body"]["content"]) == b"three"
    with Reader(store, from_lsn=CHUNKED) as reader:
        assert [record.type for record in reader.chain(CHUNKED)] == [
            RecordType.MESSAGE_START,
            RecordType.MESSAGE_CHUNK,
            RecordType.MESSAGE_RELOCATED,
        ]


def test_dump_shows_an_inline_copys_flags_and_its_order_key_by_name(make: Callable[..., Path]) -> None:
    store = make(add_relocations)
    lines = fine("dump", store, "--type", "MESSAGE_START").splitlines()
    assert "COPY header_bytes" not in lines[1]
    assert "COPY INLINE enqueue_time=1970-01-01T00:00:00.000077Z queues=one,two" in lines[1]
    assert f"COPY INLINE ORDERED order_lsn={ORDERED + 8} queues=one,-,two" in lines[2]
    documents = [json.loads(line) for line in fine("dump", store, "--json").splitlines()]
    flags = {flag for document in documents for flag in document["flags"]}
    assert flags == {flag.name for flag in RecordFlag.COPY | RecordFlag.INLINE | RecordFlag.ORDERED}
    assert [one["body"]["state"] for one in documents if one["type"] == "TX_RELOCATED"] == ["PREPARED"]


def test_a_relocation_that_contradicts_the_log_before_it_is_found_by_verify_and_stops_the_others(
    make: Callable[..., Path],
) -> None:
    def relocate_otherwise(s: Any, layout: ModuleType) -> None:
        draft = layout.inline_copy([1, 2], b"", b"three")
        s.add("MESSAGE_START", draft, INLINE, flags=layout.COPY | layout.INLINE)

    store = make(add_relocations, add_dequeue, relocate_otherwise)
    reason = f"message {INLINE} is relocated with places on queues [1, 2], and it has them on [1]"
    assert reason in fails(run("verify", store), 1)
    for command in ("info", "queues"):
        assert f"a relocated state is not that of its chain (chain {INLINE})" in fails(run(command, store), 3)


@pytest.mark.parametrize(
    ("first_batch", "reason"),
    [
        ({"durable_lsn": 0x4F3A8}, None),  # the base is the segment of this batch
        ({"durable_lsn": 0x4F3A8, "base_lsn": 0x48000}, "is not the first LSN of a segment"),
        ({"durable_lsn": 0x3F3A8, "base_lsn": 0x40000}, "is above its durable LSN"),
    ],
)
def test_a_base_is_a_segments_first_lsn_and_exceeds_the_durable_lsn_only_at_the_start_of_a_segment(
    make: Callable[..., Path], first_batch: dict[str, int], reason: str | None
) -> None:
    store = make(add_nothing, add_nothing, **first_batch)
    if reason is None:
        assert told("verify", store)["problems"] == []
    else:
        assert reason in fails(run("verify", store), 1)
