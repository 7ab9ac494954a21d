/*
 * Logs with right checksums whose records contradict each other: each contradiction is refused as corruption that names the
 * contradicting record, and nothing is written. Records that are only superfluous are ignored.
 */
#include "tests/kit/forged_log.h"

static struct forged f;

/* The start of every test: two messages on queue 1, one staged with a chunk, an open and a prepared transaction. */
static uint64_t a, b, open_id, prepared, work_lsn;
static const ls_xid open_xid = {.format_id = 1, .gtrid_bytes = 4, .data = "open"};
static const ls_xid prep_xid = {.format_id = 1, .gtrid_bytes = 4, .data = "prep"};
static const struct xid prep = {.format_id = 1, .gtrid_bytes = 4, .data = "prep"};
static const uint32_t q1 = 1, q2 = 2, q3 = 3;

static void begin_story(void) {
    ls_tx *tx;
    ls_tx_info info;

    fresh();
    a = put(1, "aaaa", NULL);
    b = put(1, "b", NULL);
    check(ls_begin(r.store, &prep_xid, &tx) == LS_OK);
    check(take(b, 1, tx) == LS_OK && add(a, 2, tx) == LS_OK);
    work_lsn = ls_next_lsn(r.store) - 72;
    check(ls_tx_end(tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_OK);
    ls_tx_describe(tx, &info);
    prepared = info.id;
    ls_tx_free(tx);
    forge_begin(&f);
    open_id = f.lsn + f.bytes; /* an open branch that is not ended */
    {
        struct slot s = forge_slot(&f, 0, 0, 0);
        struct xid x = {.format_id = open_xid.format_id, .gtrid_bytes = 4};

        memcpy(x.data, open_xid.data, 4);
        (void)forge_add(&f, format_put_xid(&s, DTX_START, &x));
    }
}

static struct slot slot_after(uint64_t id, uint64_t prev, uint16_t flags) { return forge_slot(&f, id, prev, flags); }

/* Each appends one record and returns its LSN. */
static uint64_t plain(uint64_t id, uint64_t prev, enum record_type type) {
    struct slot s = slot_after(id, prev, 0);
    return forge_add(&f, format_put_plain(&s, type));
}

static uint64_t enqueue(uint64_t id, uint64_t tx_id, const uint32_t *queues, uint32_t n) {
    struct slot s = slot_after(id, id, 0);
    return forge_add(&f, format_put_enqueue(&s, tx_id, 0, queues, n));
}

static uint64_t dequeue(uint64_t id, uint64_t tx_id, uint32_t queue, uint16_t flags) {
    struct slot s = slot_after(id, id, flags);
    struct message_dequeue d = {.tx_id = tx_id, .queue_id = queue};

    return forge_add(&f, format_put_dequeue(&s, &d));
}

static uint64_t chunk(uint64_t id, uint64_t offset) {
    struct slot s = slot_after(id, id, 0);
    return forge_add(&f, format_put_chunk(&s, offset, "chunk", 5));
}

static uint64_t start(uint64_t tx_id, const uint32_t *queues, uint32_t n) {
    struct slot s = slot_after(0, 0, 0);
    return forge_add(&f, format_put_start(&s, tx_id, 0, queues, n, "h", 1, "con", 3));
}

static uint64_t prepare_as(uint64_t id, const struct xid *x) {
    struct slot s = slot_after(id, id, 0);
    return forge_add(&f, format_put_xid(&s, TX_PREPARE, x));
}

static uint64_t moved(uint64_t id, uint16_t flags, const struct message_relocated *m, const struct chunk_row *chunks,
                      const struct place_row *places, const struct pending_row *pending) {
    struct slot s = slot_after(id, id, flags);
    return forge_add(&f, format_put_relocated(&s, m, chunks, places, pending));
}

static uint64_t copy(uint64_t id, uint16_t flags, uint64_t key, uint32_t index, const uint32_t *queues, uint32_t n) {
    struct slot s = slot_after(id, id, FLAG_COPY | flags);
    return forge_add(&f, format_put_start(&s, key, index, queues, n, NULL, 0, "aaaa", 4));
}

static uint64_t moved_tx(uint64_t id, uint8_t kind, uint8_t state) {
    struct slot s = slot_after(id, id, 0);
    struct tx_relocated t = {.xid = kind == TX_KIND_LOCAL ? (struct xid){0} : prep, .kind = kind, .state = state};

    return forge_add(&f, format_put_tx_relocated(&s, &t));
}

/* Opens the store with the forged batch; it is in r.store on success. */
static int open_forged(void) {
    uint64_t changes = vfs_sim_changes(sim);
    int rc;

    forge_end(&f);
    changes = vfs_sim_changes(sim);
    rc = open_again();
    check(rc == LS_OK || vfs_sim_changes(sim) == changes); /* a refused open has written nothing */
    return rc;
}

static bool refused_at(uint64_t lsn, const char *words) {
    int rc = open_forged();
    const ls_error *e = ls_last_error();
    bool right = rc == LS_CORRUPT && e->lsn == lsn && strcmp(e->segment, f.name) == 0 && strstr(e->text, words) != NULL;

    if (!right)
        printf("%d at %llu, not %llu: %s\n", rc, (unsigned long long)e->lsn, (unsigned long long)lsn, e->text);
    if (rc == LS_OK)
        ls_free(r.store);
    r.store = NULL;
    done();
    return right;
}

/* ---- chains and places ---- */

static void a_record_of_a_chain_without_a_start_is_corruption(void) {
    for (int i = 0; i < 5; i++) {
        uint64_t nowhere, lsn;

        begin_story();
        nowhere = a + 8;
        lsn = i == 0   ? enqueue(nowhere, 0, &q2, 1)
              : i == 1 ? dequeue(nowhere, 0, 1, 0)
              : i == 2 ? chunk(nowhere, 0)
              : i == 3 ? plain(nowhere, nowhere, TX_END)
                       : plain(nowhere, nowhere, TX_COMMIT);
        check(refused_at(lsn, "no start"));
    }
}

static void a_place_is_made_once_and_ended_once(void) {
    static const uint32_t both[] = {2, 1};

    begin_story();
    check(refused_at(enqueue(a, 0, &q1, 1), "has it already"));
    begin_story();
    check(refused_at(enqueue(a, 0, both, 2), "has it already"));
    begin_story();
    check(refused_at(dequeue(a, 0, 3, 0), "where it is not"));
    begin_story();
    (void)dequeue(a, 0, 1, 0);
    check(refused_at(dequeue(a, 0, 1, 0), "where it is not"));
}

static void a_delete_of_a_message_in_use_is_corruption(void) {
    begin_story();
    check(refused_at(plain(a, a, MESSAGE_DELETE), "still needed"));
    begin_story();
    (void)enqueue(a, 0, &q3, 1);
    check(refused_at(dequeue(a, 0, 1, FLAG_DELETES), "still needed"));
    begin_story(); /* pending work needs it too */
    (void)dequeue(a, 0, 1, 0);
    check(refused_at(plain(a, a, MESSAGE_DELETE), "still needed"));
    begin_story();
    check(refused_at(dequeue(a, 0, 1, FLAG_DELETES), "still needed"));
}

static void content_has_no_gap(void) {
    uint64_t id;

    begin_story();
    id = start(0, NULL, 0);
    (void)chunk(id, 3);
    check(refused_at(chunk(id, 9), "continue"));
    begin_story();
    check(refused_at(chunk(a, 0), "continue"));
}

/* ---- transactions ---- */

static void an_operation_belongs_to_an_open_transaction(void) {
    begin_story();
    check(refused_at(enqueue(a, a, &q3, 1), "is not open"));
    begin_story();
    check(refused_at(dequeue(a, a, 1, 0), "is not open"));
    begin_story();
    check(refused_at(start(a, &q1, 1), "is not open"));
    begin_story();
    check(refused_at(enqueue(a, prepared, &q3, 1), "takes no more work"));
    begin_story();
    check(refused_at(dequeue(a, prepared, 1, 0), "takes no more work"));
    begin_story();
    (void)plain(prepared, prepared, TX_ROLLBACK);
    check(refused_at(enqueue(a, prepared, &q3, 1), "is not open"));
}

static void a_step_out_of_turn_is_corruption(void) {
    begin_story();
    (void)plain(open_id, open_id, TX_END);
    check(refused_at(plain(open_id, open_id, TX_END), "out of turn"));
    begin_story();
    check(refused_at(plain(prepared, prepared, TX_END), "out of turn"));
    begin_story();
    check(refused_at(prepare_as(open_id, &prep), "out of turn"));
    begin_story();
    check(refused_at(prepare_as(prepared, &prep), "out of turn"));
    begin_story();
    check(refused_at(plain(open_id, open_id, TX_COMMIT), "out of turn"));
    begin_story();
    (void)plain(open_id, open_id, TX_END);
    check(refused_at(prepare_as(open_id, &prep), "another xid"));
    begin_story();
    check(refused_at(plain(prepared, prepared, TX_DELETE), "no outcome"));
    for (int i = 0; i < 2; i++) { /* a local one has no end and no prepare */
        uint64_t local;

        begin_story();
        local = plain(0, 0, TX_START);
        check(refused_at(i == 0 ? plain(local, local, TX_END) : prepare_as(local, &prep), "out of turn"));
    }
}

static void a_committed_operation_fits_its_queue(void) {
    begin_story();
    (void)enqueue(a, 0, &q2, 1); /* on the queue on which the prepared branch enqueues it */
    check(refused_at(plain(prepared, prepared, TX_COMMIT), "does not fit"));
    begin_story();
    (void)dequeue(b, 0, 1, 0); /* which the prepared branch has locked */
    check(refused_at(plain(prepared, prepared, TX_COMMIT), "does not fit"));
}

/* The record's queue was deleted: then it has no effect, whatever the state. */
static void a_committed_operation_on_a_deleted_queue_has_no_effect(void) {
    for (int i = 0; i < 3; i++) {
        struct slot s;
        ls_message_info info;

        begin_story();
        if (i == 1)
            (void)enqueue(a, 0, &q2, 1);
        s = slot_after(0, 0, 0);
        s.id = 0;
        (void)forge_add(&f, format_put_queue_delete(&s, i == 2 ? 1 : 2));
        r.catalog &= i == 2 ? ~2u : ~4u;
        (void)plain(prepared, prepared, TX_COMMIT);
        check(open_forged() == LS_OK || complain("open"));
        check(!has(b) && ls_message(r.store, a, &info) == LS_OK && info.places == 1 && info.pending == 0);
        done();
    }
}

/* ---- unknown and superfluous records ---- */

static void a_type_that_may_be_skipped_is_skipped_and_another_is_newer(void) {
    static const uint16_t types[] = {0x8001, 0x01ff, 0x0210, 0x0307, 0x0403, 0x0501};

    for (int i = 0; i < 6; i++) {
        struct slot s;
        uint32_t bytes;

        begin_story();
        s = slot_after(0, 0, 0);
        s.id = 0;
        bytes = format_put_body(&s, FILLER, (const uint8_t[16]){0}, 16);
        forge_spoil(s, bytes, 16, 2, types[i]);
        (void)forge_add(&f, bytes);
        check(open_forged() == (i == 0 ? LS_OK : LS_VERSION));
        if (i == 0)
            check(has(a) && has(b));
        done();
    }
}

static void an_impossible_record_is_corruption_wherever_it_is(void) {
    for (int i = 0; i < 9; i++) {
        static const struct xid x = {.format_id = 9, .gtrid_bytes = 4, .data = "else"};
        struct slot s;
        uint32_t bytes = 0;

        begin_story();
        s = slot_after(i == 0 || i == 4 || i == 5 ? 0 : a, i == 0 || i == 4 || i == 5 ? 0 : a, 0);
        s.id = i == 5 ? 0 : s.id;
        s.id = i == 6 ? open_id : s.id;
        s.prev = i == 6 ? open_id : s.prev;
        s.flags = i == 7 ? FLAG_COPY : 0;
        if (i == 6) /* ended, so that a prepare is due */
            (void)plain(open_id, open_id, TX_END);
        if (i == 6)
            s = slot_after(open_id, open_id, 0);
        bytes = i == 0 || i == 7 ? format_put_start(&s, 0, 0, &q1, i == 0, NULL, 0, NULL, 0)
                : i == 1         ? format_put_chunk(&s, 4, "c", 1)
                : i == 2         ? format_put_enqueue(&s, 0, 0, &q3, 1)
                : i == 3         ? format_put_dequeue(&s, &(struct message_dequeue){.queue_id = 1})
                : i == 5         ? format_put_queue_delete(&s, 3)
                : i == 4         ? format_put_xid(&s, DTX_START, &x)
                : i == 6         ? format_put_xid(&s, TX_PREPARE, &x)
                         : format_put_relocated(&s, &(struct message_relocated){.content_bytes = 4, .start_lsn = a},
                                                NULL, NULL, NULL);
        /* the queue's id 0, the chunk's length, the queue's id, the reason, spare bytes, the id, the parts, counts */
        forge_spoil(s, bytes,
                    i == 0   ? 72
                    : i == 1 ? 56
                    : i == 2 ? 64
                    : i == 3 ? 56
                    : i == 4 ? 60
                    : i == 5 ? 48
                    : i == 6 ? 56
                    : i == 7 ? 64
                             : 68,
                    4,
                    i == 4   ? 1
                    : i == 1 ? 99
                    : i == 6 ? 0x4141
                    : i >= 7 ? 77
                             : 0);
        check(refused_at(forge_add(&f, bytes), "impossible"));
    }
}

/* An unknown relocated transaction's own fields. */
static void a_relocated_transaction_must_be_possible_and_agree_with_the_log(void) {
    struct slot s;
    struct tx_relocated t = {.kind = TX_KIND_DISTRIBUTED, .state = TX_STATE_PREPARED};
    uint32_t bytes;

    begin_story();
    s = slot_after(prepared, prepared, 0);
    t.xid = prep;
    bytes = format_put_tx_relocated(&s, &t);
    forge_spoil(s, bytes, 60, 4, 1);
    check(refused_at(forge_add(&f, bytes), "impossible"));
    begin_story();
    check(refused_at(moved_tx(a + 8, TX_KIND_DISTRIBUTED, TX_STATE_ACTIVE), "ended before"));
    begin_story(); /* the record repeats the known state: in doubt stays in doubt */
    (void)moved_tx(prepared, TX_KIND_DISTRIBUTED, TX_STATE_PREPARED);
    check(open_forged() == LS_OK && take(b, 1, NULL) == LS_MESSAGE_LOCKED);
    done();
    begin_story(); /* ended, and so rolled back */
    (void)moved_tx(open_id, TX_KIND_DISTRIBUTED, TX_STATE_ENDED);
    check(open_forged() == LS_OK);
    done();
    begin_story();
    (void)moved_tx(open_id, TX_KIND_DISTRIBUTED, TX_STATE_ACTIVE);
    check(open_forged() == LS_OK);
    done();
}

/* ---- relocated messages ---- */

static struct place_row place_of(uint64_t id, uint32_t queue) { return (struct place_row){id, 0, queue, 0, 0}; }

static struct pending_row pending_of(uint64_t lsn) {
    return (struct pending_row){prepared, lsn, 2, PENDING_ENQUEUE, 0};
}

static void a_relocated_state_must_agree_with_its_chain(void) {
    struct place_row place;
    struct pending_row pending;
    struct message_relocated m = {.content_bytes = 4, .place_count = 1, .pending_count = 1};

    for (int i = 0; i < 9; i++) {
        struct message_relocated wrong;
        struct place_row places[2];
        struct pending_row works[1];
        struct chunk_row row;
        uint16_t flags = i == 4 ? FLAG_STAGED : 0;
        uint64_t lsn;

        begin_story();
        place = place_of(a, 1);
        pending = pending_of(work_lsn);
        m.start_lsn = a;
        wrong = m;
        places[0] = place;
        places[1] = place_of(a, 3);
        works[0] = pending;
        row = (struct chunk_row){a, 4, 0};
        if (i == 0)
            wrong.content_bytes = 5; /* another content */
        if (i == 1)
            wrong.place_count = 2; /* more places */
        if (i == 2)
            places[0].queue_id = 3; /* another queue */
        if (i == 3)
            places[0].order_lsn = b; /* another order */
        if (i == 5)
            wrong.chunk_count = 1, row = (struct chunk_row){a, 3, 1}; /* a chunk that leaves no gap but begins early */
        if (i == 6)
            works[0].order_index = 0x1000000;
        if (i == 7)
            works[0].tx_id = a - 8; /* no transaction, or one from before the base */
        if (i == 8)
            places[0].order_index = 5;
        lsn = moved(a, flags, &wrong, &row, places, works);
        check(refused_at(lsn, i == 5 || i == 6 ? "impossible" : i == 7 ? "not open" : "not that of its chain"));
    }
    begin_story(); /* the right one is taken, and b's as well */
    place = place_of(a, 1);
    pending = pending_of(work_lsn);
    m.start_lsn = a;
    (void)moved(a, 0, &m, NULL, &place, &pending);
    check(open_forged() == LS_OK || complain("open"));
    check(has(a) && take(a, 1, NULL) == LS_OK && has(a));
    done();
}

static void a_relocated_chain_is_known_or_began_below_the_base(void) {
    struct message_relocated m = {.content_bytes = 4, .place_count = 1};
    struct place_row place;
    uint64_t lsn;

    begin_story();
    m.start_lsn = a + 8;
    place = place_of(a, 1);
    check(refused_at(moved(a, 0, &m, NULL, &place, NULL), "names a start record"));
    begin_story();
    lsn = copy(a + 8, 0, 0, 0, NULL, 0);
    m.start_lsn = lsn;
    check(refused_at(moved(a + 8, 0, &m, NULL, &place, NULL), "ended before"));
    begin_story();
    check(refused_at(copy(a + 8, FLAG_INLINE, 0, 0, &q1, 1), "ended before"));
    begin_story();
    check(refused_at(copy(b, FLAG_INLINE, 0, 0, &q2, 1), "not that of its chain"));
}

/* Makes a store whose base has moved, so that ids below it exist. */
static uint64_t begin_above(void) {
    uint64_t below;

    fresh();
    below = put(1, "below", NULL);
    check(take(below, 1, NULL) == LS_OK);
    churn(60);
    a = put(1, "aaaa", NULL);
    check(ls_base_lsn(r.store) > below);
    forge_begin(&f);
    return below;
}

/* Salvage and relocation rely on this: the state of a chain that began below the base is that of its relocation. */
static void the_state_of_a_chain_from_below_the_base_is_that_of_its_relocation(void) {
    static const uint32_t gap[] = {1, 0, 3};
    struct message_relocated m = {.content_bytes = 4, .place_count = 2};
    struct place_row places[2];
    ls_message_info info;
    uint64_t below = begin_above();

    m.start_lsn = copy(below, 0, 0, 0, NULL, 0);
    places[0] = place_of(below, 1);
    places[1] = place_of(below, 3);
    (void)moved(below, 0, &m, NULL, places, NULL);
    check(open_forged() == LS_OK || complain("open"));
    check(ls_message(r.store, below, &info) == LS_OK && info.places == 2 && info.content_bytes == 4);
    check(take(below, 1, NULL) == LS_OK && take(below, 3, NULL) == LS_OK && !has(below));
    done();
    below = begin_above();
    (void)copy(below, FLAG_INLINE | FLAG_ORDERED, a, 7, gap, 3);
    check(open_forged() == LS_OK || complain("open"));
    check(ls_message(r.store, below, &info) == LS_OK && info.places == 2);
    done();
    below = begin_above();
    (void)moved_tx(below, TX_KIND_LOCAL, TX_STATE_ACTIVE);
    check(open_forged() == LS_OK || complain("open")); /* and is rolled back */
    done();
}

static void a_chain_from_below_the_base_must_not_contradict_itself(void) {
    static const uint32_t twice[] = {1, 1};
    struct message_relocated m = {.content_bytes = 4, .place_count = 2};
    struct place_row places[2];
    struct chunk_row row;
    uint64_t below, lsn;

    for (int i = 0; i < 4; i++) {
        below = begin_above();
        m.start_lsn = copy(below, 0, 0, 0, NULL, 0);
        m.chunk_count = i >= 2;
        m.place_count = i == 1 ? 1 : 2;
        m.content_bytes = i >= 2 ? 9 : 4;
        places[0] = place_of(below, 1);
        places[1] = place_of(below, i == 0 ? 1 : 3);
        places[0].order_index = i == 1 ? 0x1000000 : 0;
        row = (struct chunk_row){below, i == 2 ? 3 : 4, 5};
        lsn = moved(below, 0, &m, &row, places, NULL);
        if (i < 3) {
            check(refused_at(lsn, "impossible"));
            continue;
        }
        check(open_forged() == LS_CORRUPT && strstr(ls_last_error()->text, "below the base") != NULL);
        done(); /* its chunk lies below the base */
    }
    below = begin_above();
    check(refused_at(copy(below, FLAG_INLINE, 0, 0, twice, 2), "impossible"));
}

static void records_of_chains_from_below_the_base_are_orphans(void) {
    struct message_relocated part = {.content_bytes = 4, .part = 1}, whole = {.content_bytes = 4};
    ls_recovery report;
    uint64_t below = begin_above();

    (void)enqueue(below, 0, &q2, 1);
    (void)dequeue(below, 0, 1, 0);
    (void)chunk(below, 3);
    (void)plain(below, below, MESSAGE_DELETE); /* a MESSAGE_DELETE of an ended chain is no orphan */
    (void)plain(below, below, TX_COMMIT);
    (void)plain(below, below, TX_DELETE);
    part.start_lsn = whole.start_lsn = below;
    (void)moved(below, 0, &part, NULL, NULL, NULL); /* its first part is superseded */
    (void)moved(below, 0, &whole, NULL, NULL, NULL);
    check(open_forged() == LS_OK || complain("open"));
    ls_recovery_report(r.store, &report);
    check(report.orphan_messages == 3 && report.orphan_transactions == 1 && report.orphans == 6);
    check(!has(below) && has(a));
    done();
}

/* Its start is below the base and its work above, so its outcome must be in the log. */
static void a_transaction_from_below_the_base_has_an_outcome(void) {
    uint64_t below = begin_above(), lsn;
    struct xid x = prep;

    lsn = enqueue(a, below, &q2, 1);
    check(refused_at(lsn, "neither start nor outcome"));
    for (int i = 0; i < 3; i++) {
        ls_message_info info;

        below = begin_above();
        (void)enqueue(a, below, &q2, 1);
        if (i == 2) {
            (void)plain(below, below, TX_END);
            (void)prepare_as(below, &x);
        }
        (void)plain(below, below, i == 1 ? TX_ROLLBACK : TX_COMMIT);
        check(open_forged() == LS_OK || complain("open"));
        check(ls_message(r.store, a, &info) == LS_OK && info.places == (i == 1 ? 1u : 2u));
        done();
    }
}

/* ---- batches ---- */

static void a_batch_has_the_records_that_it_counts_and_no_other_batch(void) {
    for (int i = 0; i < 5; i++) {
        struct batch batch;
        struct slot s;

        begin_story();
        batch = (struct batch){.epoch = f.header.epoch, .durable_lsn = f.lsn, .base_lsn = f.base_lsn};
        if (i == 0) { /* a batch record among its records */
            s = slot_after(0, 0, 0);
            s.id = 0;
            batch.bytes = BATCH_RECORD_BYTES;
            (void)forge_add(&f, format_put_batch(&s, &batch));
        }
        batch.count = i == 1 ? f.count - 1 : f.count; /* a record that is not counted */
        batch.bytes = f.bytes;
        if (i == 1)
            (void)plain(0, 0, TX_START), batch.bytes = f.bytes;
        if (i == 2) /* larger than a batch may be */
            batch.bytes = format_batch_bytes_max(SEGMENT) + 8;
        if (i == 3) /* beyond its segment */
            batch.bytes = SEGMENT;
        if (i == 4)
            batch.epoch++;
        forge_batch(&f, &batch);
        check(vfs_sim_put(sim, "/s", f.name, f.image, sizeof f.image) == 0);
        check(open_again() == LS_CORRUPT && ls_last_error()->lsn == f.lsn);
        done();
    }
}

/* An impossible size or epoch is refused; a later version is not misread. */
static void a_segment_of_a_later_version_is_newer_for_readers_and_writers_alike(void) {
    ls_reader *reader;

    begin_story();
    forge_end(&f);
    put32(f.image + 8, 2);
    check(vfs_sim_put(sim, "/s", f.name, f.image, sizeof f.image) == 0);
    check(open_again() == LS_VERSION && strcmp(ls_last_error()->segment, f.name) == 0);
    check(ls_reader_open(r.v, "/s", 0, &reader) == LS_VERSION && reader == NULL);
    done();
}

/* ---- the catalog ---- */

static void a_queue_that_the_catalog_never_gave_out_is_a_mismatch(void) {
    static const uint32_t beyond = 20;
    struct slot s;

    begin_story();
    (void)start(0, &beyond, 1);
    check(open_forged() == LS_CATALOG_MISMATCH);
    done();
    begin_story(); /* pending work counts as well */
    (void)plain(prepared, prepared, TX_ROLLBACK);
    {
        struct xid x = {.format_id = 3};
        uint64_t id;

        s = slot_after(0, 0, 0);
        id = forge_add(&f, format_put_xid(&s, DTX_START, &x));
        (void)enqueue(a, id, &beyond, 1);
        (void)plain(id, id, TX_END);
        (void)prepare_as(id, &x);
    }
    check(open_forged() == LS_CATALOG_MISMATCH);
    done();
    begin_story();
    s = slot_after(0, 0, 0);
    s.id = 0;
    (void)forge_add(&f, format_put_queue_delete(&s, 3)); /* which the catalog still has */
    check(open_forged() == LS_CATALOG_MISMATCH);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_record_of_a_chain_without_a_start_is_corruption,
        a_place_is_made_once_and_ended_once,
        a_delete_of_a_message_in_use_is_corruption,
        content_has_no_gap,
        an_operation_belongs_to_an_open_transaction,
        a_step_out_of_turn_is_corruption,
        a_committed_operation_fits_its_queue,
        a_committed_operation_on_a_deleted_queue_has_no_effect,
        a_type_that_may_be_skipped_is_skipped_and_another_is_newer,
        an_impossible_record_is_corruption_wherever_it_is,
        a_relocated_transaction_must_be_possible_and_agree_with_the_log,
        a_relocated_state_must_agree_with_its_chain,
        a_relocated_chain_is_known_or_began_below_the_base,
        the_state_of_a_chain_from_below_the_base_is_that_of_its_relocation,
        a_chain_from_below_the_base_must_not_contradict_itself,
        records_of_chains_from_below_the_base_are_orphans,
        a_transaction_from_below_the_base_has_an_outcome,
        a_batch_has_the_records_that_it_counts_and_no_other_batch,
        a_segment_of_a_later_version_is_newer_for_readers_and_writers_alike,
        a_queue_that_the_catalog_never_gave_out_is_a_mismatch,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
