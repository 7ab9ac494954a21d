/*
 * Replay of logs whose places have states: it gives what the records say, from the base, from a checkpoint at any batch, and in a
 * copy that follows; growth is the same on all ways. Whatever allocation fails, an open says so and leaks nothing.
 */
#include <malloc.h>

#include "checkpoint/checkpoint.h"
#include "tests/kit/failing_memory.h"
#include "tests/kit/checkpoint_pair.h"
#include "tests/kit/equal_tables.h"
#include "tests/kit/stated_log.h"

/* ---- checkpoints of a table ---- */

static uint8_t file[4 << 20];
static int64_t file_bytes; /* 0: there is no checkpoint */

/* Takes the checkpoint of a table that has replayed everything up to the last forged batch; keeps the file. */
static void checkpoint_of(ls_store *store, vfs_sim *disk, bool unsettled) {
    struct checkpoint_header header = {.lsn = sl.lsn + sl.bytes,
                                       .epoch = sl.header.epoch,
                                       .batch_lsn = sl.lsn,
                                       .batch_checksum = get64(sl.image + (sl.lsn - sl.first_lsn)),
                                       .base_lsn = sl.base_lsn,
                                       .file_bytes = CHECKPOINT_HEADER_BYTES,
                                       .salt = 7};
    struct checkpoint_file to;
    struct rows rows;
    struct row_block *list;
    uint64_t told = 0;

    memcpy(header.uuid, store->meta.uuid, UUID_BYTES);
    check(rows_begin(&rows, &store->state, &header, unsettled) == LS_OK);
    for (uint32_t i = 0; !unsettled && i < store->state.table.message_slots; i++) {
        struct message *m = table_message(&store->state.table, i);
        told += (m->flags & MESSAGE_FREE) == 0 ? rows_bytes_of(m) : 0;
    }
    while (rows_copy_some(&rows)) {
    }
    rows_end(&rows);
    check(!rows.failed);
    list = rows_take_full(&rows);
    for (const struct row_block *b = list; b != NULL; b = b->next)
        header.file_bytes = CHECKPOINT_HEADER_BYTES + b->index * CHECKPOINT_BLOCK_BYTES + b->used;
    if (!unsettled && list != NULL && list->next == NULL)
        check(header.file_bytes == CHECKPOINT_HEADER_BYTES + CHECKPOINT_BLOCK_HEADER_BYTES + told +
                                       header.transactions * TRANSACTION_ROW_BYTES +
                                       header.deletions * DELETION_ROW_BYTES);
    check(checkpoint_file_begin(&to, &store->directory, &header) == 0);
    while (list != NULL) {
        struct row_block *next = list->next;
        check(checkpoint_file_write(&to, list, next == NULL) == 0);
        free(list);
        list = next;
    }
    check(checkpoint_file_finish(&to) == 0);
    rows_free(&rows);
    file_bytes = vfs_sim_get(disk, VFS_SIM_STABLE, "/s", "CHECKPOINT", file, sizeof file);
    check(file_bytes > CHECKPOINT_HEADER_BYTES && file_bytes < (int64_t)sizeof file);
}

/* As a copy that follows has the table: replayed batch by batch, and not settled. */
static struct replica *follow(vfs_sim *disk) {
    struct replica *f = NULL;

    check(replica_open(vfs_sim_table(disk), "/s", &r.options, &f) == LS_OK || complain("follow"));
    return f;
}

static void checkpoint_of_a_follower(void) {
    vfs_sim *disk = vfs_sim_clone(sim);
    struct replica *f = follow(disk);

    if (f != NULL)
        checkpoint_of(f->store, disk, true);
    replica_free(f);
    vfs_sim_free(disk);
}

/* With the checkpoint that was taken last, and without: equal states, equal growth. */
static bool is_same_with_the_checkpoint(const ls_store *without) {
    vfs_sim *disk = vfs_sim_clone(sim);
    ls_checkpoint_difference d = {.differs = 1};
    ls_recovery report = {.checkpoint_used = 0};
    ls_store *with;

    check(vfs_sim_put(disk, "/s", "CHECKPOINT", file, (size_t)file_bytes) == 0);
    with = opened(vfs_sim_table(disk), "/s", 0);
    if (with != NULL) {
        ls_recovery_report(with, &report);
        check(checkpoint_compare(&with->state, &without->state, &d) == LS_OK);
    }
    if (with == NULL || !report.checkpoint_used || d.differs)
        printf("checkpoint: state %d, message %llu: %s\n", report.checkpoint_state, (unsigned long long)d.id, d.text);
    ls_free(with);
    vfs_sim_free(disk);
    return with != NULL && report.checkpoint_used && !d.differs;
}

/* ---- any log ---- */

/* Forges the log; takes the checkpoint of a follower behind one of its batches. */
static void forge_log(uint64_t seed, int batches) {
    bool deletes = seed % 4 < 2;
    int at = (int)(seed % (uint64_t)batches);

    sl_start(seed);
    file_bytes = 0;
    for (int i = 0; i < batches && sl_has_room(); i++) {
        sl_batch(deletes);
        if (i == at)
            checkpoint_of_a_follower();
        sl_next_batch();
    }
    sl_batch(deletes);
    sl_recover();
}

static bool verifies(void) {
    vfs_sim *disk = vfs_sim_clone(sim);
    ls_store *seen = NULL;
    uint64_t lsn;
    int rc = ls_inspect_open(vfs_sim_table(disk), "/s", LS_INSPECT_CHECK, &seen);

    while (rc == LS_OK)
        rc = ls_inspect_step(seen, 1 << 20, &lsn);
    if (rc != LS_END)
        (void)complain("verify");
    ls_free(seen);
    vfs_sim_free(disk);
    return rc == LS_END;
}

static bool a_follower_has_it(const ls_store *store) {
    vfs_sim *disk = vfs_sim_clone(sim);
    struct replica *f = follow(disk);
    bool same = f != NULL && settles(f, store->state.base_lsn);

    if (same) {
        f->store->state.report.base_lsn = store->state.report.base_lsn;
        f->store->state.report.end_lsn = store->state.report.end_lsn;
        same = sl_same(&f->store->state.table);
    }
    replica_free(f);
    vfs_sim_free(disk);
    return same;
}

/* The growth that admission counts covers the next move of each message whose places have states. */
static bool moves_are_covered(const struct table *t) {
    for (uint32_t number = 0; number < t->message_slots; number++) {
        struct message *m = table_message(t, number);
        const struct message_extra *x = (m->flags & MESSAGE_FREE) == 0 ? m->extra : NULL;
        uint64_t need = format_start_bytes(1, 3, 0) + STATE_HEAD_BYTES, have;

        if ((m->flags & MESSAGE_FREE) != 0 || !message_has_states(t, m))
            continue;
        have = message_start_weight(m) + ((m->flags & MESSAGE_LOOSE) != 0 ? STATE_BYTES : 0) +
               ((m->flags & MESSAGE_WIDE) != 0 ? WIDER_ROW_BYTES : 0);
        for (uint32_t i = 0; i < m->place_count; i++) {
            const struct remembered s = place_state(&message_places(m)[i]);
            need += PLACED_ROW_BYTES + remembered_own_bytes(&s);
        }
        for (const struct work *w = x != NULL ? x->work : NULL; w != NULL; w = w->next_of_message)
            need += PLACED_ROW_BYTES + (w->state != NULL ? remembered_own_bytes(w->state) : 0);
        for (uint32_t i = 0; x != NULL && i < x->part_count; i++)
            have += x->parts[i].record_bytes;
        have += x != NULL ? (uint64_t)x->growth + x->work_state + x->work_rows : 0;
        if (need > have) {
            printf("message %llu moves to %llu bytes of %llu\n", (unsigned long long)m->id, (unsigned long long)need,
                   (unsigned long long)have);
            return false;
        }
    }
    return true;
}

static bool is_right_on_every_way(void) {
    vfs_sim *disk = vfs_sim_clone(sim);
    ls_store *store = opened(vfs_sim_table(disk), "/s", 1);
    bool right = store != NULL && sl_same(&store->state.table) && tallies_are_those_of_a_walk(&store->state.table) &&
                 moves_are_covered(&store->state.table);

    right = right && is_same_with_the_checkpoint(store);
    if (right) { /* and with one of the settled table */
        checkpoint_of(store, disk, false);
        right = is_same_with_the_checkpoint(store);
    }
    right = right && a_follower_has_it(store);
    ls_free(store);
    vfs_sim_free(disk);
    return right && verifies();
}

static void a_random_log_gives_the_same_states_on_every_way(void) {
    for (uint64_t seed = 1; seed <= 400; seed += ONE_IN) {
        forge_log(seed, 5 + (int)(seed % 60));
        if (!is_right_on_every_way()) {
            printf("seed %llu\n", (unsigned long long)seed);
            check(false);
        }
        done();
        if (failures_here > 0)
            return;
    }
    for (int i = 0; i < 11; i++)
        check(model.kinds[i] > 60 / ONE_IN);
}

/* ---- what a store has written itself ---- */

static uint8_t letters[SL_HEADER_MAX];

static void put_note(uint64_t *c, uint64_t id, uint32_t queue, ls_tx *tx) {
    uint64_t lsn;
    (void)ls_annotate(r.store, id, queue, letters, chance(c) % SL_NOTE_MAX, tx, 0, &lsn);
}

static void move_place(uint64_t *c, uint64_t id, uint32_t from, uint32_t to, ls_tx *tx) {
    ls_place_move m = {.from_queue_id = from, .queue_id = to, .header = letters, .note = letters};
    uint64_t lsn;

    m.header_given = chance(c) % 2;
    m.header_bytes = m.header_given ? chance(c) % SL_HEADER_MAX : 0;
    m.note_given = chance(c) % 2;
    m.note_bytes = m.note_given ? chance(c) % SL_NOTE_MAX : 0;
    (void)ls_move(r.store, id, &m, NULL, tx, 0, &lsn);
}

/* The store's own count of growth is in its checkpoint: the log alone gives the same. */
static void a_store_counts_the_growth_that_replay_counts(void) {
    for (uint64_t seed = 1; seed <= 60; seed += ONE_IN) {
        static const uint32_t queues[] = {1, 2, 3};
        uint64_t c = seed, ids[12], lsn;
        ls_tx *tx = NULL;

        fresh();
        memset(letters, 'l', sizeof letters);
        for (int i = 0; i < 12; i++)
            check(ls_publish(r.store, queues, 1 + (size_t)(chance(&c) % 3), NULL, 0, letters, 10, NULL, 0, &ids[i]) ==
                  LS_OK);
        for (int i = 0; i < 150; i++) {
            uint64_t id = ids[chance(&c) % 12];
            uint32_t queue = 1 + (uint32_t)(chance(&c) % 4), other = 1 + (uint32_t)(chance(&c) % 4);
            ls_tx *in = chance(&c) % 2 ? tx : NULL;

            switch (chance(&c) % 8) {
            case 0:
            case 1:
                put_note(&c, id, queue, in);
                break;
            case 2:
            case 3:
                move_place(&c, id, queue, other, in);
                break;
            case 4:
                (void)(chance(&c) % 2 ? take(id, queue, in) : add(id, queue, in));
                break;
            case 5:
                if (chance(&c) % 4 == 0)
                    churn(4);
                break;
            case 6:
                if (tx == NULL)
                    check(ls_begin(r.store, NULL, &tx) == LS_OK);
                break;
            default:
                if (tx != NULL) {
                    check((chance(&c) % 3 ? ls_commit(tx, LS_WAIT) : ls_rollback(tx, LS_WAIT)) == LS_OK);
                    ls_tx_free(tx);
                    tx = NULL;
                }
            }
            if (i % 40 == 39)
                check(ls_checkpoint(r.store, NULL) == LS_OK);
        }
        check(ls_force(r.store, 0) == LS_OK);
        lsn = (uint64_t)failures_here;
        (void)same_both_ways(sim, r.catalog);
        if ((uint64_t)failures_here > lsn)
            printf("seed %llu\n", (unsigned long long)seed);
        ls_tx_free(tx);
        done();
        if (failures_here > 0)
            return;
    }
}

/* ---- memory ---- */

static size_t in_use(void) { return mallinfo2().uordblks; }

/* Opens the store while the n-th allocation fails. True: there is no such allocation. */
static bool opens_without(uint64_t n, bool with_checkpoint, bool *leaked) {
    size_t before = in_use();
    vfs_sim *disk = vfs_sim_clone(sim);
    ls_store *store = NULL;
    ls_options o;
    int rc;

    ls_options_default(&o);
    o.background = o.create = 0;
    o.no_checkpoint = !with_checkpoint;
    allocations = failed = 0;
    fail_at_nth = n;
    counting = true;
    rc = ls_open(vfs_sim_table(disk), "/s", &o, &store);
    counting = false;
    if (failed == 0) {
        check(rc == LS_OK && sl_same(&store->state.table));
    } else if (rc != LS_OK) {
        check((rc == LS_NO_MEMORY || ls_last_error()->sys_errno == ENOMEM) && store == NULL);
    } else {
        check(sl_same(&store->state.table)); /* memory that it can do without */
    }
    ls_free(store);
    vfs_sim_free(disk);
    *leaked = in_use() > before;
    return failed == 0;
}

/* Memory that the allocator keeps at hand counts as in use; a leak comes every time. */
static bool opens_and_leaks_nothing(uint64_t n, bool with_checkpoint) {
    bool leaked = true, opened_it = false;

    for (int i = 0; leaked && i < 4; i++)
        opened_it = opens_without(n, with_checkpoint, &leaked);
    check(!leaked);
    return opened_it;
}

static void an_open_that_gets_no_memory_says_so_and_leaks_nothing(void) {
    for (uint64_t seed = 2; TAKEN_OVER && seed <= 10; seed += 2) {
        for (int with = 0; with < 2; with++) {
            uint64_t n = 1;

            forge_log(seed, 12);
            if (with != 0)
                check(vfs_sim_put(sim, "/s", "CHECKPOINT", file, (size_t)file_bytes) == 0);
            while (n < 5000 && !opens_and_leaks_nothing(n, with != 0))
                n++;
            check(n > 50 && n < 5000);
            done();
        }
    }
}

int main(void) {
    static void (*const tests[])(void) = {
        a_random_log_gives_the_same_states_on_every_way,
        a_store_counts_the_growth_that_replay_counts,
        an_open_that_gets_no_memory_says_so_and_leaks_nothing,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
