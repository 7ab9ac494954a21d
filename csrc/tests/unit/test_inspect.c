/*
 * An inspection gives the state of the next open, or of the running writer. It writes nothing, refuses what an open refuses,
 * and reports a failed call as such, never as damage.
 */
#include "log/parts.h"
#include "store/store.h"
#include "tests/kit/forged_log.h"
#include "tests/kit/one_store.h"

enum { STEP = 20000, ALL = 1 << 30 };

static int inspect_with(int flags, uint64_t step, ls_store **store) {
    uint64_t lsn = 0, before = 0;
    int rc = ls_inspect_open(r.v, "/s", flags, store);

    while (rc == LS_OK) {
        rc = ls_inspect_step(*store, step, &lsn);
        check(lsn >= before);
        before = lsn;
    }
    return rc;
}

static int inspect(ls_store **store) { return inspect_with(LS_INSPECT_CHECK, STEP, store); }

static int inspect_and_forget(int flags) {
    ls_store *store;
    int rc = inspect_with(flags, STEP, &store);

    ls_free(store);
    return rc;
}

/* ---- two stores are the same ---- */

static bool same_message(const struct message *a, const struct message *b) {
    return a->id == b->id && message_content_bytes(a) == message_content_bytes(b) && a->place_count == b->place_count &&
           message_pending(a) == message_pending(b) && (a->flags & MESSAGE_STAGED) == (b->flags & MESSAGE_STAGED) &&
           message_start_lsn(a) == message_start_lsn(b) && message_last_lsn(a) == message_last_lsn(b);
}

static bool same_messages(const ls_store *a, const ls_store *b) {
    const struct table *t = &a->state.table, *u = &b->state.table;

    if (t->message_count != u->message_count || t->place_count != u->place_count)
        return false;
    for (uint32_t n = 0; n < t->message_slots; n++) {
        const struct message *m = table_message(t, n);
        uint32_t other = (m->flags & MESSAGE_FREE) != 0 ? 0 : table_find(u, m->id);

        if ((m->flags & MESSAGE_FREE) == 0 && (other == INDEX_NONE || !same_message(m, table_message(u, other))))
            return false;
    }
    return true;
}

static bool same_queue(const ls_store *a, const struct queue *q, const ls_store *b) {
    const struct queue *other = table_any_queue(&b->state.table, q->id);
    struct cursor c = {.chunk = q->first}, d = {.chunk = other != NULL ? other->first : NULL};
    uint64_t position;
    const struct entry *e;

    if (other == NULL)
        return queue_depth(q) == 0;
    while ((e = cursor_entry(&c, &position)) != NULL) {
        const struct entry *f = cursor_entry(&d, &position);

        if (f == NULL ||
            table_message(&a->state.table, e->message)->id != table_message(&b->state.table, f->message)->id ||
            e->order_lsn != f->order_lsn || e->order_index != f->order_index ||
            (e->state & ENTRY_LOCKED) != (f->state & ENTRY_LOCKED))
            return false;
        cursor_step(&c);
        cursor_step(&d);
    }
    return memcmp(q->tallies, other->tallies, sizeof q->tallies) == 0;
}

static bool same_queues(const ls_store *a, const ls_store *b) {
    bool same = true;

    for (uint32_t i = 0; same && i < a->state.table.queue_count; i++)
        same = a->state.table.queues[i] == NULL || same_queue(a, a->state.table.queues[i], b);
    return same;
}

static bool same_work(const ls_store *a, const struct tx *t, const ls_store *b, const struct tx *u) {
    const struct work *w = t->first, *x = u->first;

    for (; w != NULL && x != NULL; w = w->next, x = x->next) {
        if (table_message(&a->state.table, w->message)->id != table_message(&b->state.table, x->message)->id ||
            w->lsn != x->lsn || w->queue_id != x->queue_id || w->kind != x->kind || w->locks != x->locks ||
            (w->kind == WORK_ENQUEUE && w->order_index != x->order_index))
            return false;
    }
    return w == NULL && x == NULL;
}

/* Compares every transaction of a; if recovery has ended the others, only prepared ones. */
static bool same_transactions(const ls_store *a, const ls_store *b, bool prepared_only) {
    for (uint32_t i = 0; i < a->state.table.tx_slots; i++) {
        const struct tx *t = a->state.table.txs[i];
        const struct tx *u = t != NULL ? table_tx(&b->state.table, t->id) : NULL;

        if (t == NULL || (prepared_only && t->state != LS_TX_PREPARED))
            continue;
        if (u == NULL || u->state != t->state || u->distributed != t->distributed || !xid_equal(&t->xid, &u->xid) ||
            u->start_lsn != t->start_lsn || !same_work(a, t, b, u))
            return false;
    }
    return true;
}

/* The live records of transactions that an open has ended only in memory, and that an inspection has dropped. */
static struct release of_ended(const ls_store *opened, const struct segment *s, uint64_t segment_size) {
    struct release found = {0, 0};

    for (uint32_t i = 0; i < opened->state.table.tx_slots; i++) {
        const struct tx *t = opened->state.table.txs[i];

        if (t != NULL && t->state != LS_TX_PREPARED && t->start_lsn / segment_size == s->first_lsn / segment_size) {
            found.records++;
            found.bytes += tx_start_bytes(t);
        }
    }
    return found;
}

static bool same_segments(ls_store *seen, const ls_store *opened, bool beside) {
    for (size_t i = opened->log->base_index; i < opened->log->segment_count; i++) {
        const struct segment *s = opened->log->segments[i];
        const struct live_segment *u = state_segment(&seen->state, s->first_lsn);
        struct release ended = of_ended(opened, s, opened->meta.segment_size);

        if (beside)
            ended = (struct release){0, 0};
        if (u == NULL || u->epoch != s->epoch || u->records + ended.records != s->live_records ||
            u->bytes + ended.bytes != s->live_bytes) {
            printf("segment %llx: %llu records and %llu bytes live, and %llu and %llu\n",
                   (unsigned long long)s->first_lsn, (unsigned long long)s->live_records,
                   (unsigned long long)s->live_bytes, (unsigned long long)(u != NULL ? u->records : 0),
                   (unsigned long long)(u != NULL ? u->bytes : 0));
            return false;
        }
    }
    return true;
}

static bool same_report(const ls_recovery *a, const ls_recovery *b) {
    return a->clean == b->clean && a->base_lsn == b->base_lsn && a->end_lsn == b->end_lsn &&
           a->watermark_lsn == b->watermark_lsn && a->segments == b->segments && a->batches == b->batches &&
           a->records == b->records && a->torn_bytes == b->torn_bytes && a->messages == b->messages &&
           a->places == b->places && a->transactions_committed == b->transactions_committed &&
           a->transactions_rolled_back == b->transactions_rolled_back &&
           a->transactions_abandoned == b->transactions_abandoned &&
           a->transactions_in_doubt == b->transactions_in_doubt && a->operations_undone == b->operations_undone &&
           a->staged_dropped == b->staged_dropped && a->staged_bytes == b->staged_bytes && a->orphans == b->orphans &&
           a->orphan_messages == b->orphan_messages && a->orphan_transactions == b->orphan_transactions;
}

/* ---- after a close or a crash ---- */

/* With the catalog it answers as a served open does, also if queues are gone or the catalog is too old. */
static bool is_as_served(ls_store *seen, ls_store *opened, unsigned catalog) {
    uint32_t ids[QUEUES];
    size_t n = list_queues(catalog, ids);
    uint32_t next = catalog == 0 ? 1 : QUEUES + 1;
    int there = ls_serve(opened, ids, n, next);
    int here = ls_inspect_catalog(seen, ids, n, next);
    const ls_recovery *a = &seen->state.report, *b = &opened->state.report;
    uint64_t places, locked, also, also_locked;
    bool same = here == there;

    for (size_t i = 0; same && here == LS_OK && i < n; i++)
        same = ls_queue_depth(seen, ids[i], &places, &locked) == LS_OK &&
               ls_queue_depth(opened, ids[i], &also, &also_locked) == LS_OK && places == also && locked == also_locked;
    return same &&
           (here != LS_OK || (a->messages == b->messages && a->places == b->places &&
                              a->staged_dropped == b->staged_dropped && a->staged_bytes == b->staged_bytes &&
                              a->queues_dropped == b->queues_dropped && a->places_dropped == b->places_dropped));
}

/* Inspects the closed store on r.v, then opens it. */
static bool is_as_opened(unsigned catalog) {
    ls_store *seen = NULL, *opened = NULL;
    int rc = inspect(&seen);
    bool right = (rc == LS_END || complain("inspection")) &&
                 (ls_open(r.v, "/s", &r.options, &opened) == LS_OK || complain("open"));

    if (right) {
        right = same_messages(seen, opened) && same_messages(opened, seen) && same_queues(seen, opened) &&
                same_queues(opened, seen) && same_transactions(opened, seen, true) &&
                same_transactions(seen, opened, false) && same_segments(seen, opened, false) &&
                same_report(&seen->state.report, &opened->state.report);
        if (!right)
            printf("what was inspected is not what was opened\n");
        right = right && (is_as_served(seen, opened, catalog) || complain("as served"));
    }
    ls_free(seen);
    ls_free(opened);
    return right;
}

static void a_log_is_inspected_as_an_open_recovers_it(void) {
    int crashes = 0;

    for (uint64_t seed = 1; seed <= 24 / ONE_IN + 2; seed++) {
        vfs_sim *whole;

        sim = vfs_sim_new();
        memset(&r, 0, sizeof r);
        r.doubts = seed % 3 == 0;
        check(vfs_sim_record(sim, 1) == 0);
        run_start(&r, sim, seed);
        if (seed % 2)
            run_with_moves(&r, 250);
        else
            run_some(&r, 300);
        whole = sim;
        for (size_t k = 0, n = vfs_sim_journal(whole, &(const vfs_sim_event *){NULL}); k < n; k += n / 12 + 1) {
            vfs_sim_loss loss = {.mode = VFS_SIM_RANDOM, .dir_mode = VFS_SIM_DIRS_RANDOM, .seed = seed * 31 + k};
            vfs *kept = r.v;
            struct meta m;
            int dir;

            sim = vfs_sim_crash_at(whole, k, &loss);
            r.v = vfs_sim_table(sim);
            dir = r.v->open_dir(r.v, "/s");
            if (dir >= 0 && scan_read_meta(r.v, dir, "META", &m) == LS_OK) {
                check(is_as_opened(k % 5 == 0 ? 0 : k % 3 == 0 ? 6 : r.catalog));
                crashes++;
            }
            if (dir >= 0)
                check(r.v->close(r.v, dir) == 0);
            check(vfs_sim_handles(sim) == 0);
            vfs_sim_free(sim);
            r.v = kept;
        }
        sim = whole;
        run_end(&r);
        check(is_as_opened(r.catalog));
        vfs_sim_free(sim);
    }
    check(crashes > 24 / ONE_IN); /* or the test proves little */
}

/* ---- beside a writer ---- */

/* The writer keeps work on deleted queues until its outcome, but relocation drops it: then only queues are compared. */
static bool is_as_written(int flags, bool deletes) {
    ls_store *seen = NULL;
    ls_inspection found;
    bool right = ls_force(r.store, 0) == LS_OK && (inspect_with(flags, STEP, &seen) == LS_END || complain("beside"));

    if (right) {
        ls_inspect_describe(seen, &found);
        right = found.log.live && found.log.end_lsn == ls_next_lsn(r.store) && found.next_lsn == found.log.end_lsn &&
                same_queues(seen, r.store) && same_queues(r.store, seen) &&
                (deletes || (same_messages(seen, r.store) && same_messages(r.store, seen) &&
                             same_transactions(r.store, seen, false) && same_transactions(seen, r.store, false) &&
                             same_segments(seen, r.store, true)));
        if (!right)
            printf("what was inspected is not what the writer has\n");
    }
    ls_free(seen);
    return right;
}

static void beside_a_writer_it_is_what_the_writer_has(void) {
    for (uint64_t seed = 1; seed <= 40 / ONE_IN + 2; seed++) {
        bool deletes = seed % 4 == 0;
        ls_checkpoint_info made;

        fresh();
        r.chance = seed * 77;
        r.doubts = seed % 3 == 0;
        if (!deletes)
            r.next_queue = QUEUES + 1; /* none is added, so none is deleted */
        for (int i = 0; i < 12; i++) {
            if (seed % 2)
                run_with_moves(&r, 20);
            else
                run_some(&r, 25);
            if (i % 3 == 1)
                check(ls_checkpoint(r.store, &made) == LS_OK || complain("checkpoint"));
            check(is_as_written(LS_INSPECT_CHECK, deletes));
            check(is_as_written(0, deletes)); /* by the checkpoint, where the base has not passed it */
        }
        check(!r.lost);
        run_end(&r);
        done();
    }
}

/* Recovery's results count although no record may show them: it ends a staged message without a record. */
static void an_inspection_omits_what_the_writers_recovery_ended(void) {
    const ls_xid xid = {.format_id = 1, .gtrid_bytes = 1, .data = "x"};
    uint64_t staged, in_doubt, ids[3];
    ls_message_info info;
    ls_open_tx open[4];
    ls_store *seen;
    ls_tx *tx, *local;
    size_t n = 0;

    fresh();
    check(ls_stage(r.store, NULL, 0, (const uint8_t *)"s", 1, LS_WAIT, &staged) == LS_OK);
    check(ls_stage(r.store, NULL, 0, (const uint8_t *)"d", 1, LS_WAIT, &in_doubt) == LS_OK);
    check(ls_begin(r.store, &xid, &tx) == LS_OK && add(in_doubt, 1, tx) == LS_OK && ls_tx_end(tx) == LS_OK &&
          ls_prepare(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    check(ls_begin(r.store, NULL, &local) == LS_OK);
    ids[0] = put(1, "undone", local);
    check(ls_force(r.store, 0) == LS_OK);
    check(is_as_written(0, false));
    {
        vfs_sim *cut = vfs_sim_crash(sim, &(vfs_sim_loss){.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT});
        vfs_sim *before = sim;
        ls_store *old = r.store;

        sim = cut;
        r.v = vfs_sim_table(cut);
        check(open_again() == LS_OK);
        check(is_as_written(LS_INSPECT_CHECK, false));
        check(ls_in_doubt(r.store, ids, 3, &n) == LS_OK && n == 1);
        check(ls_in_doubt_take(r.store, ids[0], &tx) == LS_OK && ls_rollback(tx, LS_WAIT) == LS_OK);
        ls_tx_free(tx);
        check(
            is_as_written(LS_INSPECT_CHECK, false)); /* the one that was in doubt is staged again, the other is gone */
        check(ls_message(r.store, in_doubt, &info) == LS_OK && info.staged);
        check(ls_begin(r.store, NULL, &tx) == LS_OK);
        (void)put(2, "open", tx);
        check(is_as_written(LS_INSPECT_CHECK, false));
        check(inspect(&seen) == LS_END);
        check(ls_inspect_transactions(seen, open, 4, &n) == LS_OK && n == 1 && open[0].state == LS_TX_ACTIVE);
        check(open[0].operations == 1 && open[0].started_us > 0 && !open[0].distributed);
        check(ls_message(seen, in_doubt, &info) == LS_OK && info.staged && info.places == 0 && info.pending == 0 &&
              info.content_bytes == 1);
        ls_free(seen);
        ls_tx_free(tx);
        done();
        sim = before;
        r.store = old;
        r.v = vfs_sim_table(before);
    }
    ls_tx_free(local);
    done();
}

/* ---- what it must not do ---- */

static size_t changes_so_far(void) {
    const vfs_sim_event *events;
    size_t n = vfs_sim_journal(sim, &events), changes = 0;

    for (size_t i = 0; i < n; i++)
        changes += (events[i].flags & VFS_SIM_CHANGES) != 0;
    return changes;
}

static void an_inspection_changes_nothing_and_refuses_changes(void) {
    uint64_t id = 0, lsn;
    uint32_t q = 1;
    ls_store *seen;
    ls_tx *tx;
    size_t before, n;
    int fd;

    fresh();
    (void)put(1, "stays", NULL);
    check(vfs_sim_record(sim, 1) == 0);
    (void)put(1, "a change", NULL);
    before = changes_so_far();
    check(before > 0);
    check(inspect(&seen) == LS_END);
    check(changes_so_far() == before);
    check(ls_publish(seen, &q, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) == LS_CLOSED);
    check(ls_stage(seen, NULL, 0, NULL, 0, LS_WAIT, &id) == LS_CLOSED);
    check(ls_dequeue(seen, 1, 1, NULL, 0, 0, LS_WAIT, &lsn) == LS_CLOSED);
    check(ls_begin(seen, NULL, &tx) == LS_CLOSED && ls_in_doubt_take(seen, 1, &tx) == LS_CLOSED);
    check(ls_queue_add(seen, 3) == LS_CLOSED && ls_queue_delete(seen, 1, LS_WAIT) == LS_CLOSED);
    check(ls_force(seen, 0) == LS_CLOSED && ls_flush_soon(seen) == LS_CLOSED);
    check(ls_event_fd(seen, &fd) == LS_CLOSED && ls_serve(seen, &q, 1, 2) == LS_CLOSED);
    check(ls_load_content(seen, 1, 0, NULL, 0, &n) == LS_CLOSED);
    check(changes_so_far() == before);
    check(ls_close(seen) == LS_OK && ls_close(seen) == LS_OK);
    check(ls_inspect_step(seen, 1, &lsn) == LS_CLOSED);
    ls_free(seen);
    check(changes_so_far() == before);
    done();
}

static void an_inspection_answers_only_after_it_has_read_to_the_end(void) {
    uint64_t lsn, places, locked, first;
    ls_message_place where[2];
    ls_inspection found;
    ls_queue_info queues[4];
    ls_open_work work[1];
    ls_store *seen;
    uint32_t q = 1;
    size_t n;

    fresh();
    first = put_bytes(1, 1, 1000, 0);
    for (int i = 1; i < 50; i++)
        (void)put_bytes(1, 1, 1000, 0);
    check(ls_force(r.store, 0) == LS_OK);
    check(ls_inspect_open(r.v, "/s", 0, &seen) == LS_OK);
    check(ls_inspect_step(seen, 1, &lsn) == LS_OK); /* one batch */
    check(ls_queue_depth(seen, 1, &places, &locked) == LS_CLOSED);
    check(ls_inspect_queues(seen, queues, 4, &n) == LS_CLOSED && ls_serve(seen, &q, 1, 2) == LS_CLOSED);
    while (ls_inspect_step(seen, 1, &lsn) == LS_OK)
        ;
    check(ls_inspect_step(seen, 1, &lsn) == LS_END);
    check(ls_queue_depth(seen, 1, &places, &locked) == LS_OK && places == 50 && locked == 0);
    check(ls_inspect_queues(seen, queues, 4, &n) == LS_OK && n == 1 && queues[0].id == 1 && queues[0].depth == 50);
    check(queues[0].content_bytes == 50000 && queues[0].locked == 0 && !queues[0].deleted);
    check(ls_inspect_work(seen, 12345, work, 1, &n) == LS_UNKNOWN_XID);
    check(ls_inspect_places(seen, first, &lsn, where, 2, &n) == LS_OK && n == 1 && lsn == first);
    check(where[0].queue_id == 1 && where[0].order_lsn == first && !where[0].locked);
    check(ls_inspect_places(seen, first, &lsn, where, 0, &n) == LS_OK && n == 1);
    check(ls_inspect_places(seen, first + 8, &lsn, where, 2, &n) == LS_UNKNOWN_MESSAGE && n == 0 && lsn == 0);
    ls_inspect_describe(seen, &found);
    check(found.queue_id_max == 1 && found.bytes_read > 50000 && found.log.segments >= 1);
    ls_free(seen);
    check(ls_inspect_queues(r.store, queues, 4, &n) == LS_CLOSED); /* it is open */
    check(ls_inspect_step(r.store, 1, &lsn) == LS_CLOSED);
    done();
}

/* ---- damage ---- */

static void an_inspection_refuses_what_an_open_refuses(void) {
    static uint8_t image[SEGMENT];
    ls_segment_info segments[16];
    ls_reader *reader;
    char name[SEGMENT_NAME_BYTES];
    size_t n;

    fresh();
    for (int i = 0; i < 8; i++)
        (void)put_bytes(1, 1, 700, LS_WAIT);
    check(ls_close(r.store) == LS_OK);
    ls_free(r.store);
    r.store = NULL;
    check(ls_reader_open(r.v, "/s", 0, &reader) == LS_OK && ls_reader_segments(reader, segments, 16, &n) == LS_OK);
    ls_reader_close(reader);
    format_segment_name(name, segments[0].first_lsn);
    require(vfs_sim_get(sim, VFS_SIM_STABLE, "/s", name, image, SEGMENT) == SEGMENT);
    for (size_t at = 0; at < segments[0].end_lsn - segments[0].first_lsn; at += at < 4096 ? 911 : 13 * ONE_IN) {
        ls_store *opened = NULL;
        int here, there;

        if (at > 72 && at < 4088)
            continue;
        image[at] ^= 0x10;
        require(vfs_sim_put(sim, "/s", name, image, SEGMENT) == 0);
        here = inspect_and_forget(LS_INSPECT_CHECK);
        there = ls_open(r.v, "/s", &r.options, &opened);
        check(there != LS_OK || here == LS_END);
        check(there == LS_OK || (here == there && ls_last_error()->lsn != 0) || complain("inspected otherwise"));
        ls_free(opened);
        image[at] ^= 0x10;
    }
    require(vfs_sim_put(sim, "/s", name, image, SEGMENT) == 0);
    check(inspect_and_forget(LS_INSPECT_CHECK) == LS_END);
    done();
}

/* A contradiction that replay does not notice, in a batch after the end. */
static int checked_with(void (*forge)(struct forged *), int *unchecked) {
    static struct forged f;
    int rc;

    fresh();
    (void)put(1, "first", NULL);
    (void)put(2, "second", NULL);
    forge_begin(&f);
    forge(&f);
    forge_end(&f);
    *unchecked = inspect_and_forget(0);
    rc = inspect_and_forget(LS_INSPECT_CHECK);
    done();
    return rc;
}

static uint64_t first_id(const struct forged *f) { /* of the first record behind the first batch record of the log */
    (void)f;
    return r.now.depth[1] > 0 ? r.now.places[1][0].id : SEGMENT + SEGMENT_HEADER_BYTES + BATCH_RECORD_BYTES;
}

static void with_a_wrong_link(struct forged *f) {
    const uint32_t queue = 3;
    struct slot s = forge_slot(f, first_id(f), first_id(f) + 8, 0);

    (void)forge_add(f, format_put_enqueue(&s, 0, 0, &queue, 1));
}

static void with_a_wrong_number(struct forged *f) {
    const uint32_t queue = 3;
    struct slot s = forge_slot(f, 0, 0, 0), e;
    uint64_t tx_id = s.lsn;

    (void)forge_add(f, format_put_plain(&s, TX_START));
    e = forge_slot(f, first_id(f), first_id(f), 0);
    (void)forge_add(f, format_put_enqueue(&e, tx_id, 1, &queue, 1));
}

static void with_a_wrong_footer(struct forged *f) {
    struct footer t = {.last_lsn = f->lsn - 48, .bytes = f->lsn - f->first_lsn - SEGMENT_HEADER_BYTES, .batches = 1};
    struct slot s = forge_slot(f, 0, 0, 0);

    s.id = 0;
    (void)forge_add(f, format_put_footer(&s, &t));
}

static void with_a_wrong_link_of_a_transaction(struct forged *f) {
    struct slot s = forge_slot(f, 0, 0, 0);
    uint64_t tx_id = s.lsn;

    (void)forge_add(f, format_put_plain(&s, TX_START));
    s = forge_slot(f, tx_id, tx_id + 8, 0);
    s.id = tx_id;
    (void)forge_add(f, format_put_plain(&s, TX_ROLLBACK));
}

static void a_check_finds_contradictions_that_replay_does_not_notice(void) {
    static void (*const forge[])(struct forged *) = {with_a_wrong_link, with_a_wrong_number, with_a_wrong_footer,
                                                     with_a_wrong_link_of_a_transaction};

    for (size_t i = 0; i < sizeof forge / sizeof *forge; i++) {
        int unchecked = 0, checked = checked_with(forge[i], &unchecked);

        check(checked == LS_CORRUPT && ls_last_error()->lsn != 0);
        check(unchecked == LS_END || complain("replay notices it"));
    }
}

/* ---- overtaken ---- */

static void an_overtaken_inspection_reports_recycling_not_damage(void) {
    int recycled = 0;

    for (int steps = 0; steps < 6; steps++) {
        ls_store *seen;
        uint64_t lsn;
        int rc;

        fresh();
        for (int i = 0; i < 60; i++)
            (void)put_bytes(1, 1, 3000, 0);
        check(ls_force(r.store, 0) == LS_OK);
        check(ls_inspect_open(r.v, "/s", LS_INSPECT_CHECK, &seen) == LS_OK);
        for (int i = 0; i < steps; i++)
            check(ls_inspect_step(seen, SEGMENT / 3, &lsn) == LS_OK);
        {
            ls_place places[60];
            ls_cursor *c;
            size_t n;

            check(ls_cursor_open(r.store, 1, LS_CURSOR_ALL, &c) == LS_OK);
            check(ls_cursor_next(c, places, 60, &n) == LS_OK && n == 60);
            ls_cursor_close(c);
            for (size_t i = 0; i < n; i++)
                check(take(places[i].id, 1, NULL) == LS_OK);
        }
        churn(120);
        while ((rc = ls_inspect_step(seen, SEGMENT, &lsn)) == LS_OK)
            ;
        check(rc == LS_RECYCLED || rc == LS_END || complain("overtaken"));
        if (rc == LS_RECYCLED) {
            recycled++;
            check(ls_inspect_step(seen, SEGMENT, &lsn) == LS_RECYCLED); /* and again */
        }
        ls_free(seen);
        check(is_as_written(LS_INSPECT_CHECK, false));
        done();
    }
    check(recycled > 2);
}

/* A writer that comes while a closed log is read, and takes its segments. */
static void a_writer_that_starts_during_an_inspection_is_not_reported_as_damage(void) {
    ls_store *seen;
    uint64_t lsn;
    int rc;

    fresh();
    for (int i = 0; i < 60; i++)
        (void)put_bytes(1, 1, 3000, 0);
    again();
    check(ls_close(r.store) == LS_OK);
    ls_free(r.store);
    check(ls_inspect_open(r.v, "/s", 0, &seen) == LS_OK);
    check(ls_inspect_step(seen, 1, &lsn) == LS_OK);
    check(open_again() == LS_OK);
    check(ls_queue_delete(r.store, 1, LS_WAIT) == LS_OK && ls_queue_add(r.store, 1) == LS_OK);
    churn(120);
    while ((rc = ls_inspect_step(seen, SEGMENT, &lsn)) == LS_OK)
        ;
    check(rc == LS_RECYCLED || complain("a writer came"));
    ls_free(seen);
    done();
}

/* ---- what fails ---- */

static void a_failed_call_of_an_inspection_is_reported(void) {
    static const int kinds[] = {VFS_SIM_OPEN, VFS_SIM_PREAD, VFS_SIM_LIST, VFS_SIM_SIZE, VFS_SIM_LOCK};
    int refused = 0;

    fresh();
    for (int i = 0; i < 40; i++)
        (void)put_bytes(1, 1, 3000, 0);
    check(ls_force(r.store, 0) == LS_OK);
    for (int closed = 0; closed < 2; closed++) {
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            for (uint64_t nth = 1; nth < 400; nth++) {
                size_t handles = vfs_sim_handles(sim);
                uint64_t fired;
                int rc;

                vfs_sim_fail(sim, &(vfs_sim_plan){.kind = kinds[k], .nth = nth, .error = EIO});
                rc = inspect_and_forget(nth % 2 ? LS_INSPECT_DIRECT : 0);
                fired = vfs_sim_fired(sim);
                vfs_sim_fail(sim, NULL);
                check(rc == LS_END || rc == LS_IO || rc == LS_LOCKED || complain("a call that fails"));
                check(vfs_sim_handles(sim) == handles);
                refused += rc != LS_END;
                if (fired == 0)
                    break;
            }
        }
        if (!closed) {
            check(ls_close(r.store) == LS_OK);
            ls_free(r.store);
            r.store = NULL;
        }
    }
    check(refused > 20);
    check(open_again() == LS_OK);
    done();
}

static void an_inspection_refuses_a_directory_without_a_store(void) {
    ls_store *seen;

    fresh();
    check(ls_inspect_open(r.v, "/nowhere", 0, &seen) == LS_NOT_A_STORE && seen == NULL);
    check(r.v->make_dir(r.v, "/empty") == 0);
    check(ls_inspect_open(r.v, "/empty", 0, &seen) == LS_NOT_A_STORE && seen == NULL);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_log_is_inspected_as_an_open_recovers_it,
        beside_a_writer_it_is_what_the_writer_has,
        an_inspection_omits_what_the_writers_recovery_ended,
        an_inspection_changes_nothing_and_refuses_changes,
        an_inspection_answers_only_after_it_has_read_to_the_end,
        an_inspection_refuses_what_an_open_refuses,
        a_check_finds_contradictions_that_replay_does_not_notice,
        an_overtaken_inspection_reports_recycling_not_damage,
        a_writer_that_starts_during_an_inspection_is_not_reported_as_damage,
        a_failed_call_of_an_inspection_is_reported,
        an_inspection_refuses_a_directory_without_a_store,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
