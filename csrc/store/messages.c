/* Messages: staged, removed and looked up. places.c publishes them and puts them on queues, dequeue.c takes them off. */
#include <assert.h>
#include <string.h>

#include "os/array.h"
#include "store/store.h"

/* ---- removing and finding ---- */

static void leave_table(ls_store *store, uint32_t number) {
    struct message *m = table_message(&store->state.table, number);
    struct log *g = store->log;
    log_release_record(g, message_start_lsn(m), message_start_weight(m));
    for (uint32_t i = 0; m->extra != NULL && i < m->extra->chunk_count; i++) {
        log_release_record(g, m->extra->chunks[i].lsn, m->extra->chunks[i].record_bytes);
    }
    for (uint32_t i = 0; m->extra != NULL && i < m->extra->part_count; i++) {
        log_release_record(g, m->extra->parts[i].lsn, m->extra->parts[i].record_bytes);
    }
    table_remove(&store->state.table, number);
}

void message_die(ls_store *store, uint32_t number) {
    if (store->noticing.deaths) {
        notices_of_death(store, table_message(&store->state.table, number)->id);
    }
    leave_table(store, number);
}

/* Without memory there is no MESSAGE_DELETE: replay derives the death from the outcome anyway. */
void message_die_derived(ls_store *store, uint32_t number) {
    const struct message *m = table_message(&store->state.table, number);
    if (array_grow(&store->deaths, &store->death_capacity, store->death_count, 1)) {
        store->deaths[store->death_count++] = (struct death){m->id, message_last_lsn(m)};
    }
    message_die(store, number);
}

void store_log_deaths(ls_store *store) {
    while (store->death_count > 0 && log_reserve(store->log, PLAIN_RECORD_BYTES, RESERVE_SHRINKS) == LS_OK) {
        if (store->death_count == 0) {
            break; /* another thread logged them meanwhile */
        }
        struct death d = store->deaths[--store->death_count];
        struct slot s = log_slot(store->log, d.id, d.last_lsn, 0);
        log_append(store->log, &s, MESSAGE_DELETE, format_put_plain(&s, MESSAGE_DELETE));
    }
    store->death_count = 0;
}

int message_fail_unknown(uint64_t id) {
    return fail(LS_UNKNOWN_MESSAGE, "there is no message %llu: it was never stored, or is gone already",
                (unsigned long long)id);
}

int message_find(ls_store *store, uint64_t id, uint32_t *number, struct message **m) {
    *number = table_find(&store->state.table, id);
    if (*number == INDEX_NONE) {
        return message_fail_unknown(id);
    }
    *m = table_message(&store->state.table, *number);
    return LS_OK;
}

int message_too_large(const char *what, uint64_t bytes, uint64_t limit) {
    return fail(LS_OPTION,
                "%s needs %llu bytes in one record, and this store's records hold %llu: a larger segment_size "
                "allows more",
                what, (unsigned long long)bytes, (unsigned long long)limit);
}

/* ---- staging ---- */

/* Content bytes that fit into one start or chunk record with everything else in it. */
static uint64_t content_room(const struct log *g, uint64_t other_bytes) {
    uint64_t most = log_record_bytes_max(g);
    return most > other_bytes ? most - other_bytes : 0;
}

int message_fail_appending(uint64_t id) {
    return fail(
        LS_MESSAGE_IN_USE,
        "the content of message %llu is incomplete: an append_content has not ended, or failed and could not be "
        "taken back. Wait for its end, or destroy the message",
        (unsigned long long)id);
}

/* The records of one append_content call. Until the call ends, the message refuses other appends and enqueues. */
struct append {
    uint64_t id;
    uint64_t from; /* content offset of the first one, if `begun` */
    bool begun;
};

static int check_append(const struct message *m, const struct append *a) {
    if ((m->flags & MESSAGE_STAGED) == 0 || message_pending(m) > 0) {
        return fail(LS_MESSAGE_IN_USE, "message %llu is enqueued; content is added before that",
                    (unsigned long long)a->id);
    }
    return (m->flags & MESSAGE_APPENDING) != 0 && !a->begun ? message_fail_appending(a->id) : LS_OK;
}

static int append_chunk(ls_store *store, struct append *a, const uint8_t *content, uint32_t bytes, bool last) {
    struct log *g = store->log;
    uint32_t number = 0;
    struct message *m = NULL;
    int rc = log_reserve(g, format_chunk_bytes(bytes), RESERVE_GROWS);
    rc = rc == LS_OK ? message_find(store, a->id, &number, &m) : rc;
    rc = rc == LS_OK ? check_append(m, a) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    struct message_extra *x = message_extra(m);
    if (x == NULL || !message_prepare_chunks(x, x->chunk_count + 1)) {
        return fail_memory();
    }
    table_touch(&store->state.table, m);
    a->from = a->begun ? a->from : x->content_bytes;
    a->begun = true;
    m->flags = (uint16_t)(last ? m->flags & ~MESSAGE_APPENDING : m->flags | MESSAGE_APPENDING);
    struct slot s = log_slot(g, a->id, x->last_lsn, 0);
    uint32_t record_bytes = format_put_chunk(&s, x->content_bytes, content, bytes);
    log_append_live(g, &s, MESSAGE_CHUNK, record_bytes, record_bytes);
    x->chunks[x->chunk_count++] = (struct chain_record){
        .lsn = s.lsn, .offset = x->content_bytes, .record_bytes = record_bytes, .content_bytes = bytes};
    x->content_bytes += bytes;
    x->last_lsn = s.lsn;
    message_grows(&store->state.table, m, chunk_grows(record_bytes));
    message_changed(m);
    return LS_OK;
}

static int append_chunks(ls_store *store, struct append *a, const uint8_t *content, uint64_t bytes) {
    uint64_t room = content_room(store->log, 64);
    int rc = LS_OK;
    while (rc == LS_OK && bytes > 0) {
        uint32_t part = (uint32_t)(bytes < room ? bytes : room);
        rc = append_chunk(store, a, content, part, part == bytes);
        content += part;
        bytes -= part;
    }
    return rc;
}

/*
 * (waits) Appends a chunk without content, which cancels all content from its offset on. If there is no room for it,
 * the message stays incomplete: it cannot be enqueued, and the next open drops it unless it is destroyed before.
 */
static void take_back(ls_store *store, const struct append *a) {
    uint32_t number = 0;
    struct message *m = NULL;
    if (log_reserve(store->log, format_chunk_bytes(0), RESERVE_SHRINKS) != LS_OK ||
        message_find(store, a->id, &number, &m) != LS_OK) {
        return;
    }
    struct message_extra *x = m->extra;
    struct slot s = log_slot(store->log, a->id, x->last_lsn, 0);
    log_append(store->log, &s, MESSAGE_CHUNK, format_put_chunk(&s, a->from, NULL, 0));
    table_touch(&store->state.table, m);
    for (uint32_t i = x->chunk_count; i-- > 0 && x->chunks[i].offset >= a->from;) {
        log_release_record(store->log, x->chunks[i].lsn, x->chunks[i].record_bytes);
    }
    bool cut = message_cut_content(&store->state.table, m, a->from);
    assert(cut && (m->flags & MESSAGE_APPENDING) != 0);
    (void)cut;
    x->last_lsn = s.lsn;
    m->flags &= (uint16_t)~MESSAGE_APPENDING;
}

/* Appends a start record with as much content as fits, and chunks with the rest. */
int message_stage(ls_store *store, const uint8_t *header, size_t header_bytes, const uint8_t *content,
                  size_t content_bytes, uint16_t flags, uint64_t *id) {
    struct log *g = store->log;
    uint64_t other = format_start_bytes(header_bytes, 0, 0) + 8;
    uint64_t most = log_record_bytes_max(g);
    if (other > most || header_bytes > most) {
        return message_too_large("the message's header", other, most);
    }
    uint64_t room = content_room(g, other);
    struct message_start m = {
        .header_bytes = (uint32_t)header_bytes,
        .content_bytes = (uint32_t)(content_bytes < room ? content_bytes : room),
        .header = header,
        .content = content,
    };
    int rc = log_reserve(g, format_start_bytes(m.header_bytes, m.content_bytes, 0), RESERVE_GROWS);
    if (rc != LS_OK) {
        return rc;
    }
    if (!table_prepare(&store->state.table, 1)) {
        return fail_memory();
    }
    *id = table_message(&store->state.table, message_put_start(store, &m, NULL, NULL, flags))->id;
    struct append a = {.id = *id};
    return append_chunks(store, &a, content == NULL ? NULL : content + m.content_bytes,
                         content_bytes - m.content_bytes);
}

/* The caller has reserved room for the record, and removes the message. */
static void log_end(ls_store *store, uint32_t number) {
    struct message *m = table_message(&store->state.table, number);
    struct slot s = log_slot(store->log, m->id, message_last_lsn(m), 0);
    log_append(store->log, &s, MESSAGE_DELETE, format_put_plain(&s, MESSAGE_DELETE));
    table_touch(&store->state.table, m);
    m->flags &= (uint16_t)~MESSAGE_STAGED;
}

/*
 * (waits) Ends the message of a failed publish or stage. If there is no room for the record, the next recovery drops
 * the message.
 */
static void unstage(ls_store *store, uint64_t id) {
    if (log_reserve(store->log, PLAIN_RECORD_BYTES, RESERVE_SHRINKS) != LS_OK) {
        return;
    }
    uint32_t number = table_find(&store->state.table, id);
    const struct message *m = number != INDEX_NONE ? table_message(&store->state.table, number) : NULL;
    if (m != NULL && m->place_count == 0 && message_pending(m) == 0) {
        log_end(store, number);
        leave_table(store, number); /* no call has returned its id, so nobody is told of its death */
    }
}

/* Runs the unstaging, keeping the failure that led to it. */
int message_fail_and_unstage(ls_store *store, uint64_t id) {
    ls_error kept = *ls_last_error();
    unstage(store, id);
    return fail_again(&kept);
}

int ls_stage(ls_store *store, const uint8_t *header, size_t header_bytes, const uint8_t *content, size_t content_bytes,
             int flags, uint64_t *id) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    *id = 0;
    rc = message_stage(store, header, header_bytes, content, content_bytes,
                       (flags & LS_PUBLISHED) != 0 ? FLAG_PUBLISHED : 0, id);
    if (rc != LS_OK && *id != 0) {
        rc = message_fail_and_unstage(store, *id);
    }
    return store_leave(store, rc, flags);
}

int ls_append_content(ls_store *store, uint64_t id, const uint8_t *content, size_t content_bytes, int flags) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    uint32_t number = 0;
    struct message *m = NULL;
    rc = message_find(store, id, &number, &m);
    struct append a = {.id = id};
    rc = rc == LS_OK ? append_chunks(store, &a, content, content_bytes) : rc;
    if (rc != LS_OK && a.begun) {
        ls_error kept = *ls_last_error();
        take_back(store, &a);
        rc = fail_again(&kept);
    }
    return store_leave(store, rc, flags);
}

/* ---- ending and looking up ---- */

int ls_destroy(ls_store *store, uint64_t id, int flags) {
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    uint32_t number = 0;
    struct message *m = NULL;
    rc = log_reserve(store->log, PLAIN_RECORD_BYTES, RESERVE_SHRINKS);
    rc = rc == LS_OK ? message_find(store, id, &number, &m) : rc;
    if (rc == LS_OK && (m->place_count > 0 || message_pending(m) > 0)) {
        rc = fail(LS_MESSAGE_IN_USE, "message %llu is on %u queue%s and in %u pending operation%s; dequeue it instead",
                  (unsigned long long)id, (unsigned)m->place_count, m->place_count == 1 ? "" : "s",
                  (unsigned)message_pending(m), message_pending(m) == 1 ? "" : "s");
    }
    if (rc == LS_OK) {
        log_end(store, number);
        message_die(store, number);
    }
    return store_leave(store, rc, flags);
}

int ls_message(ls_store *store, uint64_t id, ls_message_info *info) {
    int rc = store_look(store);
    if (rc != LS_OK) {
        return rc;
    }
    uint32_t number = 0;
    struct message *m = NULL;
    rc = message_find(store, id, &number, &m);
    if (rc == LS_OK) {
        *info = (ls_message_info){
            .id = id,
            .content_bytes = message_content_bytes(m),
            .start_bytes = m->record_bytes,
            .places = m->place_count,
            .pending = message_pending(m),
            .staged = (m->flags & MESSAGE_STAGED) != 0,
        };
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}
