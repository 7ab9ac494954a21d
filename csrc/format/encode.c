/* Records from structs, sealed where they stand: sections 5 and 6 of docs/format.md. See format.h. */
#include <assert.h>
#include <string.h>

#include "format/format.h"
#include "format/bytes.h"
#include "format/xxh64.h"

uint64_t format_start_bytes(uint64_t header_bytes, uint64_t content_bytes, uint64_t queue_count) {
    return pad8(72 + pad8(4 * queue_count) + header_bytes + content_bytes);
}

uint64_t format_chunk_bytes(uint64_t content_bytes) { return pad8(64 + content_bytes); }

uint64_t format_enqueue_bytes(uint64_t queue_count) { return pad8(64 + 4 * queue_count); }

uint64_t format_relocated_bytes(uint64_t chunk_count, uint64_t place_count, uint64_t pending_count) {
    return 80 + 24 * chunk_count + 32 * place_count + 32 * pending_count;
}

uint32_t format_xid_record_bytes(const struct xid *x) {
    return (uint32_t)pad8(64 + (uint64_t)x->gtrid_bytes + x->bqual_bytes);
}

uint32_t format_tx_relocated_bytes(const struct xid *x) {
    return (uint32_t)pad8(80 + (uint64_t)x->gtrid_bytes + x->bqual_bytes);
}

/* Zeroes the last 8 bytes first, so that the body may end anywhere in them. */
static void start_record(const struct slot *s, uint16_t type, uint32_t length) {
    assert(length >= RECORD_HEADER_BYTES && length % 8 == 0);
    put64(s->at + length - 8, 0);
    put32(s->at + 12, length);
    put16(s->at + 16, type);
    put16(s->at + 18, s->flags);
    put32(s->at + 20, 0);
    put64(s->at + 24, s->lsn);
    put64(s->at + 32, s->id);
    put64(s->at + 40, s->prev);
}

static uint32_t seal_record(const struct slot *s, uint32_t length) {
    put32(s->at + 8, (uint32_t)xxh64(s->at + 12, 36, s->seed));
    put64(s->at, xxh64(s->at + 8, length - 8, s->seed));
    return length;
}

uint32_t format_put_plain(const struct slot *s, enum record_type type) {
    start_record(s, (uint16_t)type, PLAIN_RECORD_BYTES);
    return seal_record(s, PLAIN_RECORD_BYTES);
}

uint64_t format_body_record_bytes(uint64_t body_bytes) { return pad8(RECORD_HEADER_BYTES + body_bytes); }

uint32_t format_put_body(const struct slot *s, uint16_t type, const void *body, uint32_t body_bytes) {
    uint32_t length = (uint32_t)format_body_record_bytes(body_bytes);
    start_record(s, type, length);
    if (body_bytes > 0) {
        memcpy(s->at + RECORD_HEADER_BYTES, body, body_bytes);
    }
    return seal_record(s, length);
}

static void put_queues(uint8_t *at, const uint32_t *queues, uint32_t queue_count) {
    for (uint32_t i = 0; i < queue_count; i++) {
        put32(at + 4 * (size_t)i, queues[i]);
    }
}

uint32_t format_put_start(const struct slot *s, uint64_t key, uint32_t order_index, const uint32_t *queues,
                          uint32_t queue_count, const void *header, uint32_t header_bytes, const void *content,
                          uint32_t content_bytes) {
    uint32_t length = (uint32_t)format_start_bytes(header_bytes, content_bytes, queue_count);
    start_record(s, MESSAGE_START, length);
    put64(s->at + 48, key);
    put32(s->at + 56, header_bytes);
    put32(s->at + 60, content_bytes);
    put32(s->at + 64, queue_count);
    put32(s->at + 68, order_index);
    uint8_t *at = s->at + 72;
    put_queues(at, queues, queue_count);
    if (queue_count % 2 != 0) {
        put32(at + 4 * (size_t)queue_count, 0);
    }
    at += pad8(4 * (uint64_t)queue_count);
    if (header_bytes > 0) {
        memcpy(at, header, header_bytes);
    }
    if (content_bytes > 0) {
        memcpy(at + header_bytes, content, content_bytes);
    }
    return seal_record(s, length);
}

uint32_t format_put_chunk(const struct slot *s, uint64_t offset, const void *content, uint32_t content_bytes) {
    uint32_t length = (uint32_t)format_chunk_bytes(content_bytes);
    start_record(s, MESSAGE_CHUNK, length);
    put64(s->at + 48, offset);
    put32(s->at + 56, content_bytes);
    put32(s->at + 60, 0);
    if (content_bytes > 0) {
        memcpy(s->at + 64, content, content_bytes);
    }
    return seal_record(s, length);
}

uint32_t format_put_enqueue(const struct slot *s, uint64_t tx_id, uint32_t order_index, const uint32_t *queues,
                            uint32_t queue_count) {
    uint32_t length = (uint32_t)format_enqueue_bytes(queue_count);
    start_record(s, MESSAGE_ENQUEUE, length);
    put64(s->at + 48, tx_id);
    put32(s->at + 56, queue_count);
    put32(s->at + 60, order_index);
    put_queues(s->at + 64, queues, queue_count);
    return seal_record(s, length);
}

uint32_t format_put_dequeue(const struct slot *s, const struct message_dequeue *d) {
    start_record(s, MESSAGE_DEQUEUE, DEQUEUE_RECORD_BYTES);
    put64(s->at + 48, d->tx_id);
    put32(s->at + 56, d->queue_id);
    put16(s->at + 60, d->delivery_count);
    put16(s->at + 62, d->reason);
    return seal_record(s, DEQUEUE_RECORD_BYTES);
}

static uint8_t *put_chunk_rows(uint8_t *at, const struct chunk_row *rows, uint32_t count) {
    for (uint32_t i = 0; i < count; i++, at += 24) {
        put64(at, rows[i].lsn);
        put64(at + 8, rows[i].offset);
        put32(at + 16, rows[i].content_bytes);
        put32(at + 20, 0);
    }
    return at;
}

static uint8_t *put_place_rows(uint8_t *at, const struct place_row *rows, uint32_t count) {
    for (uint32_t i = 0; i < count; i++, at += 32) {
        put64(at, rows[i].order_lsn);
        put64(at + 8, rows[i].enqueue_time_us);
        put32(at + 16, rows[i].queue_id);
        put32(at + 20, rows[i].order_index);
        put32(at + 24, rows[i].delivery_count);
        put32(at + 28, 0);
    }
    return at;
}

static void put_pending_rows(uint8_t *at, const struct pending_row *rows, uint32_t count) {
    for (uint32_t i = 0; i < count; i++, at += 32) {
        put64(at, rows[i].tx_id);
        put64(at + 8, rows[i].lsn);
        put32(at + 16, rows[i].queue_id);
        put32(at + 20, rows[i].kind);
        put32(at + 24, rows[i].order_index);
        put32(at + 28, 0);
    }
}

uint32_t format_put_relocated(const struct slot *s, const struct message_relocated *m, const struct chunk_row *chunks,
                              const struct place_row *places, const struct pending_row *pending) {
    uint32_t length = (uint32_t)format_relocated_bytes(m->chunk_count, m->place_count, m->pending_count);
    start_record(s, MESSAGE_RELOCATED, length);
    put64(s->at + 48, m->content_bytes);
    put64(s->at + 56, m->start_lsn);
    put32(s->at + 64, m->part);
    put32(s->at + 68, m->chunk_count);
    put32(s->at + 72, m->place_count);
    put32(s->at + 76, m->pending_count);
    uint8_t *at = put_chunk_rows(s->at + 80, chunks, m->chunk_count);
    at = put_place_rows(at, places, m->place_count);
    put_pending_rows(at, pending, m->pending_count);
    return seal_record(s, length);
}

/* What the three records that carry an xid begin with. */
static void put_xid_head(const struct slot *s, const struct xid *x) {
    put64(s->at + 48, (uint64_t)x->format_id);
    s->at[56] = x->gtrid_bytes;
    s->at[57] = x->bqual_bytes;
    memset(s->at + 58, 0, 6);
}

uint32_t format_put_xid(const struct slot *s, enum record_type type, const struct xid *x) {
    uint32_t length = format_xid_record_bytes(x);
    start_record(s, (uint16_t)type, length);
    put_xid_head(s, x);
    memcpy(s->at + 64, x->data, (size_t)x->gtrid_bytes + x->bqual_bytes);
    return seal_record(s, length);
}

uint32_t format_put_tx_relocated(const struct slot *s, const struct tx_relocated *t) {
    uint32_t length = format_tx_relocated_bytes(&t->xid);
    start_record(s, TX_RELOCATED, length);
    put_xid_head(s, &t->xid);
    s->at[58] = t->kind;
    s->at[59] = t->state;
    put64(s->at + 64, t->start_time_us);
    put64(s->at + 72, t->prepare_time_us);
    memcpy(s->at + 80, t->xid.data, (size_t)t->xid.gtrid_bytes + t->xid.bqual_bytes);
    return seal_record(s, length);
}

uint32_t format_put_filler(const struct slot *s, uint32_t zero_bytes) {
    uint32_t length = RECORD_HEADER_BYTES + zero_bytes;
    start_record(s, FILLER, length);
    memset(s->at + RECORD_HEADER_BYTES, 0, zero_bytes);
    return seal_record(s, length);
}

uint32_t format_put_queue_delete(const struct slot *s, uint32_t queue_id) {
    start_record(s, QUEUE_DELETE, QUEUE_DELETE_RECORD_BYTES);
    put32(s->at + 48, queue_id);
    put32(s->at + 52, 0);
    return seal_record(s, QUEUE_DELETE_RECORD_BYTES);
}

uint32_t format_put_footer(const struct slot *s, const struct footer *f) {
    uint32_t length = 72 + 8 * f->n;
    start_record(s, FOOTER, length);
    put64(s->at + 48, f->last_lsn);
    put64(s->at + 56, f->bytes);
    put32(s->at + 64, f->batches);
    put32(s->at + 68, f->n);
    for (uint32_t i = 0; i < f->n; i++) {
        put32(s->at + 72 + 8 * (size_t)i, f->counts[i].type);
        put32(s->at + 76 + 8 * (size_t)i, f->counts[i].count);
    }
    return seal_record(s, length);
}

uint32_t format_put_batch(const struct slot *s, const struct batch *b) {
    start_record(s, BATCH, BATCH_RECORD_BYTES);
    put64(s->at + 48, b->epoch);
    put32(s->at + 56, b->count);
    put32(s->at + 60, b->bytes);
    put64(s->at + 64, b->durable_lsn);
    put64(s->at + 72, b->base_lsn);
    put64(s->at + 80, b->time_us);
    memcpy(s->at + 88, b->opaque, OPAQUE_BYTES);
    return seal_record(s, BATCH_RECORD_BYTES);
}
