/*
 * The core's codec for tests: encodes and decodes records as plain numbers and strings. A test compares each direction
 * with another codec, so that a mistake made in both directions cannot hide.
 */
#include <stdlib.h>
#include <string.h>

#include "format/checkpoint.h"
#include "tests/sim/codec_placed.h"
#include "tests/sim/testing.h"

static int verdict_of(enum format_result result) {
    switch (result) {
    case FORMAT_OK:
        return LS_TEST_VALID;
    case FORMAT_NEWER:
        return LS_TEST_NEWER;
    case FORMAT_MALFORMED:
        return LS_TEST_MALFORMED;
    default:
        return LS_TEST_REFUSED;
    }
}

/* ---- encoding ---- */

static uint32_t *queue_ids_of(const ls_test_record *t) {
    uint32_t *ids = calloc(t->rows[0] + 1, sizeof *ids);
    for (uint64_t i = 0; ids != NULL && i < t->rows[0]; i++) {
        ids[i] = (uint32_t)t->tables[0][i];
    }
    return ids;
}

static uint32_t encode_start(const struct slot *s, const ls_test_record *t, size_t room) {
    uint32_t *ids = queue_ids_of(t);
    uint32_t length = 0;
    if (ids != NULL && format_start_bytes(t->string_bytes[0], t->string_bytes[1], t->rows[0]) <= room) {
        length = format_put_start(s, t->numbers[0], (uint32_t)t->numbers[1], ids, (uint32_t)t->rows[0], t->strings[0],
                                  (uint32_t)t->string_bytes[0], t->strings[1], (uint32_t)t->string_bytes[1]);
    }
    free(ids);
    return length;
}

static uint32_t encode_enqueue(const struct slot *s, const ls_test_record *t, size_t room) {
    uint32_t *ids = queue_ids_of(t);
    uint32_t length = 0;
    if (ids != NULL && format_enqueue_bytes(t->rows[0]) <= room) {
        length = format_put_enqueue(s, t->numbers[0], (uint32_t)t->numbers[1], ids, (uint32_t)t->rows[0]);
    }
    free(ids);
    return length;
}

static uint32_t encode_filler(const struct slot *s, uint32_t zero_bytes) {
    uint8_t *zeros = calloc(zero_bytes + 1, 1);
    uint32_t length = zeros != NULL ? format_put_body(s, FILLER, zeros, zero_bytes) : 0;
    free(zeros);
    return length;
}

static uint32_t encode_relocated(const struct slot *s, const ls_test_record *t, size_t room) {
    if (format_relocated_bytes(t->rows[0], t->rows[1], t->rows[2]) > room) {
        return 0;
    }
    struct message_relocated m = {
        .content_bytes = t->numbers[0],
        .start_lsn = t->numbers[1],
        .part = (uint32_t)t->numbers[2],
        .chunk_count = (uint32_t)t->rows[0],
        .place_count = (uint32_t)t->rows[1],
        .pending_count = (uint32_t)t->rows[2],
    };
    struct chunk_row *chunks = calloc(m.chunk_count + 1, sizeof *chunks);
    struct place_row *places = calloc(m.place_count + 1, sizeof *places);
    struct pending_row *pending = calloc(m.pending_count + 1, sizeof *pending);
    uint32_t length = 0;
    if (chunks != NULL && places != NULL && pending != NULL) {
        for (uint32_t i = 0; i < m.chunk_count; i++) {
            const uint64_t *row = t->tables[0] + 3 * (size_t)i;
            chunks[i] = (struct chunk_row){row[0], row[1], (uint32_t)row[2]};
        }
        for (uint32_t i = 0; i < m.place_count; i++) {
            const uint64_t *row = t->tables[1] + 5 * (size_t)i;
            places[i] = (struct place_row){row[0], row[1], (uint32_t)row[2], (uint32_t)row[3], (uint32_t)row[4]};
        }
        for (uint32_t i = 0; i < m.pending_count; i++) {
            const uint64_t *row = t->tables[2] + 5 * (size_t)i;
            pending[i] = (struct pending_row){row[0], row[1], (uint32_t)row[2], (uint32_t)row[3], (uint32_t)row[4]};
        }
        length = format_put_relocated(s, &m, chunks, places, pending);
    }
    free(chunks);
    free(places);
    free(pending);
    return length;
}

static bool take_xid(const ls_test_record *t, struct xid *x) {
    if (t->string_bytes[0] > XID_PART_BYTES_MAX || t->string_bytes[1] > XID_PART_BYTES_MAX) {
        return false;
    }
    x->format_id = (int64_t)t->numbers[0];
    x->gtrid_bytes = (uint8_t)t->string_bytes[0];
    x->bqual_bytes = (uint8_t)t->string_bytes[1];
    memcpy(x->data, t->strings[0], x->gtrid_bytes);
    memcpy(x->data + x->gtrid_bytes, t->strings[1], x->bqual_bytes);
    return true;
}

static uint32_t encode_xid(const struct slot *s, const ls_test_record *t) {
    struct xid x = {0};
    return take_xid(t, &x) ? format_put_xid(s, (enum record_type)t->type, &x) : 0;
}

static uint32_t encode_tx_relocated(const struct slot *s, const ls_test_record *t) {
    struct tx_relocated x = {
        .kind = (uint8_t)t->numbers[1],
        .state = (uint8_t)t->numbers[2],
        .start_time_us = t->numbers[3],
        .prepare_time_us = t->numbers[4],
    };
    return take_xid(t, &x.xid) ? format_put_tx_relocated(s, &x) : 0;
}

static uint32_t encode_footer(const struct slot *s, const ls_test_record *t) {
    if (t->rows[0] > FOOTER_TYPES_MAX) {
        return 0;
    }
    struct footer f = {
        .last_lsn = t->numbers[0],
        .bytes = t->numbers[1],
        .batches = (uint32_t)t->numbers[2],
        .n = (uint32_t)t->rows[0],
    };
    for (uint32_t i = 0; i < f.n; i++) {
        f.counts[i].type = (uint32_t)t->tables[0][2 * i];
        f.counts[i].count = (uint32_t)t->tables[0][2 * i + 1];
    }
    return format_put_footer(s, &f);
}

static uint32_t encode_dequeue(const struct slot *s, const ls_test_record *t) {
    struct message_dequeue d = {
        .tx_id = t->numbers[0],
        .queue_id = (uint32_t)t->numbers[1],
        .delivery_count = (uint16_t)t->numbers[2],
        .reason = (uint16_t)t->numbers[3],
    };
    return format_put_dequeue(s, &d);
}

static uint32_t encode_batch(const struct slot *s, const ls_test_record *t) {
    struct batch b = {
        .epoch = t->numbers[0],
        .count = (uint32_t)t->numbers[1],
        .bytes = (uint32_t)t->numbers[2],
        .durable_lsn = t->numbers[3],
        .base_lsn = t->numbers[4],
        .time_us = t->numbers[5],
        .index = t->numbers[6],
        .known_durable_lsn = t->numbers[7],
    };
    return format_put_batch(s, &b);
}

/* Records of at most a few hundred bytes; `room` has that many. */
static uint32_t encode_small(const struct slot *s, const ls_test_record *t) {
    switch (t->type) {
    case MESSAGE_DEQUEUE:
        return encode_dequeue(s, t);
    case DTX_START:
    case TX_PREPARE:
        return encode_xid(s, t);
    case TX_RELOCATED:
        return encode_tx_relocated(s, t);
    case BATCH:
        return encode_batch(s, t);
    case FOOTER:
        return encode_footer(s, t);
    case QUEUE_DELETE:
        return format_put_queue_delete(s, (uint32_t)t->numbers[0]);
    case MESSAGE_DELETE:
    case TX_START:
    case TX_END:
    case TX_COMMIT:
    case TX_ROLLBACK:
    case TX_DELETE:
    case CLOSE:
        return format_put_plain(s, (enum record_type)t->type);
    default:
        return 0;
    }
}

static uint32_t encode_members(const struct slot *s, const ls_test_record *t, size_t room) {
    struct members m = {.index = t->numbers[0], .config_bytes = (uint32_t)t->string_bytes[0], .config = t->strings[0]};
    return t->string_bytes[0] <= room && format_members_bytes(m.config_bytes) <= room ? format_put_members(s, &m) : 0;
}

/* A row of the table is action, object, queue id and length of the data, which stand one behind the other in the string. */
static uint32_t encode_catalog_change(const struct slot *s, const ls_test_record *t, size_t room) {
    uint8_t *rows = malloc(room);
    size_t bytes = 0, used = 0;
    uint32_t length = 0;
    for (uint64_t i = 0; rows != NULL && i < t->rows[0]; i++) {
        const uint64_t *cells = t->tables[0] + 4 * i;
        struct catalog_row row = {(uint8_t)cells[0], (uint8_t)cells[1], (uint32_t)cells[2], (uint32_t)cells[3],
                                  t->strings[0] + used};
        if (format_catalog_row_bytes(row.bytes) > room - bytes) {
            free(rows);
            return 0;
        }
        bytes += format_put_catalog_row(rows + bytes, &row);
        used += row.bytes;
    }
    if (rows != NULL && bytes + RECORD_HEADER_BYTES + 8 <= room) {
        length = format_put_catalog_change(s, (uint32_t)t->numbers[0], (uint32_t)t->rows[0], rows, (uint32_t)bytes);
    }
    free(rows);
    return length;
}

uint32_t ls_test_encode(ls_test_record *record, uint64_t seed, uint8_t *into, size_t room) {
    const ls_test_record *t = record;
    struct slot s = {.seed = seed, .lsn = t->lsn, .id = t->id, .prev = t->prev, .flags = t->flags};
    s.at = into;
    record->length = 0;
    if (room > UINT32_MAX) {
        room = UINT32_MAX;
    }
    if (codec_is_placed(t->type)) {
        record->length = codec_encode_placed(&s, t, room);
    } else if (t->type == MESSAGE_START) {
        record->length = encode_start(&s, t, room);
    } else if (t->type == MESSAGE_CHUNK && format_chunk_bytes(t->string_bytes[0]) <= room) {
        record->length = format_put_chunk(&s, t->numbers[0], t->strings[0], (uint32_t)t->string_bytes[0]);
    } else if (t->type == MESSAGE_ENQUEUE) {
        record->length = encode_enqueue(&s, t, room);
    } else if (t->type == MESSAGE_RELOCATED) {
        record->length = encode_relocated(&s, t, room);
    } else if (t->type == FILLER && t->numbers[0] % 8 == 0 && RECORD_HEADER_BYTES + t->numbers[0] <= room) {
        record->length = encode_filler(&s, (uint32_t)t->numbers[0]);
    } else if (t->type == MEMBERS) {
        record->length = encode_members(&s, t, room);
    } else if (t->type == CATALOG_CHANGE) {
        record->length = encode_catalog_change(&s, t, room);
    } else if (room >= FOOTER_BYTES_MAX) {
        record->length = encode_small(&s, t);
    }
    return record->length;
}

/* ---- decoding ---- */

static void give_string(ls_test_record *t, int i, const uint8_t *at, uint64_t bytes) {
    t->strings[i] = at;
    t->string_bytes[i] = bytes;
}

static void give_queues(ls_test_record *t, const uint8_t *queues, uint32_t count) {
    t->rows[0] = count;
    for (uint32_t i = 0; i < count; i++) {
        t->tables[0][i] = format_queue_id(queues, i);
    }
}

static enum format_result decode_start(const struct record *r, ls_test_record *t) {
    struct message_start m;
    enum format_result result = format_get_start(r, &m);
    if (result == FORMAT_OK) {
        bool in_line = (r->flags & FLAG_INLINE) != 0;
        t->numbers[0] = !in_line ? m.tx_id : (r->flags & FLAG_ORDERED) != 0 ? m.order_lsn : m.enqueue_time_us;
        t->numbers[1] = m.order_index;
        give_queues(t, m.queues, m.queue_count);
        give_string(t, 0, m.header, m.header_bytes);
        give_string(t, 1, m.content, m.content_bytes);
    }
    return result;
}

static enum format_result decode_chunk(const struct record *r, ls_test_record *t) {
    struct message_chunk m;
    enum format_result result = format_get_chunk(r, &m);
    if (result == FORMAT_OK) {
        t->numbers[0] = m.offset;
        give_string(t, 0, m.content, m.content_bytes);
    }
    return result;
}

static enum format_result decode_enqueue(const struct record *r, ls_test_record *t) {
    struct message_enqueue m;
    enum format_result result = format_get_enqueue(r, &m);
    if (result == FORMAT_OK) {
        t->numbers[0] = m.tx_id;
        t->numbers[1] = m.order_index;
        give_queues(t, m.queues, m.queue_count);
    }
    return result;
}

static enum format_result decode_dequeue(const struct record *r, ls_test_record *t) {
    struct message_dequeue m;
    enum format_result result = format_get_dequeue(r, &m);
    if (result == FORMAT_OK) {
        t->numbers[0] = m.tx_id;
        t->numbers[1] = m.queue_id;
        t->numbers[2] = m.delivery_count;
        t->numbers[3] = m.reason;
    }
    return result;
}

static enum format_result decode_relocated(const struct record *r, ls_test_record *t) {
    struct message_relocated m;
    enum format_result result = format_get_relocated(r, &m);
    if (result != FORMAT_OK) {
        return result;
    }
    t->numbers[0] = m.content_bytes;
    t->numbers[1] = m.start_lsn;
    t->numbers[2] = m.part;
    t->rows[0] = m.chunk_count;
    t->rows[1] = m.place_count;
    t->rows[2] = m.pending_count;
    t->tables[1] = t->tables[0] + 3 * (size_t)m.chunk_count;
    t->tables[2] = t->tables[1] + 5 * (size_t)m.place_count;
    for (uint32_t i = 0; i < m.chunk_count; i++) {
        struct chunk_row row = format_chunk_row(m.chunks, i);
        const uint64_t cells[] = {row.lsn, row.offset, row.content_bytes};
        memcpy(t->tables[0] + 3 * (size_t)i, cells, sizeof cells);
    }
    for (uint32_t i = 0; i < m.place_count; i++) {
        struct place_row row = format_place_row(m.places, i);
        const uint64_t cells[] = {row.order_lsn, row.enqueue_time_us, row.queue_id, row.order_index,
                                  row.delivery_count};
        memcpy(t->tables[1] + 5 * (size_t)i, cells, sizeof cells);
    }
    for (uint32_t i = 0; i < m.pending_count; i++) {
        struct pending_row row = format_pending_row(m.pending, i);
        const uint64_t cells[] = {row.tx_id, row.lsn, row.queue_id, row.kind, row.order_index};
        memcpy(t->tables[2] + 5 * (size_t)i, cells, sizeof cells);
    }
    return FORMAT_OK;
}

/* Copies strings that the decoded struct owns into the cells; such a record has no table that would need them. */
static void give_copies(ls_test_record *t, const uint8_t *data, size_t first_bytes, size_t second_bytes) {
    uint8_t *copy = (uint8_t *)t->tables[0];
    memcpy(copy, data, first_bytes + second_bytes);
    give_string(t, 0, copy, first_bytes);
    give_string(t, 1, copy + first_bytes, second_bytes);
}

static enum format_result decode_xid(const struct record *r, ls_test_record *t) {
    struct xid x;
    enum format_result result = format_get_xid(r, &x);
    if (result == FORMAT_OK) {
        t->numbers[0] = (uint64_t)x.format_id;
        give_copies(t, x.data, x.gtrid_bytes, x.bqual_bytes);
    }
    return result;
}

static enum format_result decode_tx_relocated(const struct record *r, ls_test_record *t) {
    struct tx_relocated x;
    enum format_result result = format_get_tx_relocated(r, &x);
    if (result == FORMAT_OK) {
        t->numbers[0] = (uint64_t)x.xid.format_id;
        t->numbers[1] = x.kind;
        t->numbers[2] = x.state;
        t->numbers[3] = x.start_time_us;
        t->numbers[4] = x.prepare_time_us;
        give_copies(t, x.xid.data, x.xid.gtrid_bytes, x.xid.bqual_bytes);
    }
    return result;
}

static enum format_result decode_batch(const struct record *r, ls_test_record *t) {
    struct batch b;
    enum format_result result = format_get_batch(r, &b);
    if (result == FORMAT_OK) {
        const uint64_t numbers[] = {b.epoch,    b.count,   b.bytes, b.durable_lsn,
                                    b.base_lsn, b.time_us, b.index, b.known_durable_lsn};
        memcpy(t->numbers, numbers, sizeof numbers);
    }
    return result;
}

static enum format_result decode_footer(const struct record *r, ls_test_record *t) {
    struct footer f;
    enum format_result result = format_get_footer(r, &f);
    if (result == FORMAT_OK) {
        t->numbers[0] = f.last_lsn;
        t->numbers[1] = f.bytes;
        t->numbers[2] = f.batches;
        t->rows[0] = f.n;
        for (uint32_t i = 0; i < f.n; i++) {
            t->tables[0][2 * i] = f.counts[i].type;
            t->tables[0][2 * i + 1] = f.counts[i].count;
        }
    }
    return result;
}

static enum format_result decode_members(const struct record *r, ls_test_record *t) {
    struct members m;
    enum format_result result = format_get_members(r, &m);
    if (result == FORMAT_OK) {
        t->numbers[0] = m.index;
        give_string(t, 0, m.config, m.config_bytes);
    }
    return result;
}

/* As encode_catalog_change takes it. The data is copied behind the table: a row has 16 bytes and more, so both have room. */
static enum format_result decode_catalog_change(const struct record *r, ls_test_record *t) {
    struct catalog_change c;
    enum format_result result = format_get_catalog_change(r, &c);
    if (result != FORMAT_OK) {
        return result;
    }
    uint8_t *data = (uint8_t *)(t->tables[0] + 4 * (size_t)c.row_count);
    size_t used = 0;
    const uint8_t *at = c.rows;
    for (uint32_t i = 0; i < c.row_count; i++) {
        struct catalog_row row = format_catalog_row(&at);
        const uint64_t cells[] = {row.action, row.object, row.queue_id, row.bytes};
        memcpy(t->tables[0] + 4 * (size_t)i, cells, sizeof cells);
        memcpy(data + used, row.data, row.bytes);
        used += row.bytes;
    }
    t->numbers[0] = c.part;
    t->rows[0] = c.row_count;
    give_string(t, 0, data, used);
    return FORMAT_OK;
}

/* Zeros, which the core never looks at. */
static enum format_result decode_filler(const struct record *r, uint32_t *zero_bytes) {
    *zero_bytes = r->length - (uint32_t)RECORD_HEADER_BYTES;
    for (uint32_t i = RECORD_HEADER_BYTES; i < r->length; i++) {
        if (r->bytes[i] != 0) {
            return FORMAT_MALFORMED;
        }
    }
    return FORMAT_OK;
}

/* Records whose body is one number or empty. */
static enum format_result decode_number(const struct record *r, ls_test_record *t) {
    uint32_t number = 0;
    enum format_result result = r->type == FILLER                 ? decode_filler(r, &number)
                                : r->type == QUEUE_DELETE         ? format_get_queue_delete(r, &number)
                                : r->length == PLAIN_RECORD_BYTES ? FORMAT_OK
                                                                  : FORMAT_MALFORMED;
    t->numbers[0] = number;
    return result;
}

static enum format_result decode_body(const struct record *r, ls_test_record *t) {
    if ((r->type & TYPE_SKIPPABLE) != 0) {
        give_string(t, 0, r->bytes + RECORD_HEADER_BYTES, r->length - RECORD_HEADER_BYTES);
        return FORMAT_OK;
    }
    if (codec_is_placed(r->type)) {
        return codec_decode_placed(r, t);
    }
    switch (r->type) {
    case MESSAGE_START:
        return decode_start(r, t);
    case MESSAGE_CHUNK:
        return decode_chunk(r, t);
    case MESSAGE_ENQUEUE:
        return decode_enqueue(r, t);
    case MESSAGE_DEQUEUE:
        return decode_dequeue(r, t);
    case MESSAGE_RELOCATED:
        return decode_relocated(r, t);
    case DTX_START:
    case TX_PREPARE:
        return decode_xid(r, t);
    case TX_RELOCATED:
        return decode_tx_relocated(r, t);
    case BATCH:
        return decode_batch(r, t);
    case FOOTER:
        return decode_footer(r, t);
    case MEMBERS:
        return decode_members(r, t);
    case CATALOG_CHANGE:
        return decode_catalog_change(r, t);
    default:
        return decode_number(r, t);
    }
}

int ls_test_decode(const uint8_t *from, size_t available, uint64_t seed, uint64_t lsn, uint64_t *cells,
                   ls_test_record *record) {
    struct record r;
    enum format_result result = format_get_record(from, available, seed, lsn, &r);
    if (result == FORMAT_OK) {
        *record = (ls_test_record){
            .lsn = r.lsn, .id = r.id, .prev = r.prev, .length = r.length, .type = r.type, .flags = r.flags};
        record->tables[0] = cells;
        result = decode_body(&r, record);
    }
    return verdict_of(result);
}

/* ---- files and headers ---- */

static void put_checkpoint(const uint8_t *uuid, const uint64_t *n, uint8_t *into) {
    struct checkpoint_header h = {{0}, n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11], n[12]};
    memcpy(h.uuid, uuid, UUID_BYTES);
    format_put_checkpoint(into, &h);
}

/* The cluster's UUID comes as the first two numbers. */
static void put_vote(const uint8_t *uuid, const uint64_t *n, uint8_t *into) {
    struct vote v = {{0}, {0}, n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10]};
    memcpy(v.uuid, uuid, UUID_BYTES);
    memcpy(v.cluster_uuid, n, UUID_BYTES);
    format_put_vote(into, &v);
}

size_t ls_test_encode_file(int what, const uint8_t *uuid, const uint64_t *numbers, uint8_t *into) {
    const uint64_t *n = numbers;
    struct segment_header segment = {{0}, n[0], n[1], n[2], n[3], n[4]};
    struct meta meta = {{0}, n[0], n[1], n[2]};
    struct hint hint = {{0}, n[0], n[1], n[2]};
    struct hold hold = {{0}, n[0], n[1], n[2], n[3]};
    struct closed closed = {{0}, n[0], n[1], n[2]};
    struct mark mark = {{0}, n[0], n[1], n[2]};
    struct seen_file seen = {{0}, n[0], n[1]};
    memcpy(segment.uuid, uuid, UUID_BYTES);
    memcpy(meta.uuid, uuid, UUID_BYTES);
    memcpy(hint.uuid, uuid, UUID_BYTES);
    memcpy(hold.uuid, uuid, UUID_BYTES);
    memcpy(closed.uuid, uuid, UUID_BYTES);
    memcpy(mark.uuid, uuid, UUID_BYTES);
    memcpy(seen.uuid, uuid, UUID_BYTES);
    switch (what) {
    case LS_TEST_SEGMENT_HEADER:
        format_put_segment_header(into, &segment);
        return SEGMENT_HEADER_BYTES;
    case LS_TEST_META:
        format_put_meta(into, &meta);
        return META_BYTES;
    case LS_TEST_HINT:
        format_put_hint(into, &hint);
        return HINT_BYTES;
    case LS_TEST_HOLD:
        format_put_hold(into, &hold);
        return HOLD_BYTES;
    case LS_TEST_CLOSED:
        format_put_closed(into, &closed);
        return CLOSED_BYTES;
    case LS_TEST_SEEN:
        format_put_seen(into, &seen);
        return SEEN_BYTES;
    case LS_TEST_CHECKPOINT:
        put_checkpoint(uuid, numbers, into);
        return CHECKPOINT_HEADER_BYTES;
    case LS_TEST_VOTE:
        put_vote(uuid, numbers, into);
        return VOTE_SLOT_BYTES;
    case LS_TEST_MARK:
        format_put_mark(into, &mark);
        return MARK_SLOT_BYTES;
    default:
        return 0;
    }
}

static void give_file(uint8_t *uuid, const uint8_t *found_uuid, uint64_t *numbers, const uint64_t found[5]) {
    memcpy(uuid, found_uuid, UUID_BYTES);
    memcpy(numbers, found, 5 * sizeof *numbers);
}

int ls_test_decode_file(int what, const uint8_t *from, size_t available, uint8_t *uuid, uint64_t *numbers) {
    enum format_result result = FORMAT_MAGIC;
    if (what == LS_TEST_SEGMENT_HEADER) {
        struct segment_header h = {{0}, 0, 0, 0, 0, 0};
        result = format_get_segment_header(from, available, uuid, numbers[0], numbers[1], &h);
        give_file(uuid, h.uuid, numbers,
                  (uint64_t[]){h.segment_size, h.first_lsn, h.epoch, h.prev_end_lsn, h.created_us});
    } else if (what == LS_TEST_META) {
        struct meta m = {{0}, 0, 0, 0};
        result = format_get_meta(from, available, &m);
        give_file(uuid, m.uuid, numbers, (uint64_t[5]){m.segment_size, m.max_undurable_bytes, m.created_us});
    } else if (what == LS_TEST_HINT) {
        struct hint h = {{0}, 0, 0, 0};
        result = format_get_hint(from, available, &h);
        give_file(uuid, h.uuid, numbers, (uint64_t[5]){h.epoch, h.durable_lsn, h.base_lsn});
    } else if (what == LS_TEST_HOLD) {
        struct hold h = {{0}, 0, 0, 0, 0};
        result = format_get_hold(from, available, &h);
        give_file(uuid, h.uuid, numbers, (uint64_t[5]){h.hold_lsn, h.limit_bytes, h.expires_us, h.created_us});
    } else if (what == LS_TEST_CLOSED) {
        struct closed c = {{0}, 0, 0, 0};
        result = format_get_closed(from, available, &c);
        give_file(uuid, c.uuid, numbers, (uint64_t[5]){c.epoch, c.end_lsn, c.closed_us});
    } else if (what == LS_TEST_SEEN) {
        struct seen_file s = {{0}, 0, 0};
        result = format_get_seen(from, available, &s);
        give_file(uuid, s.uuid, numbers, (uint64_t[5]){s.epoch, s.seen_lsn});
    } else if (what == LS_TEST_CHECKPOINT) {
        struct checkpoint_header h = {{0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
        result = format_get_checkpoint(from, available, &h);
        give_file(uuid, h.uuid, numbers, (uint64_t[]){h.epoch, h.lsn, h.batch_lsn, h.batch_checksum, h.base_lsn});
        memcpy(numbers + 5,
               (uint64_t[]){h.file_bytes, h.salt, h.created_us, h.messages, h.places, h.operations, h.transactions,
                            h.deletions},
               8 * sizeof *numbers);
    } else if (what == LS_TEST_MARK) {
        struct mark m = {{0}, 0, 0, 0};
        result = format_get_mark(from, available, &m);
        give_file(uuid, m.uuid, numbers, (uint64_t[5]){m.sequence, m.from_lsn, m.to_lsn});
    } else if (what == LS_TEST_VOTE) {
        struct vote v = {{0}, {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0};
        result = format_get_vote(from, available, &v);
        memcpy(uuid, v.uuid, UUID_BYTES);
        memcpy(numbers, v.cluster_uuid, UUID_BYTES);
        memcpy(numbers + 2,
               (uint64_t[]){v.member_id, v.sequence, v.term, v.voted_for, v.copy, v.rebuild, v.floor_term,
                            v.floor_index, v.detached},
               9 * sizeof *numbers);
    }
    return verdict_of(result);
}
