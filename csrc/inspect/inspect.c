/*
 * A log replayed without opening it: beside its writer up to what is durable, or after a close or a crash as an open
 * would replay it. Takes no lock, writes nothing. What comes of it is a store that answers and cannot be changed.
 *
 * Beside a writer its own transactions and staged messages are still open; those of older epochs are as its open left
 * them. Nothing in the log tells that at once (a rollback is logged, a staged message just goes), so where the first
 * batch of its epoch stands, or at the end if there is none yet, what its open did is done here too.
 *
 * It is read in steps, so that whoever asks can show how far it is, be slow on purpose, or stop.
 */
#include "inspect/inspect.h"

#include <stdlib.h>
#include <string.h>

enum { BUFFERS = 2 }; /* nothing is ever written to them */

static struct inspection *inspection_new(void) { return calloc(1, sizeof(struct inspection)); }

void inspection_free(struct inspection *i) {
    if (i != NULL) {
        replay_free(&i->replay);
        ls_reader_close(i->reader);
        free(i);
    }
}

int inspection_dir(const struct inspection *i) { return i->reader->dir; }

/* ---- opening ---- */

static void begin(ls_store *store, struct inspection *i) {
    struct scan *s = &i->reader->scan;
    struct log *g = &store->log;
    i->replay = (struct replay){.state = &store->state,
                                .scan = s,
                                .t = &store->state.table,
                                .report = &store->state.report,
                                .base_lsn = s->base_lsn,
                                .inspects = true,
                                .beside = i->reader->live};
    g->epoch = s->epoch_max;
    g->append_lsn = g->end_lsn = s->end_lsn;
    g->durable_lsn = s->end_lsn; /* after a crash: as recovery will make it */
    if ((i->flags & LS_INSPECT_DIRECT) != 0) {
        ls_reader_past_cache(i->reader);
    }
}

static int open_parts(ls_store *store, vfs *v, const char *path) {
    struct inspection *i = store->inspection;
    int rc = fork_register(store);
    rc = rc == LS_OK ? reader_open_known(v, path, &store->log.clients.known, &i->reader) : rc;
    if (rc == LS_OK) {
        store->meta = i->reader->meta;
        rc = log_init(&store->log, v, &store->options, &store->meta);
    }
    if (rc == LS_OK) {
        begin(store, i);
        rc = state_take_segments(&store->state, &i->reader->scan);
    }
    if (rc == LS_OK && (i->flags & (LS_INSPECT_CHECK | LS_INSPECT_NO_CHECKPOINT)) == 0) {
        bool used;
        rc = checkpoint_load(&store->checkpoints, &i->replay, i->reader->dir, &used);
        i->taken_over = used && i->reader->live && store->checkpoints.epoch == i->reader->hint.epoch;
    }
    return rc;
}

int inspect_open_with(vfs *system, const char *store_dir, int flags, const struct log_client *clients, size_t count,
                      ls_store **store) {
    *store = NULL;
    ls_options options;
    ls_options_default(&options);
    options.max_write_buffers = BUFFERS;
    ls_store *made;
    int rc = store_new(&options, clients, count, &made);
    struct inspection *i = inspection_new();
    rc = rc == LS_OK && i == NULL ? fail_memory() : rc;
    if (rc != LS_OK) {
        free(i);
        if (made != NULL) {
            ls_free(made);
        }
        return rc;
    }
    system = system != NULL ? system : vfs_posix();
    i->flags = flags;
    i->start_us = system->monotonic_us(system);
    made->inspection = i;
    made->phase = PHASE_READING;
    made->log.v = system;
    rc = open_parts(made, system, store_dir);
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        ls_free(made);
        return fail_again(&kept);
    }
    *store = made;
    return LS_OK;
}

int ls_inspect_open(vfs *system, const char *store_dir, int flags, ls_store **store) {
    return inspect_open_with(system, store_dir, flags, NULL, 0, store);
}

/* ---- reading ---- */

/* What its own open did before the writer wrote its first batch: see above. */
static void take_over(struct inspection *i) {
    struct replay *p = &i->replay;
    for (uint32_t n = 0; n < p->t->tx_slots; n++) {
        struct tx *tx = p->t->txs[n];
        if (tx != NULL && tx->started && tx->state != LS_TX_PREPARED) { /* of others the state or the outcome follows */
            tx->settled = true;                                         /* the record that says so may be missing yet */
            replay_undo(p, tx);
        }
    }
    replay_drop_work_on_deleted(p);
    for (uint32_t number = 0; number < p->t->message_slots; number++) {
        const struct message *m = table_message(p->t, number);
        if ((m->flags & (MESSAGE_FREE | MESSAGE_STAGED)) == MESSAGE_STAGED && message_pending(m) == 0) {
            table_remove(p->t, number);
        }
    }
    i->taken_over = true;
}

static void note_queues(struct inspection *i, const struct record *r) {
    struct message_start m;
    struct message_enqueue e;
    struct message_dequeue d;
    const uint8_t *queues = NULL;
    uint32_t count = 0, one = 0;
    if (r->type == MESSAGE_START && format_get_start(r, &m) == FORMAT_OK) {
        queues = m.queues;
        count = m.queue_count;
    } else if (r->type == MESSAGE_ENQUEUE && format_get_enqueue(r, &e) == FORMAT_OK) {
        queues = e.queues;
        count = e.queue_count;
    } else if (r->type == MESSAGE_DEQUEUE && format_get_dequeue(r, &d) == FORMAT_OK) {
        one = d.queue_id;
    } else if (r->type == QUEUE_DELETE && format_get_queue_delete(r, &one) != FORMAT_OK) {
        one = 0;
    }
    for (uint32_t n = 0; n < count; n++) {
        uint32_t id = format_queue_id(queues, n);
        one = id > one ? id : one;
    }
    i->queue_id_max = one > i->queue_id_max ? one : i->queue_id_max;
}

static void note_moved_queues(struct inspection *i, const struct record *r) {
    struct message_relocated m;
    if (r->type != MESSAGE_RELOCATED || format_get_relocated(r, &m) != FORMAT_OK) {
        return;
    }
    for (uint32_t n = 0; n < m.place_count; n++) {
        uint32_t id = format_place_row(m.places, n).queue_id;
        i->queue_id_max = id > i->queue_id_max ? id : i->queue_id_max;
    }
    for (uint32_t n = 0; n < m.pending_count; n++) {
        uint32_t id = format_pending_row(m.pending, n).queue_id;
        i->queue_id_max = id > i->queue_id_max ? id : i->queue_id_max;
    }
}

static int read_batch(struct inspection *i, const struct scan_batch *b) {
    bool checks = (i->flags & LS_INSPECT_CHECK) != 0;
    if (i->replay.beside && !i->taken_over && b->batch.epoch == i->reader->hint.epoch) {
        take_over(i);
    }
    int rc = checks ? check_batch(i, b) : LS_OK;
    uint32_t offset = BATCH_RECORD_BYTES;
    struct record r;
    replay_begin_batch(&i->replay, b);
    while (rc == LS_OK && scan_record(b, &offset, &r)) {
        note_queues(i, &r);
        note_moved_queues(i, &r);
        rc = checks ? check_record(i, b, &r) : LS_OK;
        rc = rc == LS_OK ? replay_record(&i->replay, &r) : rc;
    }
    return rc;
}

static uint64_t count_staged(const struct table *t) {
    uint64_t staged = 0;
    for (uint32_t number = 0; number < t->message_slots; number++) {
        const struct message *m = table_message(t, number);
        staged += (m->flags & (MESSAGE_FREE | MESSAGE_STAGED)) == MESSAGE_STAGED && message_pending(m) == 0 ? 1 : 0;
    }
    return staged;
}

static int finish(ls_store *store) {
    struct inspection *i = store->inspection;
    vfs *v = store->log.v;
    if (i->replay.beside && !i->taken_over) {
        take_over(i);
    }
    store->state.report.scan_us = v->monotonic_us(v) - i->start_us;
    int rc = replay_settle(&i->replay);
    rc = rc == LS_OK ? recover_give_to_log(&store->log, &store->state) : rc;
    if (rc == LS_OK) {
        recovered_finish(&store->state.recovered);
        i->staged = count_staged(&store->state.table);
        store->state.report.total_us = v->monotonic_us(v) - i->start_us;
        log_lock(&store->log);
        log_advance_base(&store->log);
        store->phase = PHASE_INSPECTING;
        log_unlock(&store->log);
    }
    return rc;
}

int ls_inspect_step(ls_store *store, uint64_t bytes, uint64_t *lsn) {
    struct inspection *i = store->inspection;
    if (atomic_load(&store->log.foreign)) {
        return fail(LS_FORKED, "this process is a fork of the one that inspects the store; begin again after fork");
    }
    if (i == NULL || store->phase == PHASE_CLOSED) {
        return fail(LS_CLOSED, "this is no store under inspection, or it is closed");
    }
    if (i->result != LS_OK) {
        return fail_again(&i->failure);
    }
    int rc = store->phase == PHASE_INSPECTING ? LS_END : LS_OK;
    uint64_t done = 0;
    while (rc == LS_OK && done < bytes) {
        struct scan_batch b;
        rc = reader_next(i->reader, &b);
        if (rc == LS_OK) {
            done += b.batch.bytes;
            rc = read_batch(i, &b);
        } else if (rc == LS_END) {
            int finished = finish(store);
            rc = finished == LS_OK ? LS_END : finished;
        }
    }
    *lsn = i->reader->scan.next_lsn;
    if (rc != LS_OK && rc != LS_END) {
        i->failure = *ls_last_error();
        i->result = rc;
    }
    return rc;
}

/* ---- what it came to ---- */

static int enter(ls_store *store) {
    int rc = store_look(store);
    if (rc == LS_OK && store->inspection == NULL) {
        (void)store_leave(store, LS_OK, LEAVE_QUIETLY);
        return fail(LS_CLOSED, "this store is open, not inspected");
    }
    return rc;
}

void ls_inspect_describe(const ls_store *store, ls_inspection *into) {
    const struct inspection *i = store->inspection;
    *into = (ls_inspection){.queue_id_max = 0};
    if (i != NULL) {
        ls_reader_describe(i->reader, &into->log);
        into->footers = i->checks.footers;
        into->staged = i->staged;
        into->queue_id_max = i->queue_id_max;
        into->next_lsn = i->reader->scan.next_lsn;
        into->bytes_read = i->reader->scan.bytes_read;
    }
}

static uint64_t content_bytes_on(const struct table *t, const struct queue *q) {
    uint64_t bytes = 0;
    struct cursor c = {.chunk = q->first};
    uint64_t position;
    for (const struct entry *e = cursor_entry(&c, &position); e != NULL; e = cursor_entry(&c, &position)) {
        bytes += message_content_bytes(table_message(t, e->message));
        cursor_step(&c);
    }
    return bytes;
}

int ls_inspect_queues(ls_store *store, ls_queue_info *into, size_t n, size_t *count) {
    *count = 0;
    int rc = enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    const struct table *t = &store->state.table;
    for (uint32_t k = 0; k < t->queue_count; k++) {
        const struct queue *q = t->queues[k];
        if (q == NULL) {
            continue;
        }
        if (*count < n) {
            into[*count] = (ls_queue_info){
                .id = q->id,
                .deleted = q->deleted,
                .depth = q->depth,
                .locked = q->locked,
                .content_bytes = content_bytes_on(t, q),
            };
        }
        (*count)++;
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

/* As ls_serve does with what recovery found, but for the records that it would owe. */
int ls_inspect_catalog(ls_store *store, const uint32_t *queue_ids, size_t n, uint32_t next_queue_id) {
    uint32_t *sorted = serve_sorted_ids(queue_ids, n);
    if (sorted == NULL) {
        return fail_memory();
    }
    int rc = enter(store);
    if (rc != LS_OK) {
        free(sorted);
        return rc;
    }
    struct table *t = &store->state.table;
    rc = serve_cross_check(store, sorted, n, next_queue_id);
    for (uint32_t k = 0; rc == LS_OK && k < t->queue_count; k++) {
        struct queue *q = t->queues[k];
        if (q == NULL || q->deleted || serve_has_queue(sorted, n, q->id)) {
            continue;
        }
        store->state.report.queues_dropped++;
        store->state.report.places_dropped += q->depth;
        recovered_note(&store->state.recovered, LS_RECOVERED_QUEUE, q->id, q->depth, NULL);
        q->deleted = true;
        while (queue_sweep(store, q)) {
        }
    }
    recovered_finish(&store->state.recovered);
    log_advance_base(&store->log);
    store->state.report.messages = t->message_count;
    store->state.report.places = t->place_count;
    free(sorted);
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_inspect_transactions(ls_store *store, ls_open_tx *into, size_t n, size_t *count) {
    *count = 0;
    int rc = enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    for (uint32_t k = 0; k < store->state.table.tx_slots; k++) {
        const struct tx *tx = store->state.table.txs[k];
        if (tx == NULL) {
            continue;
        }
        if (*count < n) {
            ls_open_tx *made = &into[*count];
            *made = (ls_open_tx){
                .id = tx->id,
                .start_lsn = tx->start_lsn,
                .started_us = tx->started_us,
                .prepared_us = tx->state == LS_TX_PREPARED ? tx->prepared_us : 0,
                .operations = tx->work_count,
                .state = tx->state,
                .distributed = tx->distributed,
            };
            made->xid.format_id = tx->xid.format_id;
            made->xid.gtrid_bytes = tx->xid.gtrid_bytes;
            made->xid.bqual_bytes = tx->xid.bqual_bytes;
            memcpy(made->xid.data, tx->xid.data, sizeof tx->xid.data);
        }
        (*count)++;
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_inspect_work(ls_store *store, uint64_t tx_id, ls_open_work *into, size_t n, size_t *count) {
    *count = 0;
    int rc = enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    const struct tx *tx = table_tx(&store->state.table, tx_id);
    if (tx == NULL) {
        rc = fail(LS_UNKNOWN_XID, "no open transaction has id %llu", (unsigned long long)tx_id);
    }
    for (const struct work *w = tx != NULL ? tx->first : NULL; w != NULL; w = w->next) {
        if (*count < n) {
            into[*count] = (ls_open_work){
                .message_id = table_message(&store->state.table, w->message)->id,
                .lsn = w->lsn,
                .queue_id = w->queue_id,
                .order_index = w->order_index,
                .enqueues = w->kind == WORK_ENQUEUE,
                .locks = w->locks,
            };
        }
        (*count)++;
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_inspect_places(ls_store *store, uint64_t id, uint64_t *start_lsn, ls_message_place *into, size_t n,
                      size_t *count) {
    *count = 0;
    int rc = enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    uint32_t number = 0;
    struct message *m = NULL;
    rc = message_find(store, id, &number, &m);
    for (uint32_t i = 0; rc == LS_OK && i < m->place_count; i++) {
        const struct place *place = &message_places(m)[i];
        const struct entry *e = place_entry(place);
        if (*count < n) {
            into[*count] = (ls_message_place){
                .order_lsn = e->order_lsn,
                .queue_id = place->queue_id,
                .order_index = e->order_index,
                .locked = (e->state & ENTRY_LOCKED) != 0,
            };
        }
        (*count)++;
    }
    *start_lsn = rc == LS_OK ? message_start_lsn(m) : 0;
    return store_leave(store, rc, LEAVE_QUIETLY);
}

int ls_inspect_messages(ls_store *store, uint32_t *slot, ls_message_info *into, size_t n, size_t *done) {
    *done = 0;
    int rc = enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    for (; *done < n && *slot < store->state.table.message_slots; (*slot)++) {
        const struct message *m = table_message(&store->state.table, *slot);
        if ((m->flags & MESSAGE_FREE) == 0) {
            into[(*done)++] = (ls_message_info){
                .id = m->id,
                .content_bytes = message_content_bytes(m),
                .start_bytes = m->record_bytes,
                .places = m->place_count,
                .pending = message_pending(m),
                .staged = (m->flags & MESSAGE_STAGED) != 0,
            };
        }
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}

/* ---- reading for its own sake ---- */

void ls_reader_past_cache(ls_reader *reader) {
    reader->scan.all_direct = true;
    reader->scan.file_index = SIZE_MAX; /* what is open is read through the cache */
}

int ls_reader_skim(ls_reader *reader, uint64_t bytes, uint64_t *lsn) {
    int rc = LS_OK;
    for (uint64_t done = 0; rc == LS_OK && done < bytes;) {
        struct scan_batch b;
        rc = reader_next(reader, &b);
        done += rc == LS_OK ? b.batch.bytes : 0;
    }
    *lsn = reader->scan.next_lsn;
    return rc;
}
