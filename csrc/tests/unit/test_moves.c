/*
 * Relocation while messages are deleted, read, grown, drained or undone, in stores that are small, full or idle.
 *
 * Operations during a relocation run inside the sync that it waits for. The lock is free then, so they are what another
 * thread could do, at a moment that the test chooses.
 */
#include <unistd.h>

#include "log/parts.h"
#include "store/store.h"
#include "tests/kit/store_verdict.h"

static uint8_t bytes_of[64 << 10];

static vfs_sim *new_disk(void) {
    vfs_sim *sim = vfs_sim_new();

    (void)vfs_sim_record(sim, 0);
    return sim;
}

static ls_options plain_options(void) {
    ls_options o;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.background = 0;
    return o;
}

static ls_store *open_with(vfs_sim *sim, const ls_options *o, const uint32_t *queues, size_t n) {
    ls_store *store = NULL;

    if (ls_open(vfs_sim_table(sim), "/s", o, &store) != LS_OK || ls_serve(store, queues, n, 1 << 20) != LS_OK) {
        printf("open: %s\n", ls_last_error()->text);
        return NULL;
    }
    return store;
}

/* Publishes and dequeues until this many more segments were relocated; false if they never are. */
static bool churn_until_moved(ls_store *store, uint32_t queue, uint64_t segments) {
    ls_stats stats;
    uint64_t id, lsn, until;

    ls_stats_get(store, &stats);
    until = stats.segments_relocated + segments;
    for (int i = 0; i < 4000 && stats.segments_relocated < until; i++) {
        if (ls_publish(store, &queue, 1, NULL, 0, bytes_of, 3000, NULL, 0, &id) != LS_OK ||
            ls_dequeue(store, id, queue, NULL, 1, 0, 0, &lsn) != LS_OK) {
            printf("churn: %s\n", ls_last_error()->text);
            return false;
        }
        ls_stats_get(store, &stats);
    }
    return stats.segments_relocated >= until;
}

static bool churn_beyond(ls_store *store, uint32_t queue, uint64_t lsn) {
    for (int i = 0; i < 100 && ls_base_lsn(store) <= lsn; i++) {
        if (!churn_until_moved(store, queue, 1))
            return false;
    }
    return ls_base_lsn(store) > lsn;
}

static uint64_t depth_of(ls_store *store, uint32_t queue) {
    uint64_t places = UINT64_MAX, locked;

    (void)ls_queue_depth(store, queue, &places, &locked);
    return places;
}

/* The deletion ends the work, and its record is recycled long before the outcome. */
static void work_on_a_deleted_queue_outlives_its_deletion_record(void) {
    for (int restart = 0; restart < 2; restart++) {
        for (int commit = 0; commit < 2; commit++) {
            vfs_sim *sim = new_disk();
            ls_options o = plain_options();
            uint32_t all[] = {1, 2, 3, 4}, both[] = {2, 3}, left[] = {1, 2, 4};
            ls_store *store = open_with(sim, &o, all, 4);
            ls_xid xid = {.format_id = 1, .gtrid_bytes = 1};
            uint64_t kept, alone, fresh, lsn, tx_id;
            ls_tx *tx;
            ls_tx_info info;
            ls_stats stats;

            require(store != NULL);
            check(ls_publish(store, both, 2, NULL, 0, bytes_of, 100, NULL, 0, &kept) == LS_OK);
            check(ls_publish(store, &all[2], 1, NULL, 0, bytes_of, 100, NULL, 0, &alone) == LS_OK);
            check(ls_begin(store, &xid, &tx) == LS_OK);
            check(ls_dequeue(store, kept, 3, tx, 1, 0, 0, &lsn) == LS_OK);
            check(ls_dequeue(store, alone, 3, tx, 1, 0, 0, &lsn) == LS_OK);
            check(ls_enqueue(store, kept, &all[3], 1, tx, 0, &lsn) == LS_OK);
            check(ls_publish(store, &all[2], 1, NULL, 0, bytes_of, 100, tx, 0, &fresh) == LS_OK);
            check(ls_tx_end(tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_OK);
            check(ls_queue_delete(store, 3, LS_WAIT) == LS_OK);
            lsn = ls_next_lsn(store);
            check(churn_beyond(store, 1, lsn));
            if (restart) {
                ls_tx_describe(tx, &info);
                tx_id = info.id;
                ls_tx_free(tx);
                check(ls_close(store) == LS_OK);
                ls_free(store);
                store = open_with(sim, &o, left, 3);
                require(store != NULL);
                check(ls_in_doubt_take(store, tx_id, &tx) == LS_OK);
                check(churn_beyond(store, 1, ls_next_lsn(store)));
            }
            check((commit ? ls_commit(tx, LS_WAIT) : ls_rollback(tx, LS_WAIT)) == LS_OK);
            ls_tx_free(tx);
            for (int i = 0; i < 2; i++) {
                ls_stats_get(store, &stats);
                check(stats.messages == 1 && stats.transactions == 0);
                check(depth_of(store, 2) == 1 && depth_of(store, 4) == (uint64_t)commit);
                check(ls_close(store) == LS_OK);
                ls_free(store);
                store = open_with(sim, &o, left, 3);
                require(store != NULL);
            }
            ls_free(store);
            vfs_sim_free(sim);
        }
    }
}

/*
 * A message published to a deleted queue, one dequeued from it, one enqueued on it: only a prepared branch refers to them.
 * Also if only the catalog has the deletion.
 */
static void work_on_a_deleted_queue_keeps_no_message_after_a_reopen(void) {
    for (int variant = 0; variant < 8; variant++) {
        bool moved = variant % 2 == 1, commit = variant / 2 % 2 == 1, owed = variant / 4 == 1;
        vfs_sim *sim = new_disk();
        ls_options o = plain_options();
        uint32_t all[] = {1, 2, 3}, left[] = {1, 2};
        ls_store *store = open_with(sim, &o, all, 3);
        ls_xid xid = {.format_id = 1, .gtrid_bytes = 1};
        uint64_t ids[3], lsn;
        ls_message_info info;
        ls_tx_info branch;
        ls_recovery report;
        ls_stats stats;
        ls_tx *tx;

        require(store != NULL);
        check(ls_begin(store, &xid, &tx) == LS_OK);
        check(ls_publish(store, &all[2], 1, NULL, 0, bytes_of, 100, tx, 0, &ids[0]) == LS_OK);
        check(ls_publish(store, &all[2], 1, NULL, 0, bytes_of, 100, NULL, 0, &ids[1]) == LS_OK);
        check(ls_dequeue(store, ids[1], 3, tx, 1, 0, 0, &lsn) == LS_OK);
        check(ls_stage(store, NULL, 0, bytes_of, 100, 0, &ids[2]) == LS_OK);
        check(ls_enqueue(store, ids[2], &all[2], 1, tx, 0, &lsn) == LS_OK);
        check(ls_tx_end(tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_OK);
        check(owed || ls_queue_delete(store, 3, LS_WAIT) == LS_OK);
        if (moved)
            check(churn_beyond(store, 1, ls_next_lsn(store)));
        for (int i = 0; i < 3; i++)
            check(ls_message(store, ids[i], &info) == LS_OK && info.pending == 1);
        ls_tx_describe(tx, &branch);
        check(branch.operations == 3);
        ls_tx_free(tx);
        check(ls_close(store) == LS_OK);
        ls_free(store);
        store = open_with(sim, &o, left, 2);
        require(store != NULL);
        ls_recovery_report(store, &report);
        check(report.messages == 0 && report.staged_dropped == 1 && report.transactions_in_doubt == 1);
        check(report.queues_dropped == owed && report.places_dropped == owed);
        for (int i = 0; i < 3; i++)
            check(ls_message(store, ids[i], &info) == LS_UNKNOWN_MESSAGE);
        check(ls_in_doubt_take(store, branch.id, &tx) == LS_OK);
        ls_tx_describe(tx, &branch);
        check(branch.operations == 0);
        check((commit ? ls_commit(tx, LS_WAIT) : ls_rollback(tx, LS_WAIT)) == LS_OK);
        ls_tx_free(tx);
        check(ls_close(store) == LS_OK);
        ls_free(store);
        store = open_with(sim, &o, left, 2);
        require(store != NULL);
        ls_stats_get(store, &stats);
        check(stats.messages == 0 && stats.transactions == 0);
        ls_free(store);
        vfs_sim_free(sim);
    }
}

/* Even if live bytes understate the cost of relocation, it copies only in proportion to what was appended. */
static void relocation_is_bounded_by_what_is_appended(void) {
    vfs_sim *sim = new_disk();
    ls_options o = plain_options();
    uint32_t queues[] = {1, 2};
    ls_store *store = open_with(sim, &o, queues, 2);
    ls_stats stats = {.records = 0};
    uint64_t id, lsn;

    require(store != NULL);
    for (int i = 0; i < 6000 && stats.relocated_bytes <= stats.appended_bytes / 2 + SEGMENT; i++) {
        check(ls_publish(store, &queues[0], 1, NULL, 0, NULL, 0, NULL, 0, &id) == LS_OK);
        check(ls_enqueue(store, id, &queues[1], 1, NULL, 0, &lsn) == LS_OK);
        ls_stats_get(store, &stats);
    }
    check(stats.messages == 6000);
    ls_free(store);
    vfs_sim_free(sim);
}

/* ---- while a move waits ---- */

static int (*real_sync)(vfs *v, int file);
static ls_store *busy_store;
static void (*meanwhile)(struct log *g);

static int sync_and_meanwhile(vfs *v, int file) {
    if (meanwhile != NULL) {
        struct log *g = busy_store->log;

        log_lock(g);
        if (g->relocation.moving)
            meanwhile(g);
        log_unlock(g);
    }
    return real_sync(v, file);
}

static void watch(vfs_sim *sim, ls_store *store, void (*what)(struct log *g)) {
    vfs *v = vfs_sim_table(sim);

    if (v->sync_data != sync_and_meanwhile)
        real_sync = v->sync_data;
    v->sync_data = sync_and_meanwhile;
    busy_store = store;
    meanwhile = what;
}

static bool room_for(const struct log *g, uint64_t bytes) {
    return g->open != NULL && g->open->end_lsn - g->open->start_lsn + bytes + FOOTER_BYTES_MAX <= g->batch_bytes_max &&
           g->front.append_lsn + bytes + SEGMENT_END_RESERVE <= g->open->segment->first_lsn + g->segment_size;
}

static uint64_t stays_id;

/* The beginning of ls_queue_delete: it has not reached the message yet, whose start stays while its chunks are moved. */
static void delete_queue_between_parts(struct log *g) {
    const uint8_t *last = log_buffered(g, g->footer.last_lsn);
    struct table *t = &busy_store->state.table;
    struct queue *q = table_queue(t, 7);

    if (log_segment(g, message_start_lsn(table_message(t, table_find(t, stays_id)))) == g->segments[g->base_index])
        return;
    if (q != NULL && last != NULL && last[16] == (MESSAGE_RELOCATED & 0xff) && last[17] == MESSAGE_RELOCATED >> 8 &&
        (last[18] & FLAG_PART) != 0 && room_for(g, QUEUE_DELETE_RECORD_BYTES)) {
        struct slot s = log_slot(g, 0, 0, 0);

        g->front.reserved_room = QUEUE_DELETE_RECORD_BYTES;
        log_append(g, &s, QUEUE_DELETE, format_put_queue_delete(&s, q->id));
        q->deleted = true;
    }
}

static void a_queue_deleted_between_two_records_of_a_state_is_in_neither(void) {
    enum { MANY = 900 };
    static uint32_t queues[MANY], left[MANY];
    static uint8_t content[600000];
    vfs_sim *sim = new_disk();
    ls_options o = plain_options();
    ls_store *store;
    ls_message_info info;
    uint64_t lsn;
    size_t n = 0;

    o.max_write_buffers = 64; /* so that moves wait for durability with a buffer open */
    for (uint32_t i = 0; i < MANY; i++) {
        queues[i] = i + 1;
        if (i + 1 != 7)
            left[n++] = i + 1;
    }
    store = open_with(sim, &o, queues, MANY);
    require(store != NULL);
    check(ls_stage(store, NULL, 0, content, sizeof content, 0, &stays_id) == LS_OK);
    for (uint32_t i = 0; i < MANY; i += 100)
        check(ls_enqueue(store, stays_id, queues + i, 100, NULL, 0, &lsn) == LS_OK);
    watch(sim, store, delete_queue_between_parts);
    for (int i = 0; i < 100 && table_queue(&store->state.table, 7) != NULL; i++)
        check(churn_until_moved(store, 1, 1));
    meanwhile = NULL;
    check(table_queue(&store->state.table, 7) == NULL);
    check(ls_close(store) == LS_OK);
    ls_free(store);
    store = open_with(sim, &o, left, n);
    require(store != NULL);
    check(ls_message(store, stays_id, &info) == LS_OK && info.places == MANY - 1);
    ls_free(store);
    vfs_sim_free(sim);
}

/* ---- segments that cannot be moved ---- */

static bool churn_until_a_move_failed(ls_store *store) {
    ls_stats stats = {.records = 0};
    uint64_t id, lsn;
    uint32_t q = 1;

    for (int i = 0; i < 4000 && stats.relocation_failures == 0; i++) {
        check(ls_publish(store, &q, 1, NULL, 0, bytes_of, 3000, NULL, 0, &id) == LS_OK &&
              ls_dequeue(store, id, q, NULL, 1, 0, 0, &lsn) == LS_OK);
        ls_stats_get(store, &stats);
    }
    return stats.relocation_failures > 0;
}

static void a_segment_is_relocated_once_it_can_be_read_again(void) {
    vfs_sim *sim = new_disk();
    ls_options o = plain_options();
    uint32_t queues[] = {1, 2};
    ls_store *store = open_with(sim, &o, queues, 2);
    vfs_sim_plan plan = {.kind = VFS_SIM_PREAD, .error = EIO, .nth = 1, .forever = 1};
    uint64_t id;

    require(store != NULL);
    check(ls_publish(store, &queues[1], 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) == LS_OK);
    vfs_sim_fail(sim, &plan);
    check(churn_until_a_move_failed(store));
    vfs_sim_fail(sim, NULL);
    check(churn_beyond(store, 1, id));
    ls_free(store);
    vfs_sim_free(sim);
}

static void the_file_of_a_damaged_segment_is_reused(void) {
    vfs_sim *sim = new_disk();
    vfs *v = vfs_sim_table(sim);
    ls_options o = plain_options();
    uint32_t queues[] = {1, 2};
    ls_store *store = open_with(sim, &o, queues, 2);
    uint64_t id, lsn;
    char name[SEGMENT_NAME_BYTES];
    int file;

    require(store != NULL);
    check(ls_publish(store, &queues[1], 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) == LS_OK);
    while (ls_next_lsn(store) / SEGMENT == id / SEGMENT) /* each batch writes the bytes in the last block again */
        check(ls_publish(store, queues, 1, NULL, 0, bytes_of, 3000, NULL, LS_WAIT, &lsn) == LS_OK &&
              ls_dequeue(store, lsn, 1, NULL, 1, 0, LS_WAIT, &lsn) == LS_OK);
    format_segment_name(name, id / SEGMENT * SEGMENT);
    file = v->open(v, store->log->dir, name, VFS_WRITE);
    check(file >= 0 && write_all(v, file, "damage", 6, id % SEGMENT + 20) && v->close(v, file) == 0);
    check(churn_until_a_move_failed(store));
    check(ls_dequeue(store, id, 2, NULL, 1, 0, LS_WAIT, &lsn) == LS_OK);
    for (int i = 0; i < 20; i++) {
        check(ls_publish(store, &queues[1], 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) == LS_OK);
        check(churn_beyond(store, 1, id) || complain("the base stays"));
    }
    ls_free(store);
    vfs_sim_free(sim);
}

/* ---- full stores ---- */

enum { KINDS = 6, MOST = 30000 };

/* One message of several records or order keys, which grows when moved. */
static int put_kind(ls_store *store, int kind, uint64_t *id) {
    uint32_t q[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    uint64_t lsn;
    ls_tx *tx = NULL;
    int rc;

    if (kind == 0) { /* places of two keys */
        rc = ls_publish(store, q, 1, NULL, 0, NULL, 0, NULL, 0, id);
        return rc == LS_OK ? ls_enqueue(store, *id, q + 1, 1, NULL, 0, &lsn) : rc;
    }
    if (kind == 1) { /* of many keys at once */
        rc = ls_publish(store, q, 1, NULL, 0, NULL, 0, NULL, 0, id);
        return rc == LS_OK ? ls_enqueue(store, *id, q + 1, 11, NULL, 0, &lsn) : rc;
    }
    if (kind == 2) /* a chunk */
        return ls_publish(store, q, 12, NULL, 0, bytes_of, 4200, NULL, 0, id);
    if (kind == 3) { /* many small chunks */
        rc = ls_stage(store, NULL, 0, NULL, 0, LS_PUBLISHED, id);
        for (int i = 0; rc == LS_OK && i < 10; i++)
            rc = ls_append_content(store, *id, bytes_of, 1, 0);
        return rc == LS_OK ? ls_enqueue(store, *id, q, 1, NULL, 0, &lsn) : rc;
    }
    if (kind == 4) { /* a gap in its numbers */
        rc = ls_begin(store, NULL, &tx);
        rc = rc == LS_OK ? ls_publish(store, q, 12, NULL, 0, NULL, 0, tx, 0, id) : rc;
        rc = rc == LS_OK ? ls_commit(tx, 0) : rc;
        ls_tx_free(tx);
        for (int i = 1; rc == LS_OK && i < 11; i++)
            rc = ls_dequeue(store, *id, q[i], NULL, 1, 0, 0, &lsn);
        return rc;
    }
    rc = ls_stage(store, NULL, 0, NULL, 0, 0, id);
    return rc == LS_OK ? ls_enqueue(store, *id, q, 2, NULL, 0, &lsn) : rc;
}

static bool take_all(ls_store *store, uint64_t id) {
    for (uint32_t q = 12; q > 0; q--) {
        uint64_t lsn;
        int rc = ls_dequeue(store, id, q, NULL, 1, 0, LS_WAIT, &lsn);

        if (rc != LS_OK && rc != LS_NOT_ENQUEUED && rc != LS_UNKNOWN_MESSAGE)
            return false;
    }
    return true;
}

static void whatever_fills_a_store_can_be_drained_from_its_end(void) {
    for (int kind = 0; kind < KINDS; kind += 1 + ONE_IN / 10) {
        static uint64_t ids[MOST];
        vfs_sim *sim = new_disk();
        ls_options o = plain_options();
        uint32_t queues[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
        ls_store *store;
        ls_stats stats;
        int n = 0, rc = LS_OK;

        o.max_log_bytes = (uint64_t)12 * SEGMENT;
        store = open_with(sim, &o, queues, 12);
        require(store != NULL);
        while (n < MOST && (rc = put_kind(store, kind, &ids[n])) == LS_OK)
            n++;
        check((rc == LS_FULL && n > 50) || complain("fill"));
        ls_stats_get(store, &stats);
        if (getenv("LOGSTORE_VERBOSE") != NULL)
            printf("kind %d: %d messages, %llu live bytes, moved %llu of %llu\n", kind, n,
                   (unsigned long long)stats.live_bytes, (unsigned long long)stats.relocated_bytes,
                   (unsigned long long)stats.appended_bytes);
        for (int step = 0; n > 0; step++) {
            if (step % 200 == 199) { /* and a restart now and then */
                check(ls_close(store) == LS_OK);
                ls_free(store);
                store = open_with(sim, &o, queues, 12);
                require(store != NULL);
            }
            if (!take_all(store, ids[--n])) {
                check(complain("a dequeue was refused"));
                printf("kind %d, %d left\n", kind, n);
                break;
            }
        }
        ls_free(store);
        vfs_sim_free(sim);
    }
}

/* A hold keeps segments for its reader, but takes no room from the calls that drain. */
static void a_hold_does_not_stop_a_full_store_from_being_drained(void) {
    static uint64_t ids[MOST];
    vfs_sim *sim = new_disk();
    vfs *v = vfs_sim_table(sim);
    ls_options o = plain_options();
    uint32_t q = 1;
    struct hold h = {.hold_lsn = 1, .expires_us = UINT64_MAX / 2, .created_us = 1};
    uint8_t bytes[HOLD_BYTES];
    ls_store *store;
    int n = 0, file, rc = LS_OK;
    uint64_t lsn;

    o.max_log_bytes = (uint64_t)12 * SEGMENT;
    store = open_with(sim, &o, &q, 1);
    require(store != NULL);
    while (n < MOST && (rc = ls_publish(store, &q, 1, NULL, 0, bytes_of, 500, NULL, 0, &ids[n])) == LS_OK)
        n++;
    check(rc == LS_FULL);
    memcpy(h.uuid, store->meta.uuid, sizeof h.uuid);
    format_put_hold(bytes, &h);
    file = v->open(v, store->log->holds_dir, "reader.hold", VFS_WRITE | VFS_CREATE);
    check(file >= 0 && write_all(v, file, bytes, sizeof bytes, 0) && v->lock(v, file, 1) == 0);
    for (int i = 0; i < n; i++) {
        if (ls_dequeue(store, ids[(i * 7919) % n], q, NULL, 1, 0, LS_WAIT, &lsn) != LS_OK) {
            printf("after %d of %d\n", i, n);
            check(complain("a dequeue was refused"));
            break;
        }
    }
    check(v->close(v, file) == 0);
    ls_free(store);
    vfs_sim_free(sim);
}

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {
        work_on_a_deleted_queue_outlives_its_deletion_record,
        work_on_a_deleted_queue_keeps_no_message_after_a_reopen,
        relocation_is_bounded_by_what_is_appended,
        a_queue_deleted_between_two_records_of_a_state_is_in_neither,
        a_segment_is_relocated_once_it_can_be_read_again,
        the_file_of_a_damaged_segment_is_reused,
        whatever_fills_a_store_can_be_drained_from_its_end,
        a_hold_does_not_stop_a_full_store_from_being_drained,
    };
    int passed = 0, failed = 0;

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        int before = failures_here;

        if (argc > 1 && atoi(argv[1]) != (int)i)
            continue;
        tests[i]();
        if (failures_here == before)
            passed++;
        else
            failed++;
    }
    return verdict(passed, failed);
}
