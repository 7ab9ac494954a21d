"""The records of the format in both codecs: which are accepted or refused, and that encoding restores the bytes."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from kit.c_codec import decode_by_c, encode_by_c
from kit.record_cases import (
    BROKEN_COPIES,
    BROKEN_RULES,
    EXAMPLES,
    INLINE_EXAMPLE,
    MEMBERS_COPY_EXAMPLE,
    ORDERED_EXAMPLE,
    REPLICATED_BATCH,
    SEED,
    SEGMENT,
    UUID_1,
    UUID_2,
    any_record,
    example,
    flipped,
    outcome,
    sealed,
    some_records,
    u16,
    u64,
)
from logstore.codec import records
from logstore.codec.records import (
    FLAGS,
    Body,
    InvalidRecord,
    MalformedRecord,
    NewerVersion,
    Record,
    RecordFlag,
    RecordType,
    decode_record,
    encode_record,
    header_check,
    segment_seed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

each_type = pytest.mark.parametrize("kind", RecordType, ids=lambda kind: kind.name)
numbers = st.sampled_from([0, 1, 2, 8, 48, 104, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]) | u64
each_decoder = pytest.mark.parametrize("decode", [decode_record, decode_by_c], ids=["python", "c"])


# ---- Seeds.


def test_the_segment_seed_hashes_uuid_first_lsn_and_epoch_in_that_order() -> None:
    content = UUID_1.bytes + (0x10000).to_bytes(8, "little") + (3).to_bytes(8, "little")
    assert segment_seed(UUID_1, 0x10000, 3) == xxh64_intdigest(content, 0)


# ---- Records.


def assert_same_verdict(raw: bytes, lsn: int, seed: int = SEED) -> None:
    """Checks that both codecs decode equal records and encode them to the same bytes, or refuse equally."""
    by_python, by_c = (outcome(decode, raw, 0, seed, lsn) for decode in (decode_record, decode_by_c))
    assert by_python == by_c
    if isinstance(by_python, Record):
        assert encode_record(by_python, seed) == raw[: by_python.length]
        if isinstance(by_python.type, RecordType):
            assert encode_by_c(by_python, seed) == raw[: by_python.length]


@each_type
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_record_decodes_to_its_values_at_any_position(kind: RecordType, data: st.DataObject) -> None:
    record = data.draw(some_records(kind))
    raw = encode_record(record, SEED)
    assert len(raw) == record.length
    assert len(raw) % 8 == 0
    before, after = data.draw(st.binary(max_size=20)), data.draw(st.binary(max_size=20))
    assert decode_record(before + raw + after, len(before), SEED, record.lsn) == record


@each_type
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_both_codecs_make_the_same_bytes_and_read_them_the_same(kind: RecordType, data: st.DataObject) -> None:
    record = data.draw(some_records(kind))
    raw = encode_record(record, SEED)
    assert encode_by_c(record, SEED) == raw
    assert decode_by_c(raw, 0, SEED, record.lsn) == record


@settings(max_examples=1000, deadline=None)
@given(any_record, st.data())
def test_both_codecs_refuse_and_accept_the_same_sealed_nonsense(record: Record, data: st.DataObject) -> None:
    raw = bytearray(encode_record(record, SEED))
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):
            raw = bytearray(flipped(raw, data.draw(st.integers(12 * 8, 8 * len(raw) - 1))))
        else:
            at = 4 * data.draw(st.integers(3, len(raw) // 4 - 2))
            near = st.sampled_from([record.lsn, record.id, record.prev]).map(lambda lsn: lsn & 2**64 - 1)
            struct.pack_into("<Q", raw, at, data.draw(numbers | near))
    assert_same_verdict(sealed(raw), record.lsn)


def flagged_examples(kind: RecordType) -> Iterator[Record]:
    """The type's example, plain and with each legal flag together with the flags that it requires."""
    like = EXAMPLES[kind]
    yield like
    if kind is RecordType.BATCH:
        yield REPLICATED_BATCH
    for flag in FLAGS.get(kind, RecordFlag(0)):
        if (kind, flag) == (RecordType.MESSAGE_START, RecordFlag.COPY):
            bare = example(kind, replace(like.body, queues=()))
            yield replace(bare, flags=flag, id=like.lsn - 16, prev=like.lsn - 8)
        elif kind is RecordType.MEMBERS:
            yield MEMBERS_COPY_EXAMPLE
        elif flag is RecordFlag.INLINE:
            yield INLINE_EXAMPLE
            yield replace(INLINE_EXAMPLE, flags=INLINE_EXAMPLE.flags | RecordFlag.PUBLISHED)
        elif flag is RecordFlag.ORDERED:
            yield ORDERED_EXAMPLE
        else:
            yield replace(like, flags=flag)


@each_type
def test_both_codecs_agree_on_an_example_with_any_value_in_one_place(kind: RecordType) -> None:
    for like in flagged_examples(kind):
        plain = encode_record(like, SEED)
        edges = 0, 1, 2, 8, 64, 65, 104, like.lsn - 8, like.lsn, like.lsn + 8, 2**63 - 1, 2**63, 2**64 - 1
        for width, layout in ((1, "<B"), (4, "<I"), (8, "<Q")):
            values = {edge & 2 ** (8 * width) - 1 for edge in edges}
            for offset in range(8 if width == 8 else 12, len(plain), width):
                for value in values:
                    raw = bytearray(plain)
                    struct.pack_into(layout, raw, offset, value)
                    assert_same_verdict(sealed(raw), like.lsn)


@settings(max_examples=300, deadline=None)
@given(any_record, st.binary(max_size=24), st.integers(0, 24))
def test_both_codecs_refuse_and_accept_the_same_longer_and_shorter_records(
    record: Record, more: bytes, less: int
) -> None:
    raw = bytearray(encode_record(record, SEED)[: record.length - less] + more)
    struct.pack_into("<I", raw, 12, len(raw))
    assert_same_verdict(sealed(raw), record.lsn)
    struct.pack_into("<I", raw, 12, len(raw) // 8 * 8)
    assert_same_verdict(sealed(raw), record.lsn)


@settings(max_examples=300, deadline=None)
@given(any_record, st.integers(0, 2**16 - 1) | st.sampled_from(RecordType).map(int), u16)
def test_both_codecs_refuse_and_accept_the_same_under_another_type_and_flags(
    record: Record, code: int, flags: int
) -> None:
    raw = bytearray(encode_record(record, SEED))
    for changed in (int(record.flags), flags):
        struct.pack_into("<HH", raw, 16, code, changed)
        assert_same_verdict(sealed(raw), record.lsn)


@each_decoder
@each_type
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_every_flipped_bit_of_a_record_is_noticed(
    kind: RecordType, decode: Callable[..., Record], data: st.DataObject
) -> None:
    record = data.draw(some_records(kind))
    raw = encode_record(record, SEED)
    for bit in range(8 * len(raw)):
        with pytest.raises(InvalidRecord):
            decode(flipped(raw, bit), 0, SEED, record.lsn)


@each_decoder
@each_type
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_a_record_cut_at_any_length_is_refused(
    kind: RecordType, decode: Callable[..., Record], data: st.DataObject
) -> None:
    record = data.draw(some_records(kind))
    raw = encode_record(record, SEED)
    for length in range(len(raw)):
        with pytest.raises(InvalidRecord):
            decode(raw[:length], 0, SEED, record.lsn)
        with pytest.raises(InvalidRecord):
            decode(bytes(8) + raw[:length], 8, SEED, record.lsn)


@each_decoder
@settings(max_examples=200, deadline=None)
@given(any_record, st.integers(1, 2**40))
def test_a_record_never_validates_for_another_store_segment_epoch_or_place(
    decode: Callable[..., Record], record: Record, other: int
) -> None:
    raw = encode_record(record, SEED)
    alien_seeds = (
        segment_seed(UUID_2, SEGMENT, 1),
        segment_seed(UUID_1, SEGMENT + SEGMENT * other, 1),
        segment_seed(UUID_1, SEGMENT, 1 + other),
        segment_seed(UUID_1, 1, SEGMENT),
    )
    for seed in alien_seeds:
        with pytest.raises(InvalidRecord):
            decode(raw, 0, seed, record.lsn)
    for lsn in (record.lsn - 8, record.lsn + 8, record.lsn + SEGMENT * other, 0):
        with pytest.raises(InvalidRecord):
            decode(raw, 0, SEED, lsn)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.integers(-10, 310), u64, u64)
def test_arbitrary_bytes_raise_nothing_but_invalid_record(raw: bytes, offset: int, seed: int, lsn: int) -> None:
    with pytest.raises(InvalidRecord):
        decode_record(raw, offset, seed, lsn)
    with pytest.raises(InvalidRecord):
        decode_by_c(raw, offset, seed, lsn)


@each_type
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_arbitrary_bodies_under_right_checksums_are_refused_or_come_back_byte_for_byte(
    kind: RecordType, data: st.DataObject
) -> None:
    words = data.draw(st.lists(st.sampled_from([0, 0, 1, 2, 8, 2**32, 2**63]) | u64, max_size=14))
    flags, spare = data.draw(st.sampled_from([0, 0, 1, 2]) | u16), data.draw(st.sampled_from([0, 0, 0, 1]))
    lsn = data.draw(st.sampled_from([0, 8, 4096, 4097, 2**63]))
    chain = data.draw(st.sampled_from([0, 8, lsn]) | u64)
    prev = data.draw(st.sampled_from([0, 8]) | u64)
    length = 48 + 8 * len(words)
    raw = struct.pack("<QIIHHIQQQ", 0, 0, length, kind, flags, spare, lsn, chain, prev)
    raw = sealed(raw + struct.pack(f"<{len(words)}Q", *words))
    assert_same_verdict(raw, lsn)


HUGE_COUNTS = {  # offsets of the counts in a body
    RecordType.MESSAGE_START: (56, 60, 64),
    RecordType.MESSAGE_CHUNK: (56,),
    RecordType.MESSAGE_ENQUEUE: (56,),
    RecordType.MESSAGE_RELOCATED: (68, 72, 76),
    RecordType.MESSAGE_MOVE: (88,),
    RecordType.MESSAGE_START_PLACED: (56, 60, 64),
    RecordType.MESSAGE_RELOCATED_PLACED: (68, 72, 76, 132),
    RecordType.PLACE_STATES: (48,),
    RecordType.FOOTER: (68,),
    RecordType.MEMBERS: (56,),
    RecordType.CATALOG_CHANGE: (52, 64, 104),
}


@pytest.mark.parametrize(("kind", "at"), [(kind, at) for kind, ats in HUGE_COUNTS.items() for at in ats])
def test_a_huge_count_under_right_checksums_is_refused_without_a_huge_allocation(kind: RecordType, at: int) -> None:
    raw = bytearray(encode_record(EXAMPLES[kind], SEED))
    struct.pack_into("<I", raw, at, 2**32 - 1)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRecord):
            decode_record(sealed(raw), 0, SEED, EXAMPLES[kind].lsn)
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


@each_decoder
@pytest.mark.parametrize(("promise", "kind", "offset", "layout", "value"), BROKEN_RULES, ids=lambda v: str(v))
def test_a_broken_rule_under_right_checksums_is_a_malformed_record(
    decode: Callable[..., Record], promise: str, kind: RecordType, offset: int, layout: str, value: int
) -> None:
    raw = bytearray(encode_record(EXAMPLES[kind], SEED))
    struct.pack_into(layout, raw, offset, value)
    with pytest.raises(MalformedRecord):
        decode(sealed(raw), 0, SEED, EXAMPLES[kind].lsn)


@each_decoder
@pytest.mark.parametrize(("promise", "like", "offset", "layout", "value"), BROKEN_COPIES, ids=lambda v: str(v)[:60])
def test_a_broken_rule_of_copies_and_of_replicated_batches_under_right_checksums_is_a_malformed_record(
    decode: Callable[..., Record], promise: str, like: Record, offset: int, layout: str, value: int
) -> None:
    raw = bytearray(encode_record(like, SEED))
    assert decode(bytes(raw), 0, SEED, like.lsn) == like
    struct.pack_into(layout, raw, offset, value)
    with pytest.raises(MalformedRecord):
        decode(sealed(raw), 0, SEED, like.lsn)


@each_decoder
def test_an_inline_copy_begins_with_a_time_or_an_order_key_but_no_transaction(
    decode: Callable[..., Record],
) -> None:
    raw = bytearray(encode_record(INLINE_EXAMPLE, SEED))
    for time_us in (0, 1, INLINE_EXAMPLE.lsn, 2**64 - 1):
        struct.pack_into("<Q", raw, 48, time_us)
        found = decode(sealed(raw), 0, SEED, INLINE_EXAMPLE.lsn)
        assert found.body == replace(INLINE_EXAMPLE.body, enqueue_time_us=time_us)
    raw = bytearray(encode_record(ORDERED_EXAMPLE, SEED))
    for order_lsn in (ORDERED_EXAMPLE.id + 1, ORDERED_EXAMPLE.prev, ORDERED_EXAMPLE.lsn - 1):
        struct.pack_into("<Q", raw, 48, order_lsn)
        found = decode(sealed(raw), 0, SEED, ORDERED_EXAMPLE.lsn)
        assert found.body == replace(ORDERED_EXAMPLE.body, order_lsn=order_lsn)


@pytest.mark.parametrize(
    ("like", "other"), [(INLINE_EXAMPLE, ORDERED_EXAMPLE), (ORDERED_EXAMPLE, INLINE_EXAMPLE)], ids=["inline", "ordered"]
)
def test_a_copy_whose_body_is_that_of_other_flags_is_not_encoded(like: Record, other: Record) -> None:
    with pytest.raises(MalformedRecord):
        encode_record(replace(like, flags=other.flags), SEED)


@each_decoder
def test_a_copy_has_no_enqueues_and_a_dequeue_in_a_transaction_no_delete(decode: Callable[..., Record]) -> None:
    copy = example(RecordType.MESSAGE_START, records.MessageStart(0, (1,), b"head", b"content"))
    dequeue = EXAMPLES[RecordType.MESSAGE_DEQUEUE]
    for record, flag, layout, offset, values in (
        (copy, RecordFlag.COPY, "<QQ", 32, (0x11000, 0x11000)),
        (dequeue, RecordFlag.DELETES, "<Q", 48, (0x11000,)),
    ):
        raw = bytearray(encode_record(record, SEED))
        struct.pack_into("<H", raw, 18, flag)
        struct.pack_into(layout, raw, offset, *values)
        with pytest.raises(MalformedRecord):
            decode(sealed(raw), 0, SEED, record.lsn)
    bare = replace(copy, flags=RecordFlag.COPY, id=0x11000, prev=0x11000)
    bare = replace(bare, body=records.MessageStart(0, (), b"head", b"content"), length=88)
    assert decode(encode_record(bare, SEED), 0, SEED, bare.lsn) == bare
    alone = replace(dequeue, flags=RecordFlag.DELETES)
    assert decode(encode_record(alone, SEED), 0, SEED, alone.lsn) == alone


@each_decoder
@pytest.mark.parametrize(
    "body", [records.MessageStart(0x11000, (1, 2, 3), b"", b""), records.MessageEnqueue(0x11000, (1, 2, 3))], ids=repr
)
def test_the_enqueues_of_a_transaction_are_numbered_below_2_to_the_24(
    decode: Callable[..., Record], body: Body
) -> None:
    kind = RecordType.MESSAGE_START if isinstance(body, records.MessageStart) else RecordType.MESSAGE_ENQUEUE
    like = example(kind, body)
    at = 68 if kind is RecordType.MESSAGE_START else 60
    for first, fits in ((0, True), (2**24 - 3, True), (2**24 - 2, False), (2**24, False), (2**32 - 1, False)):
        raw = bytearray(encode_record(like, SEED))
        struct.pack_into("<I", raw, at, first)
        if fits:
            assert decode(sealed(raw), 0, SEED, like.lsn) == replace(like, body=replace(body, order_index=first))
        else:
            with pytest.raises(MalformedRecord):
                decode(sealed(raw), 0, SEED, like.lsn)


@each_decoder
def test_a_start_without_an_enqueue_has_no_transaction(decode: Callable[..., Record]) -> None:
    bare = example(RecordType.MESSAGE_START, records.MessageStart(0, (), b"head", b"content"))
    raw = bytearray(encode_record(bare, SEED))
    assert decode(bytes(raw), 0, SEED, bare.lsn) == bare
    struct.pack_into("<Q", raw, 48, 0x11000)
    with pytest.raises(MalformedRecord):
        decode(sealed(raw), 0, SEED, bare.lsn)


@each_decoder
@pytest.mark.parametrize("kind", [kind for kind in EXAMPLES if kind is not RecordType.FILLER])
def test_a_record_longer_than_its_body_needs_is_malformed(decode: Callable[..., Record], kind: RecordType) -> None:
    raw = bytearray(encode_record(EXAMPLES[kind], SEED) + bytes(8))
    struct.pack_into("<I", raw, 12, len(raw))
    with pytest.raises(MalformedRecord):
        decode(sealed(raw), 0, SEED, EXAMPLES[kind].lsn)


@each_decoder
@pytest.mark.parametrize("length", [0, 8, 40, 47, 49, 52, 56 + 8, 2**32 - 8])
def test_an_impossible_length_under_a_right_header_check_is_refused(decode: Callable[..., Record], length: int) -> None:
    raw = bytearray(encode_record(EXAMPLES[RecordType.QUEUE_DELETE], SEED))
    struct.pack_into("<I", raw, 12, length)
    with pytest.raises(InvalidRecord):
        decode(sealed(raw), 0, SEED, 0x12000)


def test_a_length_is_not_believed_before_the_header_check_that_covers_it() -> None:
    raw = bytearray(encode_record(EXAMPLES[RecordType.QUEUE_DELETE], SEED))
    struct.pack_into("<I", raw, 8, header_check(raw, SEED) ^ 1)
    struct.pack_into("<Q", raw, 0, xxh64_intdigest(raw[8:], SEED))
    with pytest.raises(InvalidRecord, match="header check"):
        decode_record(raw, 0, SEED, 0x12000)
    struct.pack_into("<I", raw, 12, 2**32 - 8)
    with pytest.raises(InvalidRecord, match="header check"):
        decode_record(raw, 0, SEED, 0x12000)


def test_an_unknown_type_is_a_newer_version_unless_it_says_that_it_may_be_skipped() -> None:
    raw = bytearray(encode_record(EXAMPLES[RecordType.QUEUE_DELETE], SEED))
    struct.pack_into("<HH", raw, 16, 0x01FF, 0x4000)
    with pytest.raises(NewerVersion):
        decode_record(sealed(raw), 0, SEED, 0x12000)
    struct.pack_into("<H", raw, 16, 0x81FF)
    record = decode_record(sealed(raw), 0, SEED, 0x12000)
    assert (record.type, record.flags, record.body) == (0x81FF, 0x4000, records.Unknown(bytes(raw[48:])))
    assert encode_record(record, SEED) == sealed(raw)
    for offset, value in ((32, 0x12008), (40, 0x12000)):
        above = bytearray(raw)
        struct.pack_into("<Q", above, offset, value)
        with pytest.raises(MalformedRecord, match="above the record"):
            decode_record(sealed(above), 0, SEED, 0x12000)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lsn", 0),
        ("lsn", 2**63),
        ("lsn", 2**64),
        ("lsn", 0x12004),
        ("length", 64),
        ("flags", RecordFlag.PART),
    ],
)
def test_a_record_that_could_not_be_read_back_is_not_encoded(field: str, value: Any) -> None:
    with pytest.raises(MalformedRecord):
        encode_record(replace(EXAMPLES[RecordType.QUEUE_DELETE], **{field: value}), SEED)


@each_decoder
def test_the_largest_term_has_the_last_lsns(decode: Callable[..., Record]) -> None:
    term = records.TERM_LIMIT - 1
    body = replace(REPLICATED_BATCH.body, epoch=term)
    for lsn in (term << 40, 2**63 - 104):
        like = replace(REPLICATED_BATCH, lsn=lsn, body=body)
        assert decode(encode_record(like, SEED), 0, SEED, lsn) == like


@each_decoder
@pytest.mark.parametrize(("size", "fits"), [(0, False), (1, True), (4032, True), (4033, False)])
def test_a_configuration_has_from_1_to_4032_bytes(decode: Callable[..., Record], size: int, fits: bool) -> None:
    body = struct.pack("<QII", 1, size, 0) + bytes(size)
    raw = bytearray(encode_record(EXAMPLES[RecordType.MEMBERS], SEED)[:48] + body + bytes(-len(body) % 8))
    struct.pack_into("<I", raw, 12, len(raw))
    if fits:
        expected = example(RecordType.MEMBERS, records.Members(1, bytes(size)))
        assert decode(sealed(raw), 0, SEED, 0x12000) == expected
    else:
        with pytest.raises(MalformedRecord):
            decode(sealed(raw), 0, SEED, 0x12000)


@pytest.mark.parametrize(
    "body",
    [
        records.QueueDelete(0),
        records.QueueDelete(2**32),
        records.MessageDequeue(0, 1, 2**16, records.DequeueReason.ACCEPTED),
        records.XidBody(2**63, b"", b""),
        records.XidBody(0, bytes(65), b""),
        records.Filler(12),
        records.Batch(1, 0, 104, 8, 8, 0, 2**64),
        records.Members(1, b""),
        records.Members(1, bytes(4033)),
        records.CatalogChange(0, ()),
    ],
)
def test_a_body_with_a_field_out_of_its_range_is_not_encoded(body: Body) -> None:
    kind = next(kind for kind, body_class in records.BODIES.items() if body_class is type(body))
    like = EXAMPLES[kind]
    for length in range(48, 200, 8):
        with pytest.raises(MalformedRecord):
            encode_record(replace(like, body=body, length=length), SEED)
