/* What encode.c, decode.c and placed.c share: the ends of a record, and rules of parts that several types have. */
#ifndef LOGSTORE_FORMAT_PARTS_H
#define LOGSTORE_FORMAT_PARTS_H

#include <assert.h>

#include "format/fields.h"
#include "format/xxh64.h"

/* ---- writing ---- */

/*
 * The header of every record; the body begins at 48. Zeroes the last 8 bytes first, so that a body may end in them.
 *  0          8              12       16     18      20      24    32   40     48
 *  | checksum | header_check | length | type | flags | spare | lsn | id | prev |
 */
static inline void start_record(const struct slot *s, uint16_t type, uint32_t length) {
    assert(length >= RECORD_HEADER_BYTES && length % 8 == 0);
    put64(s->at + length - 8, 0);
    PUT(s->at, RECORD_HEADER, length, length);
    PUT(s->at, RECORD_HEADER, type, type);
    PUT(s->at, RECORD_HEADER, flags, s->flags);
    PUT(s->at, RECORD_HEADER, spare, 0);
    PUT(s->at, RECORD_HEADER, lsn, s->lsn);
    PUT(s->at, RECORD_HEADER, id, s->id);
    PUT(s->at, RECORD_HEADER, prev, s->prev);
}

static inline uint32_t seal_record(const struct slot *s, uint32_t length) {
    PUT(s->at, RECORD_HEADER, header_check, (uint32_t)xxh64(s->at + AT(RECORD_HEADER, length), CHECKED_BYTES, s->seed));
    PUT(s->at, RECORD_HEADER, checksum,
        xxh64(s->at + AT(RECORD_HEADER, header_check), length - AT(RECORD_HEADER, header_check), s->seed));
    return length;
}

static inline void put_queues(uint8_t *at, const uint32_t *queues, uint32_t queue_count) {
    for (uint32_t i = 0; i < queue_count; i++) {
        put32(at + 4 * (size_t)i, queues[i]);
    }
}

/*
 *  0     8        16              20  24
 *  | lsn | offset | content_bytes | 0 |
 */
static inline uint8_t *put_chunk_rows(uint8_t *at, const struct chunk_row *rows, uint32_t count) {
    for (uint32_t i = 0; i < count; i++, at += RELOCATED_CHUNK_BYTES) {
        PUT(at, RELOCATED_CHUNK, lsn, rows[i].lsn);
        PUT(at, RELOCATED_CHUNK, offset, rows[i].offset);
        PUT(at, RELOCATED_CHUNK, content_bytes, rows[i].content_bytes);
        PUT(at, RELOCATED_CHUNK, zero, 0);
    }
    return at;
}

/* ---- reading ---- */

static inline enum format_result verdict(bool possible) { return possible ? FORMAT_OK : FORMAT_MALFORMED; }

/* The body must fill the record but for zero padding of less than 8 bytes. */
static inline bool body_ends(const struct record *r, uint64_t end) {
    if (end > r->length || r->length - end >= 8) {
        return false;
    }
    unsigned padding = (unsigned)(r->length - end); /* it is the end of the record's last word */
    return padding == 0 || get64(r->bytes + r->length - 8) >> (64 - 8 * padding) == 0;
}

/* An LSN in a body names what was written before the record. */
static inline bool is_earlier(const struct record *r, uint64_t lsn) { return lsn > 0 && lsn < r->lsn; }

static inline bool is_queue_id(uint32_t id) { return id > 0 && id <= QUEUE_ID_MAX; }

static inline bool are_queue_ids(const uint8_t *queues, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (!is_queue_id(format_queue_id(queues, i))) {
            return false;
        }
    }
    return true;
}

/* The enqueues of a transaction are numbered; others are not. */
static inline bool is_numbered(uint64_t tx_id, uint32_t order_index, uint32_t count) {
    return tx_id == 0 ? order_index == 0 : order_index <= ORDER_INDEX_MAX && count <= ORDER_INDEX_MAX + 1 - order_index;
}

/* Bytes of a row of a MESSAGE_RELOCATED_PLACED whose queue id stands at `queue`. */
uint32_t format_placed_row_from_queue(const uint8_t *queue);

static inline bool are_chunk_rows(const struct record *r, const struct message_relocated *m) {
    for (uint32_t i = 0; i < m->chunk_count; i++) {
        struct chunk_row row = format_chunk_row(m->chunks, i);
        bool inside = row.offset <= m->content_bytes && row.content_bytes <= m->content_bytes - row.offset;
        if (!inside || !is_earlier(r, row.lsn) ||
            GET(m->chunks + RELOCATED_CHUNK_BYTES * (size_t)i, RELOCATED_CHUNK, zero) != 0) {
            return false;
        }
    }
    return true;
}

#endif
