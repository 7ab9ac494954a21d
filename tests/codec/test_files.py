"""Segments and side files in both codecs: which bytes are accepted or refused, and that encoding restores them."""

from __future__ import annotations

import struct
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from kit.c_codec import Fixed, decode_fixed_by_c, encode_fixed_by_c
from kit.checkpoints import CheckpointHeader
from kit.record_cases import SEGMENT, UUID_1, UUID_2, flipped, lsns, sealed, u32, u64
from kit.testing import ffi, lib
from logstore.codec import files, records
from logstore.codec.files import Closed, Hint, Hold, Mark, Meta, Seen, SegmentHeader, Vote, decode_segment, iter_batches
from logstore.codec.records import (
    FIRST,
    Batch,
    Body,
    InvalidRecord,
    MalformedRecord,
    NewerVersion,
    Record,
    RecordFlag,
    RecordType,
    encode_record,
    record_bytes,
    segment_seed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# ---- Segments.


def batch_of(header: SegmentHeader, lsn: int, bodies: list[tuple[RecordType, Body]], **changes: int) -> bytes:
    at = lsn + 104
    raw = b""
    for kind, body in bodies:
        chain = at if kind in FIRST else 0
        record = Record(at, kind, RecordFlag(0), chain, 0, record_bytes(body), body)
        raw += encode_record(record, header.seed)
        at += record.length
    body = Batch(header.epoch, len(bodies), at - lsn, lsn, header.first_lsn, 0)
    batch = bytearray(encode_record(Record(lsn, RecordType.BATCH, RecordFlag(0), 0, 0, 104, body), header.seed))
    for field, value in changes.items():
        offset, layout = {"epoch": (48, "<Q"), "count": (56, "<I"), "bytes": (60, "<I")}[field]
        struct.pack_into(layout, batch, offset, value)
    return sealed(batch, header.seed) + raw


HEADER = SegmentHeader(UUID_1, SEGMENT, SEGMENT, 1, 0, 1_700_000_000_000_000)
START = RecordType.MESSAGE_START, records.MessageStart(0, (1,), b"h", b"content")
BATCHES = [
    batch_of(HEADER, 0x11000, [START, (RecordType.FILLER, records.Filler(0))]),
    batch_of(HEADER, 0x11000 + 240, []),
    batch_of(HEADER, 0x11000 + 344, [START]),
]
ENDS = [4096 + 240, 4096 + 344, 4096 + 536]
SMALL = HEADER.encode() + b"".join(BATCHES)


def in_segment(*parts: bytes | bytearray) -> bytes:
    return HEADER.encode() + b"".join(parts)


def count_of(raw: bytes, end: int | None = None) -> int:
    return len(decode_segment(raw, end).batches)


def test_the_small_segment_has_the_size_that_these_tests_assume() -> None:
    assert [4096 + sum(map(len, BATCHES[: i + 1])) for i in range(3)] == ENDS
    segment = decode_segment(SMALL + bytes(SEGMENT - len(SMALL)))
    assert [len(found) for _, found in segment.batches] == [2, 0, 1]
    assert segment.stop.lsn == 0x10000 + ENDS[-1]


def test_every_flipped_bit_of_a_segment_header_is_noticed() -> None:
    raw = HEADER.encode()
    for bit in range(8 * len(raw)):
        with pytest.raises(InvalidRecord):
            SegmentHeader.decode(flipped(raw, bit))


def test_every_flipped_bit_of_a_batch_ends_the_log_before_that_batch() -> None:
    for bit in range(8 * 4096, 8 * len(SMALL)):
        intact = sum(end <= bit // 8 for end in ENDS)
        assert count_of(flipped(SMALL, bit)) == intact


def test_a_segment_cut_at_any_length_keeps_exactly_the_whole_batches() -> None:
    for length in range(4096, len(SMALL) + 1):
        assert count_of(SMALL[:length]) == sum(end <= length for end in ENDS)
    for length in range(4096):
        with pytest.raises(InvalidRecord):
            decode_segment(SMALL[:length])


def test_the_next_segments_header_ends_the_log_at_a_whole_batch() -> None:
    for end in range(0x10000, 0x10000 + len(SMALL) + 16):
        segment = decode_segment(SMALL + bytes(64), end)
        assert len(segment.batches) == sum(0x10000 + batch_end <= end for batch_end in ENDS)
    assert decode_segment(SMALL, 0x10000 + ENDS[1]).stop == files.Stop(0x10000 + ENDS[1], None)
    assert decode_segment(SMALL, 0).stop == files.Stop(0x11000, None)


@pytest.mark.parametrize(
    "alien",
    [
        replace(HEADER, uuid=UUID_2),
        replace(HEADER, first_lsn=2 * SEGMENT),
        replace(HEADER, epoch=2),
    ],
    ids=["another store", "another place", "another epoch"],
)
def test_batches_under_an_alien_header_are_not_accepted(alien: SegmentHeader) -> None:
    assert count_of(alien.encode() + SMALL[4096:]) == 0


def test_batches_that_were_shifted_within_their_segment_are_not_accepted() -> None:
    assert count_of(in_segment(bytes(8), *BATCHES)) == 0
    assert count_of(in_segment(BATCHES[1], *BATCHES)) == 0
    assert count_of(in_segment(BATCHES[0], BATCHES[0])) == 1


@pytest.mark.parametrize(
    "changes",
    [{"count": 2}, {"count": 0}, {"count": 2**32 - 1}, {"bytes": 104}, {"bytes": 200}, {"bytes": 184},
     {"bytes": 0}, {"bytes": 2**32 - 1}, {"epoch": 2}],
    ids=str,
)  # fmt: skip
def test_a_batch_that_contradicts_its_batch_record_is_not_accepted(changes: dict[str, int]) -> None:
    assert count_of(in_segment(batch_of(HEADER, 0x11000, [START]))) == 1
    assert count_of(in_segment(batch_of(HEADER, 0x11000, [START], **changes), bytes(8192))) == 0


def test_a_record_outside_a_batch_and_a_batch_inside_a_batch_are_not_accepted() -> None:
    assert count_of(in_segment(batch_of(HEADER, 0x11000 - 104, [START])[104:])) == 0
    inner = (RecordType.BATCH, Batch(1, 0, 104, 0x11000, 0x10000, 0))
    assert count_of(in_segment(batch_of(HEADER, 0x11000, [inner]))) == 0


def test_records_and_batches_beyond_their_limits_are_not_accepted() -> None:
    def filler(record_length: int) -> tuple[RecordType, Body]:
        return RecordType.FILLER, records.Filler(record_length - 48)

    assert count_of(in_segment(batch_of(HEADER, 0x11000, [filler(4096)]))) == 1
    assert count_of(in_segment(batch_of(HEADER, 0x11000, [filler(4104)]))) == 0
    assert count_of(in_segment(batch_of(HEADER, 0x11000, [filler(4096), filler(3992)]))) == 1
    assert count_of(in_segment(batch_of(HEADER, 0x11000, [filler(4096), filler(4000)]))) == 0


@pytest.mark.parametrize(
    ("segment_size", "record_limit", "batch_limit"),
    [(64 << 10, 4 << 10, 8 << 10), (16 << 20, 1 << 20, 2 << 20), (1 << 30, 1 << 20, 2 << 20)],
)
def test_the_limits_grow_with_the_segment_up_to_one_and_two_mebibytes(
    segment_size: int, record_limit: int, batch_limit: int
) -> None:
    assert files.record_bytes_max(segment_size) == record_limit
    assert files.batch_bytes_max(segment_size) == batch_limit


def test_a_batch_may_end_with_its_segment_and_not_beyond() -> None:
    def fill(last_filler: int) -> bytes:
        parts = []
        lsn = 0x11000
        for size in [4096] * 14 + [last_filler]:
            parts.append(batch_of(HEADER, lsn, [(RecordType.FILLER, records.Filler(size - 104 - 48))]))
            lsn += size
        return in_segment(*parts)

    full = fill(4096)
    assert len(full) == SEGMENT
    assert decode_segment(full).stop == files.Stop(0x20000, None)
    beyond = batch_of(HEADER, 0x20000, [START])
    assert decode_segment(full + beyond, 0x30000).stop == files.Stop(0x20000, None)
    assert count_of(fill(4104)) == 14


def test_a_later_versions_record_in_a_batch_stops_the_reader_loudly() -> None:
    lsn = 0x11000 + 104
    raw = bytearray(encode_record(Record(lsn, 0x81FF, RecordFlag(0), 0, 0, 48, records.Unknown(b"")), HEADER.seed))
    says = Batch(1, 1, 152, 0x11000, 0x10000, 0)
    batch = encode_record(Record(0x11000, RecordType.BATCH, RecordFlag(0), 0, 0, 104, says), HEADER.seed)
    assert count_of(in_segment(batch, raw)) == 1
    struct.pack_into("<H", raw, 16, 0x01FF)
    with pytest.raises(NewerVersion):
        list(iter_batches(in_segment(batch, sealed(raw, HEADER.seed)), HEADER))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=1000), u64)
def test_arbitrary_bytes_behind_a_header_or_a_batch_are_not_accepted_and_raise_nothing(noise: bytes, end: int) -> None:
    assert count_of(in_segment(noise), end) == 0
    assert count_of(in_segment(BATCHES[0], noise)) == 1


# ---- Fixed structures: segment headers, META, HINT, holds.

FIXED = [
    HEADER,
    Meta(UUID_1, SEGMENT, 2 * SEGMENT, 1_700_000_000_000_000),
    Hint(UUID_1, 1, 0x11000, 0x10000),
    Closed(UUID_1, 1, 0x11000, 1_700_000_000_000_000),
    Hold(UUID_1, 0x10000, 0, 1_700_000_000_000_000, 0),
    CheckpointHeader(UUID_1, 1, 0x12000, 0x11000, 7, 0x10000, 4096 + 40, 9, 1_700_000_000_000_000, 1, 1, 0, 0, 0),
    Vote(UUID_1, UUID_2, 11, 5, 7, 12, 1, 0, 6, 40, 0),
    Mark(UUID_1, 3, 0x11000, 0x12000),
    Mark(UUID_1, 4, 0, 0),
    Seen(UUID_1, 2, 0x11000),
    Seen(UUID_1, 1, 0),
]
above_zero = st.integers(1, 2**64 - 1)
USED = {SegmentHeader: 72, Meta: 56, Hint: 56, Closed: 56, Seen: 48, Hold: 64, CheckpointHeader: 136}
USED |= {Vote: 120, Mark: 56}
each_fixed = pytest.mark.parametrize("fixed", FIXED, ids=lambda fixed: type(fixed).__name__)


def decode_by_python(kind: type[Fixed], raw: bytes) -> Fixed:
    return kind.decode(raw)


each_decoder = pytest.mark.parametrize("decode", [decode_by_python, decode_fixed_by_c], ids=["python", "c"])


def outcome(decode: Callable[..., Fixed], kind: type[Fixed], raw: bytes) -> Fixed | type[InvalidRecord]:
    """The structure, or the type of the refusal."""
    try:
        return decode(kind, raw)
    except InvalidRecord as error:
        return type(error)


def assert_same_verdict(kind: type[Fixed], raw: bytes) -> None:
    by_python, by_c = (outcome(decode, kind, raw) for decode in (decode_by_python, decode_fixed_by_c))
    assert by_python == by_c
    if not isinstance(by_python, type):
        assert by_python.encode() == raw[: kind.BYTES] == encode_fixed_by_c(by_python)


def resealed(fixed: Fixed, offset: int, layout: str, value: int) -> bytes:
    raw = bytearray(fixed.encode())
    struct.pack_into(layout, raw, offset, value)
    seed = 0
    if isinstance(fixed, SegmentHeader):
        seed = segment_seed(UUID(bytes=bytes(raw[16:32])), *struct.unpack_from("<QQ", raw, 40))
    raw[-8:] = xxh64_intdigest(raw[:-8], seed).to_bytes(8, "little")
    return bytes(raw)


@st.composite
def votes(draw: st.DrawFn) -> Vote:
    term = draw(st.integers(0, 2**23 - 1))
    floor_term = draw(st.integers(0, term))
    floor_index = draw(above_zero) if floor_term else 0
    told = draw(above_zero), draw(above_zero), term, draw(u64), draw(above_zero), draw(u64)
    return Vote(draw(st.uuids()), draw(st.uuids()), *told, floor_term, floor_index, draw(st.integers(0, 1)))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_fixed_structure_comes_back_as_it_was_given(data: st.DataObject) -> None:
    uuid = data.draw(st.uuids())
    size = 4096 * data.draw(st.integers(16, 2**18))
    first_lsn = size * data.draw(st.integers(1, 2**63 // size - 1))
    epoch = data.draw(st.integers(1, 2**64 - 1))
    for fixed in (
        SegmentHeader(uuid, size, first_lsn, epoch, data.draw(st.integers(0, first_lsn)), data.draw(u64)),
        Meta(uuid, size, data.draw(st.integers(2 * size, (2**63 - 1) // 4)), data.draw(u64)),
        Hint(uuid, epoch, data.draw(lsns), data.draw(lsns)),
        Closed(uuid, epoch, data.draw(lsns), data.draw(u64)),
        Seen(uuid, epoch, data.draw(lsns | st.just(0))),
        Hold(uuid, data.draw(lsns), data.draw(u64), data.draw(u64), data.draw(u64)),
        data.draw(votes()),
        Mark(uuid, epoch, *sorted(data.draw(st.lists(lsns, min_size=2, max_size=2, unique=True)))),
    ):
        raw = fixed.encode()
        assert len(raw) == fixed.BYTES
        assert type(fixed).decode(raw) == fixed
        assert encode_fixed_by_c(fixed) == raw
        assert decode_fixed_by_c(type(fixed), raw) == fixed


@each_fixed
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_both_codecs_refuse_and_accept_the_same_sealed_nonsense_in_a_fixed_structure(
    fixed: Fixed, data: st.DataObject
) -> None:
    used = USED[type(fixed)]
    at = data.draw(st.integers(0, used) | st.integers(0, fixed.BYTES - 16))
    numbers = st.sampled_from([0, 1, 2, 4096, SEGMENT, 2 * SEGMENT, 2**30, 2**61, 2**63 - SEGMENT, 2**63]) | u64
    raw = resealed(fixed, min(at // 4 * 4, fixed.BYTES - 16), "<Q", data.draw(numbers))
    assert_same_verdict(type(fixed), raw)
    assert_same_verdict(type(fixed), flipped(raw, data.draw(st.integers(0, 8 * len(raw) - 1))))
    assert_same_verdict(type(fixed), raw[: data.draw(st.integers(0, len(raw)))])


@pytest.mark.parametrize("changed", ["uuid", "segment_size", "first_lsn"])
def test_the_core_takes_a_segment_header_only_for_the_store_size_and_place_it_expects(changed: str) -> None:
    raw = ffi.new("uint8_t[]", HEADER.encode())
    for expected in (HEADER, replace(HEADER, **{changed: UUID_2 if changed == "uuid" else 2 * SEGMENT})):
        uuid = ffi.new("uint8_t[]", expected.uuid.bytes)
        numbers = ffi.new("uint64_t[5]", [expected.segment_size, expected.first_lsn])
        verdict = lib.ls_test_decode_file(lib.LS_TEST_SEGMENT_HEADER, raw, 4096, uuid, numbers)
        assert verdict == (lib.LS_TEST_VALID if expected == HEADER else lib.LS_TEST_REFUSED)


@each_decoder
@each_fixed
def test_every_flipped_bit_and_every_missing_byte_of_a_fixed_structure_is_noticed(
    fixed: Fixed, decode: Callable[..., Fixed]
) -> None:
    raw = fixed.encode()
    for bit in range(8 * len(raw)):
        with pytest.raises(InvalidRecord):
            decode(type(fixed), flipped(raw, bit))
    for length in range(len(raw)):
        with pytest.raises(InvalidRecord):
            decode(type(fixed), raw[:length])


@each_decoder
@each_fixed
def test_a_newer_version_is_named_before_any_checksum_is_judged(fixed: Fixed, decode: Callable[..., Fixed]) -> None:
    raw = bytearray(fixed.encode())
    struct.pack_into("<I", raw, 8, 2)
    for length in (12, 31, 40, len(raw)):
        with pytest.raises(NewerVersion):
            decode(type(fixed), bytes(raw[:length]))
    for some in (raw[:11], b"X" + raw[1:]):
        with pytest.raises(InvalidRecord) as caught:
            decode(type(fixed), bytes(some))
        assert not isinstance(caught.value, NewerVersion)


@each_decoder
@each_fixed
def test_version_zero_another_size_and_used_reserved_space_are_malformed(
    fixed: Fixed, decode: Callable[..., Fixed]
) -> None:
    for offset, value in ((8, 0), (12, fixed.BYTES + 8), (12, 0)):
        with pytest.raises(MalformedRecord):
            decode(type(fixed), resealed(fixed, offset, "<I", value))
    used = USED[type(fixed)]
    for offset in range(used, fixed.BYTES - 8):
        with pytest.raises(MalformedRecord):
            decode(type(fixed), resealed(fixed, offset, "<B", 1))


@each_decoder
@pytest.mark.parametrize(
    ("fixed", "offset", "value"),
    [
        (HEADER, 32, 32 << 10),
        (HEADER, 32, SEGMENT + 8),
        (HEADER, 32, 2 << 30),
        (HEADER, 40, 0),
        (HEADER, 40, SEGMENT + 4096),
        (HEADER, 40, 2**63),
        (HEADER, 48, 0),
        (HEADER, 56, SEGMENT + 8),
        (FIXED[1], 32, 4096),
        (FIXED[1], 40, 2 * SEGMENT - 1),
        (FIXED[1], 40, 2**61),
        (FIXED[2], 32, 0),
        (FIXED[2], 40, 0),
        (FIXED[2], 48, 2**63),
        (FIXED[3], 32, 0),
        (FIXED[9], 32, 0),
        (FIXED[9], 40, 2**63),
        (FIXED[6], 48, 0),
        (FIXED[6], 56, 0),
        (FIXED[6], 64, 2**23),
        (FIXED[6], 64, 5),
        (FIXED[6], 80, 0),
        (FIXED[6], 96, 0),
        (FIXED[6], 96, 8),
        (FIXED[6], 104, 0),
        (FIXED[6], 112, 2),
    ],
)
def test_a_number_out_of_its_range_is_malformed_and_is_not_encoded(
    decode: Callable[..., Fixed], fixed: Fixed, offset: int, value: int
) -> None:
    with pytest.raises(MalformedRecord):
        decode(type(fixed), resealed(fixed, offset, "<Q", value))
    places = [name for field in fields(fixed)[1:] for name in [field.name] * (1 + (field.type == "UUID"))]
    field = places[(offset - 32) // 8]
    out_of_range: Any = {field: value}
    with pytest.raises(MalformedRecord):
        replace(fixed, **out_of_range).encode()


def test_a_segment_lies_below_the_end_of_the_lsn_space() -> None:
    size = 96 << 10  # does not divide the range
    last = 2**63 // size * size
    highest = replace(HEADER, segment_size=size, first_lsn=last - size)
    assert decode_fixed_by_c(SegmentHeader, highest.encode()) == highest
    beyond = replace(highest, first_lsn=last)
    with pytest.raises(MalformedRecord):
        beyond.encode()
    with pytest.raises(MalformedRecord):
        decode_fixed_by_c(SegmentHeader, encode_fixed_by_c(beyond))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=5000), u32)
def test_arbitrary_bytes_are_no_fixed_structure_and_raise_nothing_else(noise: bytes, version: int) -> None:
    for fixed in FIXED:
        for raw in (noise, fixed.MAGIC + noise, fixed.MAGIC + struct.pack("<I", version) + noise):
            assert_same_verdict(type(fixed), raw)
            assert isinstance(outcome(decode_fixed_by_c, type(fixed), raw), type)
