"""Records for tests: strategies for every type, an example of each, and ways to damage them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from logstore.codec import records
from logstore.codec.records import (
    FIRST,
    FLAGS,
    Batch,
    Body,
    InvalidRecord,
    Record,
    RecordFlag,
    RecordType,
    header_check,
    record_bytes,
    segment_seed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

UUID_1 = UUID("00112233-4455-6677-8899-aabbccddeeff")
UUID_2 = UUID("00112233-4455-6677-8899-aabbccddeefe")
SEGMENT = 64 << 10
SEED = segment_seed(UUID_1, SEGMENT, 1)

# ---- Records to try.

lsns = st.integers(1, 2**63 - 1)
queue_ids = st.integers(1, 2**32 - 2)
queues = st.lists(queue_ids, max_size=5).map(tuple)
some_queues = st.lists(queue_ids, min_size=1, max_size=5).map(tuple)
gappy_queues = some_queues | st.tuples(queue_ids, st.lists(st.just(0) | queue_ids, max_size=5), queue_ids).map(
    lambda list_: (list_[0], *list_[1], list_[2])
)
contents = st.binary(max_size=40)
u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
i64 = st.integers(-(2**63), 2**63 - 1)
xid_parts = st.binary(max_size=64)
xids = st.builds(records.XidBody, i64, xid_parts, xid_parts)
tx_states = st.sampled_from(records.TxState)
footer_counts = st.dictionaries(u32, st.integers(1, 2**32 - 1), max_size=24).map(
    lambda counts: tuple(records.TypeCount(*count) for count in sorted(counts.items()))
)


def starts(lsn: int, chain: int, flags: RecordFlag) -> st.SearchStrategy[Body]:
    if flags & RecordFlag.ORDERED:
        order_lsn = st.integers(chain + 1, lsn - 1)
        return st.builds(records.OrderedCopy, order_lsn, gappy_queues, contents, contents, st.integers(0, 2**24 - 7))
    if flags & RecordFlag.INLINE:
        return st.builds(records.InlineCopy, u64, some_queues, contents, contents)
    if flags & RecordFlag.COPY:
        return st.builds(records.MessageStart, st.just(0), st.just(()), contents, contents)
    return st.builds(records.MessageStart, st.just(0), queues, contents, contents) | st.builds(
        records.MessageStart, st.integers(1, lsn - 1), some_queues, contents, contents, st.integers(0, 2**24 - 5)
    )


@st.composite
def relocated_states(draw: st.DrawFn, lsn: int) -> records.MessageRelocated:
    earlier = st.integers(1, lsn - 1)
    content_bytes = draw(st.integers(0, 2**63 - 1) | st.integers(0, 1000))

    @st.composite
    def chunk_places(draw: st.DrawFn) -> records.ChunkPlace:
        offset = draw(st.integers(0, content_bytes))
        return records.ChunkPlace(draw(earlier), offset, draw(st.integers(0, min(content_bytes - offset, 2**32 - 1))))

    @st.composite
    def pending_work(draw: st.DrawFn) -> records.PendingWork:
        operation = draw(st.integers(2, lsn - 1))
        kind = draw(st.sampled_from([records.PendingKind.ENQUEUE, records.PendingKind.DEQUEUE]))
        return records.PendingWork(draw(st.integers(1, operation - 1)), operation, draw(queue_ids), kind, draw(u32))

    return records.MessageRelocated(
        content_bytes,
        draw(earlier),
        draw(u32),
        tuple(draw(st.lists(chunk_places(), max_size=3))),
        tuple(draw(st.lists(st.builds(records.QueuePlace, earlier, u64, queue_ids, u32, u32), max_size=3))),
        tuple(draw(st.lists(pending_work(), max_size=3))),
    )


place_times = st.just(0) | st.integers(0, 2**63 - 1)
notes = st.binary(max_size=12) | st.just(bytes(255))
own_headers = st.just((0, b"")) | contents.map(lambda header: (1, header))


@st.composite
def placed_starts(draw: st.DrawFn, lsn: int) -> records.MessageStartPlaced:
    tx_id = draw(st.just(0) | st.integers(1, lsn - 1))
    order_index = draw(st.integers(0, 2**24 - 5)) if tx_id else 0
    not_before, expires, note = draw(place_times), draw(place_times), draw(notes)
    if not (not_before or expires or note):
        expires = 1
    given = draw(some_queues), draw(contents), draw(contents)
    return records.MessageStartPlaced(tx_id, *given, order_index, not_before, expires, note)


@st.composite
def moves(draw: st.DrawFn, lsn: int) -> records.MessageMove:
    tx_id, start = draw(st.just(0) | st.integers(1, lsn - 1)), draw(st.just(0) | queue_ids)
    order_index = draw(st.integers(0, 2**24 - 1)) if tx_id else 0
    bits, header = draw(own_headers)
    note = draw(notes)
    reason = draw(st.sampled_from(records.DequeueReason)) if start else records.DequeueReason.NOT_TOLD
    if start and not bits and draw(st.booleans()):
        bits = 2
    if start and not note and draw(st.booleans()):
        bits |= 4
    given = draw(u32), draw(place_times), draw(place_times)
    return records.MessageMove(tx_id, start, draw(queue_ids), order_index, *given, reason, bits, note, header)


@st.composite
def relocated_states_of_places(draw: st.DrawFn, lsn: int) -> records.MessageRelocatedPlaced:
    like = draw(relocated_states(lsn))

    def place(bare: records.QueuePlace) -> records.PlacedPlace:
        bits, header = draw(own_headers)
        key = bare.order_lsn, bare.enqueue_time_us, bare.queue_id, bare.order_index, bare.delivery_count
        return records.PlacedPlace(*key, draw(place_times), draw(place_times), bits, draw(notes), header)

    def work(bare: records.PendingWork) -> records.PlacedWork:
        kind = draw(st.sampled_from(records.PendingKind))
        count, not_before, expires, (bits, header) = 0, 0, 0, (0, b"")
        if kind is records.PendingKind.ENQUEUE:
            count, not_before, expires = draw(u32), draw(place_times), draw(place_times)
            bits, header = draw(own_headers)
        note = b"" if kind is records.PendingKind.DEQUEUE else draw(notes)
        key = bare.tx_id, bare.lsn, bare.queue_id, kind
        return records.PlacedWork(*key, count, not_before, expires, bits, bare.order_index, note, header)

    places, pending = tuple(map(place, like.places)), tuple(map(work, like.pending))
    return records.MessageRelocatedPlaced(like.content_bytes, like.start_lsn, like.part, like.chunks, places, pending)


def relocated_transactions() -> st.SearchStrategy[Body]:
    local = st.just(0), st.just(b""), st.just(b""), st.just(records.TxKind.LOCAL)
    distributed = i64, xid_parts, xid_parts, st.just(records.TxKind.DISTRIBUTED)
    return st.builds(records.TxRelocated, *local, tx_states, u64, u64) | st.builds(
        records.TxRelocated, *distributed, tx_states, u64, u64
    )


@st.composite
def batches(draw: st.DrawFn, lsn: int) -> Batch:
    count = draw(st.integers(0, 5) | st.integers(0, (2**32 - 105) // 48))
    words = draw(st.integers(6 * count, (2**32 - 105) // 8)) if count else 0
    up_to_here = st.integers(1, lsn)
    term = lsn >> records.TERM_SHIFT
    if draw(st.booleans()) and 0 < term < records.TERM_LIMIT:
        epoch, index, known = term, draw(st.integers(1, 2**64 - 1)), draw(st.integers(0, lsn))
    else:
        epoch, index, known = draw(st.integers(1, 2**64 - 1)), 0, 0
    return Batch(epoch, count, 104 + 8 * words, draw(up_to_here), draw(up_to_here), draw(u64), index, known)


catalog_rows = st.builds(
    records.CatalogRow,
    st.sampled_from(records.CatalogAction),
    st.just(records.CatalogObject.QUEUE),
    queue_ids,
    contents,
) | st.builds(
    records.CatalogRow,
    st.sampled_from(records.CatalogAction),
    st.sampled_from([each for each in records.CatalogObject if each is not records.CatalogObject.QUEUE]),
    st.just(0),
    contents,
)


def bodies(kind: RecordType, lsn: int, chain: int, flags: RecordFlag) -> st.SearchStrategy[Body]:
    """Valid bodies for a record of this type at this LSN in this chain."""
    earlier = st.integers(1, lsn - 1)
    deletes = bool(flags & RecordFlag.DELETES)
    return {
        RecordType.MESSAGE_START: lambda: starts(lsn, chain, flags),
        RecordType.MESSAGE_CHUNK: lambda: st.builds(records.MessageChunk, st.integers(0, 2**63 - 1 - 40), contents),
        RecordType.MESSAGE_ENQUEUE: lambda: (
            st.builds(records.MessageEnqueue, st.just(0), some_queues)
            | st.builds(records.MessageEnqueue, earlier, some_queues, st.integers(0, 2**24 - 5))
        ),
        RecordType.MESSAGE_DEQUEUE: lambda: st.builds(
            records.MessageDequeue,
            st.just(0) if deletes else st.just(0) | earlier,
            queue_ids,
            u16,
            st.sampled_from(records.DequeueReason),
        ),
        RecordType.MESSAGE_RELOCATED: lambda: relocated_states(lsn),
        RecordType.MESSAGE_PLACE: lambda: st.builds(records.MessagePlace, st.just(0) | earlier, queue_ids, notes),
        RecordType.MESSAGE_MOVE: lambda: moves(lsn),
        RecordType.MESSAGE_START_PLACED: lambda: placed_starts(lsn),
        RecordType.MESSAGE_RELOCATED_PLACED: lambda: relocated_states_of_places(lsn),
        RecordType.PLACE_STATES: lambda: st.builds(
            records.PlaceStates,
            st.lists(
                st.builds(records.StateRow, earlier, place_times, place_times, queue_ids, u32), min_size=1, max_size=4
            ).map(tuple),
        ),
        RecordType.DTX_START: lambda: xids,
        RecordType.TX_PREPARE: lambda: xids,
        RecordType.TX_RELOCATED: relocated_transactions,
        RecordType.BATCH: lambda: batches(lsn),
        RecordType.FILLER: lambda: st.builds(records.Filler, st.integers(0, 10).map(lambda words: 8 * words)),
        RecordType.FOOTER: lambda: st.builds(records.Footer, earlier, u64, u32, footer_counts),
        RecordType.QUEUE_DELETE: lambda: st.builds(records.QueueDelete, queue_ids),
        RecordType.CLOSE: lambda: st.just(records.Close()),
        RecordType.MEMBERS: lambda: st.builds(
            records.Members, st.integers(1, 2**64 - 1), st.binary(min_size=1, max_size=records.MEMBERS_CONFIG_MAX)
        ),
        RecordType.CATALOG_CHANGE: lambda: st.builds(
            records.CatalogChange, u32, st.lists(catalog_rows, min_size=1, max_size=4).map(tuple)
        ),
    }.get(kind, lambda: st.just(records.Empty()))()


INLINE = RecordFlag.COPY | RecordFlag.INLINE
ORDERED = INLINE | RecordFlag.ORDERED


def some_flags(kind: RecordType) -> st.SearchStrategy[RecordFlag]:
    """Valid combinations of flags for the type."""
    legal = FLAGS.get(kind, RecordFlag(0))
    some = u16.map(lambda bits: RecordFlag(bits) & legal)
    if kind is not RecordType.MESSAGE_START:
        return some
    plain = some.map(lambda flags: flags & (RecordFlag.COPY | RecordFlag.PUBLISHED))
    return plain | plain.map(lambda flags: flags | INLINE) | plain.map(lambda flags: flags | ORDERED)


@st.composite
def some_records(draw: st.DrawFn, kind: RecordType) -> Record:
    lsn = 8 * draw(st.integers(2, 2**60 - 1))
    flags = draw(some_flags(kind))
    if not kind.chained:
        chain, prev = 0, 0
    elif kind in FIRST and not flags & RecordFlag.COPY:
        chain, prev = lsn, 0
    else:
        chain = draw(st.integers(1, lsn - 2))  # with room for an order_lsn above it
        prev = draw(st.integers(chain, lsn - 1))
    body = draw(bodies(kind, lsn, chain, flags))
    return Record(lsn, kind, flags, chain, prev, record_bytes(body), body)


any_record = st.sampled_from(RecordType).flatmap(some_records)


def example(kind: RecordType, body: Body) -> Record:
    lsn, chain, prev = 0x12000, 0x11000, 0x11800
    if not kind.chained:
        chain = prev = 0
    elif kind in FIRST:
        chain, prev = lsn, 0
    return Record(lsn, kind, RecordFlag(0), chain, prev, record_bytes(body), body)


def relocated_example(flags: RecordFlag, body: Body) -> Record:
    return Record(0x12000, RecordType.MESSAGE_START, flags, 0x11000, 0x11800, record_bytes(body), body)


MEMBERS_COPY_EXAMPLE = Record(
    0x12000, RecordType.MEMBERS, RecordFlag.COPY, 0x11000, 0x11800, 80, records.Members(3, b"configuration")
)
# of term 2, at the first LSN that a term may use
REPLICATED_BATCH = Record(
    (2 << 40) + 0x1000, RecordType.BATCH, RecordFlag(0), 0, 0, 104, Batch(2, 0, 104, 0x12000, 0x10000, 0, 5, 0x12000)
)
INLINE_EXAMPLE = relocated_example(INLINE, records.InlineCopy(5, (1, 2, 3), b"head", b"content"))
ORDERED_EXAMPLE = relocated_example(ORDERED, records.OrderedCopy(0x11200, (1, 0, 3), b"head", b"content", 7))
XID = records.XidBody(1, b"abc", b"de")
EXAMPLES = {
    record.type: record
    for record in (
        example(RecordType.MESSAGE_START, records.MessageStart(0, (1, 2, 3), b"head", b"content")),
        example(RecordType.MESSAGE_CHUNK, records.MessageChunk(7, b"more")),
        example(RecordType.MESSAGE_ENQUEUE, records.MessageEnqueue(0, (1, 2, 3))),
        example(RecordType.MESSAGE_DEQUEUE, records.MessageDequeue(0, 1, 2, records.DequeueReason.ACCEPTED)),
        example(RecordType.MESSAGE_DELETE, records.Empty()),
        example(
            RecordType.MESSAGE_RELOCATED,
            records.MessageRelocated(
                11,
                0x11900,
                0,
                (records.ChunkPlace(0x11A00, 7, 4),),
                (records.QueuePlace(0x11000, 5, 1, 0, 2),),
                (records.PendingWork(0x11B00, 0x11B80, 2, records.PendingKind.DEQUEUE, 0),),
            ),
        ),
        example(RecordType.MESSAGE_PLACE, records.MessagePlace(0, 1, b"a note")),
        example(
            RecordType.MESSAGE_MOVE,
            records.MessageMove(0, 1, 2, 0, 3, 5, 6, records.DequeueReason.DEAD_LETTERED, 1, b"note", b"header"),
        ),
        example(
            RecordType.MESSAGE_START_PLACED,
            records.MessageStartPlaced(0, (1, 2, 3), b"head", b"content", 0, 5, 6, b"note"),
        ),
        example(
            RecordType.MESSAGE_RELOCATED_PLACED,
            records.MessageRelocatedPlaced(
                11,
                0x11900,
                0,
                (records.ChunkPlace(0x11A00, 7, 4),),
                (records.PlacedPlace(0x11000, 5, 1, 0, 2, 3, 4, 1, b"note", b"header"),),
                (
                    records.PlacedWork(0x11B00, 0x11B80, 2, records.PendingKind.ENQUEUE, 1, 2, 3, 1, 7, b"", b"own"),
                    records.PlacedWork(0x11B00, 0x11B88, 1, records.PendingKind.DEQUEUE),
                    records.PlacedWork(0x11B00, 0x11B90, 3, records.PendingKind.NOTE, note=b"new"),
                ),
            ),
        ),
        example(
            RecordType.PLACE_STATES,
            records.PlaceStates((records.StateRow(0x11000, 0, 0, 1, 2), records.StateRow(0x11100, 5, 6, 2, 0))),
        ),
        example(RecordType.DTX_START, XID),
        example(RecordType.TX_PREPARE, XID),
        example(
            RecordType.TX_RELOCATED,
            records.TxRelocated(0, b"", b"", records.TxKind.LOCAL, records.TxState.ACTIVE, 1_700_000_000_000_000, 0),
        ),
        example(RecordType.BATCH, Batch(1, 0, 104, 0x12000, 0x10000, 0)),
        example(RecordType.FILLER, records.Filler(8)),
        example(
            RecordType.FOOTER,
            records.Footer(0x11000, 0x1000, 1, (records.TypeCount(0x101, 1), records.TypeCount(0x301, 1))),
        ),
        example(RecordType.QUEUE_DELETE, records.QueueDelete(1)),
        example(RecordType.CLOSE, records.Close()),
        example(RecordType.MEMBERS, records.Members(3, b"configuration")),
        example(
            RecordType.CATALOG_CHANGE,
            records.CatalogChange(
                0,
                (
                    records.CatalogRow(records.CatalogAction.PUT, records.CatalogObject.QUEUE, 7, b'{"name":"orders"}'),
                    records.CatalogRow(records.CatalogAction.DELETE, records.CatalogObject.BINDING, 0, b"{}"),
                ),
            ),
        ),
        example(RecordType.TX_START, records.Empty()),
        example(RecordType.TX_END, records.Empty()),
        example(RecordType.TX_COMMIT, records.Empty()),
        example(RecordType.TX_ROLLBACK, records.Empty()),
        example(RecordType.TX_DELETE, records.Empty()),
    )
}


# ---- Damage.


BROKEN_RULES: list[tuple[str, RecordType, int, str, int]] = [
    # promise, type, offset, layout, value
    ("the spare word is zero", RecordType.MESSAGE_DELETE, 20, "<I", 1),
    ("a later record names its chain", RecordType.MESSAGE_DELETE, 32, "<Q", 0),
    ("a chain does not begin above its record", RecordType.MESSAGE_DELETE, 32, "<Q", 0x12008),
    ("a later record has a predecessor", RecordType.MESSAGE_DELETE, 40, "<Q", 0),
    ("a predecessor lies below its record", RecordType.MESSAGE_DELETE, 40, "<Q", 0x12000),
    ("a predecessor does not lie below the chain", RecordType.MESSAGE_DELETE, 40, "<Q", 0x10FF8),
    ("the first record is its own chain", RecordType.DTX_START, 32, "<Q", 0x11000),
    ("the first record has no predecessor", RecordType.DTX_START, 40, "<Q", 0x11000),
    ("housekeeping has no chain", RecordType.FILLER, 32, "<Q", 0x12000),
    ("housekeeping has no predecessor", RecordType.FILLER, 40, "<Q", 0x11000),
    ("type 0 is never valid", RecordType.MESSAGE_DELETE, 16, "<H", 0),
    ("an unknown flag is refused", RecordType.MESSAGE_START, 18, "<H", 16),
    ("PART is not for a start", RecordType.MESSAGE_START, 18, "<H", 2),
    ("DELETES is not for a start", RecordType.MESSAGE_START, 18, "<H", 4),
    ("PUBLISHED is not for a chunk", RecordType.MESSAGE_CHUNK, 18, "<H", 8),
    ("COPY is not for an enqueue", RecordType.MESSAGE_ENQUEUE, 18, "<H", 1),
    ("COPY is not for housekeeping", RecordType.FILLER, 18, "<H", 1),
    ("an epoch is at least 1", RecordType.BATCH, 48, "<Q", 0),
    ("a batch of no record is its own record", RecordType.BATCH, 60, "<I", 152),
    ("a batch of one record holds one", RecordType.BATCH, 56, "<I", 1),
    ("a batch holds its own record", RecordType.BATCH, 60, "<I", 96),
    ("a batch ends at a multiple of 8", RecordType.BATCH, 56, "<Q", 157 << 32 | 1),
    ("a batch has room for its records", RecordType.BATCH, 56, "<Q", 192 << 32 | 2),
    ("what is durable lies below the batch", RecordType.BATCH, 64, "<Q", 0x12008),
    ("the base lies below the batch", RecordType.BATCH, 72, "<Q", 0x13000),
    ("something is durable before a batch", RecordType.BATCH, 64, "<Q", 0),
    ("durable_lsn is an LSN", RecordType.BATCH, 64, "<Q", 2**63),
    ("base_lsn is an LSN", RecordType.BATCH, 72, "<Q", 0),
    ("a start's tx_id is an LSN or none", RecordType.MESSAGE_START, 48, "<Q", 2**63),
    ("a start's transaction began before it", RecordType.MESSAGE_START, 48, "<Q", 0x12000),
    ("a start's order index wants a transaction", RecordType.MESSAGE_START, 68, "<I", 1),
    ("a start's queue id is not 0", RecordType.MESSAGE_START, 72, "<I", 0),
    ("a start's queue id is not the greatest number", RecordType.MESSAGE_START, 76, "<I", 2**32 - 1),
    ("a start's queue list is padded with zeros", RecordType.MESSAGE_START, 84, "<I", 1),
    ("a start's header fits", RecordType.MESSAGE_START, 56, "<I", 16),
    ("a start's content fills the record", RecordType.MESSAGE_START, 60, "<I", 0),
    ("a start's padding is zero", RecordType.MESSAGE_START, 99, "<B", 1),
    ("a chunk ends below 2**63", RecordType.MESSAGE_CHUNK, 48, "<Q", 2**63 - 4),
    ("a chunk's reserved word is zero", RecordType.MESSAGE_CHUNK, 60, "<I", 1),
    ("a chunk's padding is zero", RecordType.MESSAGE_CHUNK, 71, "<B", 1),
    ("an enqueue names a queue", RecordType.MESSAGE_ENQUEUE, 56, "<I", 0),
    ("an enqueue's transaction began before it", RecordType.MESSAGE_ENQUEUE, 48, "<Q", 0x12000),
    ("an enqueue's queue id is in range", RecordType.MESSAGE_ENQUEUE, 64, "<I", 0),
    ("an enqueue's reserved word is zero", RecordType.MESSAGE_ENQUEUE, 60, "<I", 1),
    ("an enqueue's padding is zero", RecordType.MESSAGE_ENQUEUE, 76, "<I", 9),
    ("a dequeue's transaction began before it", RecordType.MESSAGE_DEQUEUE, 48, "<Q", 0x12000),
    ("a dequeue's queue id is in range", RecordType.MESSAGE_DEQUEUE, 56, "<I", 2**32 - 1),
    ("a dequeue's reason has a meaning", RecordType.MESSAGE_DEQUEUE, 62, "<H", 7),
    ("start_lsn is an LSN", RecordType.MESSAGE_RELOCATED, 56, "<Q", 0),
    ("start_lsn is earlier", RecordType.MESSAGE_RELOCATED, 56, "<Q", 0x12000),
    ("a content's size is below 2**63", RecordType.MESSAGE_RELOCATED, 48, "<Q", 2**63),
    ("a chunk place lies in the content", RecordType.MESSAGE_RELOCATED, 88, "<Q", 8),
    ("a chunk place's end is no overflow", RecordType.MESSAGE_RELOCATED, 88, "<Q", 2**64 - 4),
    ("a chunk place's lsn is earlier", RecordType.MESSAGE_RELOCATED, 80, "<Q", 0x12000),
    ("order_lsn is earlier", RecordType.MESSAGE_RELOCATED, 104, "<Q", 0x12000),
    ("pending work is earlier", RecordType.MESSAGE_RELOCATED, 144, "<Q", 0x12000),
    ("pending work follows its transaction's start", RecordType.MESSAGE_RELOCATED, 136, "<Q", 0x11B80),
    ("state has its parts' rows and no more", RecordType.MESSAGE_RELOCATED, 68, "<I", 0),
    ("a chunk place's lsn is an LSN", RecordType.MESSAGE_RELOCATED, 80, "<Q", 0),
    ("a chunk place's reserved word is zero", RecordType.MESSAGE_RELOCATED, 100, "<I", 1),
    ("order_lsn is an LSN", RecordType.MESSAGE_RELOCATED, 104, "<Q", 2**63),
    ("a queue place's queue id is in range", RecordType.MESSAGE_RELOCATED, 120, "<I", 0),
    ("a queue place's reserved word is zero", RecordType.MESSAGE_RELOCATED, 132, "<I", 1),
    ("pending work names its transaction", RecordType.MESSAGE_RELOCATED, 136, "<Q", 0),
    ("pending work names its operation", RecordType.MESSAGE_RELOCATED, 144, "<Q", 0),
    ("pending work's queue id is in range", RecordType.MESSAGE_RELOCATED, 152, "<I", 0),
    ("pending work's kind has a meaning", RecordType.MESSAGE_RELOCATED, 156, "<I", 3),
    ("pending work's reserved word is zero", RecordType.MESSAGE_RELOCATED, 164, "<I", 1),
    ("a note's transaction began before it", RecordType.MESSAGE_PLACE, 48, "<Q", 0x12000),
    ("a noted place's queue id is in range", RecordType.MESSAGE_PLACE, 56, "<I", 0),
    ("a note fits its record", RecordType.MESSAGE_PLACE, 60, "<B", 9),
    ("a note fills its record", RecordType.MESSAGE_PLACE, 60, "<B", 0),
    ("a note's reserved bytes are zero", RecordType.MESSAGE_PLACE, 63, "<B", 1),
    ("a note's padding is zero", RecordType.MESSAGE_PLACE, 71, "<B", 1),
    ("a move's transaction began before it", RecordType.MESSAGE_MOVE, 48, "<Q", 0x12000),
    ("a move ends a place on a queue", RecordType.MESSAGE_MOVE, 56, "<I", 2**32 - 1),
    ("a move from nowhere has no reason", RecordType.MESSAGE_MOVE, 56, "<I", 0),
    ("a move makes a place on a queue", RecordType.MESSAGE_MOVE, 60, "<I", 0),
    ("a move's order index wants a transaction", RecordType.MESSAGE_MOVE, 64, "<I", 1),
    ("a move's time is below 2**63", RecordType.MESSAGE_MOVE, 72, "<Q", 2**63),
    ("a move's second time is below 2**63", RecordType.MESSAGE_MOVE, 80, "<Q", 2**63),
    ("a move's header fits", RecordType.MESSAGE_MOVE, 88, "<I", 2**32 - 1),
    ("a move's reason has a meaning", RecordType.MESSAGE_MOVE, 93, "<B", 7),
    ("a move's header needs its bit", RecordType.MESSAGE_MOVE, 94, "<H", 0),
    ("a move has one header", RecordType.MESSAGE_MOVE, 94, "<H", 3),
    ("a move has one note", RecordType.MESSAGE_MOVE, 94, "<H", 5),
    ("a move's bits are known", RecordType.MESSAGE_MOVE, 94, "<H", 9),
    ("a placed start's transaction began before it", RecordType.MESSAGE_START_PLACED, 48, "<Q", 0x12000),
    ("a placed start has a place", RecordType.MESSAGE_START_PLACED, 64, "<I", 0),
    ("a placed start's order index wants a transaction", RecordType.MESSAGE_START_PLACED, 68, "<I", 1),
    ("a placed start's time is below 2**63", RecordType.MESSAGE_START_PLACED, 72, "<Q", 2**63),
    ("a placed start's second time is below 2**63", RecordType.MESSAGE_START_PLACED, 80, "<Q", 2**63),
    ("a placed start's reserved bytes are zero", RecordType.MESSAGE_START_PLACED, 95, "<B", 1),
    ("a placed start's queue id is in range", RecordType.MESSAGE_START_PLACED, 96, "<I", 0),
    ("a placed start's queue list is padded with zeros", RecordType.MESSAGE_START_PLACED, 108, "<I", 1),
    ("a placed start's note fits", RecordType.MESSAGE_START_PLACED, 88, "<B", 255),
    ("a placed start is no copy", RecordType.MESSAGE_START_PLACED, 18, "<H", 1),
    ("a placed state's start_lsn is earlier", RecordType.MESSAGE_RELOCATED_PLACED, 56, "<Q", 0x12000),
    ("a placed state has its rows of places and no more", RecordType.MESSAGE_RELOCATED_PLACED, 72, "<I", 2),
    ("a placed state has its rows of work and no more", RecordType.MESSAGE_RELOCATED_PLACED, 76, "<I", 2),
    ("a placed state's rows are all there", RecordType.MESSAGE_RELOCATED_PLACED, 76, "<I", 4),
    ("a placed state's chunks fit", RecordType.MESSAGE_RELOCATED_PLACED, 68, "<I", 2**32 - 1),
    ("a placed order_lsn is earlier", RecordType.MESSAGE_RELOCATED_PLACED, 104, "<Q", 0x12000),
    ("a placed queue id is in range", RecordType.MESSAGE_RELOCATED_PLACED, 120, "<I", 0),
    ("a placed header fits", RecordType.MESSAGE_RELOCATED_PLACED, 132, "<I", 2**32 - 1),
    ("a placed time is below 2**63", RecordType.MESSAGE_RELOCATED_PLACED, 136, "<Q", 2**63),
    ("a placed second time is below 2**63", RecordType.MESSAGE_RELOCATED_PLACED, 144, "<Q", 2**63),
    ("a placed header needs its bit", RecordType.MESSAGE_RELOCATED_PLACED, 153, "<B", 0),
    ("a placed row keeps nothing", RecordType.MESSAGE_RELOCATED_PLACED, 153, "<B", 3),
    ("a placed row's first reserved bytes are zero", RecordType.MESSAGE_RELOCATED_PLACED, 154, "<H", 1),
    ("a placed row's last reserved bytes are zero", RecordType.MESSAGE_RELOCATED_PLACED, 156, "<I", 1),
    ("a placed row's padding is zero", RecordType.MESSAGE_RELOCATED_PLACED, 175, "<B", 1),
    ("placed work names its transaction", RecordType.MESSAGE_RELOCATED_PLACED, 176, "<Q", 0),
    ("placed work follows its transaction's start", RecordType.MESSAGE_RELOCATED_PLACED, 176, "<Q", 0x11B80),
    ("placed work is earlier", RecordType.MESSAGE_RELOCATED_PLACED, 184, "<Q", 0x12000),
    ("placed work's kind has a meaning", RecordType.MESSAGE_RELOCATED_PLACED, 196, "<I", 4),
    ("a dequeue gives no state", RecordType.MESSAGE_RELOCATED_PLACED, 196, "<I", 2),
    ("a note gives no more than itself", RecordType.MESSAGE_RELOCATED_PLACED, 196, "<I", 3),
    ("states of places have a row", RecordType.PLACE_STATES, 48, "<I", 0),
    ("states of places have all rows", RecordType.PLACE_STATES, 48, "<I", 3),
    ("states of places have no further row", RecordType.PLACE_STATES, 48, "<I", 1),
    ("the states' reserved word is zero", RecordType.PLACE_STATES, 52, "<I", 1),
    ("the states' message began before them", RecordType.PLACE_STATES, 56, "<Q", 0x12000),
    ("the states' message is there", RecordType.PLACE_STATES, 56, "<Q", 0),
    ("the states' first time is below 2**63", RecordType.PLACE_STATES, 64, "<Q", 2**63),
    ("the states' second time is below 2**63", RecordType.PLACE_STATES, 72, "<Q", 2**63),
    ("the states' queue id is in range", RecordType.PLACE_STATES, 80, "<I", 0),
    ("a gtrid has at most 64 bytes", RecordType.DTX_START, 56, "<B", 65),
    ("a bqual has at most 64 bytes", RecordType.TX_PREPARE, 57, "<B", 65),
    ("an xid's reserved bytes are zero", RecordType.DTX_START, 58, "<B", 1),
    ("an xid's last reserved byte is zero", RecordType.TX_PREPARE, 63, "<B", 1),
    ("an xid's padding is zero", RecordType.DTX_START, 71, "<B", 1),
    ("a local transaction has no xid", RecordType.TX_RELOCATED, 48, "<q", 1),
    ("a transaction's kind has a meaning", RecordType.TX_RELOCATED, 58, "<B", 3),
    ("a transaction's state is one of three", RecordType.TX_RELOCATED, 59, "<B", 4),
    ("a transaction's state has a meaning", RecordType.TX_RELOCATED, 59, "<B", 0),
    ("a relocated transaction's reserved word is zero", RecordType.TX_RELOCATED, 60, "<I", 1),
    ("a filler is zero", RecordType.FILLER, 55, "<B", 1),
    ("last_lsn is earlier", RecordType.FOOTER, 48, "<Q", 0x12000),
    ("last_lsn is an LSN", RecordType.FOOTER, 48, "<Q", 0),
    ("a footer counts at most 24 types", RecordType.FOOTER, 68, "<I", 25),
    ("a footer's types ascend", RecordType.FOOTER, 72, "<I", 0x301),
    ("a footer names a type once", RecordType.FOOTER, 72, "<I", 0x301),
    ("a footer leaves zero counts out", RecordType.FOOTER, 76, "<I", 0),
    ("a queue delete's queue id is in range", RecordType.QUEUE_DELETE, 48, "<I", 0),
    ("a queue delete's reserved word is zero", RecordType.QUEUE_DELETE, 52, "<I", 1),
    ("a batch without an index knows nothing durable by majority", RecordType.BATCH, 96, "<Q", 0x11000),
    ("a batch's index is for the LSNs of its term", RecordType.BATCH, 88, "<Q", 1),
    ("the members' index is not 0", RecordType.MEMBERS, 48, "<Q", 0),
    ("the members' configuration is not empty", RecordType.MEMBERS, 56, "<I", 0),
    ("the members' configuration fits", RecordType.MEMBERS, 56, "<I", 17),
    ("the members' configuration fills the record", RecordType.MEMBERS, 56, "<I", 8),
    ("the members' reserved word is zero", RecordType.MEMBERS, 60, "<I", 1),
    ("the members' padding is zero", RecordType.MEMBERS, 79, "<B", 1),
    ("the first members are their own chain", RecordType.MEMBERS, 32, "<Q", 0x11000),
    ("the first members have no predecessor", RecordType.MEMBERS, 40, "<Q", 0x11000),
    ("PART is not for members", RecordType.MEMBERS, 18, "<H", 2),
    ("a catalog change has no chain", RecordType.CATALOG_CHANGE, 32, "<Q", 0x12000),
    ("a catalog change has no predecessor", RecordType.CATALOG_CHANGE, 40, "<Q", 0x11000),
    ("COPY is not for a catalog change", RecordType.CATALOG_CHANGE, 18, "<H", 1),
    ("a catalog change has a row", RecordType.CATALOG_CHANGE, 52, "<I", 0),
    ("a catalog change has no row less than its count", RecordType.CATALOG_CHANGE, 52, "<I", 3),
    ("a catalog change has no row more than its count", RecordType.CATALOG_CHANGE, 52, "<I", 1),
    ("a catalog row's action is not 0", RecordType.CATALOG_CHANGE, 56, "<B", 0),
    ("a catalog row's action has a meaning", RecordType.CATALOG_CHANGE, 56, "<B", 3),
    ("a catalog row's object is not 0", RecordType.CATALOG_CHANGE, 97, "<B", 0),
    ("a catalog row's object has a meaning", RecordType.CATALOG_CHANGE, 97, "<B", 5),
    ("a catalog row's first reserved word is zero", RecordType.CATALOG_CHANGE, 58, "<H", 1),
    ("a queue's row has a queue id", RecordType.CATALOG_CHANGE, 60, "<I", 0),
    ("a queue's row has a queue id in range", RecordType.CATALOG_CHANGE, 60, "<I", 2**32 - 1),
    ("a binding's row has no queue id", RecordType.CATALOG_CHANGE, 100, "<I", 7),
    ("a catalog row's second reserved word is zero", RecordType.CATALOG_CHANGE, 68, "<I", 1),
    ("a catalog row is no longer than its record", RecordType.CATALOG_CHANGE, 104, "<I", 9),
    ("a catalog row's length is no overflow", RecordType.CATALOG_CHANGE, 104, "<I", 2**32 - 1),
    ("the first row of a catalog change is padded with zeros", RecordType.CATALOG_CHANGE, 95, "<B", 1),
    ("the last row of a catalog change is padded with zeros", RecordType.CATALOG_CHANGE, 119, "<B", 1),
]


BROKEN_COPIES: list[tuple[str, Record, int, str, int]] = [
    # promise, like, offset, layout, value
    ("INLINE is for copies", INLINE_EXAMPLE, 18, "<H", 32),
    ("ORDERED is for inline copies", ORDERED_EXAMPLE, 18, "<H", 65),
    ("ORDERED is for copies", ORDERED_EXAMPLE, 18, "<H", 64),
    ("a copy with places is inline", INLINE_EXAMPLE, 18, "<H", 1),
    ("an inline copy is no first record", INLINE_EXAMPLE, 40, "<Q", 0),
    ("an inline copy is later than its chain's start", INLINE_EXAMPLE, 32, "<Q", 0x12000),
    ("an inline copy has a place", INLINE_EXAMPLE, 64, "<I", 0),
    ("an inline copy's order index is 0 without a key", INLINE_EXAMPLE, 68, "<I", 1),
    ("no place of an inline copy is gone", INLINE_EXAMPLE, 76, "<I", 0),
    ("an inline copy's queue id is in range", INLINE_EXAMPLE, 72, "<I", 2**32 - 1),
    ("an inline copy's queue list is padded with zeros", INLINE_EXAMPLE, 84, "<I", 1),
    ("an inline copy's header fits", INLINE_EXAMPLE, 56, "<I", 16),
    ("an inline copy's content fills the record", INLINE_EXAMPLE, 60, "<I", 0),
    ("an inline copy's padding is zero", INLINE_EXAMPLE, 99, "<B", 1),
    ("an ordered copy has a place", ORDERED_EXAMPLE, 64, "<I", 0),
    ("an ordered copy's first place is there", ORDERED_EXAMPLE, 72, "<I", 0),
    ("an ordered copy's last place is there", ORDERED_EXAMPLE, 80, "<I", 0),
    ("an ordered copy's queue id is in range", ORDERED_EXAMPLE, 76, "<I", 2**32 - 1),
    ("an ordered copy's order key is there", ORDERED_EXAMPLE, 48, "<Q", 0),
    ("an ordered copy's order key lies above its chain's id", ORDERED_EXAMPLE, 48, "<Q", 0x11000),
    ("an ordered copy's order key lies below it", ORDERED_EXAMPLE, 48, "<Q", 0x12000),
    ("a copy of the members is later than their first record", MEMBERS_COPY_EXAMPLE, 32, "<Q", 0x12000),
    ("a copy of the members has a chain", MEMBERS_COPY_EXAMPLE, 32, "<Q", 0),
    ("a copy of the members has a predecessor", MEMBERS_COPY_EXAMPLE, 40, "<Q", 0),
    ("a copy of the members has no other flag", MEMBERS_COPY_EXAMPLE, 18, "<H", 17),
    ("a copy of the members has their index", MEMBERS_COPY_EXAMPLE, 48, "<Q", 0),
    ("what a majority has lies below the batch", REPLICATED_BATCH, 96, "<Q", (2 << 40) + 0x1008),
    ("what a majority has is an LSN", REPLICATED_BATCH, 96, "<Q", 2**63),
    ("a batch's term is not above its LSN's", REPLICATED_BATCH, 48, "<Q", 3),
    ("a batch's term is not below its LSN's", REPLICATED_BATCH, 48, "<Q", 1),
    ("a batch that lost its index knows nothing durable by majority", REPLICATED_BATCH, 88, "<Q", 0),
    ("an ordered copy's order indexes are below 2**24", ORDERED_EXAMPLE, 68, "<I", 2**24 - 2),
]


def sealed(raw: bytes | bytearray, seed: int = SEED) -> bytes:
    """These bytes with right checksums, whatever they contain."""
    raw = bytearray(raw)
    raw[8:12] = header_check(raw, seed).to_bytes(4, "little")
    raw[0:8] = xxh64_intdigest(raw[8:], seed).to_bytes(8, "little")
    return bytes(raw)


def flipped(raw: bytes, bit: int) -> bytes:
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def outcome(
    decode: Callable[..., Record], buffer: bytes, offset: int, seed: int, lsn: int
) -> Record | type[InvalidRecord]:
    """The record, or the error that refuses it."""
    try:
        return decode(buffer, offset, seed, lsn)
    except InvalidRecord as error:
        return type(error)
