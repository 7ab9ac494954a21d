/* The layout of a checkpoint, section 8 of docs/format.md. See format/checkpoint.h. */
#include "format/checkpoint.h"

#include <string.h>

#include "format/fields.h"
#include "format/xxh64.h"

static const uint8_t magic[8] = {'L', 'S', 'T', 'R', 'C', 'K', 'P', 'T'};

/* ---- the header ------------------------------------------------------------------------------------------ */

/*
 *  0          32      40    48          56               64         72           80     88
 *  | preamble | epoch | lsn | batch_lsn | batch_checksum | base_lsn | file_bytes | salt |
 *  88           96         104      112          120            128         136  4088       4096
 *  | created_us | messages | places | operations | transactions | deletions | 0  | checksum |
 */
void format_put_checkpoint(uint8_t *into, const struct checkpoint_header *h) {
    memset(into, 0, CHECKPOINT_HEADER_BYTES);
    memcpy(into, magic, sizeof magic);
    PUT(into, PREAMBLE, format_version, FORMAT_VERSION);
    PUT(into, PREAMBLE, bytes, CHECKPOINT_HEADER_BYTES);
    memcpy(into + AT(PREAMBLE, uuid), h->uuid, UUID_BYTES);
    PUT(into, CHECKPOINT, epoch, h->epoch);
    PUT(into, CHECKPOINT, lsn, h->lsn);
    PUT(into, CHECKPOINT, batch_lsn, h->batch_lsn);
    PUT(into, CHECKPOINT, batch_checksum, h->batch_checksum);
    PUT(into, CHECKPOINT, base_lsn, h->base_lsn);
    PUT(into, CHECKPOINT, file_bytes, h->file_bytes);
    PUT(into, CHECKPOINT, salt, h->salt);
    PUT(into, CHECKPOINT, created_us, h->created_us);
    PUT(into, CHECKPOINT, messages, h->messages);
    PUT(into, CHECKPOINT, places, h->places);
    PUT(into, CHECKPOINT, operations, h->operations);
    PUT(into, CHECKPOINT, transactions, h->transactions);
    PUT(into, CHECKPOINT, deletions, h->deletions);
    PUT(into, CHECKPOINT, checksum, xxh64(into, AT(CHECKPOINT, checksum), 0));
}

/* The counts are of rows in the file, so its size limits them, and all memory that is allocated for them. */
static bool header_is_possible(const struct checkpoint_header *h) {
    uint64_t last = h->file_bytes >= CHECKPOINT_HEADER_BYTES
                        ? (h->file_bytes - CHECKPOINT_HEADER_BYTES) % CHECKPOINT_BLOCK_BYTES
                        : 1;
    bool sized =
        h->file_bytes % 8 == 0 && h->file_bytes <= LSN_MAX && (last == 0 || last > CHECKPOINT_BLOCK_HEADER_BYTES);
    bool placed = h->epoch > 0 && is_lsn(h->lsn) && is_lsn(h->batch_lsn) && is_lsn(h->base_lsn) &&
                  h->batch_lsn < h->lsn && h->lsn - h->batch_lsn >= BATCH_RECORD_BYTES && h->base_lsn <= h->batch_lsn &&
                  h->lsn % 8 == 0 && h->batch_lsn % 8 == 0;
    return sized && placed && h->messages <= h->file_bytes / PLAIN_ROW_BYTES &&
           h->places <= h->file_bytes / CHAIN_PLACE_BYTES && h->operations <= h->file_bytes / CHAIN_OPERATION_BYTES &&
           h->transactions <= h->file_bytes / TRANSACTION_ROW_BYTES &&
           h->deletions <= h->file_bytes / DELETION_ROW_BYTES;
}

enum format_result format_get_checkpoint(const uint8_t *from, size_t available, struct checkpoint_header *h) {
    if (available < 12) {
        return FORMAT_SHORT;
    }
    if (memcmp(from, magic, sizeof magic) != 0) {
        return FORMAT_MAGIC;
    }
    if (GET(from, PREAMBLE, format_version) > FORMAT_VERSION) {
        return FORMAT_NEWER;
    }
    if (available < CHECKPOINT_HEADER_BYTES) {
        return FORMAT_SHORT;
    }
    memcpy(h->uuid, from + AT(PREAMBLE, uuid), UUID_BYTES);
    h->epoch = GET(from, CHECKPOINT, epoch);
    h->lsn = GET(from, CHECKPOINT, lsn);
    h->batch_lsn = GET(from, CHECKPOINT, batch_lsn);
    h->batch_checksum = GET(from, CHECKPOINT, batch_checksum);
    h->base_lsn = GET(from, CHECKPOINT, base_lsn);
    h->file_bytes = GET(from, CHECKPOINT, file_bytes);
    h->salt = GET(from, CHECKPOINT, salt);
    h->created_us = GET(from, CHECKPOINT, created_us);
    h->messages = GET(from, CHECKPOINT, messages);
    h->places = GET(from, CHECKPOINT, places);
    h->operations = GET(from, CHECKPOINT, operations);
    h->transactions = GET(from, CHECKPOINT, transactions);
    h->deletions = GET(from, CHECKPOINT, deletions);
    if (GET(from, CHECKPOINT, checksum) != xxh64(from, AT(CHECKPOINT, checksum), 0)) {
        return FORMAT_CHECK;
    }
    bool sized =
        GET(from, PREAMBLE, format_version) == FORMAT_VERSION && GET(from, PREAMBLE, bytes) == CHECKPOINT_HEADER_BYTES;
    return sized && all_zero(from + AT(CHECKPOINT, zero), AT(CHECKPOINT, checksum) - AT(CHECKPOINT, zero)) &&
                   header_is_possible(h)
               ? FORMAT_OK
               : FORMAT_MALFORMED;
}

/* ---- blocks ---------------------------------------------------------------------------------------------- */

uint64_t format_checkpoint_blocks(uint64_t file_bytes) {
    return (file_bytes - CHECKPOINT_HEADER_BYTES + CHECKPOINT_BLOCK_BYTES - 1) / CHECKPOINT_BLOCK_BYTES;
}

uint32_t format_checkpoint_extent(uint64_t file_bytes, uint64_t index) {
    uint64_t left = file_bytes - CHECKPOINT_HEADER_BYTES - index * CHECKPOINT_BLOCK_BYTES;
    return left < CHECKPOINT_BLOCK_BYTES ? (uint32_t)left : CHECKPOINT_BLOCK_BYTES;
}

static uint64_t block_seed(const struct checkpoint_header *h, uint64_t index) {
    uint8_t from[UUID_BYTES + 32];
    memcpy(from, h->uuid, UUID_BYTES);
    put64(from + 16, h->lsn);
    put64(from + 24, h->epoch);
    put64(from + 32, h->salt);
    put64(from + 40, index);
    return xxh64(from, sizeof from, 0);
}

static uint64_t block_checksum(const uint8_t *block, const struct checkpoint_header *h, uint64_t index,
                               uint32_t extent) {
    return xxh64(block + AT(CHECKPOINT_BLOCK, index), extent - AT(CHECKPOINT_BLOCK, index), block_seed(h, index));
}

/*
 *  0          8       12     16     used  extent
 *  | checksum | index | used | rows | 0   |
 */
void format_put_checkpoint_block(uint8_t *block, const struct checkpoint_header *h, uint64_t index, uint32_t used,
                                 uint32_t extent) {
    PUT(block, CHECKPOINT_BLOCK, index, (uint32_t)index);
    PUT(block, CHECKPOINT_BLOCK, bytes, used);
    memset(block + used, 0, extent - used);
    PUT(block, CHECKPOINT_BLOCK, checksum, block_checksum(block, h, index, extent));
}

enum format_result format_get_checkpoint_block(const uint8_t *block, const struct checkpoint_header *h, uint64_t index,
                                               uint32_t *used) {
    uint32_t extent = format_checkpoint_extent(h->file_bytes, index);
    bool last = index + 1 == format_checkpoint_blocks(h->file_bytes);
    if (GET(block, CHECKPOINT_BLOCK, checksum) != block_checksum(block, h, index, extent)) {
        return FORMAT_CHECK;
    }
    *used = GET(block, CHECKPOINT_BLOCK, bytes);
    bool possible = GET(block, CHECKPOINT_BLOCK, index) == (uint32_t)index && *used > CHECKPOINT_BLOCK_HEADER_BYTES &&
                    *used <= extent && *used % 8 == 0 && (!last || *used == extent);
    return possible && all_zero(block + *used, extent - *used) ? FORMAT_OK : FORMAT_MALFORMED;
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

uint32_t format_checkpoint_row_bytes(uint8_t kind) {
    static const uint8_t bytes[] = {0,
                                    DELETION_ROW_BYTES,
                                    TRANSACTION_ROW_BYTES,
                                    PLAIN_ROW_BYTES,
                                    SINGLE_ROW_BYTES,
                                    CHAIN_ROW_BYTES,
                                    CLIENT_ROW_BYTES,
                                    PLACE_STATE_ROW_BYTES};
    return kind < sizeof bytes ? bytes[kind] : 0;
}

/*
 *  0      1        2   4       8
 *  | kind | stream | 0 | bytes | the client's own |
 */
uint32_t format_put_client_row(uint8_t *into, const struct client_row *c) {
    PUT(into, CLIENT_ROW, kind, ROW_CLIENT);
    PUT(into, CLIENT_ROW, stream, (uint8_t)c->stream);
    PUT(into, CLIENT_ROW, zero, 0);
    PUT(into, CLIENT_ROW, bytes, c->length);
    return CLIENT_ROW_BYTES;
}

/*
 *  0       8            16            24              32
 *  | index | members_id | members_lsn | members_index | config |
 */
uint32_t format_put_replication_row(uint8_t *into, const struct replication_row *r) {
    PUT(into, REPLICATION_ROW, index, r->index);
    PUT(into, REPLICATION_ROW, members_id, r->members_id);
    PUT(into, REPLICATION_ROW, members_lsn, r->members_lsn);
    PUT(into, REPLICATION_ROW, members_index, r->members_index);
    memcpy(into + REPLICATION_ROW_BYTES, r->config, r->config_bytes);
    return REPLICATION_ROW_BYTES + r->config_bytes;
}

/*
 *  0      1   4          8     16
 *  | kind | 0 | queue_id | lsn |
 */
uint32_t format_put_deletion_row(uint8_t *into, const struct deletion_row *d) {
    memset(into, 0, AT(DELETION_ROW, queue_id));
    PUT(into, DELETION_ROW, kind, ROW_DELETION);
    PUT(into, DELETION_ROW, queue_id, d->queue_id);
    PUT(into, DELETION_ROW, lsn, d->lsn);
    return DELETION_ROW_BYTES;
}

/*
 *  0          1      2       3   8    16          24         32              40                48
 *  | row_kind | kind | state | 0 | id | start_lsn | last_lsn | start_time_us | prepare_time_us |
 *  48          56            57            58  64                  192
 *  | format_id | gtrid_bytes | bqual_bytes | 0 | gtrid | bqual | 0 |
 */
uint32_t format_put_transaction_row(uint8_t *into, const struct transaction_row *t) {
    memset(into, 0, TRANSACTION_ROW_BYTES);
    PUT(into, TRANSACTION_ROW, row_kind, ROW_TRANSACTION);
    PUT(into, TRANSACTION_ROW, kind, t->kind);
    PUT(into, TRANSACTION_ROW, state, t->state);
    PUT(into, TRANSACTION_ROW, id, t->id);
    PUT(into, TRANSACTION_ROW, start_lsn, t->start_lsn);
    PUT(into, TRANSACTION_ROW, last_lsn, t->last_lsn);
    PUT(into, TRANSACTION_ROW, start_time_us, t->start_time_us);
    PUT(into, TRANSACTION_ROW, prepare_time_us, t->prepare_time_us);
    PUT(into, TRANSACTION_ROW, format_id, (uint64_t)t->xid.format_id);
    PUT(into, TRANSACTION_ROW, gtrid_bytes, t->xid.gtrid_bytes);
    PUT(into, TRANSACTION_ROW, bqual_bytes, t->xid.bqual_bytes);
    memcpy(into + AT(TRANSACTION_ROW, names), t->xid.data, (size_t)t->xid.gtrid_bytes + t->xid.bqual_bytes);
    return TRANSACTION_ROW_BYTES;
}

/*
 * A message: a plain row ends at 24, a single one at 56.
 *  0      1       2   4          8    16             20              24
 *  | kind | flags | 0 | queue_id | id | record_bytes | content_bytes |
 *  24          32         40          48            52       56
 *  | start_lsn | last_lsn | order_lsn | order_index | growth |
 * A chain has place_count at 4 and differs from 40 on:
 *  40              48            52           56                60            64       68           72          76  80
 *  | content_total | chunk_count | part_count | operation_count | state_bytes | growth | work_state | work_rows | 0 |
 */
uint32_t format_put_message_row(uint8_t *into, const struct message_row *m) {
    PUT(into, MESSAGE_ROW, kind, m->kind);
    PUT(into, MESSAGE_ROW, flags, m->flags);
    PUT(into, MESSAGE_ROW, zero, 0);
    PUT(into, MESSAGE_ROW, queue_id, m->kind == ROW_CHAIN ? m->place_count : m->queue_id);
    PUT(into, MESSAGE_ROW, id, m->id);
    PUT(into, MESSAGE_ROW, record_bytes, m->record_bytes);
    PUT(into, MESSAGE_ROW, content_bytes, m->content_bytes);
    if (m->kind == ROW_PLAIN) {
        return PLAIN_ROW_BYTES;
    }
    PUT(into, MESSAGE_ROW, start_lsn, m->start_lsn);
    PUT(into, MESSAGE_ROW, last_lsn, m->last_lsn);
    if (m->kind == ROW_SINGLE) {
        PUT(into, SINGLE_ROW, order_lsn, m->order_lsn);
        PUT(into, SINGLE_ROW, order_index, m->order_index);
        PUT(into, SINGLE_ROW, growth, m->growth);
        return SINGLE_ROW_BYTES;
    }
    PUT(into, CHAIN_ROW, content_total, m->content_total);
    PUT(into, CHAIN_ROW, chunk_count, m->chunk_count);
    PUT(into, CHAIN_ROW, part_count, m->part_count);
    PUT(into, CHAIN_ROW, operation_count, m->operation_count);
    PUT(into, CHAIN_ROW, state_bytes, m->state_bytes);
    PUT(into, CHAIN_ROW, growth, m->growth);
    PUT(into, CHAIN_ROW, work_state, m->work_state);
    PUT(into, CHAIN_ROW, work_rows, m->work_rows);
    PUT(into, CHAIN_ROW, zero, 0);
    return CHAIN_ROW_BYTES;
}

/*
 *  0     8        16             20              24
 *  | lsn | offset | record_bytes | content_bytes |
 */
uint32_t format_put_chain_chunk(uint8_t *into, const struct chain_chunk *c) {
    PUT(into, CHAIN_CHUNK, lsn, c->lsn);
    PUT(into, CHAIN_CHUNK, offset, c->offset);
    PUT(into, CHAIN_CHUNK, record_bytes, c->record_bytes);
    PUT(into, CHAIN_CHUNK, content_bytes, c->content_bytes);
    return CHAIN_CHUNK_BYTES;
}

/*
 *  0     8              12  16
 *  | lsn | record_bytes | 0 |
 */
uint32_t format_put_chain_part(uint8_t *into, const struct chain_part *p) {
    PUT(into, CHAIN_PART, lsn, p->lsn);
    PUT(into, CHAIN_PART, record_bytes, p->record_bytes);
    PUT(into, CHAIN_PART, zero, 0);
    return CHAIN_PART_BYTES;
}

/*
 *  0           8             12         16
 *  | order_lsn | order_index | queue_id |
 */
uint32_t format_put_chain_place(uint8_t *into, const struct chain_place *p) {
    PUT(into, CHAIN_PLACE, order_lsn, p->order_lsn);
    PUT(into, CHAIN_PLACE, order_index, p->order_index);
    PUT(into, CHAIN_PLACE, queue_id, p->queue_id);
    return CHAIN_PLACE_BYTES;
}

/*
 *  0       8     16         20            24     28  32
 *  | tx_id | lsn | queue_id | order_index | kind | 0 |
 */
uint32_t format_put_chain_operation(uint8_t *into, const struct chain_operation *o) {
    PUT(into, CHAIN_OPERATION, tx_id, o->tx_id);
    PUT(into, CHAIN_OPERATION, lsn, o->lsn);
    PUT(into, CHAIN_OPERATION, queue_id, o->queue_id);
    PUT(into, CHAIN_OPERATION, order_index, o->order_index);
    PUT(into, CHAIN_OPERATION, kind, o->kind);
    PUT(into, CHAIN_OPERATION, zero, 0);
    return CHAIN_OPERATION_BYTES;
}

/*
 *  0      1      2   4    8               16           24               28  32
 *  | kind | bits | 0 | of | not_before_us | expires_us | delivery_count | 0 |
 */
uint32_t format_put_place_state_row(uint8_t *into, const struct place_state_row *s) {
    memset(into, 0, PLACE_STATE_ROW_BYTES);
    PUT(into, PLACE_STATE_ROW, kind, ROW_STATE);
    PUT(into, PLACE_STATE_ROW, bits, s->bits);
    PUT(into, PLACE_STATE_ROW, of, s->of);
    PUT(into, PLACE_STATE_ROW, not_before_us, s->not_before_us);
    PUT(into, PLACE_STATE_ROW, expires_us, s->expires_us);
    PUT(into, PLACE_STATE_ROW, delivery_count, s->delivery_count);
    return PLACE_STATE_ROW_BYTES;
}

/*
 *  0     8              12   16      20  24
 *  | lsn | record_bytes | at | bytes | 0 |
 */
uint32_t format_put_own_bytes_row(uint8_t *into, const struct own_bytes_row *o) {
    PUT(into, OWN_BYTES_ROW, lsn, o->lsn);
    PUT(into, OWN_BYTES_ROW, record_bytes, o->record_bytes);
    PUT(into, OWN_BYTES_ROW, at, o->at);
    PUT(into, OWN_BYTES_ROW, bytes, o->bytes);
    PUT(into, OWN_BYTES_ROW, zero, 0);
    return OWN_BYTES_ROW_BYTES;
}

/* ---- rows from bytes ------------------------------------------------------------------------------------- */

static bool is_queue_id(uint32_t id) { return id > 0 && id <= QUEUE_ID_MAX; }

/* The LSN of a record of the chain that began at `id`, below the checkpoint's. */
static bool stands_in(uint64_t lsn, uint64_t id, uint64_t limit_lsn) {
    return lsn >= id && lsn < limit_lsn && lsn % 8 == 0;
}

static bool is_record_bytes(uint32_t bytes) {
    return bytes >= RECORD_HEADER_BYTES && bytes % 8 == 0 && bytes <= 1 << 20;
}

enum format_result format_get_client_row(const uint8_t *from, struct client_row *c) {
    c->stream = GET(from, CLIENT_ROW, stream);
    c->length = GET(from, CLIENT_ROW, bytes);
    bool possible = GET(from, CLIENT_ROW, kind) == ROW_CLIENT && GET(from, CLIENT_ROW, zero) == 0 &&
                    c->stream > STREAMS_COUNTED && c->stream < STREAMS_MAX && c->length > 0 &&
                    c->length <= CLIENT_BYTES_MAX;
    return possible ? FORMAT_OK : FORMAT_MALFORMED;
}

enum format_result format_get_replication_row(const uint8_t *from, uint32_t bytes, struct replication_row *r) {
    if (bytes <= REPLICATION_ROW_BYTES || bytes > REPLICATION_ROW_BYTES + MEMBERS_CONFIG_MAX) {
        return FORMAT_MALFORMED;
    }
    *r = (struct replication_row){
        .index = GET(from, REPLICATION_ROW, index),
        .members_id = GET(from, REPLICATION_ROW, members_id),
        .members_lsn = GET(from, REPLICATION_ROW, members_lsn),
        .members_index = GET(from, REPLICATION_ROW, members_index),
        .config_bytes = bytes - REPLICATION_ROW_BYTES,
        .config = from + REPLICATION_ROW_BYTES,
    };
    bool numbered = r->members_index > 0 && r->members_index <= r->index;
    bool placed = is_lsn(r->members_id) && is_lsn(r->members_lsn) && r->members_id <= r->members_lsn;
    return numbered && placed ? FORMAT_OK : FORMAT_MALFORMED;
}

enum format_result format_get_deletion_row(const uint8_t *from, uint64_t lsn, struct deletion_row *d) {
    d->queue_id = GET(from, DELETION_ROW, queue_id);
    d->lsn = GET(from, DELETION_ROW, lsn);
    bool possible = GET(from, DELETION_ROW, kind) == ROW_DELETION &&
                    all_zero(from + AT(DELETION_ROW, zero), AT(DELETION_ROW, queue_id) - AT(DELETION_ROW, zero)) &&
                    is_queue_id(d->queue_id) && stands_in(d->lsn, 8, lsn);
    return possible ? FORMAT_OK : FORMAT_MALFORMED;
}

enum format_result format_get_transaction_row(const uint8_t *from, uint64_t lsn, struct transaction_row *t) {
    *t = (struct transaction_row){
        .id = GET(from, TRANSACTION_ROW, id),
        .start_lsn = GET(from, TRANSACTION_ROW, start_lsn),
        .last_lsn = GET(from, TRANSACTION_ROW, last_lsn),
        .start_time_us = GET(from, TRANSACTION_ROW, start_time_us),
        .prepare_time_us = GET(from, TRANSACTION_ROW, prepare_time_us),
        .xid = {.format_id = (int64_t)GET(from, TRANSACTION_ROW, format_id),
                .gtrid_bytes = GET(from, TRANSACTION_ROW, gtrid_bytes),
                .bqual_bytes = GET(from, TRANSACTION_ROW, bqual_bytes)},
        .kind = GET(from, TRANSACTION_ROW, kind),
        .state = GET(from, TRANSACTION_ROW, state),
    };
    if (t->xid.gtrid_bytes > XID_PART_BYTES_MAX || t->xid.bqual_bytes > XID_PART_BYTES_MAX) {
        return FORMAT_MALFORMED;
    }
    size_t named = (size_t)t->xid.gtrid_bytes + t->xid.bqual_bytes;
    memcpy(t->xid.data, from + AT(TRANSACTION_ROW, names), named);
    bool local = t->kind == TX_KIND_LOCAL;
    bool sorted = local
                      ? t->state == TX_STATE_ACTIVE && named == 0 && t->xid.format_id == 0
                      : t->kind == TX_KIND_DISTRIBUTED && t->state >= TX_STATE_ACTIVE && t->state <= TX_STATE_PREPARED;
    bool placed = t->id > 0 && stands_in(t->id, 8, lsn) && stands_in(t->start_lsn, t->id, lsn) &&
                  stands_in(t->last_lsn, t->start_lsn, lsn);
    bool clean =
        GET(from, TRANSACTION_ROW, row_kind) == ROW_TRANSACTION &&
        all_zero(from + AT(TRANSACTION_ROW, zero), AT(TRANSACTION_ROW, id) - AT(TRANSACTION_ROW, zero)) &&
        all_zero(from + AT(TRANSACTION_ROW, more_zero), AT(TRANSACTION_ROW, names) - AT(TRANSACTION_ROW, more_zero)) &&
        all_zero(from + AT(TRANSACTION_ROW, names) + named, 2 * XID_PART_BYTES_MAX - named);
    return sorted && placed && clean ? FORMAT_OK : FORMAT_MALFORMED;
}

uint64_t format_checkpoint_row_id(const uint8_t *from) { return GET(from, MESSAGE_ROW, id); }

static void get_chain(const uint8_t *from, struct message_row *m) {
    m->place_count = GET(from, MESSAGE_ROW, queue_id);
    m->queue_id = 0;
    m->content_total = GET(from, CHAIN_ROW, content_total);
    m->chunk_count = GET(from, CHAIN_ROW, chunk_count);
    m->part_count = GET(from, CHAIN_ROW, part_count);
    m->operation_count = GET(from, CHAIN_ROW, operation_count);
    m->state_bytes = GET(from, CHAIN_ROW, state_bytes);
    m->growth = GET(from, CHAIN_ROW, growth);
    m->work_state = GET(from, CHAIN_ROW, work_state);
    m->work_rows = GET(from, CHAIN_ROW, work_rows);
}

enum format_result format_get_message_row(const uint8_t *from, uint64_t lsn, struct message_row *m) {
    *m = (struct message_row){
        .kind = GET(from, MESSAGE_ROW, kind),
        .flags = GET(from, MESSAGE_ROW, flags),
        .queue_id = GET(from, MESSAGE_ROW, queue_id),
        .id = GET(from, MESSAGE_ROW, id),
        .record_bytes = GET(from, MESSAGE_ROW, record_bytes),
        .content_bytes = GET(from, MESSAGE_ROW, content_bytes),
        .place_count = 1,
    };
    m->start_lsn = m->last_lsn = m->order_lsn = m->id;
    m->content_total = m->content_bytes;
    bool clean = GET(from, MESSAGE_ROW, zero) == 0 && m->flags < 2 * ROW_WIDE;
    if (m->kind != ROW_PLAIN) {
        m->start_lsn = GET(from, MESSAGE_ROW, start_lsn);
        m->last_lsn = GET(from, MESSAGE_ROW, last_lsn);
    }
    if (m->kind == ROW_SINGLE) {
        m->order_lsn = GET(from, SINGLE_ROW, order_lsn);
        m->order_index = GET(from, SINGLE_ROW, order_index);
        m->growth = GET(from, SINGLE_ROW, growth);
    } else if (m->kind == ROW_CHAIN) {
        get_chain(from, m);
        clean = clean && GET(from, CHAIN_ROW, zero) == 0 && m->state_bytes % 8 == 0 && m->state_bytes <= 1 << 20 &&
                m->content_total <= CONTENT_BYTES_MAX && m->content_total >= m->content_bytes;
    }
    bool one_place = m->kind == ROW_CHAIN || (is_queue_id(m->queue_id) && (m->flags & ROW_STAGED) == 0 &&
                                              stands_in(m->order_lsn, m->id, lsn) && m->order_index <= ORDER_INDEX_MAX);
    bool placed = m->id > 0 && stands_in(m->id, 8, lsn) && stands_in(m->start_lsn, m->id, lsn) &&
                  stands_in(m->last_lsn, m->start_lsn, lsn);
    bool sized = is_record_bytes(m->record_bytes) && m->content_bytes <= m->record_bytes - RECORD_HEADER_BYTES;
    return clean && one_place && placed && sized ? FORMAT_OK : FORMAT_MALFORMED;
}

enum format_result format_get_chain_chunk(const uint8_t *from, uint64_t lsn, uint64_t id, struct chain_chunk *c) {
    c->lsn = GET(from, CHAIN_CHUNK, lsn);
    c->offset = GET(from, CHAIN_CHUNK, offset);
    c->record_bytes = GET(from, CHAIN_CHUNK, record_bytes);
    c->content_bytes = GET(from, CHAIN_CHUNK, content_bytes);
    bool possible = stands_in(c->lsn, id, lsn) && c->offset <= CONTENT_BYTES_MAX && is_record_bytes(c->record_bytes) &&
                    c->record_bytes == format_chunk_bytes(c->content_bytes);
    return possible ? FORMAT_OK : FORMAT_MALFORMED;
}

enum format_result format_get_chain_part(const uint8_t *from, uint64_t lsn, uint64_t id, struct chain_part *p) {
    p->lsn = GET(from, CHAIN_PART, lsn);
    p->record_bytes = GET(from, CHAIN_PART, record_bytes);
    bool possible = stands_in(p->lsn, id, lsn) && is_record_bytes(p->record_bytes) && GET(from, CHAIN_PART, zero) == 0;
    return possible ? FORMAT_OK : FORMAT_MALFORMED;
}

enum format_result format_get_chain_place(const uint8_t *from, uint64_t lsn, uint64_t id, struct chain_place *p) {
    p->order_lsn = GET(from, CHAIN_PLACE, order_lsn);
    p->order_index = GET(from, CHAIN_PLACE, order_index);
    p->queue_id = GET(from, CHAIN_PLACE, queue_id);
    bool possible = stands_in(p->order_lsn, id, lsn) && p->order_index <= ORDER_INDEX_MAX && is_queue_id(p->queue_id);
    return possible ? FORMAT_OK : FORMAT_MALFORMED;
}

enum format_result format_get_chain_operation(const uint8_t *from, uint64_t lsn, uint64_t id,
                                              struct chain_operation *o) {
    o->tx_id = GET(from, CHAIN_OPERATION, tx_id);
    o->lsn = GET(from, CHAIN_OPERATION, lsn);
    o->queue_id = GET(from, CHAIN_OPERATION, queue_id);
    o->order_index = GET(from, CHAIN_OPERATION, order_index);
    o->kind = GET(from, CHAIN_OPERATION, kind);
    bool possible = o->tx_id > 0 && o->tx_id < o->lsn && stands_in(o->lsn, id, lsn) && is_queue_id(o->queue_id) &&
                    o->order_index <= ORDER_INDEX_MAX && o->kind >= PENDING_ENQUEUE && o->kind <= PENDING_NOTE &&
                    GET(from, CHAIN_OPERATION, zero) == 0;
    return possible ? FORMAT_OK : FORMAT_MALFORMED;
}

/* A state is not all zero. */
enum format_result format_get_place_state_row(const uint8_t *from, struct place_state_row *s) {
    s->bits = GET(from, PLACE_STATE_ROW, bits);
    s->of = GET(from, PLACE_STATE_ROW, of);
    s->not_before_us = GET(from, PLACE_STATE_ROW, not_before_us);
    s->expires_us = GET(from, PLACE_STATE_ROW, expires_us);
    s->delivery_count = GET(from, PLACE_STATE_ROW, delivery_count);
    bool some = s->not_before_us != 0 || s->expires_us != 0 || s->delivery_count != 0 || s->bits >= ROW_HAS_NOTE;
    bool possible = GET(from, PLACE_STATE_ROW, kind) == ROW_STATE && s->bits < 2 * ROW_HAS_HEADER && some &&
                    ((s->bits & ROW_OF_OPERATION) != 0 || is_queue_id(s->of)) && s->not_before_us <= PLACE_TIME_MAX &&
                    s->expires_us <= PLACE_TIME_MAX;
    bool clean =
        all_zero(from + AT(PLACE_STATE_ROW, zero), AT(PLACE_STATE_ROW, of) - AT(PLACE_STATE_ROW, zero)) &&
        all_zero(from + AT(PLACE_STATE_ROW, more_zero), PLACE_STATE_ROW_BYTES - AT(PLACE_STATE_ROW, more_zero));
    return possible && clean ? FORMAT_OK : FORMAT_MALFORMED;
}

enum format_result format_get_own_bytes_row(const uint8_t *from, uint64_t lsn, uint64_t id, bool is_note,
                                            struct own_bytes_row *o) {
    o->lsn = GET(from, OWN_BYTES_ROW, lsn);
    o->record_bytes = GET(from, OWN_BYTES_ROW, record_bytes);
    o->at = GET(from, OWN_BYTES_ROW, at);
    o->bytes = GET(from, OWN_BYTES_ROW, bytes);
    bool sized = !is_note || (o->bytes > 0 && o->bytes <= NOTE_BYTES_MAX);
    bool inside = is_record_bytes(o->record_bytes) && o->at >= RECORD_HEADER_BYTES && o->at <= o->record_bytes &&
                  o->bytes <= o->record_bytes - o->at;
    bool possible = stands_in(o->lsn, id, lsn) && sized && inside && GET(from, OWN_BYTES_ROW, zero) == 0;
    return possible ? FORMAT_OK : FORMAT_MALFORMED;
}
