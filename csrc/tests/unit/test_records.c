/*
 * The codec on impossible contents with right checksums: contents that docs/format.md does not allow are refused, and an
 * accepted record encodes to the same bytes again. No byte after the record is read.
 */
#include "format/format.h"
#include "format/bytes.h"
#include "logstore.h"
#include "tests/sim/testing.h"
#include "format/xxh64.h"
#include "tests/kit/vfs_test.h"

enum { SEED = 99, LSN = 1 << 20, ID = 4096, PREV = 8192, TX = 12288, ROOM = 1024 };

static uint8_t record[ROOM + 8];
static const uint32_t queues[] = {1, 2, 7};
static const uint8_t zeros[24];

/* ---- one record of each shape ---- */

enum shape {
    START,
    START_ODD,
    START_TX,
    START_COPY,
    START_INLINE,
    START_ORDERED,
    CHUNK,
    ENQUEUES,
    ENQUEUES_TX,
    DEQUEUES,
    DEQUEUES_TX,
    DEQUEUES_LAST,
    DELETED,
    RELOCATED,
    BEGUN_XID,
    BEGUN,
    PREPARED,
    COMMITTED,
    MOVED_XID,
    MOVED_LOCAL,
    BATCH_FULL,
    BATCH_EMPTY,
    FILLING,
    FOOTING,
    FOOTING_BARE,
    QUEUE_GONE,
    CLOSED,
    START_PLACED,
    START_PLACED_TX,
    NOTED,
    NOTED_TX,
    MOVED,
    MOVED_KEEPING,
    MOVED_FROM_NOWHERE,
    RELOCATED_PLACED,
    PLACES_STATED,
    UNKNOWN_SKIPPED,
    SHAPES
};

static void reseal(uint32_t length) {
    put32(record + 8, (uint32_t)xxh64(record + 12, 36, SEED));
    put64(record, xxh64(record + 8, length - 8, SEED));
}

static uint32_t make_relocated(const struct slot *s) {
    const struct message_relocated m = {
        .content_bytes = 100, .start_lsn = PREV, .part = 3, .chunk_count = 2, .place_count = 2, .pending_count = 2};
    const struct chunk_row chunks[] = {{PREV + 80, 10, 40}, {PREV + 160, 50, 50}};
    const struct place_row places[] = {{PREV, 5, 1, 0, 0}, {PREV + 240, 6, 2, 9, 3}};
    const struct pending_row pending[] = {{TX, TX + 8, 3, PENDING_ENQUEUE, 0}, {TX, TX + 16, 1, PENDING_DEQUEUE, 0}};

    return format_put_relocated(s, &m, chunks, places, pending);
}

static uint32_t make_transaction(const struct slot *s, enum shape shape) {
    const struct xid x = {.format_id = -7, .gtrid_bytes = 5, .bqual_bytes = 2, .data = "gtridbq"};
    const struct tx_relocated moved = {x, TX_KIND_DISTRIBUTED, TX_STATE_PREPARED, 10, 20};
    const struct tx_relocated local = {.kind = TX_KIND_LOCAL, .state = TX_STATE_ACTIVE, .start_time_us = 10};

    switch (shape) {
    case BEGUN_XID:
        return format_put_xid(s, DTX_START, &x);
    case BEGUN:
        return format_put_plain(s, TX_START);
    case PREPARED:
        return format_put_xid(s, TX_PREPARE, &x);
    case COMMITTED:
        return format_put_plain(s, TX_COMMIT);
    case MOVED_XID:
        return format_put_tx_relocated(s, &moved);
    default:
        return format_put_tx_relocated(s, &local);
    }
}

static uint32_t make_housekeeping(const struct slot *s, enum shape shape) {
    struct batch b = {.epoch = 3, .count = 2, .bytes = 104 + 2 * 48, .durable_lsn = LSN, .base_lsn = 65536};
    const struct batch empty = {.epoch = 1, .count = 0, .bytes = 104, .durable_lsn = 8, .base_lsn = LSN};
    struct footer f = {.last_lsn = LSN - 48, .bytes = 5000, .batches = 4, .n = 2, .counts = {{0x101, 3}, {0x202, 1}}};

    switch (shape) {
    case BATCH_FULL:
        return format_put_batch(s, &b);
    case BATCH_EMPTY:
        return format_put_batch(s, &empty);
    case FILLING:
        return format_put_body(s, FILLER, zeros, sizeof zeros);
    case FOOTING:
        return format_put_footer(s, &f);
    case FOOTING_BARE:
        f.n = 0;
        return format_put_footer(s, &f);
    case QUEUE_GONE:
        return format_put_queue_delete(s, 5);
    default:
        return format_put_plain(s, CLOSE);
    }
}

static uint32_t make_dequeue(const struct slot *s, uint64_t tx_id) {
    const struct message_dequeue d = {.tx_id = tx_id, .queue_id = 2, .delivery_count = 65535, .reason = 6};

    return format_put_dequeue(s, &d);
}

static uint32_t make_relocated_placed(const struct slot *s) {
    const struct message_relocated m = {
        .content_bytes = 100, .start_lsn = PREV, .part = 3, .chunk_count = 1, .place_count = 2, .pending_count = 3};
    const struct chunk_row chunks[] = {{PREV + 80, 10, 90}};
    const struct place_row places[] = {{PREV, 5, 1, 0, 4}, {PREV + 240, 6, 2, 9, 0}};
    const struct place_state states[] = {{.not_before_us = 7,
                                          .delivery_count = 4,
                                          .header = (const uint8_t *)"own",
                                          .header_bytes = 3,
                                          .note = (const uint8_t *)"note",
                                          .note_bytes = 4},
                                         {.expires_us = INT64_MAX}};
    const struct pending_row pending[] = {
        {TX, TX + 8, 3, PENDING_ENQUEUE, 6}, {TX, TX + 16, 1, PENDING_DEQUEUE, 0}, {TX, TX + 24, 2, PENDING_NOTE, 0}};
    const struct place_state given[] = {
        {.delivery_count = 1, .header = zeros}, {0}, {.note = (const uint8_t *)"n", .note_bytes = 1}};

    return format_put_relocated_placed(s, &m, chunks, places, states, pending, given);
}

static uint32_t make_placed(const struct slot *first, const struct slot *later, const struct slot *none,
                            enum shape shape) {
    const struct place_state note = {.note = (const uint8_t *)"note", .note_bytes = 4};
    const struct message_start start = {.header_bytes = 3,
                                        .content_bytes = 7,
                                        .queue_count = 2,
                                        .header = (const uint8_t *)"hdr",
                                        .content = (const uint8_t *)"content"};
    const struct message_start in_tx = {.tx_id = TX, .order_index = 8, .queue_count = 3};
    const struct place_state both = {.not_before_us = 1, .expires_us = 2};
    const struct message_place noted = {.queue_id = 2, .note = note.note, .note_bytes = 4};
    const struct message_place taken_away = {.tx_id = TX, .queue_id = 2};
    struct message_move move = {.from_queue_id = 1, .queue_id = 2, .reason = 5, .state = note};
    const struct state_row rows[] = {{ID, 0, 0, 1, 3}, {PREV, 5, INT64_MAX, 2, 0}};

    switch (shape) {
    case START_PLACED:
        return format_put_start_placed(first, &start, queues, &note);
    case START_PLACED_TX:
        return format_put_start_placed(first, &in_tx, queues, &both);
    case NOTED:
        return format_put_place(later, &noted);
    case NOTED_TX:
        return format_put_place(later, &taken_away);
    case MOVED:
        move.state.delivery_count = 9;
        move.state.header = (const uint8_t *)"header";
        move.state.header_bytes = 6;
        return format_put_move(later, &move);
    case MOVED_KEEPING:
        move.tx_id = TX;
        move.order_index = 3;
        move.queue_id = 1;
        move.keeps_header = move.keeps_note = true;
        move.state = both;
        return format_put_move(later, &move);
    case MOVED_FROM_NOWHERE:
        move.from_queue_id = move.reason = 0;
        return format_put_move(later, &move);
    case RELOCATED_PLACED:
        return make_relocated_placed(later);
    default:
        return format_put_place_states(none, rows, 2);
    }
}

/* Makes the record in `record` and returns its length. */
static uint32_t make(enum shape shape) {
    static const uint32_t gap[] = {1, 0, 7};
    struct slot first = {record, SEED, LSN, LSN, 0, 0}, later = {record, SEED, LSN, ID, PREV, 0};
    struct slot none = {record, SEED, LSN, 0, 0, 0};
    uint32_t length;

    memset(record, 0xa5, sizeof record); /* what is beyond the record must not matter */
    switch (shape) {
    case START:
        first.flags = FLAG_PUBLISHED;
        return format_put_start(&first, 0, 0, queues, 2, "hdr", 3, "content", 7);
    case START_ODD:
        return format_put_start(&first, 0, 0, queues, 3, NULL, 0, NULL, 0);
    case START_TX:
        return format_put_start(&first, TX, 8, queues, 3, "h", 1, NULL, 0);
    case START_COPY:
        later.flags = FLAG_COPY;
        return format_put_start(&later, 0, 0, NULL, 0, "hd", 2, "con", 3);
    case START_INLINE:
        later.flags = FLAG_COPY | FLAG_INLINE;
        return format_put_start(&later, 1700000000, 0, queues, 2, "hd", 2, "con", 3);
    case START_ORDERED:
        later.flags = FLAG_COPY | FLAG_INLINE | FLAG_ORDERED;
        return format_put_start(&later, PREV, 5, gap, 3, "hd", 2, "con", 3);
    case CHUNK:
        return format_put_chunk(&later, 77, "chunk", 5);
    case ENQUEUES:
        return format_put_enqueue(&later, 0, 0, queues, 3);
    case ENQUEUES_TX:
        return format_put_enqueue(&later, TX, 1, queues, 2);
    case DEQUEUES:
        return make_dequeue(&later, 0);
    case DEQUEUES_TX:
        return make_dequeue(&later, TX);
    case DEQUEUES_LAST:
        later.flags = FLAG_DELETES;
        return make_dequeue(&later, 0);
    case DELETED:
        return format_put_plain(&later, MESSAGE_DELETE);
    case RELOCATED:
        later.flags = FLAG_STAGED;
        return make_relocated(&later);
    case BEGUN_XID:
    case BEGUN:
        return make_transaction(&first, shape);
    case PREPARED:
    case COMMITTED:
    case MOVED_XID:
    case MOVED_LOCAL:
        return make_transaction(&later, shape);
    case START_PLACED:
    case START_PLACED_TX:
    case NOTED:
    case NOTED_TX:
    case MOVED:
    case MOVED_KEEPING:
    case MOVED_FROM_NOWHERE:
    case RELOCATED_PLACED:
    case PLACES_STATED:
        return make_placed(&first, &later, &none, shape);
    case UNKNOWN_SKIPPED:
        none.flags = 0xffff;
        length = format_put_body(&none, FILLER, zeros, sizeof zeros);
        put16(record + 16, 0x8777);
        memset(record + 48, 3, 24);
        reseal(length);
        return length;
    default:
        return make_housekeeping(&none, shape);
    }
}

/* ---- the verdict ---- */

static uint64_t cells[ROOM / 4];

static int decode(size_t available, ls_test_record *found) {
    /* Copies the record without slack, so that the address sanitizer detects a read after it. */
    uint8_t *copy = malloc(available > 0 ? available : 1);
    int result;

    if (copy == NULL)
        abort();
    memcpy(copy, record, available);
    result = ls_test_decode(copy, available, SEED, LSN, cells, found);
    if (result == LS_TEST_VALID && (found->type & TYPE_SKIPPABLE) == 0) {
        static uint8_t again[ROOM];

        if (ls_test_encode(found, SEED, again, sizeof again) != found->length ||
            memcmp(again, copy, found->length) != 0)
            result = -1; /* accepted, and not what its fields say */
    }
    free(copy);
    return result;
}

static int decode_changed(enum shape shape, uint32_t offset, int width, uint64_t value) {
    ls_test_record found;
    uint32_t length = make(shape);

    if (width == 8)
        put64(record + offset, value);
    else if (width == 4)
        put32(record + offset, (uint32_t)value);
    else if (width == 2)
        put16(record + offset, (uint16_t)value);
    else
        record[offset] = (uint8_t)value;
    reseal(length);
    return decode(length, &found);
}

/* ---- tests ---- */

static void every_shape_comes_back_as_it_was_written(void) {
    ls_test_record found;

    for (int shape = 0; shape < SHAPES; shape++) {
        uint32_t length = make((enum shape)shape);

        check(length % 8 == 0 && decode(length, &found) == LS_TEST_VALID && found.length == length);
        check(decode(sizeof record, &found) == LS_TEST_VALID && found.length == length);
    }
}

static void a_record_that_is_cut_is_refused_at_every_length(void) {
    ls_test_record found;

    for (int shape = 0; shape < SHAPES; shape++) {
        uint32_t length = make((enum shape)shape);

        for (uint32_t bytes = 0; bytes < length; bytes++)
            check(decode(bytes, &found) == LS_TEST_REFUSED);
    }
}

static void another_place_or_seed_is_refused(void) {
    struct record r;

    for (int shape = 0; shape < SHAPES; shape++) {
        uint32_t length = make((enum shape)shape);

        check(format_get_record(record, length, SEED, LSN + 8, &r) == FORMAT_PLACE);
        check(format_get_record(record, length, SEED + 1, LSN, &r) == FORMAT_CHECK);
        record[length - 1] ^= 1;
        check(format_get_record(record, length, SEED, LSN, &r) == FORMAT_CHECK);
    }
}

/* Every 1, 2, 4 and 8 bytes of every shape get each value at which a rule may change. */
static void every_value_of_a_field_is_refused_or_decoded(void) {
    static const uint64_t values[] = {
        0,          1,          2,          3,           4,          5,         6,        7,         8,
        15,         16,         24,         25,          40,         47,        48,       49,        56,
        63,         64,         65,         72,          80,         96,        104,      ID - 8,    ID,
        PREV,       LSN - 8,    LSN,        LSN + 8,     0xffff,     0xfffffe,  0xffffff, 0x1000000, 0x7fffffff,
        0x80000000, 0xfffffffe, 0xffffffff, 0x100000000, UINT64_MAX, INT64_MAX,
    };
    uint64_t counts[4] = {0}, wrong = 0;

    for (int shape = 0; shape < SHAPES; shape++) {
        uint32_t length = make((enum shape)shape);

        for (int width = 1; width <= 8; width *= 2) {
            for (uint32_t at = 12; at + (uint32_t)width <= length; at += (uint32_t)width == 8 ? 4 : (uint32_t)width) {
                for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
                    int result = decode_changed((enum shape)shape, at, width, values[i]);

                    if (result < 0) {
                        printf("shape %d offset %u width %d value %llx\n", shape, at, width,
                               (unsigned long long)values[i]);
                        wrong++;
                    } else {
                        counts[result]++;
                    }
                }
            }
        }
    }
    check(wrong == 0);
    check(counts[LS_TEST_VALID] > 1000 && counts[LS_TEST_MALFORMED] > 10000 && counts[LS_TEST_REFUSED] > 1000 &&
          counts[LS_TEST_NEWER] > 10);
}

static void every_type_and_flag_in_every_shape_is_refused_or_decoded(void) {
    uint64_t wrong = 0, newer = 0;

    for (int shape = 0; shape < SHAPES; shape++) {
        for (uint32_t type = 0; type < 0x500; type++) {
            int result = decode_changed((enum shape)shape, 16, 2, type);

            wrong += result < 0;
            newer += result == LS_TEST_NEWER;
            check(type != 0 || result == LS_TEST_MALFORMED);
        }
        for (uint32_t flags = 0; flags < 0x100; flags++)
            wrong += decode_changed((enum shape)shape, 18, 2, flags) < 0;
    }
    check(wrong == 0 && newer > 1000);
}

/* The rules of docs/format.md, one by one. */
static void impossible_contents_are_refused(void) {
    static const struct {
        enum shape shape;
        uint32_t offset;
        int width;
        uint64_t value;
    } cases[] = {
        /* the header: spare, id and prev by the place in the chain, flags that the type has not */
        {START, 20, 4, 1},
        {START, 32, 8, LSN - 8},
        {START, 40, 8, 8},
        {CHUNK, 32, 8, 0},
        {CHUNK, 32, 8, PREV + 8},
        {CHUNK, 40, 8, LSN},
        {START_COPY, 32, 8, 0},
        {START_COPY, 32, 8, PREV + 8},
        {CLOSED, 32, 8, 8},
        {CLOSED, 40, 8, 8},
        {DELETED, 18, 2, 1},
        {UNKNOWN_SKIPPED, 20, 4, 1},
        {UNKNOWN_SKIPPED, 32, 8, LSN + 8},
        {UNKNOWN_SKIPPED, 40, 8, LSN},
        {DELETED, 16, 2, MESSAGE_DEQUEUE},
        /* BATCH: epoch, count against bytes, durable and base against the place */
        {BATCH_FULL, 48, 8, 0},
        {BATCH_FULL, 60, 4, 96},
        {BATCH_FULL, 60, 4, 201},
        {BATCH_FULL, 56, 4, 3},
        {BATCH_FULL, 56, 4, 0},
        {BATCH_EMPTY, 56, 4, 1},
        {BATCH_EMPTY, 64, 8, 0},
        {BATCH_EMPTY, 64, 8, LSN + 8},
        {BATCH_EMPTY, 64, 8, UINT64_MAX},
        {BATCH_EMPTY, 72, 8, 0},
        {BATCH_EMPTY, 72, 8, LSN + 8},
        /* MESSAGE_START */
        {START, 56, 4, 99},
        {START, 60, 4, 0xffffffff},
        {START, 64, 4, 1},
        {START, 68, 4, 1},
        {START, 72, 4, 0},
        {START, 72, 4, 0xffffffff},
        {START_ODD, 84, 4, 1},
        {START_TX, 48, 8, LSN},
        {START_TX, 48, 8, UINT64_MAX},
        {START_TX, 68, 4, 0x1000000},
        {START_TX, 68, 4, 0xfffffe},
        {START_COPY, 48, 8, TX},
        {START_COPY, 18, 2, FLAG_COPY | FLAG_INLINE},
        {START_INLINE, 18, 2, FLAG_COPY},
        {START_INLINE, 68, 4, 1},
        {START_INLINE, 72, 4, 0},
        {START_ORDERED, 18, 2, FLAG_COPY | FLAG_ORDERED},
        {START_ORDERED, 18, 2, FLAG_COPY | FLAG_INLINE},
        {START_ORDERED, 48, 8, ID},
        {START_ORDERED, 48, 8, LSN},
        {START_ORDERED, 68, 4, 0x1000000},
        {START_ORDERED, 72, 4, 0},
        {START_ORDERED, 80, 4, 0},
        {START_ORDERED, 76, 4, 0xffffffff},
        {START, 18, 2, FLAG_INLINE},
        {START, 18, 2, FLAG_ORDERED},
        /* MESSAGE_CHUNK, MESSAGE_ENQUEUE, MESSAGE_DEQUEUE */
        {CHUNK, 56, 4, 17},
        {CHUNK, 60, 4, 1},
        {CHUNK, 48, 8, INT64_MAX - 4},
        {CHUNK, 70, 1, 1},
        {ENQUEUES, 56, 4, 0},
        {ENQUEUES, 56, 4, 5},
        {ENQUEUES, 60, 4, 1},
        {ENQUEUES, 64, 4, 0},
        {ENQUEUES_TX, 48, 8, LSN},
        {ENQUEUES_TX, 60, 4, 0x1000000},
        {DEQUEUES, 56, 4, 0},
        {DEQUEUES, 62, 2, 7},
        {DEQUEUES_TX, 48, 8, LSN},
        {DEQUEUES_LAST, 48, 8, TX},
        /* MESSAGE_RELOCATED: counts, then each row's fields */
        {RELOCATED, 48, 8, UINT64_MAX},
        {RELOCATED, 48, 8, 99},
        {RELOCATED, 56, 8, 0},
        {RELOCATED, 56, 8, LSN},
        {RELOCATED, 68, 4, 3},
        {RELOCATED, 80, 8, LSN},
        {RELOCATED, 88, 8, 101},
        {RELOCATED, 96, 4, 91},
        {RELOCATED, 100, 4, 1},
        {RELOCATED, 128, 8, 0},
        {RELOCATED, 144, 4, 0},
        {RELOCATED, 156, 4, 1},
        {RELOCATED, 192, 8, 0},
        {RELOCATED, 192, 8, TX + 8},
        {RELOCATED, 200, 8, LSN},
        {RELOCATED, 208, 4, 0},
        {RELOCATED, 212, 4, 0},
        {RELOCATED, 212, 4, 3},
        {RELOCATED, 220, 4, 1},
        /* the records of transactions */
        {BEGUN_XID, 56, 1, 65},
        {BEGUN_XID, 57, 1, 65},
        {BEGUN_XID, 56, 1, 12},
        {BEGUN_XID, 58, 1, 1},
        {BEGUN_XID, 71, 1, 1},
        {PREPARED, 57, 1, 255},
        {MOVED_XID, 56, 1, 65},
        {MOVED_XID, 58, 1, 3},
        {MOVED_XID, 58, 1, TX_KIND_LOCAL},
        {MOVED_XID, 59, 1, 0},
        {MOVED_XID, 59, 1, 4},
        {MOVED_XID, 60, 4, 1},
        {MOVED_LOCAL, 48, 8, 1},
        /* housekeeping */
        {FILLING, 60, 1, 1},
        {FOOTING, 48, 8, 0},
        {FOOTING, 48, 8, LSN},
        {FOOTING, 68, 4, 25},
        {FOOTING, 68, 4, 1},
        {FOOTING, 72, 4, 0x202},
        {FOOTING, 76, 4, 0},
        {QUEUE_GONE, 48, 4, 0},
        {QUEUE_GONE, 48, 4, 0xffffffff},
        {QUEUE_GONE, 52, 4, 1},
        /* states of places */
        {START_PLACED, 64, 4, 0},
        {START_PLACED, 72, 8, UINT64_MAX},
        {START_PLACED, 88, 1, 0}, /* the rest of the note, and no state */
        {START_PLACED, 89, 1, 1},
        {START_PLACED_TX, 48, 8, LSN},
        {START_PLACED_TX, 68, 4, 0x1000000},
        {START_PLACED_TX, 108, 4, 1},
        {START_PLACED, 18, 2, FLAG_COPY},
        {NOTED, 56, 4, 0},
        {NOTED, 60, 1, 9},
        {NOTED, 61, 1, 1},
        {NOTED, 68, 1, 1},
        {NOTED_TX, 48, 8, LSN},
        {MOVED, 56, 4, 0},
        {MOVED, 60, 4, 0},
        {MOVED, 64, 4, 1},
        {MOVED, 88, 4, 0xffffffff},
        {MOVED, 93, 1, 7},
        {MOVED, 94, 2, 0},
        {MOVED, 94, 2, 3},
        {MOVED, 94, 2, 5},
        {MOVED, 94, 2, 8},
        {MOVED_KEEPING, 56, 4, 0},
        {MOVED_KEEPING, 72, 8, UINT64_MAX},
        {MOVED_FROM_NOWHERE, 93, 1, 1},
        {MOVED_FROM_NOWHERE, 94, 2, STATE_KEEPS_HEADER},
        {RELOCATED_PLACED, 56, 8, LSN},
        {RELOCATED_PLACED, 68, 4, 2},
        {RELOCATED_PLACED, 72, 4, 3},
        {RELOCATED_PLACED, 76, 4, 2},
        {RELOCATED_PLACED, 76, 4, 4},
        {RELOCATED_PLACED, 96, 4, 91},
        {RELOCATED_PLACED, 104, 8, 0},
        {RELOCATED_PLACED, 120, 4, 0},
        {RELOCATED_PLACED, 132, 4, 0xffffffff},
        {RELOCATED_PLACED, 136, 8, UINT64_MAX},
        {RELOCATED_PLACED, 153, 1, 0},
        {RELOCATED_PLACED, 153, 1, 2},
        {RELOCATED_PLACED, 154, 2, 1},
        {RELOCATED_PLACED, 156, 4, 1},
        {RELOCATED_PLACED, 167, 1, 1},
        {PLACES_STATED, 48, 4, 0},
        {PLACES_STATED, 48, 4, 1},
        {PLACES_STATED, 48, 4, 3},
        {PLACES_STATED, 52, 4, 1},
        {PLACES_STATED, 56, 8, 0},
        {PLACES_STATED, 56, 8, LSN},
        {PLACES_STATED, 64, 8, UINT64_MAX},
        {PLACES_STATED, 80, 4, 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int result = decode_changed(cases[i].shape, cases[i].offset, cases[i].width, cases[i].value);

        if (result != LS_TEST_MALFORMED)
            printf("case %zu gives %d\n", i, result);
        check(result == LS_TEST_MALFORMED);
    }
}

/* A length that is not a record's, under a right header check, is no torn write. */
static void an_impossible_length_is_impossible_and_not_short(void) {
    static const uint32_t lengths[] = {0, 8, 40, 47, 49, 50, 52, 0xffffffff};
    ls_test_record found;

    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        (void)make(START);
        put32(record + 12, lengths[i]);
        put32(record + 8, (uint32_t)xxh64(record + 12, 36, SEED));
        check(decode(ROOM, &found) == LS_TEST_MALFORMED);
    }
}

/* The record shortened or stretched to every length, its other fields as they were. */
static void every_other_length_is_refused_or_decoded(void) {
    ls_test_record found;

    for (int shape = 0; shape < SHAPES; shape++) {
        for (uint32_t length = 48; length < 400; length += 8) {
            (void)make((enum shape)shape);
            put32(record + 12, length);
            reseal(length);
            check(decode(length, &found) >= 0);
        }
    }
}

static void a_decoder_refuses_the_records_of_every_other_type(void) {
    union {
        struct batch batch;
        struct message_start start;
        struct message_chunk chunk;
        struct message_enqueue enqueue;
        struct message_dequeue dequeue;
        struct message_relocated relocated;
        struct xid xid;
        struct tx_relocated tx;
        struct footer footer;
        struct message_place place;
        struct message_move move;
        struct place_states states;
        uint32_t number;
    } into;

    for (int shape = 0; shape < SHAPES; shape++) {
        uint32_t length = make((enum shape)shape);
        struct record r;
        struct place_state state;

        require(format_get_record(record, length, SEED, LSN, &r) == FORMAT_OK);
        check((format_get_start_placed(&r, &into.start, &state) == FORMAT_OK) == (r.type == MESSAGE_START_PLACED));
        check((format_get_place(&r, &into.place) == FORMAT_OK) == (r.type == MESSAGE_PLACE));
        check((format_get_move(&r, &into.move) == FORMAT_OK) == (r.type == MESSAGE_MOVE));
        check((format_get_relocated_placed(&r, &into.relocated) == FORMAT_OK) == (r.type == MESSAGE_RELOCATED_PLACED));
        check((format_get_place_states(&r, &into.states) == FORMAT_OK) == (r.type == PLACE_STATES));
        check((format_get_batch(&r, &into.batch) == FORMAT_OK) == (r.type == BATCH));
        check((format_get_start(&r, &into.start) == FORMAT_OK) == (r.type == MESSAGE_START));
        check((format_get_chunk(&r, &into.chunk) == FORMAT_OK) == (r.type == MESSAGE_CHUNK));
        check((format_get_enqueue(&r, &into.enqueue) == FORMAT_OK) == (r.type == MESSAGE_ENQUEUE));
        check((format_get_dequeue(&r, &into.dequeue) == FORMAT_OK) == (r.type == MESSAGE_DEQUEUE));
        check((format_get_relocated(&r, &into.relocated) == FORMAT_OK) == (r.type == MESSAGE_RELOCATED));
        check((format_get_xid(&r, &into.xid) == FORMAT_OK) == (r.type == DTX_START || r.type == TX_PREPARE));
        check((format_get_tx_relocated(&r, &into.tx) == FORMAT_OK) == (r.type == TX_RELOCATED));
        check((format_get_queue_delete(&r, &into.number) == FORMAT_OK) == (r.type == QUEUE_DELETE));
        check((format_get_footer(&r, &into.footer) == FORMAT_OK) == (r.type == FOOTER));
    }
}

static void only_the_batch_record_of_this_place_is_taken_for_one(void) {
    uint64_t epoch = 0;
    uint32_t length = make(BATCH_FULL);

    check(format_peek_batch(record, length, LSN, &epoch) && epoch == 3);
    check(!format_peek_batch(record, length - 1, LSN, &epoch) && !format_peek_batch(record, length, LSN + 8, &epoch));
    put32(record + 12, 112);
    check(!format_peek_batch(record, length, LSN, &epoch));
    check(!format_peek_batch(record, make(DEQUEUES), LSN, &epoch));
}

/* ---- files and headers ---- */

enum { FILES = 4 };
static const uint64_t file_numbers[FILES][5] = {
    {65536, 131072, 2, 70000, 5}, {65536, 131072, 7}, {1, 70000, 65536}, {65536, 9, 10, 11}};
static const size_t file_bytes[FILES] = {SEGMENT_HEADER_BYTES, META_BYTES, HINT_BYTES, HOLD_BYTES};
static const uint8_t uuid[UUID_BYTES] = "a store's uuid..";
static uint8_t file[SEGMENT_HEADER_BYTES];

static void make_file(int what) {
    if (ls_test_encode_file(what, uuid, file_numbers[what], file) != file_bytes[what])
        abort();
}

static void reseal_file(int what) {
    size_t bytes = file_bytes[what];
    uint64_t seed =
        what == LS_TEST_SEGMENT_HEADER ? format_segment_seed(file + 16, get64(file + 40), get64(file + 48)) : 0;

    put64(file + bytes - 8, xxh64(file, bytes - 8, seed));
}

/* Expects the size and position that the file itself has, so that only its other fields are judged. */
static int decode_file(int what, size_t available, bool believe) {
    uint64_t numbers[5] = {0};
    uint8_t found[UUID_BYTES], again[SEGMENT_HEADER_BYTES];
    int result;

    memcpy(numbers, file_numbers[what], sizeof numbers);
    if (believe) {
        numbers[0] = get64(file + 32);
        numbers[1] = get64(file + 40);
    }
    memcpy(found, uuid, sizeof found);
    result = ls_test_decode_file(what, file, available, found, numbers);
    if (result == LS_TEST_VALID && (ls_test_encode_file(what, found, numbers, again) != file_bytes[what] ||
                                    memcmp(again, file, file_bytes[what]) != 0))
        result = -1;
    return result;
}

static void a_file_is_refused_at_every_other_length_and_with_any_byte_changed(void) {
    for (int what = 0; what < FILES; what++) {
        make_file(what);
        check(decode_file(what, file_bytes[what], false) == LS_TEST_VALID);
        for (size_t bytes = 0; bytes < file_bytes[what]; bytes++)
            check(decode_file(what, bytes, false) != LS_TEST_VALID);
        for (size_t at = 0; at < file_bytes[what]; at++) {
            file[at] ^= 0x10;
            check(decode_file(what, file_bytes[what], false) != LS_TEST_VALID);
            file[at] ^= 0x10;
        }
    }
}

static void a_file_of_a_later_version_is_newer_before_its_checksum_is_judged(void) {
    for (int what = 0; what < FILES; what++) {
        make_file(what);
        put32(file + 8, 2);
        check(decode_file(what, file_bytes[what], false) == LS_TEST_NEWER &&
              decode_file(what, 12, false) == LS_TEST_NEWER);
        put32(file + 8, 0);
        reseal_file(what);
        check(decode_file(what, file_bytes[what], false) == LS_TEST_MALFORMED);
    }
}

static void impossible_contents_of_files_are_refused(void) {
    static const struct {
        int what;
        uint32_t offset;
        uint64_t value;
    } cases[] = {
        {LS_TEST_SEGMENT_HEADER, 32, 65536 - 4096},
        {LS_TEST_SEGMENT_HEADER, 32, (uint64_t)1 << 31},
        {LS_TEST_SEGMENT_HEADER, 32, 65536 + 8},
        {LS_TEST_SEGMENT_HEADER, 40, 0},
        {LS_TEST_SEGMENT_HEADER, 40, 131072 + 4096},
        {LS_TEST_SEGMENT_HEADER, 40, (uint64_t)1 << 63},
        {LS_TEST_SEGMENT_HEADER, 48, 0},
        {LS_TEST_SEGMENT_HEADER, 56, 131073},
        {LS_TEST_SEGMENT_HEADER, 72, 1},
        {LS_TEST_META, 32, 4096},
        {LS_TEST_META, 40, 131071},
        {LS_TEST_META, 40, (uint64_t)1 << 61},
        {LS_TEST_META, 4080, 1},
        {LS_TEST_HINT, 32, 0},
        {LS_TEST_HINT, 40, 0},
        {LS_TEST_HINT, 40, (uint64_t)1 << 63},
        {LS_TEST_HINT, 48, 0},
        {LS_TEST_HINT, 48, UINT64_MAX},
        {LS_TEST_HOLD, 32, 0},
        {LS_TEST_HOLD, 240, 1},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_file(cases[i].what);
        put64(file + cases[i].offset, cases[i].value);
        reseal_file(cases[i].what);
        check(decode_file(cases[i].what, file_bytes[cases[i].what], true) == LS_TEST_MALFORMED);
    }
    for (int what = 0; what < FILES; what++) { /* the size that it says it has */
        make_file(what);
        put32(file + 12, (uint32_t)file_bytes[what] + 8);
        reseal_file(what);
        check(decode_file(what, file_bytes[what], true) == LS_TEST_MALFORMED);
    }
    make_file(LS_TEST_SEGMENT_HEADER); /* the last segment that there can be, and one more */
    put64(file + 40, ((uint64_t)1 << 63) - 65536);
    reseal_file(LS_TEST_SEGMENT_HEADER);
    check(decode_file(LS_TEST_SEGMENT_HEADER, sizeof file, true) == LS_TEST_VALID);
}

static void a_header_of_another_store_size_or_place_is_refused(void) {
    make_file(LS_TEST_SEGMENT_HEADER);
    put64(file + 32, 131072);
    reseal_file(LS_TEST_SEGMENT_HEADER);
    check(decode_file(LS_TEST_SEGMENT_HEADER, sizeof file, false) == LS_TEST_REFUSED);
    make_file(LS_TEST_SEGMENT_HEADER);
    put64(file + 40, 196608);
    reseal_file(LS_TEST_SEGMENT_HEADER);
    check(decode_file(LS_TEST_SEGMENT_HEADER, sizeof file, false) == LS_TEST_REFUSED);
    make_file(LS_TEST_SEGMENT_HEADER);
    file[16] ^= 1;
    reseal_file(LS_TEST_SEGMENT_HEADER);
    check(decode_file(LS_TEST_SEGMENT_HEADER, sizeof file, false) == LS_TEST_REFUSED);
}

static void only_a_segments_own_name_parses_as_one(void) {
    static const char *const others[] = {
        "",
        "000000000001000",
        "0000000000010000",
        "0000000000010000.sex",
        "0000000000010000.seg2",
        "000000000001000g.seg",
        "000000000001000A.seg",
        "00000000/0010000.seg",
        "000000000001000:.seg",
        "000000000001000`.seg",
    };
    uint64_t lsn = 0;
    char name[SEGMENT_NAME_BYTES];

    format_segment_name(name, UINT64_C(0x0123456789abcdef));
    check(strcmp(name, "0123456789abcdef.seg") == 0 && format_parse_segment_name(name, &lsn) &&
          lsn == UINT64_C(0x0123456789abcdef));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        check(!format_parse_segment_name(others[i], &lsn));
}

static void limits_follow_from_the_segment_size_as_documented(void) {
    check(format_record_bytes_max(65536) == 4096 && format_batch_bytes_max(65536) == 8192);
    check(format_record_bytes_max(SEGMENT_BYTES_MAX) == 1 << 20 &&
          format_batch_bytes_max(SEGMENT_BYTES_MAX) == 2 << 20);
}

static void every_verdict_has_its_own_text(void) {
    for (int i = FORMAT_OK; i <= FORMAT_MALFORMED + 1; i++) {
        for (int j = FORMAT_OK; j < i; j++)
            check(strcmp(format_result_text((enum format_result)i), format_result_text((enum format_result)j)) != 0);
    }
}

int main(void) {
    static void (*const tests[])(void) = {
        every_shape_comes_back_as_it_was_written,
        a_record_that_is_cut_is_refused_at_every_length,
        another_place_or_seed_is_refused,
        every_value_of_a_field_is_refused_or_decoded,
        every_type_and_flag_in_every_shape_is_refused_or_decoded,
        impossible_contents_are_refused,
        an_impossible_length_is_impossible_and_not_short,
        every_other_length_is_refused_or_decoded,
        a_decoder_refuses_the_records_of_every_other_type,
        only_the_batch_record_of_this_place_is_taken_for_one,
        a_file_is_refused_at_every_other_length_and_with_any_byte_changed,
        a_file_of_a_later_version_is_newer_before_its_checksum_is_judged,
        impossible_contents_of_files_are_refused,
        a_header_of_another_store_size_or_place_is_refused,
        only_a_segments_own_name_parses_as_one,
        limits_follow_from_the_segment_size_as_documented,
        every_verdict_has_its_own_text,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
