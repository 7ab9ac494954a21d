/* The layout of a checkpoint, section 8 of docs/format.md. See format/checkpoint.h. */
#include "format/checkpoint.h"

#include <string.h>

#include "format/bytes.h"
#include "format/xxh64.h"

static const uint8_t magic[8] = {'L', 'S', 'T', 'R', 'C', 'K', 'P', 'T'};

/* ---- the header ------------------------------------------------------------------------------------------ */

void format_put_checkpoint(uint8_t *into, const struct checkpoint_header *h) {
    const uint64_t numbers[] = {h->epoch,      h->lsn,          h->batch_lsn,  h->batch_checksum, h->base_lsn,
                                h->file_bytes, h->salt,         h->created_us, h->messages,       h->places,
                                h->operations, h->transactions, h->deletions};
    memset(into, 0, CHECKPOINT_HEADER_BYTES);
    memcpy(into, magic, sizeof magic);
    put32(into + 8, FORMAT_VERSION);
    put32(into + 12, CHECKPOINT_HEADER_BYTES);
    memcpy(into + 16, h->uuid, UUID_BYTES);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        put64(into + 32 + 8 * i, numbers[i]);
    }
    put64(into + 4088, xxh64(into, 4088, 0));
}

/* The counts are of rows that stand in the file, so its size bounds them, and all memory that they ask for. */
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
    if (get32(from + 8) > FORMAT_VERSION) {
        return FORMAT_NEWER;
    }
    if (available < CHECKPOINT_HEADER_BYTES) {
        return FORMAT_SHORT;
    }
    memcpy(h->uuid, from + 16, UUID_BYTES);
    h->epoch = get64(from + 32);
    h->lsn = get64(from + 40);
    h->batch_lsn = get64(from + 48);
    h->batch_checksum = get64(from + 56);
    h->base_lsn = get64(from + 64);
    h->file_bytes = get64(from + 72);
    h->salt = get64(from + 80);
    h->created_us = get64(from + 88);
    h->messages = get64(from + 96);
    h->places = get64(from + 104);
    h->operations = get64(from + 112);
    h->transactions = get64(from + 120);
    h->deletions = get64(from + 128);
    if (get64(from + 4088) != xxh64(from, 4088, 0)) {
        return FORMAT_CHECK;
    }
    bool sized = get32(from + 8) == FORMAT_VERSION && get32(from + 12) == CHECKPOINT_HEADER_BYTES;
    return sized && all_zero(from + 136, 4088 - 136) && header_is_possible(h) ? FORMAT_OK : FORMAT_MALFORMED;
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

void format_put_checkpoint_block(uint8_t *block, const struct checkpoint_header *h, uint64_t index, uint32_t used,
                                 uint32_t extent) {
    put32(block + 8, (uint32_t)index);
    put32(block + 12, used);
    memset(block + used, 0, extent - used);
    put64(block, xxh64(block + 8, extent - 8, block_seed(h, index)));
}

enum format_result format_get_checkpoint_block(const uint8_t *block, const struct checkpoint_header *h, uint64_t index,
                                               uint32_t *used) {
    uint32_t extent = format_checkpoint_extent(h->file_bytes, index);
    bool last = index + 1 == format_checkpoint_blocks(h->file_bytes);
    if (get64(block) != xxh64(block + 8, extent - 8, block_seed(h, index))) {
        return FORMAT_CHECK;
    }
    *used = get32(block + 12);
    bool possible = get32(block + 8) == (uint32_t)index && *used > CHECKPOINT_BLOCK_HEADER_BYTES && *used <= extent &&
                    *used % 8 == 0 && (!last || *used == extent);
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
                                    CLIENT_ROW_BYTES};
    return kind < sizeof bytes ? bytes[kind] : 0;
}

uint32_t format_put_client_row(uint8_t *into, const struct client_row *c) {
    put32(into, (uint32_t)ROW_CLIENT | c->stream << 8);
    put32(into + 4, c->length);
    return CLIENT_ROW_BYTES;
}

uint32_t format_put_deletion_row(uint8_t *into, const struct deletion_row *d) {
    put32(into, ROW_DELETION);
    put32(into + 4, d->queue_id);
    put64(into + 8, d->lsn);
    return DELETION_ROW_BYTES;
}

uint32_t format_put_transaction_row(uint8_t *into, const struct transaction_row *t) {
    memset(into, 0, TRANSACTION_ROW_BYTES);
    into[0] = ROW_TRANSACTION;
    into[1] = t->kind;
    into[2] = t->state;
    put64(into + 8, t->id);
    put64(into + 16, t->start_lsn);
    put64(into + 24, t->last_lsn);
    put64(into + 32, t->start_time_us);
    put64(into + 40, t->prepare_time_us);
    put64(into + 48, (uint64_t)t->xid.format_id);
    into[56] = t->xid.gtrid_bytes;
    into[57] = t->xid.bqual_bytes;
    memcpy(into + 64, t->xid.data, (size_t)t->xid.gtrid_bytes + t->xid.bqual_bytes);
    return TRANSACTION_ROW_BYTES;
}

uint32_t format_put_message_row(uint8_t *into, const struct message_row *m) {
    put32(into, (uint32_t)m->kind | (uint32_t)m->flags << 8);
    put32(into + 4, m->kind == ROW_CHAIN ? m->place_count : m->queue_id);
    put64(into + 8, m->id);
    put32(into + 16, m->record_bytes);
    put32(into + 20, m->content_bytes);
    if (m->kind == ROW_PLAIN) {
        return PLAIN_ROW_BYTES;
    }
    put64(into + 24, m->start_lsn);
    put64(into + 32, m->last_lsn);
    if (m->kind == ROW_SINGLE) {
        put64(into + 40, m->order_lsn);
        put32(into + 48, m->order_index);
        put32(into + 52, m->growth);
        return SINGLE_ROW_BYTES;
    }
    put64(into + 40, m->content_total);
    put32(into + 48, m->chunk_count);
    put32(into + 52, m->part_count);
    put32(into + 56, m->operation_count);
    put32(into + 60, m->state_bytes);
    put32(into + 64, m->growth);
    put32(into + 68, m->work_state);
    put32(into + 72, m->work_rows);
    put32(into + 76, 0);
    return CHAIN_ROW_BYTES;
}

uint32_t format_put_chain_chunk(uint8_t *into, const struct chain_chunk *c) {
    put64(into, c->lsn);
    put64(into + 8, c->offset);
    put32(into + 16, c->record_bytes);
    put32(into + 20, c->content_bytes);
    return CHAIN_CHUNK_BYTES;
}

uint32_t format_put_chain_part(uint8_t *into, const struct chain_part *p) {
    put64(into, p->lsn);
    put32(into + 8, p->record_bytes);
    put32(into + 12, 0);
    return CHAIN_PART_BYTES;
}

uint32_t format_put_chain_place(uint8_t *into, const struct chain_place *p) {
    put64(into, p->order_lsn);
    put32(into + 8, p->order_index);
    put32(into + 12, p->queue_id);
    return CHAIN_PLACE_BYTES;
}

uint32_t format_put_chain_operation(uint8_t *into, const struct chain_operation *o) {
    put64(into, o->tx_id);
    put64(into + 8, o->lsn);
    put32(into + 16, o->queue_id);
    put32(into + 20, o->order_index);
    put32(into + 24, o->kind);
    put32(into + 28, 0);
    return CHAIN_OPERATION_BYTES;
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
    c->stream = from[1];
    c->length = get32(from + 4);
    bool possible = from[0] == ROW_CLIENT && from[2] == 0 && from[3] == 0 && c->stream > STREAMS_COUNTED &&
                    c->stream < STREAMS_MAX && c->length > 0 && c->length <= CLIENT_BYTES_MAX;
    return possible ? FORMAT_OK : FORMAT_MALFORMED;
}

enum format_result format_get_deletion_row(const uint8_t *from, uint64_t lsn, struct deletion_row *d) {
    d->queue_id = get32(from + 4);
    d->lsn = get64(from + 8);
    bool possible = get32(from) == ROW_DELETION && is_queue_id(d->queue_id) && stands_in(d->lsn, 8, lsn);
    return possible ? FORMAT_OK : FORMAT_MALFORMED;
}

enum format_result format_get_transaction_row(const uint8_t *from, uint64_t lsn, struct transaction_row *t) {
    *t = (struct transaction_row){
        .id = get64(from + 8),
        .start_lsn = get64(from + 16),
        .last_lsn = get64(from + 24),
        .start_time_us = get64(from + 32),
        .prepare_time_us = get64(from + 40),
        .xid = {.format_id = (int64_t)get64(from + 48), .gtrid_bytes = from[56], .bqual_bytes = from[57]},
        .kind = from[1],
        .state = from[2],
    };
    if (t->xid.gtrid_bytes > XID_PART_BYTES_MAX || t->xid.bqual_bytes > XID_PART_BYTES_MAX) {
        return FORMAT_MALFORMED;
    }
    size_t named = (size_t)t->xid.gtrid_bytes + t->xid.bqual_bytes;
    memcpy(t->xid.data, from + 64, named);
    bool local = t->kind == TX_KIND_LOCAL;
    bool sorted = local
                      ? t->state == TX_STATE_ACTIVE && named == 0 && t->xid.format_id == 0
                      : t->kind == TX_KIND_DISTRIBUTED && t->state >= TX_STATE_ACTIVE && t->state <= TX_STATE_PREPARED;
    bool placed = t->id > 0 && stands_in(t->id, 8, lsn) && stands_in(t->start_lsn, t->id, lsn) &&
                  stands_in(t->last_lsn, t->start_lsn, lsn);
    bool clean = from[0] == ROW_TRANSACTION && all_zero(from + 3, 5) && all_zero(from + 58, 6) &&
                 all_zero(from + 64 + named, 2 * XID_PART_BYTES_MAX - named);
    return sorted && placed && clean ? FORMAT_OK : FORMAT_MALFORMED;
}

uint64_t format_checkpoint_row_id(const uint8_t *from) { return get64(from + 8); }

static void get_chain(const uint8_t *from, struct message_row *m) {
    m->place_count = get32(from + 4);
    m->queue_id = 0;
    m->content_total = get64(from + 40);
    m->chunk_count = get32(from + 48);
    m->part_count = get32(from + 52);
    m->operation_count = get32(from + 56);
    m->state_bytes = get32(from + 60);
    m->growth = get32(from + 64);
    m->work_state = get32(from + 68);
    m->work_rows = get32(from + 72);
}

enum format_result format_get_message_row(const uint8_t *from, uint64_t lsn, struct message_row *m) {
    *m = (struct message_row){
        .kind = from[0],
        .flags = from[1],
        .queue_id = get32(from + 4),
        .id = get64(from + 8),
        .record_bytes = get32(from + 16),
        .content_bytes = get32(from + 20),
        .place_count = 1,
    };
    m->start_lsn = m->last_lsn = m->order_lsn = m->id;
    m->content_total = m->content_bytes;
    bool clean = from[2] == 0 && from[3] == 0 && m->flags <= (ROW_STAGED | ROW_PUBLISHED | ROW_LOOSE);
    if (m->kind != ROW_PLAIN) {
        m->start_lsn = get64(from + 24);
        m->last_lsn = get64(from + 32);
    }
    if (m->kind == ROW_SINGLE) {
        m->order_lsn = get64(from + 40);
        m->order_index = get32(from + 48);
        m->growth = get32(from + 52);
    } else if (m->kind == ROW_CHAIN) {
        get_chain(from, m);
        clean = clean && get32(from + 76) == 0 && m->state_bytes % 8 == 0 && m->state_bytes <= 1 << 20 &&
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
    c->lsn = get64(from);
    c->offset = get64(from + 8);
    c->record_bytes = get32(from + 16);
    c->content_bytes = get32(from + 20);
    bool possible = stands_in(c->lsn, id, lsn) && c->offset <= CONTENT_BYTES_MAX && is_record_bytes(c->record_bytes) &&
                    c->record_bytes == format_chunk_bytes(c->content_bytes);
    return possible ? FORMAT_OK : FORMAT_MALFORMED;
}

enum format_result format_get_chain_part(const uint8_t *from, uint64_t lsn, uint64_t id, struct chain_part *p) {
    p->lsn = get64(from);
    p->record_bytes = get32(from + 8);
    bool possible = stands_in(p->lsn, id, lsn) && is_record_bytes(p->record_bytes) && get32(from + 12) == 0;
    return possible ? FORMAT_OK : FORMAT_MALFORMED;
}

enum format_result format_get_chain_place(const uint8_t *from, uint64_t lsn, uint64_t id, struct chain_place *p) {
    p->order_lsn = get64(from);
    p->order_index = get32(from + 8);
    p->queue_id = get32(from + 12);
    bool possible = stands_in(p->order_lsn, id, lsn) && p->order_index <= ORDER_INDEX_MAX && is_queue_id(p->queue_id);
    return possible ? FORMAT_OK : FORMAT_MALFORMED;
}

enum format_result format_get_chain_operation(const uint8_t *from, uint64_t lsn, uint64_t id,
                                              struct chain_operation *o) {
    o->tx_id = get64(from);
    o->lsn = get64(from + 8);
    o->queue_id = get32(from + 16);
    o->order_index = get32(from + 20);
    o->kind = get32(from + 24);
    bool possible = o->tx_id > 0 && o->tx_id < o->lsn && stands_in(o->lsn, id, lsn) && is_queue_id(o->queue_id) &&
                    o->order_index <= ORDER_INDEX_MAX && (o->kind == PENDING_ENQUEUE || o->kind == PENDING_DEQUEUE) &&
                    get32(from + 28) == 0;
    return possible ? FORMAT_OK : FORMAT_MALFORMED;
}
