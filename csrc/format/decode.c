/* Structs from records; no byte is used before it was checked. encode.c has the pictures. See format.h. */
#include <string.h>

#include "format/format.h"
#include "format/parts.h"
#include "format/xxh64.h"

/* ---- the rules of a type ---- */

enum link {
    LINK_UNKNOWN = 0, /* no such type in this version */
    LINK_FIRST,       /* begins its chain */
    LINK_LATER,       /* follows a record of its chain */
    LINK_NONE,        /* housekeeping */
};

struct type_rule {
    uint8_t link;
    uint8_t flags;        /* those it may carry */
    uint16_t fixed_bytes; /* of the whole record, if all of the type are of one length */
};

static const struct type_rule type_rules[STREAMS_KNOWN + 1][16] = {
#define RECORD(type, code, link, flags, bytes) [(code) >> 8][(code)&15] = {LINK_##link, flags, bytes},
#include "format/layout.def"
};

static struct type_rule rule_of(uint16_t type) {
    bool within = type >> 8 <= STREAMS_KNOWN && (type & 255) < 16;
    return within ? type_rules[type >> 8][type & 15] : (struct type_rule){LINK_UNKNOWN, 0, 0};
}

/* id and prev, where the type says what they must be; both lie below or at the record in any case. */
static bool is_linked(const struct record *r, uint8_t link) {
    switch (link) {
    case LINK_NONE:
        return r->id == 0 && r->prev == 0;
    case LINK_FIRST:
        if ((r->flags & FLAG_COPY) == 0) {
            return r->id == r->lsn && r->prev == 0;
        }
        return r->id > 0 && r->id <= r->prev;
    case LINK_LATER:
        return r->id > 0 && r->id <= r->prev;
    default:
        return true;
    }
}

static bool is_of(const struct stream_set *known, uint16_t type) {
    uint32_t stream = format_stream_of(type);
    return known != NULL && stream > STREAMS_KNOWN && (known->bits[stream / 64] >> stream % 64 & 1) != 0;
}

/* Checks the other rules of section 5; the checksums were checked before. */
static enum format_result judge_header(const struct record *r, const struct stream_set *known_streams) {
    struct type_rule rule = rule_of(r->type);
    if (rule.link == LINK_UNKNOWN && r->type != 0 && (r->type & TYPE_SKIPPABLE) == 0 &&
        !is_of(known_streams, r->type)) {
        return FORMAT_NEWER;
    }
    bool known = rule.link != LINK_UNKNOWN;
    bool placed = is_lsn(r->lsn) && r->lsn % 8 == 0 && r->id <= r->lsn && r->prev < r->lsn;
    bool clean =
        r->type != 0 && GET(r->bytes, RECORD_HEADER, spare) == 0 && (!known || (r->flags & ~(unsigned)rule.flags) == 0);
    bool sized = rule.fixed_bytes == 0 || r->length == rule.fixed_bytes;
    return verdict(placed && clean && sized && is_linked(r, rule.link));
}

void format_read_verified(const uint8_t *from, struct record *r) {
    r->bytes = from;
    r->length = GET(from, RECORD_HEADER, length);
    r->type = GET(from, RECORD_HEADER, type);
    r->flags = GET(from, RECORD_HEADER, flags);
    r->lsn = GET(from, RECORD_HEADER, lsn);
    r->id = GET(from, RECORD_HEADER, id);
    r->prev = GET(from, RECORD_HEADER, prev);
}

static inline enum format_result get_header(const uint8_t *from, size_t available, uint64_t seed, uint64_t lsn,
                                            struct record *r) {
    if (available < RECORD_HEADER_BYTES) {
        return FORMAT_SHORT;
    }
    if (GET(from, RECORD_HEADER, header_check) !=
        (uint32_t)xxh64_inline(from + AT(RECORD_HEADER, length), CHECKED_BYTES, seed)) {
        return FORMAT_CHECK;
    }
    format_read_verified(from, r);
    if (r->lsn != lsn) {
        return FORMAT_PLACE;
    }
    if (r->length < RECORD_HEADER_BYTES || r->length % 8 != 0) {
        return FORMAT_MALFORMED;
    }
    return r->length > available ? FORMAT_SHORT : FORMAT_OK;
}

enum format_result format_get_header(const uint8_t *from, size_t available, uint64_t seed, uint64_t lsn,
                                     struct record *r) {
    return get_header(from, available, seed, lsn, r);
}

enum format_result format_get_record(const uint8_t *from, size_t available, uint64_t seed, uint64_t lsn,
                                     struct record *r) {
    return format_get_known_record(from, available, seed, lsn, NULL, r);
}

enum format_result format_get_known_record(const uint8_t *from, size_t available, uint64_t seed, uint64_t lsn,
                                           const struct stream_set *known, struct record *r) {
    enum format_result result = get_header(from, available, seed, lsn, r);
    if (result != FORMAT_OK) {
        return result;
    }
    if (GET(from, RECORD_HEADER, checksum) !=
        xxh64(from + AT(RECORD_HEADER, header_check), r->length - AT(RECORD_HEADER, header_check), seed)) {
        return FORMAT_CHECK;
    }
    return judge_header(r, known);
}

bool format_peek_batch(const uint8_t *from, size_t available, uint64_t lsn, uint64_t *epoch) {
    if (available < BATCH_RECORD_BYTES || GET(from, RECORD_HEADER, type) != BATCH ||
        GET(from, RECORD_HEADER, lsn) != lsn || GET(from, RECORD_HEADER, length) != BATCH_RECORD_BYTES) {
        return false;
    }
    *epoch = GET(from, BATCH, epoch);
    return true;
}

/* Whether one of two places, 8 bytes apart, names its own LSN. Two at a time, because a search asks this of every place. */
static bool names_own(const uint8_t *at, uint64_t lsn) {
    return ((int)(get64(at) == lsn) | (int)(get64(at + 8) == lsn + 8)) != 0;
}

bool format_find_batch(const uint8_t *from, size_t bytes, uint64_t lsn, size_t *at, uint64_t *epoch) {
    const uint8_t *own = from + AT(RECORD_HEADER, lsn); /* a record's own LSN */
    size_t i = *at;
    bool found = false;
    while (!found && i + BATCH_RECORD_BYTES <= bytes) {
        while (i + BATCH_RECORD_BYTES + 24 <= bytes && !names_own(own + i, lsn + i) &&
               !names_own(own + i + 16, lsn + i + 16)) {
            i += 32;
        }
        if (i + BATCH_RECORD_BYTES <= bytes) {
            found = format_peek_batch(from + i, bytes - i, lsn + i, epoch);
            i += found ? 0 : 8;
        }
    }
    *at = i;
    return found;
}

bool format_names_place(const uint8_t header[RECORD_HEADER_BYTES], uint64_t lsn) {
    return GET(header, RECORD_HEADER, lsn) == lsn;
}

bool format_stood_here(const uint8_t header[RECORD_HEADER_BYTES], uint64_t seed, uint64_t lsn) {
    if (format_names_place(header, lsn)) {
        return true;
    }
    uint8_t here[RECORD_HEADER_BYTES];
    memcpy(here, header, sizeof here);
    PUT(here, RECORD_HEADER, lsn, lsn);
    return (uint32_t)xxh64(here + AT(RECORD_HEADER, length), CHECKED_BYTES, seed) ==
           GET(here, RECORD_HEADER, header_check);
}

/* ---- bodies ---- */

uint32_t format_queue_id(const uint8_t *queues, uint32_t index) { return get32(queues + 4 * (size_t)index); }

enum format_result format_get_batch(const struct record *r, struct batch *b) {
    if (r->type != BATCH || r->length != BATCH_RECORD_BYTES) {
        return FORMAT_MALFORMED;
    }
    b->epoch = GET(r->bytes, BATCH, epoch);
    b->count = GET(r->bytes, BATCH, count);
    b->bytes = GET(r->bytes, BATCH, bytes);
    b->durable_lsn = GET(r->bytes, BATCH, durable_lsn);
    b->base_lsn = GET(r->bytes, BATCH, base_lsn);
    b->time_us = GET(r->bytes, BATCH, time_us);
    b->index = GET(r->bytes, BATCH, index);
    b->known_durable_lsn = GET(r->bytes, BATCH, known_durable_lsn);
    uint64_t body = b->bytes - (uint64_t)BATCH_RECORD_BYTES;
    bool sized = b->bytes >= BATCH_RECORD_BYTES && b->bytes % 8 == 0 && body / RECORD_HEADER_BYTES >= b->count &&
                 (b->count > 0) == (body > 0);
    bool placed = is_lsn(b->durable_lsn) && b->durable_lsn <= r->lsn && is_lsn(b->base_lsn) && b->base_lsn <= r->lsn;
    bool replicated =
        b->index > 0 && b->epoch < TERM_LIMIT && r->lsn >> TERM_SHIFT == b->epoch && b->known_durable_lsn <= r->lsn;
    bool alone = b->index == 0 && b->known_durable_lsn == 0;
    return verdict(b->epoch > 0 && sized && placed && (replicated || alone));
}

/* Whether the flags fit together, and section 6 allows the places. */
static bool is_inline_copy(const struct record *r, const struct message_start *m) {
    if ((r->flags & FLAG_COPY) == 0 || (r->flags & FLAG_INLINE) == 0 || m->queue_count == 0) {
        return false;
    }
    if ((r->flags & FLAG_ORDERED) == 0) {
        return m->order_index == 0 && are_queue_ids(m->queues, m->queue_count);
    }
    for (uint32_t i = 0; i < m->queue_count; i++) {
        uint32_t id = format_queue_id(m->queues, i);
        bool gone = id == 0 && i > 0 && i + 1 < m->queue_count;
        if (!gone && !is_queue_id(id)) {
            return false;
        }
    }
    return r->id < m->order_lsn && is_earlier(r, m->order_lsn) &&
           is_numbered(m->order_lsn, m->order_index, m->queue_count);
}

enum format_result format_get_start(const struct record *r, struct message_start *m) {
    if (r->type != MESSAGE_START || r->length < AT(MESSAGE_START, queues)) {
        return FORMAT_MALFORMED;
    }
    uint64_t key = GET(r->bytes, MESSAGE_START, tx_id);
    bool in_line = (r->flags & FLAG_INLINE) != 0, ordered = (r->flags & FLAG_ORDERED) != 0;
    m->tx_id = in_line ? 0 : key;
    m->enqueue_time_us = in_line && !ordered ? key : 0;
    m->order_lsn = ordered ? key : in_line ? r->id : 0;
    m->header_bytes = GET(r->bytes, MESSAGE_START, header_bytes);
    m->content_bytes = GET(r->bytes, MESSAGE_START, content_bytes);
    m->queue_count = GET(r->bytes, MESSAGE_START, queue_count);
    m->order_index = GET(r->bytes, MESSAGE_START, order_index);
    uint64_t queues_end = AT(MESSAGE_START, queues) + pad8(4 * (uint64_t)m->queue_count);
    m->queues = r->bytes + AT(MESSAGE_START, queues);
    uint64_t end = queues_end + m->header_bytes + m->content_bytes;
    if (!body_ends(r, end)) {
        return FORMAT_MALFORMED;
    }
    m->header = r->bytes + queues_end;
    m->content = m->header + m->header_bytes;
    bool padded = m->queue_count % 2 == 0 || get32(r->bytes + queues_end - 4) == 0;
    if (in_line || ordered) {
        return verdict(padded && is_inline_copy(r, m));
    }
    bool copy_is_bare = (r->flags & FLAG_COPY) == 0 || m->queue_count == 0;
    bool work = m->tx_id == 0 || (m->queue_count > 0 && is_earlier(r, m->tx_id));
    return verdict(padded && copy_is_bare && work && is_numbered(m->tx_id, m->order_index, m->queue_count) &&
                   are_queue_ids(m->queues, m->queue_count));
}

enum format_result format_get_chunk(const struct record *r, struct message_chunk *m) {
    if (r->type != MESSAGE_CHUNK || r->length < AT(MESSAGE_CHUNK, content)) {
        return FORMAT_MALFORMED;
    }
    m->offset = GET(r->bytes, MESSAGE_CHUNK, offset);
    m->content_bytes = GET(r->bytes, MESSAGE_CHUNK, content_bytes);
    m->content = r->bytes + AT(MESSAGE_CHUNK, content);
    return verdict(body_ends(r, AT(MESSAGE_CHUNK, content) + (uint64_t)m->content_bytes) &&
                   GET(r->bytes, MESSAGE_CHUNK, zero) == 0 && m->offset <= CONTENT_BYTES_MAX - m->content_bytes);
}

enum format_result format_get_enqueue(const struct record *r, struct message_enqueue *m) {
    if (r->type != MESSAGE_ENQUEUE || r->length < AT(MESSAGE_ENQUEUE, queues)) {
        return FORMAT_MALFORMED;
    }
    m->tx_id = GET(r->bytes, MESSAGE_ENQUEUE, tx_id);
    m->queue_count = GET(r->bytes, MESSAGE_ENQUEUE, queue_count);
    m->order_index = GET(r->bytes, MESSAGE_ENQUEUE, order_index);
    m->queues = r->bytes + AT(MESSAGE_ENQUEUE, queues);
    return verdict(body_ends(r, AT(MESSAGE_ENQUEUE, queues) + 4 * (uint64_t)m->queue_count) && m->queue_count > 0 &&
                   is_numbered(m->tx_id, m->order_index, m->queue_count) &&
                   (m->tx_id == 0 || is_earlier(r, m->tx_id)) && are_queue_ids(m->queues, m->queue_count));
}

enum format_result format_get_dequeue(const struct record *r, struct message_dequeue *m) {
    if (r->type != MESSAGE_DEQUEUE || r->length != DEQUEUE_RECORD_BYTES) {
        return FORMAT_MALFORMED;
    }
    m->tx_id = GET(r->bytes, MESSAGE_DEQUEUE, tx_id);
    m->queue_id = GET(r->bytes, MESSAGE_DEQUEUE, queue_id);
    m->delivery_count = GET(r->bytes, MESSAGE_DEQUEUE, delivery_count);
    m->reason = GET(r->bytes, MESSAGE_DEQUEUE, reason);
    bool delete_alone = (r->flags & FLAG_DELETES) == 0 || m->tx_id == 0;
    return verdict(delete_alone && (m->tx_id == 0 || is_earlier(r, m->tx_id)) && is_queue_id(m->queue_id) &&
                   m->reason <= DEQUEUE_REASON_MAX);
}

struct chunk_row format_chunk_row(const uint8_t *chunks, uint32_t index) {
    const uint8_t *at = chunks + RELOCATED_CHUNK_BYTES * (size_t)index;
    return (struct chunk_row){.lsn = GET(at, RELOCATED_CHUNK, lsn),
                              .offset = GET(at, RELOCATED_CHUNK, offset),
                              .content_bytes = GET(at, RELOCATED_CHUNK, content_bytes)};
}

struct place_row format_place_row(const uint8_t *places, uint32_t index) {
    const uint8_t *at = places + RELOCATED_PLACE_BYTES * (size_t)index;
    return (struct place_row){
        .order_lsn = GET(at, RELOCATED_PLACE, order_lsn),
        .enqueue_time_us = GET(at, RELOCATED_PLACE, enqueue_time_us),
        .queue_id = GET(at, RELOCATED_PLACE, queue_id),
        .order_index = GET(at, RELOCATED_PLACE, order_index),
        .delivery_count = GET(at, RELOCATED_PLACE, delivery_count),
    };
}

struct pending_row format_pending_row(const uint8_t *pending, uint32_t index) {
    const uint8_t *at = pending + RELOCATED_WORK_BYTES * (size_t)index;
    return (struct pending_row){
        .tx_id = GET(at, RELOCATED_WORK, tx_id),
        .lsn = GET(at, RELOCATED_WORK, lsn),
        .queue_id = GET(at, RELOCATED_WORK, queue_id),
        .kind = GET(at, RELOCATED_WORK, kind),
        .order_index = GET(at, RELOCATED_WORK, order_index),
    };
}

struct queue_rows format_list_queues(const uint8_t *queues, uint32_t count) {
    return (struct queue_rows){.first = queues, .count = count, .row_bytes = sizeof(uint32_t)};
}

struct queue_rows format_place_queues(const struct message_relocated *m) {
    return (struct queue_rows){.first = m->places + AT(RELOCATED_PLACE, queue_id),
                               .count = m->place_count,
                               .row_bytes = RELOCATED_PLACE_BYTES};
}

struct queue_rows format_pending_queues(const struct message_relocated *m) {
    return (struct queue_rows){.first = m->pending + AT(RELOCATED_WORK, queue_id),
                               .count = m->pending_count,
                               .row_bytes = RELOCATED_WORK_BYTES};
}

struct queue_rows format_state_queues(const struct place_states *p) {
    return (struct queue_rows){
        .first = p->rows + AT(STATE_ROW, queue_id), .count = p->row_count, .row_bytes = STATE_ROW_BYTES};
}

const uint8_t *format_next_queue(const struct queue_rows *rows, const uint8_t *at) {
    return at + (rows->row_bytes != 0 ? rows->row_bytes : format_placed_row_from_queue(at));
}

static bool are_place_rows(const struct record *r, const struct message_relocated *m) {
    for (uint32_t i = 0; i < m->place_count; i++) {
        struct place_row row = format_place_row(m->places, i);
        if (!is_earlier(r, row.order_lsn) || !is_queue_id(row.queue_id) ||
            GET(m->places + RELOCATED_PLACE_BYTES * (size_t)i, RELOCATED_PLACE, zero) != 0) {
            return false;
        }
    }
    return true;
}

static bool are_pending_rows(const struct record *r, const struct message_relocated *m) {
    for (uint32_t i = 0; i < m->pending_count; i++) {
        struct pending_row row = format_pending_row(m->pending, i);
        bool ordered = row.tx_id > 0 && row.tx_id < row.lsn && is_earlier(r, row.lsn);
        bool known = row.kind == PENDING_ENQUEUE || row.kind == PENDING_DEQUEUE;
        if (!ordered || !known || !is_queue_id(row.queue_id) ||
            GET(m->pending + RELOCATED_WORK_BYTES * (size_t)i, RELOCATED_WORK, zero) != 0) {
            return false;
        }
    }
    return true;
}

enum format_result format_get_relocated(const struct record *r, struct message_relocated *m) {
    if (r->type != MESSAGE_RELOCATED || r->length < AT(MESSAGE_RELOCATED, chunks)) {
        return FORMAT_MALFORMED;
    }
    m->content_bytes = GET(r->bytes, MESSAGE_RELOCATED, content_bytes);
    m->start_lsn = GET(r->bytes, MESSAGE_RELOCATED, start_lsn);
    m->part = GET(r->bytes, MESSAGE_RELOCATED, part);
    m->chunk_count = GET(r->bytes, MESSAGE_RELOCATED, chunk_count);
    m->place_count = GET(r->bytes, MESSAGE_RELOCATED, place_count);
    m->pending_count = GET(r->bytes, MESSAGE_RELOCATED, pending_count);
    if (format_relocated_bytes(m->chunk_count, m->place_count, m->pending_count) != r->length) {
        return FORMAT_MALFORMED;
    }
    m->chunks = r->bytes + AT(MESSAGE_RELOCATED, chunks);
    m->places = m->chunks + RELOCATED_CHUNK_BYTES * (size_t)m->chunk_count;
    m->pending = m->places + RELOCATED_PLACE_BYTES * (size_t)m->place_count;
    return verdict(m->content_bytes <= CONTENT_BYTES_MAX && is_earlier(r, m->start_lsn) && are_chunk_rows(r, m) &&
                   are_place_rows(r, m) && are_pending_rows(r, m));
}

/* The xid of a record whose names begin at `names`; false if it does not fit or does not end there. */
static bool get_xid(const struct record *r, uint32_t names, struct xid *x) {
    x->format_id = (int64_t)GET(r->bytes, XID, format_id);
    x->gtrid_bytes = GET(r->bytes, XID, gtrid_bytes);
    x->bqual_bytes = GET(r->bytes, XID, bqual_bytes);
    bool fits = x->gtrid_bytes <= XID_PART_BYTES_MAX && x->bqual_bytes <= XID_PART_BYTES_MAX;
    if (!fits || !body_ends(r, names + (uint64_t)x->gtrid_bytes + x->bqual_bytes)) {
        return false;
    }
    memset(x->data, 0, sizeof x->data);
    memcpy(x->data, r->bytes + names, (size_t)x->gtrid_bytes + x->bqual_bytes);
    return true;
}

enum format_result format_get_xid(const struct record *r, struct xid *x) {
    if ((r->type != DTX_START && r->type != TX_PREPARE) || r->length < AT(XID, names)) {
        return FORMAT_MALFORMED;
    }
    return verdict(get_xid(r, AT(XID, names), x) && all_zero(r->bytes + AT(XID, zero), AT(XID, names) - AT(XID, zero)));
}

enum format_result format_get_tx_relocated(const struct record *r, struct tx_relocated *t) {
    if (r->type != TX_RELOCATED || r->length < AT(TX_RELOCATED, names) ||
        !get_xid(r, AT(TX_RELOCATED, names), &t->xid)) {
        return FORMAT_MALFORMED;
    }
    t->kind = GET(r->bytes, TX_RELOCATED, kind);
    t->state = GET(r->bytes, TX_RELOCATED, state);
    t->start_time_us = GET(r->bytes, TX_RELOCATED, start_time_us);
    t->prepare_time_us = GET(r->bytes, TX_RELOCATED, prepare_time_us);
    bool unnamed = t->xid.format_id == 0 && t->xid.gtrid_bytes == 0 && t->xid.bqual_bytes == 0;
    bool known = t->kind == TX_KIND_DISTRIBUTED || (t->kind == TX_KIND_LOCAL && unnamed);
    return verdict(known && t->state >= TX_STATE_ACTIVE && t->state <= TX_STATE_PREPARED &&
                   GET(r->bytes, TX_RELOCATED, zero) == 0);
}

enum format_result format_get_queue_delete(const struct record *r, uint32_t *queue_id) {
    if (r->type != QUEUE_DELETE || r->length != QUEUE_DELETE_RECORD_BYTES) {
        return FORMAT_MALFORMED;
    }
    *queue_id = GET(r->bytes, QUEUE_DELETE, queue_id);
    return verdict(is_queue_id(*queue_id) && GET(r->bytes, QUEUE_DELETE, zero) == 0);
}

enum format_result format_get_footer(const struct record *r, struct footer *f) {
    if (r->type != FOOTER || r->length < AT(FOOTER, counts)) {
        return FORMAT_MALFORMED;
    }
    f->last_lsn = GET(r->bytes, FOOTER, last_lsn);
    f->bytes = GET(r->bytes, FOOTER, bytes);
    f->batches = GET(r->bytes, FOOTER, batches);
    f->n = GET(r->bytes, FOOTER, n);
    if (f->n > FOOTER_TYPES_MAX || r->length != AT(FOOTER, counts) + TYPE_COUNT_BYTES * f->n) {
        return FORMAT_MALFORMED;
    }
    bool ascending = true;
    for (uint32_t i = 0; i < f->n; i++) {
        const uint8_t *at = r->bytes + AT(FOOTER, counts) + TYPE_COUNT_BYTES * (size_t)i;
        f->counts[i].type = GET(at, TYPE_COUNT, type);
        f->counts[i].count = GET(at, TYPE_COUNT, count);
        ascending = ascending && f->counts[i].count > 0 && (i == 0 || f->counts[i - 1].type < f->counts[i].type);
    }
    return verdict(ascending && is_earlier(r, f->last_lsn));
}

/* ---- replication ---- */

enum format_result format_get_members(const struct record *r, struct members *m) {
    if (r->type != MEMBERS || r->length < AT(MEMBERS, config)) {
        return FORMAT_MALFORMED;
    }
    m->index = GET(r->bytes, MEMBERS, index);
    m->config_bytes = GET(r->bytes, MEMBERS, config_bytes);
    m->config = r->bytes + AT(MEMBERS, config);
    return verdict(m->index > 0 && m->config_bytes > 0 && m->config_bytes <= MEMBERS_CONFIG_MAX &&
                   GET(r->bytes, MEMBERS, zero) == 0 && body_ends(r, AT(MEMBERS, config) + (uint64_t)m->config_bytes));
}

struct catalog_row format_catalog_row(const uint8_t **at) {
    const uint8_t *from = *at;
    struct catalog_row row = {
        .action = GET(from, CATALOG_ROW, action),
        .object = GET(from, CATALOG_ROW, object),
        .queue_id = GET(from, CATALOG_ROW, queue_id),
        .bytes = GET(from, CATALOG_ROW, row_bytes),
        .data = from + CATALOG_ROW_BYTES,
    };
    *at = from + format_catalog_row_bytes(row.bytes);
    return row;
}

static bool is_catalog_row(const uint8_t *from, uint64_t available) {
    if (available < CATALOG_ROW_BYTES) {
        return false;
    }
    const uint8_t *at = from;
    struct catalog_row row = format_catalog_row(&at);
    uint64_t bytes = format_catalog_row_bytes(row.bytes);
    bool known = (row.action == CATALOG_PUT || row.action == CATALOG_DELETE) && row.object >= CATALOG_QUEUE &&
                 row.object <= CATALOG_CONFIG;
    bool named = row.object == CATALOG_QUEUE ? is_queue_id(row.queue_id) : row.queue_id == 0;
    bool clean = GET(from, CATALOG_ROW, zero) == 0 && GET(from, CATALOG_ROW, more_zero) == 0;
    return bytes <= available && known && named && clean &&
           all_zero(row.data + row.bytes, bytes - CATALOG_ROW_BYTES - row.bytes);
}

bool format_are_catalog_rows(const uint8_t *rows, uint64_t bytes, uint32_t row_count) {
    const uint8_t *at = rows, *end = rows + bytes;
    for (uint32_t i = 0; i < row_count; i++) {
        if (!is_catalog_row(at, (uint64_t)(end - at))) {
            return false;
        }
        (void)format_catalog_row(&at);
    }
    return row_count > 0 && at == end;
}

enum format_result format_get_catalog_change(const struct record *r, struct catalog_change *c) {
    if (r->type != CATALOG_CHANGE || r->length < AT(CATALOG_CHANGE, rows)) {
        return FORMAT_MALFORMED;
    }
    c->part = GET(r->bytes, CATALOG_CHANGE, part);
    c->row_count = GET(r->bytes, CATALOG_CHANGE, row_count);
    c->rows = r->bytes + AT(CATALOG_CHANGE, rows);
    return verdict(format_are_catalog_rows(c->rows, r->length - AT(CATALOG_CHANGE, rows), c->row_count));
}
