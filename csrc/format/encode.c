/* Records from structs, sealed where they stand: sections 5 and 6 of docs/format.md. See format.h. */
#include <assert.h>
#include <string.h>

#include "format/format.h"
#include "format/parts.h"
#include "format/xxh64.h"

uint64_t format_start_bytes(uint64_t header_bytes, uint64_t content_bytes, uint64_t queue_count) {
    return pad8(AT(MESSAGE_START, queues) + pad8(4 * queue_count) + header_bytes + content_bytes);
}

uint64_t format_chunk_bytes(uint64_t content_bytes) { return pad8(AT(MESSAGE_CHUNK, content) + content_bytes); }

uint64_t format_enqueue_bytes(uint64_t queue_count) { return pad8(AT(MESSAGE_ENQUEUE, queues) + 4 * queue_count); }

_Static_assert((int)AT(MESSAGE_RELOCATED, chunks) == (int)STATE_HEAD_BYTES &&
                   RELOCATED_PLACE_BYTES == RELOCATED_WORK_BYTES,
               "the sizes of a state are those of the layout");

uint64_t format_relocated_bytes(uint64_t chunk_count, uint64_t place_count, uint64_t pending_count) {
    return AT(MESSAGE_RELOCATED, chunks) + RELOCATED_CHUNK_BYTES * chunk_count + RELOCATED_PLACE_BYTES * place_count +
           RELOCATED_WORK_BYTES * pending_count;
}

uint32_t format_xid_record_bytes(const struct xid *x) {
    return (uint32_t)pad8(AT(XID, names) + (uint64_t)x->gtrid_bytes + x->bqual_bytes);
}

uint32_t format_tx_relocated_bytes(const struct xid *x) {
    return (uint32_t)pad8(AT(TX_RELOCATED, names) + (uint64_t)x->gtrid_bytes + x->bqual_bytes);
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

/*
 * Zeros fill the queue ids up to a multiple of 8.
 *  48      56             60              64            68            72
 *  | tx_id | header_bytes | content_bytes | queue_count | order_index | queue ids | header | content |
 */
uint32_t format_put_start(const struct slot *s, uint64_t key, uint32_t order_index, const uint32_t *queues,
                          uint32_t queue_count, const void *header, uint32_t header_bytes, const void *content,
                          uint32_t content_bytes) {
    uint32_t length = (uint32_t)format_start_bytes(header_bytes, content_bytes, queue_count);
    start_record(s, MESSAGE_START, length);
    PUT(s->at, MESSAGE_START, tx_id, key);
    PUT(s->at, MESSAGE_START, header_bytes, header_bytes);
    PUT(s->at, MESSAGE_START, content_bytes, content_bytes);
    PUT(s->at, MESSAGE_START, queue_count, queue_count);
    PUT(s->at, MESSAGE_START, order_index, order_index);
    uint8_t *at = s->at + AT(MESSAGE_START, queues);
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

/*
 *  48       56              60  64
 *  | offset | content_bytes | 0 | content |
 */
uint32_t format_put_chunk(const struct slot *s, uint64_t offset, const void *content, uint32_t content_bytes) {
    uint32_t length = (uint32_t)format_chunk_bytes(content_bytes);
    start_record(s, MESSAGE_CHUNK, length);
    PUT(s->at, MESSAGE_CHUNK, offset, offset);
    PUT(s->at, MESSAGE_CHUNK, content_bytes, content_bytes);
    PUT(s->at, MESSAGE_CHUNK, zero, 0);
    if (content_bytes > 0) {
        memcpy(s->at + AT(MESSAGE_CHUNK, content), content, content_bytes);
    }
    return seal_record(s, length);
}

/*
 *  48      56            60            64
 *  | tx_id | queue_count | order_index | queue ids |
 */
uint32_t format_put_enqueue(const struct slot *s, uint64_t tx_id, uint32_t order_index, const uint32_t *queues,
                            uint32_t queue_count) {
    uint32_t length = (uint32_t)format_enqueue_bytes(queue_count);
    start_record(s, MESSAGE_ENQUEUE, length);
    PUT(s->at, MESSAGE_ENQUEUE, tx_id, tx_id);
    PUT(s->at, MESSAGE_ENQUEUE, queue_count, queue_count);
    PUT(s->at, MESSAGE_ENQUEUE, order_index, order_index);
    put_queues(s->at + AT(MESSAGE_ENQUEUE, queues), queues, queue_count);
    return seal_record(s, length);
}

/*
 *  48      56         60               62       64
 *  | tx_id | queue_id | delivery_count | reason |
 */
uint32_t format_put_dequeue(const struct slot *s, const struct message_dequeue *d) {
    start_record(s, MESSAGE_DEQUEUE, DEQUEUE_RECORD_BYTES);
    PUT(s->at, MESSAGE_DEQUEUE, tx_id, d->tx_id);
    PUT(s->at, MESSAGE_DEQUEUE, queue_id, d->queue_id);
    PUT(s->at, MESSAGE_DEQUEUE, delivery_count, d->delivery_count);
    PUT(s->at, MESSAGE_DEQUEUE, reason, d->reason);
    return seal_record(s, DEQUEUE_RECORD_BYTES);
}

/*
 *  0           8                 16         20            24               28  32
 *  | order_lsn | enqueue_time_us | queue_id | order_index | delivery_count | 0 |
 */
static uint8_t *put_place_rows(uint8_t *at, const struct place_row *rows, uint32_t count) {
    for (uint32_t i = 0; i < count; i++, at += RELOCATED_PLACE_BYTES) {
        PUT(at, RELOCATED_PLACE, order_lsn, rows[i].order_lsn);
        PUT(at, RELOCATED_PLACE, enqueue_time_us, rows[i].enqueue_time_us);
        PUT(at, RELOCATED_PLACE, queue_id, rows[i].queue_id);
        PUT(at, RELOCATED_PLACE, order_index, rows[i].order_index);
        PUT(at, RELOCATED_PLACE, delivery_count, rows[i].delivery_count);
        PUT(at, RELOCATED_PLACE, zero, 0);
    }
    return at;
}

/*
 *  0       8     16         20     24            28  32
 *  | tx_id | lsn | queue_id | kind | order_index | 0 |
 */
static void put_pending_rows(uint8_t *at, const struct pending_row *rows, uint32_t count) {
    for (uint32_t i = 0; i < count; i++, at += RELOCATED_WORK_BYTES) {
        PUT(at, RELOCATED_WORK, tx_id, rows[i].tx_id);
        PUT(at, RELOCATED_WORK, lsn, rows[i].lsn);
        PUT(at, RELOCATED_WORK, queue_id, rows[i].queue_id);
        PUT(at, RELOCATED_WORK, kind, rows[i].kind);
        PUT(at, RELOCATED_WORK, order_index, rows[i].order_index);
        PUT(at, RELOCATED_WORK, zero, 0);
    }
}

/*
 *  48              56          64     68            72            76              80
 *  | content_bytes | start_lsn | part | chunk_count | place_count | pending_count | chunks | places | pending work |
 */
uint32_t format_put_relocated(const struct slot *s, const struct message_relocated *m, const struct chunk_row *chunks,
                              const struct place_row *places, const struct pending_row *pending) {
    uint32_t length = (uint32_t)format_relocated_bytes(m->chunk_count, m->place_count, m->pending_count);
    start_record(s, MESSAGE_RELOCATED, length);
    PUT(s->at, MESSAGE_RELOCATED, content_bytes, m->content_bytes);
    PUT(s->at, MESSAGE_RELOCATED, start_lsn, m->start_lsn);
    PUT(s->at, MESSAGE_RELOCATED, part, m->part);
    PUT(s->at, MESSAGE_RELOCATED, chunk_count, m->chunk_count);
    PUT(s->at, MESSAGE_RELOCATED, place_count, m->place_count);
    PUT(s->at, MESSAGE_RELOCATED, pending_count, m->pending_count);
    uint8_t *at = put_chunk_rows(s->at + AT(MESSAGE_RELOCATED, chunks), chunks, m->chunk_count);
    at = put_place_rows(at, places, m->place_count);
    put_pending_rows(at, pending, m->pending_count);
    return seal_record(s, length);
}

/*
 * Three records begin with an xid.
 *  48          56            57            58  64
 *  | format_id | gtrid_bytes | bqual_bytes | 0 |
 */
static void put_xid_head(const struct slot *s, const struct xid *x) {
    PUT(s->at, XID, format_id, (uint64_t)x->format_id);
    PUT(s->at, XID, gtrid_bytes, x->gtrid_bytes);
    PUT(s->at, XID, bqual_bytes, x->bqual_bytes);
    memset(s->at + AT(XID, zero), 0, AT(XID, names) - AT(XID, zero));
}

/*
 *  48    64
 *  | xid | gtrid | bqual |
 */
uint32_t format_put_xid(const struct slot *s, enum record_type type, const struct xid *x) {
    uint32_t length = format_xid_record_bytes(x);
    start_record(s, (uint16_t)type, length);
    put_xid_head(s, x);
    memcpy(s->at + AT(XID, names), x->data, (size_t)x->gtrid_bytes + x->bqual_bytes);
    return seal_record(s, length);
}

/*
 *  48    58     59      60  64              72                80
 *  | xid | kind | state | 0 | start_time_us | prepare_time_us | gtrid | bqual |
 */
uint32_t format_put_tx_relocated(const struct slot *s, const struct tx_relocated *t) {
    uint32_t length = format_tx_relocated_bytes(&t->xid);
    start_record(s, TX_RELOCATED, length);
    put_xid_head(s, &t->xid);
    PUT(s->at, TX_RELOCATED, kind, t->kind);
    PUT(s->at, TX_RELOCATED, state, t->state);
    PUT(s->at, TX_RELOCATED, start_time_us, t->start_time_us);
    PUT(s->at, TX_RELOCATED, prepare_time_us, t->prepare_time_us);
    memcpy(s->at + AT(TX_RELOCATED, names), t->xid.data, (size_t)t->xid.gtrid_bytes + t->xid.bqual_bytes);
    return seal_record(s, length);
}

/*
 *  48         52  56
 *  | queue_id | 0 |
 */
uint32_t format_put_queue_delete(const struct slot *s, uint32_t queue_id) {
    start_record(s, QUEUE_DELETE, QUEUE_DELETE_RECORD_BYTES);
    PUT(s->at, QUEUE_DELETE, queue_id, queue_id);
    PUT(s->at, QUEUE_DELETE, zero, 0);
    return seal_record(s, QUEUE_DELETE_RECORD_BYTES);
}

/*
 *  48         56      64        68  72     76      80
 *  | last_lsn | bytes | batches | n | type | count | type | count | ... |
 */
uint32_t format_put_footer(const struct slot *s, const struct footer *f) {
    uint32_t length = AT(FOOTER, counts) + TYPE_COUNT_BYTES * f->n;
    start_record(s, FOOTER, length);
    PUT(s->at, FOOTER, last_lsn, f->last_lsn);
    PUT(s->at, FOOTER, bytes, f->bytes);
    PUT(s->at, FOOTER, batches, f->batches);
    PUT(s->at, FOOTER, n, f->n);
    for (uint32_t i = 0; i < f->n; i++) {
        uint8_t *at = s->at + AT(FOOTER, counts) + TYPE_COUNT_BYTES * (size_t)i;
        PUT(at, TYPE_COUNT, type, f->counts[i].type);
        PUT(at, TYPE_COUNT, count, f->counts[i].count);
    }
    return seal_record(s, length);
}

/*
 *  48      56      60      64            72         80        88      96                  104
 *  | epoch | count | bytes | durable_lsn | base_lsn | time_us | index | known_durable_lsn |
 */
uint32_t format_put_batch(const struct slot *s, const struct batch *b) {
    start_record(s, BATCH, BATCH_RECORD_BYTES);
    PUT(s->at, BATCH, epoch, b->epoch);
    PUT(s->at, BATCH, count, b->count);
    PUT(s->at, BATCH, bytes, b->bytes);
    PUT(s->at, BATCH, durable_lsn, b->durable_lsn);
    PUT(s->at, BATCH, base_lsn, b->base_lsn);
    PUT(s->at, BATCH, time_us, b->time_us);
    PUT(s->at, BATCH, index, b->index);
    PUT(s->at, BATCH, known_durable_lsn, b->known_durable_lsn);
    return seal_record(s, BATCH_RECORD_BYTES);
}

/* ---- replication ---- */

uint32_t format_members_bytes(uint32_t config_bytes) {
    return (uint32_t)pad8(AT(MEMBERS, config) + (uint64_t)config_bytes);
}

/*
 *  48      56             60  64
 *  | index | config_bytes | 0 | config |
 */
uint32_t format_put_members(const struct slot *s, const struct members *m) {
    uint32_t length = format_members_bytes(m->config_bytes);
    start_record(s, MEMBERS, length);
    PUT(s->at, MEMBERS, index, m->index);
    PUT(s->at, MEMBERS, config_bytes, m->config_bytes);
    PUT(s->at, MEMBERS, zero, 0);
    memcpy(s->at + AT(MEMBERS, config), m->config, m->config_bytes);
    return seal_record(s, length);
}

uint64_t format_catalog_row_bytes(uint32_t bytes) { return pad8(CATALOG_ROW_BYTES + (uint64_t)bytes); }

/*
 *  0        1        2   4          8           12  16
 *  | action | object | 0 | queue_id | row_bytes | 0 | row |
 */
uint32_t format_put_catalog_row(uint8_t *into, const struct catalog_row *row) {
    uint32_t length = (uint32_t)format_catalog_row_bytes(row->bytes);
    put64(into + length - 8, 0);
    PUT(into, CATALOG_ROW, action, row->action);
    PUT(into, CATALOG_ROW, object, row->object);
    PUT(into, CATALOG_ROW, zero, 0);
    PUT(into, CATALOG_ROW, queue_id, row->queue_id);
    PUT(into, CATALOG_ROW, row_bytes, row->bytes);
    PUT(into, CATALOG_ROW, more_zero, 0);
    if (row->bytes > 0) {
        memcpy(into + CATALOG_ROW_BYTES, row->data, row->bytes);
    }
    return length;
}

uint64_t format_catalog_change_bytes(uint64_t rows_bytes) { return pad8(AT(CATALOG_CHANGE, rows) + rows_bytes); }

/*
 *  48     52          56
 *  | part | row_count | rows |
 */
uint32_t format_put_catalog_change(const struct slot *s, uint32_t part, uint32_t row_count, const void *rows,
                                   uint32_t rows_bytes) {
    uint32_t length = (uint32_t)format_catalog_change_bytes(rows_bytes);
    start_record(s, CATALOG_CHANGE, length);
    PUT(s->at, CATALOG_CHANGE, part, part);
    PUT(s->at, CATALOG_CHANGE, row_count, row_count);
    memcpy(s->at + AT(CATALOG_CHANGE, rows), rows, rows_bytes);
    return seal_record(s, length);
}
