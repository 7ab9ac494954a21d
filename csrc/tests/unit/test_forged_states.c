/*
 * Logs with right checksums whose records contradict each other in the states of places: each contradiction is refused as
 * corruption that names the record. And checkpoints with right checksums and impossible rows of states: they are ignored.
 */
#include "checkpoint/checkpoint.h"
#include "replica/replica.h"
#include "tests/kit/stated_log.h"

static uint64_t a, b; /* on queue 1; b has a note and times */
static const uint32_t both[] = {1, 2};
static const struct place_state noted = {.not_before_us = 5, .note = (const uint8_t *)"note", .note_bytes = 4};

/* ---- records ---- */

static struct slot next_slot(uint64_t id, uint16_t flags) { return forge_slot(&sl, id, id, flags); }

static uint64_t start_placed(uint64_t tx_id, const uint32_t *queues, uint32_t n) {
    struct slot s = forge_slot(&sl, 0, 0, FLAG_PUBLISHED);
    struct message_start m = {.tx_id = tx_id, .queue_count = n, .content = (const uint8_t *)"con", .content_bytes = 3};

    return forge_add(&sl, format_put_start_placed(&s, &m, queues, &noted));
}

static uint64_t note(uint64_t id, uint64_t tx_id, uint32_t queue, const char *text) {
    struct slot s = next_slot(id, 0);
    struct message_place p = {tx_id, queue, (uint8_t)strlen(text), (const uint8_t *)text};

    return forge_add(&sl, format_put_place(&s, &p));
}

static uint64_t move(uint64_t id, uint64_t tx_id, uint32_t from, uint32_t queue) {
    struct slot s = next_slot(id, 0);
    struct message_move m = {.tx_id = tx_id, .from_queue_id = from, .queue_id = queue, .state = {.delivery_count = 1}};

    return forge_add(&sl, format_put_move(&s, &m));
}

static uint64_t states(uint64_t id, uint32_t queue) {
    struct slot s = forge_slot(&sl, 0, 0, 0);
    struct state_row rows[2] = {{id, 1, 2, queue, 3}, {id, 4, 5, queue, 6}};

    s.id = 0;
    return forge_add(&sl, format_put_place_states(&s, rows, 2));
}

static uint64_t dequeue(uint64_t id, uint64_t tx_id, uint32_t queue) {
    struct slot s = next_slot(id, 0);
    return forge_add(&sl, format_put_dequeue(&s, &(struct message_dequeue){tx_id, queue, 0, 0}));
}

static uint64_t plain(uint64_t id, enum record_type type) {
    struct slot s = forge_slot(&sl, id, id, 0);

    s.prev = id == 0 ? 0 : id;
    return forge_add(&sl, format_put_plain(&s, type));
}

static uint64_t begin_tx(void) { return plain(0, TX_START); }

static void end_queue(uint32_t queue) {
    struct slot s = forge_slot(&sl, 0, 0, 0);

    s.id = 0;
    (void)forge_add(&sl, format_put_queue_delete(&s, queue));
    r.catalog &= ~(1u << queue);
}

static uint64_t prepared(void) {
    struct slot s = forge_slot(&sl, 0, 0, 0);
    return forge_add(&sl, format_put_xid(&s, DTX_START, &sl_xid));
}

static void prepare(uint64_t id) {
    struct slot s;

    (void)plain(id, TX_END);
    s = next_slot(id, 0);
    (void)forge_add(&sl, format_put_xid(&s, TX_PREPARE, &sl_xid));
}

static uint64_t copied(uint64_t id) {
    struct slot s = next_slot(id, FLAG_COPY | FLAG_PUBLISHED);
    return forge_add(&sl, format_put_start(&s, 0, 0, NULL, 0, NULL, 0, "con", 3));
}

static uint64_t relocated(uint64_t id, const struct place_state *state, uint32_t part, uint16_t flags) {
    uint64_t start = part == 0 ? copied(id) : id;
    struct slot s = next_slot(id, flags);
    struct message_relocated m = {.content_bytes = 3, .start_lsn = start, .part = part, .place_count = 1};
    struct place_row row = {
        .order_lsn = id, .queue_id = 1, .delivery_count = state != NULL ? state->delivery_count : 0};

    return forge_add(&sl, state != NULL ? format_put_relocated_placed(&s, &m, NULL, &row, state, NULL, NULL)
                                        : format_put_relocated(&s, &m, NULL, &row, NULL));
}

static void begin_story(void) {
    fresh();
    a = put(1, "aaa", NULL);
    forge_begin(&sl);
    b = start_placed(0, both, 1);
}

static int open_forged(void) {
    uint64_t changes;
    int rc;

    forge_end(&sl);
    changes = vfs_sim_changes(sim);
    rc = open_again();
    check(rc == LS_OK || vfs_sim_changes(sim) == changes);
    return rc;
}

static bool refused_at(uint64_t lsn, const char *words) {
    int rc = open_forged();
    const ls_error *e = ls_last_error();
    bool right =
        rc == LS_CORRUPT && e->lsn == lsn && strcmp(e->segment, sl.name) == 0 && strstr(e->text, words) != NULL;

    if (!right)
        printf("%d at %llu, not %llu: %s\n", rc, (unsigned long long)e->lsn, (unsigned long long)lsn, e->text);
    if (rc == LS_OK)
        ls_free(r.store);
    r.store = NULL;
    done();
    return right;
}

static bool accepted(void) {
    int rc = open_forged();

    return rc == LS_OK || complain("open");
}

static struct remembered state_on(uint64_t id, uint32_t queue) {
    const struct table *t = &r.store->state.table;
    uint32_t number = table_find(t, id);
    const struct place *p = number != INDEX_NONE ? message_place(table_message(t, number), queue) : NULL;

    check(p != NULL);
    return p != NULL ? place_state(p) : (struct remembered){.own = NULL};
}

/* ---- one record and its place ---- */

static void a_note_needs_its_place(void) {
    uint64_t tx;

    begin_story();
    check(refused_at(note(a, 0, 2, "n"), "a note is put on a place that is not there"));
    begin_story();
    check(refused_at(note(a + 8, 0, 1, "n"), "no start"));
    begin_story();
    tx = begin_tx();
    check(refused_at(note(a, tx, 2, "n"), "a note is put on a place that is not there"));
    begin_story();
    tx = begin_tx();
    (void)dequeue(a, tx, 1);
    check(refused_at(note(a, tx, 1, "n"), "a note is put on a place that is not there"));
    begin_story(); /* one that the transaction makes */
    tx = begin_tx();
    (void)move(a, tx, 0, 2);
    (void)note(a, tx, 2, "its");
    (void)plain(tx, TX_COMMIT);
    check(accepted());
    {
        struct remembered s = state_on(a, 2);
        check(s.delivery_count == 1 && s.own != NULL && s.own->note.bytes == 3);
    }
    done();
    begin_story(); /* and with no bytes it takes the old one away */
    (void)note(b, 0, 1, "");
    check(accepted());
    {
        struct remembered s = state_on(b, 1);
        check(s.own == NULL && s.not_before_us == 5);
    }
    done();
}

static void a_pending_note_needs_its_place_at_the_commit(void) {
    for (int deleted = 0; deleted < 2; deleted++) {
        uint64_t tx, lsn;

        begin_story();
        tx = begin_tx();
        (void)note(a, tx, 1, "n");
        (void)dequeue(a, 0, 1);
        if (deleted != 0)
            end_queue(1);
        lsn = plain(tx, TX_COMMIT);
        if (deleted == 0)
            check(refused_at(lsn, "does not fit its queue"));
        else
            check(accepted());
        if (deleted != 0)
            done();
    }
}

static void a_move_ends_a_place_and_makes_another(void) {
    uint64_t tx;

    begin_story();
    check(refused_at(move(a, 0, 2, 3), "moved from a queue that does not have it"));
    begin_story();
    tx = begin_tx();
    check(refused_at(move(a, tx, 2, 3), "moved from a queue that does not have it"));
    begin_story();
    check(refused_at(move(a, 0, 0, 1), "moved to a queue that has it already"));
    begin_story();
    (void)move(a, 0, 0, 2);
    check(refused_at(move(a, 0, 1, 2), "moved to a queue that has it already"));
    begin_story();
    check(refused_at(move(a + 8, 0, 1, 2), "no start"));
    begin_story();
    tx = begin_tx();
    (void)move(a, tx, 0, 1);
    check(refused_at(plain(tx, TX_COMMIT), "does not fit its queue"));
    begin_story(); /* on the same queue, behind the others */
    (void)move(a, 0, 1, 1);
    check(accepted());
    {
        ls_cursor *c;
        ls_place got[4];
        size_t n = 0;

        check(state_on(a, 1).delivery_count == 1);
        check(ls_cursor_open(r.store, 1, LS_CURSOR_ALL, &c) == LS_OK && ls_cursor_next(c, got, 4, &n) == LS_OK);
        check(n == 2 && got[0].id == b && got[1].id == a);
        ls_cursor_close(c);
    }
    done();
}

static void what_a_move_keeps_is_what_its_transaction_sees(void) {
    struct message_move m = {.from_queue_id = 1, .queue_id = 2, .keeps_note = true, .keeps_header = true};
    struct slot s;

    begin_story();
    m.tx_id = begin_tx();
    (void)note(b, m.tx_id, 1, "newer note");
    s = next_slot(b, 0);
    (void)forge_add(&sl, format_put_move(&s, &m));
    (void)plain(m.tx_id, TX_COMMIT);
    check(accepted());
    {
        struct remembered got = state_on(b, 2);
        check(got.own != NULL && got.own->note.bytes == 10 && got.own->header.lsn == 0 && got.not_before_us == 0);
    }
    done();
}

static void a_staged_message_can_begin_with_a_move(void) {
    struct slot s;
    uint64_t id;

    begin_story();
    s = forge_slot(&sl, 0, 0, 0);
    id = forge_add(&sl, format_put_start(&s, 0, 0, NULL, 0, NULL, 0, "con", 3));
    (void)move(id, 0, 0, 2);
    check(accepted() && has(id) && state_on(id, 2).delivery_count == 1);
    done();
}

static void the_last_row_of_a_place_counts_and_each_needs_its_place(void) {
    begin_story();
    check(refused_at(states(a, 2), "the state of a place that is not there"));
    begin_story();
    check(refused_at(states(a + 8, 1), "the state of a place that is not there"));
    begin_story();
    end_queue(2); /* its places have ended, also one that never was */
    (void)states(a, 2);
    check(accepted());
    done();
    begin_story();
    (void)states(b, 1);
    check(accepted());
    {
        struct remembered s = state_on(b, 1);
        check(s.not_before_us == 4 && s.expires_us == 5 && s.delivery_count == 6 && s.own->note.bytes == 4);
    }
    done();
}

static void records_of_chains_from_below_the_base_are_orphans(void) {
    ls_recovery report;
    uint64_t below;

    fresh();
    below = put(1, "below", NULL);
    check(take(below, 1, NULL) == LS_OK);
    churn(60);
    a = put(1, "aaa", NULL);
    forge_begin(&sl);
    (void)note(below, 0, 1, "n");
    (void)move(below, 0, 1, 2);
    (void)states(below, 1);
    check(accepted());
    ls_recovery_report(r.store, &report);
    check(report.orphan_messages == 4 && report.orphans == 4 && !has(below) && has(a));
    done();
}

/* ---- transactions ---- */

static void work_with_a_state_belongs_to_an_open_transaction(void) {
    uint64_t tx;

    begin_story();
    check(refused_at(note(a, a, 1, "n"), "is not open"));
    begin_story();
    check(refused_at(move(a, a, 1, 2), "is not open"));
    begin_story();
    check(refused_at(start_placed(a, both, 2), "is not open"));
    begin_story();
    tx = prepared();
    prepare(tx);
    check(refused_at(note(a, tx, 1, "n"), "takes no more work"));
    begin_story();
    tx = prepared();
    prepare(tx);
    check(refused_at(move(a, tx, 1, 2), "takes no more work"));
}

static void a_prepared_note_or_move_locks_its_place(void) {
    for (int i = 0; i < 2; i++) {
        uint64_t tx;

        begin_story();
        tx = prepared();
        (void)(i == 0 ? note(a, tx, 1, "n") : move(a, tx, 1, 2));
        prepare(tx);
        check(accepted());
        check(take(a, 1, NULL) == LS_MESSAGE_LOCKED && take(b, 1, NULL) == LS_OK);
        done();
    }
}

/* ---- relocated states ---- */

static void a_relocated_state_must_have_the_states_of_its_chain(void) {
    for (int i = 0; i < 8; i++) {
        struct place_state s = noted;
        struct slot at;
        uint64_t lsn;

        begin_story();
        s.delivery_count = i == 1;
        s.not_before_us = i == 2 ? 6 : 5;
        s.expires_us = i == 3;
        s.note_bytes = i == 4 ? 3 : 4;
        s.header = i == 5 ? s.note : NULL; /* of no bytes */
        if (i == 7) {
            at = next_slot(b, FLAG_COPY | FLAG_INLINE | FLAG_PUBLISHED);
            lsn = forge_add(&sl, format_put_start(&at, 0, 0, both, 1, NULL, 0, "con", 3));
        } else {
            lsn = relocated(b, i == 6 ? NULL : &s, 0, 0);
        }
        if (i > 0) {
            check(refused_at(lsn, "other states of places"));
            continue;
        }
        check(accepted());
        {
            struct remembered got = state_on(b, 1);
            check(got.own != NULL && got.own->note.lsn == lsn && got.not_before_us == 5);
        }
        done();
    }
}

static void the_parts_of_a_state_are_of_one_type(void) {
    for (int i = 0; i < 2; i++) {
        begin_story();
        (void)relocated(b, i == 0 ? &noted : NULL, 0, FLAG_PART);
        check(refused_at(relocated(b, i == 0 ? NULL : &noted, 1, 0), "are of two types"));
    }
}

/* ---- impossible records ---- */

static void an_impossible_record_is_corruption(void) {
    for (int i = 0; i < 5; i++) {
        struct slot s;
        uint32_t bytes;
        struct state_row row = {a, 1, 2, 1, 3};
        struct message_relocated m = {.content_bytes = 3, .start_lsn = 0, .place_count = 1};
        struct place_row place = {.order_lsn = a, .queue_id = 1};

        begin_story();
        m.start_lsn = a;
        s = i == 0 || i == 3 ? forge_slot(&sl, 0, 0, 0) : next_slot(a, 0);
        s.id = i == 3 ? 0 : s.id;
        bytes = i == 0   ? format_put_start_placed(&s, &(struct message_start){.queue_count = 1}, both, &noted)
                : i == 1 ? format_put_place(&s, &(struct message_place){.queue_id = 1})
                : i == 2 ? format_put_move(&s, &(struct message_move){.from_queue_id = 1, .queue_id = 2})
                : i == 3 ? format_put_place_states(&s, &row, 1)
                         : format_put_relocated_placed(&s, &m, NULL, &place, &noted, NULL, NULL);
        /* the queue's id 0 of four, the number of rows */
        forge_spoil(s, bytes, i == 0 ? 96 : i == 1 ? 56 : i == 2 ? 60 : i == 3 ? 48 : 96, 4, i == 3 ? 2 : 0);
        check(refused_at(forge_add(&sl, bytes), "impossible"));
    }
}

/* ---- rows of a checkpoint ---- */

enum { ROWS_AT = CHECKPOINT_HEADER_BYTES + CHECKPOINT_BLOCK_HEADER_BYTES };

static uint8_t taken[1 << 17], changed[1 << 17];
static struct checkpoint_header header;

/* Of the log so far, as a copy that follows takes it. */
static void take_it(void) {
    vfs_sim *disk = vfs_sim_clone(sim);
    struct replica *f = NULL;
    struct rows rows;
    struct row_block *block;

    require(replica_open(vfs_sim_table(disk), "/s", &r.options, &f) == LS_OK);
    header = (struct checkpoint_header){.lsn = sl.lsn + sl.bytes,
                                        .epoch = sl.header.epoch,
                                        .batch_lsn = sl.lsn,
                                        .batch_checksum = get64(sl.image + (sl.lsn - sl.first_lsn)),
                                        .base_lsn = sl.base_lsn,
                                        .salt = 7};
    memcpy(header.uuid, f->store->meta.uuid, UUID_BYTES);
    require(rows_begin(&rows, &f->store->state, &header, true) == LS_OK);
    while (rows_copy_some(&rows)) {
    }
    rows_end(&rows);
    block = rows_take_full(&rows);
    require(block != NULL && block->next == NULL);
    header.file_bytes = CHECKPOINT_HEADER_BYTES + block->used;
    memcpy(taken + CHECKPOINT_HEADER_BYTES, block->bytes, block->used);
    free(block);
    rows_free(&rows);
    replica_free(f);
    vfs_sim_free(disk);
}

/* Seals `changed`, and opens the store with it. */
static int state_of_the_changed(void) {
    vfs_sim *disk = vfs_sim_clone(sim);
    uint32_t used = (uint32_t)(header.file_bytes - CHECKPOINT_HEADER_BYTES);
    ls_recovery report = {.checkpoint_state = -1};
    ls_store *store = NULL;
    ls_options o;

    ls_options_default(&o);
    o.background = o.create = 0;
    format_put_checkpoint(changed, &header);
    format_put_checkpoint_block(changed + CHECKPOINT_HEADER_BYTES, &header, 0, used, used);
    check(vfs_sim_put(disk, "/s", "CHECKPOINT", changed, (size_t)header.file_bytes) == 0);
    check(ls_open(vfs_sim_table(disk), "/s", &o, &store) == LS_OK || complain("open"));
    if (store != NULL) {
        ls_recovery_report(store, &report);
        r.store = store;
        const struct remembered s = state_on(b, 1);
        check(s.not_before_us == 5 && s.own != NULL && s.own->note.bytes == 4 && s.own->note.lsn == b);
        r.store = NULL;
    }
    ls_free(store);
    vfs_sim_free(disk);
    return report.checkpoint_state;
}

static int with_number(uint32_t at, int width, uint64_t value) {
    uint8_t *to = changed + ROWS_AT + at;

    memcpy(changed, taken, sizeof changed);
    if (width == 8)
        put64(to, value);
    else if (width == 4)
        put32(to, (uint32_t)value);
    else
        *to = (uint8_t)value;
    return state_of_the_changed();
}

static bool is_ignored(uint32_t at, int width, uint64_t value) {
    int state = with_number(at, width, value);

    if (state != LS_CHECKPOINT_DAMAGED)
        printf("%u: %llu: %d\n", (unsigned)at, (unsigned long long)value, state);
    return state == LS_CHECKPOINT_DAMAGED;
}

/* The message's row, the state's at 24, the note's at 56. */
static void a_checkpoint_with_an_impossible_state_is_ignored(void) {
    enum { STATE = 24, NOTE = 56, END = 80 };
    const struct {
        uint32_t at;
        int width;
        uint64_t value;
    } spoils[] = {
        {1, 1, 16},                                      /* an unknown flag of the message */
        {STATE, 1, ROW_STATE + 1},                       /* an unknown kind */
        {STATE + 1, 1, 8 | ROW_HAS_NOTE},                /* an unknown bit */
        {STATE + 1, 1, ROW_OF_OPERATION | ROW_HAS_NOTE}, /* an operation that is not there */
        {STATE + 1, 1, 0},                               /* the note's row then has no kind */
        {STATE + 1, 1, ROW_HAS_HEADER | ROW_HAS_NOTE},   /* a header without its row */
        {STATE + 2, 1, 1},                               /* zeros */
        {STATE + 28, 1, 1},
        {STATE + 4, 4, 0}, /* no queue's id */
        {STATE + 4, 4, 2}, /* another queue's */
        {STATE + 8, 8, PLACE_TIME_MAX + 1},
        {STATE + 16, 8, PLACE_TIME_MAX + 1},
        {NOTE, 8, 8},           /* below the message's start */
        {NOTE, 8, LSN_MAX - 7}, /* beyond the checkpoint */
        {NOTE, 8, 0},
        {NOTE + 8, 4, 40}, /* no length of a record */
        {NOTE + 8, 4, 0xfffffff8},
        {NOTE + 12, 4, 40}, /* in the record's header */
        {NOTE + 12, 4, 0xffffffff},
        {NOTE + 16, 4, 0}, /* no bytes, or more than a note can have */
        {NOTE + 16, 4, 256},
        {NOTE + 16, 4, 200}, /* or than its record has */
        {NOTE + 20, 4, 1},
    };

    fresh();
    forge_begin(&sl);
    b = start_placed(0, both, 1);
    forge_end(&sl);
    take_it();
    check(header.file_bytes == ROWS_AT + END && taken[ROWS_AT + STATE] == ROW_STATE);
    memcpy(changed, taken, sizeof changed);
    check(state_of_the_changed() == LS_CHECKPOINT_USED);
    for (size_t i = 0; i < sizeof spoils / sizeof *spoils; i++)
        check(is_ignored(spoils[i].at, spoils[i].width, spoils[i].value));
    memcpy(changed, taken, sizeof changed); /* twice */
    memcpy(changed + ROWS_AT + END, taken + ROWS_AT + STATE, END - STATE);
    header.file_bytes += END - STATE;
    check(state_of_the_changed() == LS_CHECKPOINT_DAMAGED);
    header.file_bytes -= END - STATE;
    memcpy(changed + ROWS_AT, taken + ROWS_AT + STATE, END - STATE); /* of no message */
    header.file_bytes -= STATE;
    header.messages = header.places = 0;
    check(state_of_the_changed() == LS_CHECKPOINT_DAMAGED);
    done();
}

/* Of a message with a state: a note, and a move with a count. Newest first they are: enqueue, dequeue, note. */
static void a_checkpoint_with_an_impossible_state_of_an_operation_is_ignored(void) {
    enum { FIRST = TRANSACTION_ROW_BYTES + CHAIN_ROW_BYTES + CHAIN_PLACE_BYTES + 3 * CHAIN_OPERATION_BYTES + 56 };
    enum { MADE = FIRST, NOTED = FIRST + PLACE_STATE_ROW_BYTES, END = NOTED + PLACE_STATE_ROW_BYTES + 24 };
    uint64_t tx;

    fresh();
    forge_begin(&sl);
    b = start_placed(0, both, 1);
    tx = begin_tx();
    (void)note(b, tx, 1, "n");
    (void)move(b, tx, 1, 2);
    forge_end(&sl);
    take_it();
    check(header.file_bytes == ROWS_AT + END && taken[ROWS_AT + NOTED] == ROW_STATE);
    memcpy(changed, taken, sizeof changed);
    check(state_of_the_changed() == LS_CHECKPOINT_USED);
    check(is_ignored(MADE + 4, 4, 1));                                  /* a dequeue has none */
    check(is_ignored(MADE + 4, 4, 2));                                  /* the note's comes twice */
    check(is_ignored(MADE + 4, 4, 3));                                  /* no such operation */
    check(is_ignored(NOTED + 4, 4, 0));                                 /* out of order */
    check(is_ignored(NOTED + 8, 8, 1));                                 /* a note has no time, */
    check(is_ignored(NOTED + 24, 4, 1));                                /* no count */
    check(is_ignored(NOTED + 1, 1, ROW_OF_OPERATION | ROW_HAS_HEADER)); /* and no header */
    check(is_ignored(FIRST - 56 - CHAIN_OPERATION_BYTES + 24, 4, 4));   /* no kind of operation */
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_note_needs_its_place,
        a_pending_note_needs_its_place_at_the_commit,
        a_move_ends_a_place_and_makes_another,
        what_a_move_keeps_is_what_its_transaction_sees,
        a_staged_message_can_begin_with_a_move,
        the_last_row_of_a_place_counts_and_each_needs_its_place,
        records_of_chains_from_below_the_base_are_orphans,
        work_with_a_state_belongs_to_an_open_transaction,
        a_prepared_note_or_move_locks_its_place,
        a_relocated_state_must_have_the_states_of_its_chain,
        the_parts_of_a_state_are_of_one_type,
        an_impossible_record_is_corruption,
        a_checkpoint_with_an_impossible_state_is_ignored,
        a_checkpoint_with_an_impossible_state_of_an_operation_is_ignored,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
