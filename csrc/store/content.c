/*
 * Reading a message's header and content back, by offset and length across records.
 *
 * Records that are not durable yet are copied from the write buffers under the lock. All others are read from their
 * segment without the lock; the segment is pinned meanwhile, so that it cannot be recycled, and every record is
 * verified before a byte of it is returned.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "os/array.h"
#include "store/store.h"
#include "read/damage.h"

/* One record to read from: its place, the part of its content that is wanted, and the destination. */
struct piece {
    uint64_t lsn;
    uint64_t id;
    uint64_t segment_lsn; /* set by the look-up */
    uint32_t record_bytes;
    uint16_t type; /* MESSAGE_START (in either form) or MESSAGE_CHUNK */
    bool header;   /* the message's header is wanted, not content */
    bool whole;    /* header and content are wanted, one after the other; `bytes` is at least the record's size */
    uint32_t header_bytes;       /* if `whole`: how many of the copied bytes are header */
    const struct own_bytes *own; /* these bytes of the record are wanted; NULL: one of the others */
    uint64_t skip;
    size_t bytes; /* upper limit; the record may have fewer */
};

/* Both lie in a record that is no longer than `bytes`, so they fit. */
static int64_t copy_whole(struct piece *p, const struct message_start *m, uint8_t *into) {
    assert((uint64_t)m->header_bytes + m->content_bytes <= p->bytes);
    if (m->header_bytes > 0) {
        memcpy(into, m->header, m->header_bytes);
    }
    if (m->content_bytes > 0) {
        memcpy(into + m->header_bytes, m->content, m->content_bytes);
    }
    p->header_bytes = m->header_bytes;
    return (int64_t)m->header_bytes + (int64_t)m->content_bytes;
}

/* Copies from a complete, verified record. Returns the number of bytes, or -1 if the record differs from the table. */
static int64_t copy_out(struct piece *p, const uint8_t *record, uint64_t seed, uint8_t *into) {
    struct record r;
    bool sound = format_get_record(record, p->record_bytes, seed, p->lsn, &r) == FORMAT_OK;
    if (!sound || r.id != p->id) {
        return -1;
    }
    const uint8_t *from;
    uint64_t available;
    if (p->own != NULL) {
        if (r.length != p->own->record_bytes || p->own->at > r.length || p->own->bytes > r.length - p->own->at) {
            return -1;
        }
        from = r.bytes + p->own->at;
        available = p->own->bytes;
    } else if (p->type == MESSAGE_START) {
        struct message_start m;
        if (format_get_either_start(&r, &m) != FORMAT_OK) {
            return -1;
        }
        if (p->whole) {
            return copy_whole(p, &m, into);
        }
        from = p->header ? m.header : m.content;
        available = p->header ? m.header_bytes : m.content_bytes;
    } else {
        struct message_chunk m;
        if (format_get_chunk(&r, &m) != FORMAT_OK) {
            return -1;
        }
        from = m.content;
        available = m.content_bytes;
    }
    if (p->skip >= available) {
        return 0;
    }
    uint64_t bytes = available - p->skip < p->bytes ? available - p->skip : p->bytes;
    memcpy(into, from + p->skip, (size_t)bytes);
    return (int64_t)bytes;
}

static int damaged(const struct piece *p) {
    return fail_at(LS_CORRUPT, p->segment_lsn, p->lsn,
                   "a record of message %llu is damaged on disk. Nothing was changed; run `logstore verify`, then "
                   "`logstore salvage`",
                   (unsigned long long)p->id);
}

/* The lock is held at call and return, and let go while the disk is read. */
static int read_piece(ls_store *store, struct piece *p, uint8_t *into, size_t *done) {
    struct log *g = store->log;
    struct pin pin;
    const uint8_t *buffered = log_find_record(g, p->lsn, &pin);
    p->segment_lsn = pin.first_lsn;
    if (buffered != NULL) {
        int64_t copied = copy_out(p, buffered, pin.seed, into);
        assert(copied >= 0);
        *done = (size_t)copied;
        return LS_OK;
    }
    if (pin.segment == NULL) {
        return fail_errno(LS_IO, -pin.file, "a segment cannot be opened");
    }
    log_let_go(g);
    uint8_t small[4096];
    uint8_t *record = p->record_bytes <= sizeof small ? small : malloc(p->record_bytes);
    int rc = record == NULL ? fail_memory() : LS_OK;
    if (rc == LS_OK) {
        int64_t got = log_read(g, &pin, p->lsn, record, p->record_bytes);
        if (got < 0) {
            rc = fail_errno(LS_IO, (int)-got, "a segment cannot be read");
        } else {
            int64_t copied = got < p->record_bytes ? -1 : copy_out(p, record, pin.seed, into);
            rc = copied < 0 ? damaged(p) : LS_OK;
            *done = copied < 0 ? 0 : (size_t)copied;
        }
    }
    if (record != small) {
        free(record);
    }
    log_take_back(g);
    log_unpin(g, &pin);
    return rc;
}

static int gone(uint64_t id) {
    return fail(LS_UNKNOWN_MESSAGE, "there is no message %llu: it was never stored, or is gone already",
                (unsigned long long)id);
}

static int place_ended(uint64_t id, uint32_t queue_id, uint64_t position) {
    return fail(LS_NOT_ENQUEUED, "message %llu is no longer on queue %u at position %llu", (unsigned long long)id,
                (unsigned)queue_id, (unsigned long long)position);
}

/* The message's place at this position of the queue, whose times or bytes are asked for. */
static int find_place(ls_store *store, uint32_t queue_id, uint64_t id, uint64_t position, const struct place **place) {
    const struct table *t = &store->state.table;
    uint32_t number = table_find(t, id);
    if (number == INDEX_NONE) {
        return gone(id);
    }
    *place = message_place(table_message(t, number), queue_id);
    return *place == NULL || place_position(*place) != position ? place_ended(id, queue_id, position) : LS_OK;
}

int ls_enqueued_us(ls_store *store, uint32_t queue_id, uint64_t id, uint64_t position, uint64_t *time_us) {
    *time_us = 0;
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    const struct place *p = NULL;
    rc = find_place(store, queue_id, id, position, &p);
    if (rc == LS_OK && place_entry(p)->order_lsn < log_durable_lsn(store->log)) {
        rc = messages_enqueue_time(&store->state.table, store->log, &store->times, id, place_entry(p)->order_lsn,
                                   time_us);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_place_times(ls_store *store, uint32_t queue_id, uint64_t id, uint64_t position, ls_times *times) {
    *times = (ls_times){.not_before_us = 0};
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    const struct place *p = NULL;
    rc = find_place(store, queue_id, id, position, &p);
    if (rc == LS_OK) {
        const struct remembered state = place_state(p);
        *times = (ls_times){state.not_before_us, state.expires_us};
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_place_count(ls_store *store, uint32_t queue_id, uint64_t id, uint64_t position, uint32_t *count) {
    *count = 0;
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    const struct place *p = NULL;
    rc = find_place(store, queue_id, id, position, &p);
    if (rc == LS_OK) {
        *count = offer_count(p);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_load_header(ls_store *store, uint64_t id, uint8_t *into, size_t bytes, size_t *done) {
    *done = 0;
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    uint32_t number = table_find(&store->state.table, id);
    if (number == INDEX_NONE) {
        rc = gone(id);
    } else {
        const struct message *m = table_message(&store->state.table, number);
        struct piece p = {
            .lsn = message_start_lsn(m),
            .id = id,
            .record_bytes = m->record_bytes,
            .type = MESSAGE_START,
            .header = true,
            .bytes = bytes,
        };
        rc = read_piece(store, &p, into, done);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_load_place(ls_store *store, uint32_t queue_id, uint64_t id, uint64_t position, int what, uint8_t *into,
                  size_t bytes, size_t *done, int *has) {
    *done = 0;
    *has = 0;
    if (what != LS_PLACE_NOTE && what != LS_PLACE_HEADER) {
        return fail(LS_OPTION, "a place has a note (%d) and perhaps a header (%d), and nothing numbered %d",
                    LS_PLACE_NOTE, LS_PLACE_HEADER, what);
    }
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    const struct place *place = NULL;
    rc = find_place(store, queue_id, id, position, &place);
    if (rc == LS_OK && place_state(place).own != NULL) {
        const struct own *own = place_state(place).own;
        const struct own_bytes wanted = what == LS_PLACE_HEADER ? own->header : own->note;
        struct piece p = {
            .lsn = wanted.lsn, .id = id, .record_bytes = wanted.record_bytes, .own = &wanted, .bytes = bytes};
        *has = wanted.lsn != 0;
        rc = wanted.lsn != 0 ? read_piece(store, &p, into, done) : LS_OK;
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

/* The chunk that holds content offset `at`; they are in order and leave no gap. */
static const struct chain_record *find_chunk(const struct message_extra *x, uint64_t at) {
    size_t above = array_lower_bound(struct chain_record, x->chunks, x->chunk_count, offset, at + 1);
    return &x->chunks[above > 0 ? above - 1 : 0];
}

/* The next piece of content from offset `at`. Looks the message up again, because the lock was released. */
static int next_piece(ls_store *store, uint64_t id, uint64_t at, size_t bytes, struct piece *p, bool *end) {
    uint32_t number = table_find(&store->state.table, id);
    if (number == INDEX_NONE) {
        return gone(id);
    }
    const struct message *m = table_message(&store->state.table, number);
    *end = at >= message_content_bytes(m);
    *p = (struct piece){.id = id, .bytes = bytes};
    if (at < m->content_bytes) {
        p->lsn = message_start_lsn(m);
        p->record_bytes = m->record_bytes;
        p->type = MESSAGE_START;
        p->skip = at;
    } else if (!*end) {
        const struct chain_record *c = find_chunk(m->extra, at);
        p->lsn = c->lsn;
        p->record_bytes = c->record_bytes;
        p->type = MESSAGE_CHUNK;
        p->skip = at - c->offset;
    }
    return LS_OK;
}

/* As ls_load_content, with the lock held at call and return. */
static int load_content(ls_store *store, uint64_t id, uint64_t offset, uint8_t *into, size_t bytes, size_t *done) {
    bool end = false;
    int rc = LS_OK;
    while (rc == LS_OK && !end && *done < bytes) {
        struct piece p;
        size_t got = 0;
        rc = next_piece(store, id, offset + *done, bytes - *done, &p, &end);
        if (rc == LS_OK && !end) {
            rc = read_piece(store, &p, into + *done, &got);
            *done += got;
            if (rc == LS_OK && got == 0) {
                rc = damaged(&p); /* less content than the table says: not the record that was written */
            }
        }
    }
    return rc;
}

int ls_load_content(ls_store *store, uint64_t id, uint64_t offset, uint8_t *into, size_t bytes, size_t *done) {
    *done = 0;
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    rc = load_content(store, id, offset, into, bytes, done);
    return store_leave(store, rc, LEAVE_QUIETLY);
}

/* Reads the start record once for header and content. */
int content_load_whole(ls_store *store, uint64_t id, uint8_t *into, size_t room, uint64_t sizes[2], bool *fits) {
    uint32_t number = table_find(&store->state.table, id);
    if (number == INDEX_NONE) {
        return gone(id);
    }
    const struct message *m = table_message(&store->state.table, number);
    uint64_t content_bytes = message_content_bytes(m);
    uint64_t behind = content_bytes - m->content_bytes; /* in chunks */
    *fits = m->record_bytes <= room && behind <= room - m->record_bytes;
    if (!*fits) {
        return LS_OK;
    }
    struct piece p = {
        .lsn = message_start_lsn(m),
        .id = id,
        .record_bytes = m->record_bytes,
        .type = MESSAGE_START,
        .whole = true,
        .bytes = room,
    };
    size_t got = 0;
    int rc = read_piece(store, &p, into, &got);
    if (rc == LS_OK && got - p.header_bytes + behind != content_bytes) {
        rc = damaged(&p);
    }
    size_t more = 0;
    if (rc == LS_OK && behind > 0) {
        rc = load_content(store, id, content_bytes - behind, into + got, (size_t)behind, &more);
    }
    if (rc == LS_OK && more < behind) {
        rc = damaged(&p);
    }
    sizes[0] = p.header_bytes;
    sizes[1] = content_bytes;
    return rc;
}
