/*
 * A full store: a refused call changes nothing, nothing is lost, the store can be drained, and it can be opened any number
 * of times, whether max_log_bytes or the disk limits it.
 */
#include "tests/kit/store_workload.h"

static struct run r;

enum { LIMIT_OPTION, LIMIT_DISK, LIMITS };

static vfs_sim *limited(int limit, int background) {
    vfs_sim *sim = vfs_sim_new();

    memset(&r, 0, sizeof r);
    ls_options_default(&r.options);
    r.options.segment_size = SEGMENT;
    r.options.max_write_buffers = 4;
    r.options.background = background;
    if (limit == LIMIT_OPTION)
        r.options.max_log_bytes = (uint64_t)10 * SEGMENT;
    else
        vfs_sim_capacity(sim, (uint64_t)10 * SEGMENT + 5 * BLOCK);
    run_start(&r, sim, 9);
    check(!r.lost);
    return sim;
}

/* Publishes until the store refuses; false if it never does. */
static bool fill_up(uint32_t size, bool wait) {
    for (int i = 0; i < 800; i++) {
        size_t before = r.op_count;

        publish(&r, PUBLISH, 2, -1, wait, size);
        if (r.op_count == before)
            return ls_last_error()->code == LS_FULL;
    }
    return false;
}

static bool intact(vfs_sim *sim) {
    static struct model_state s;
    ls_stats stats;

    model_after(&r, r.op_count, r.catalog, &s);
    ls_stats_get(r.store, &stats);
    return (r.options.max_log_bytes == 0 || stats.log_bytes <= r.options.max_log_bytes) && vfs_sim_used(sim) > 0 &&
           store_is(r.store, &s, r.catalog) && contents_are(&r, r.store, &s);
}

static void open_again(vfs_sim *sim) {
    (void)sim;
    ls_free(r.store);
    r.store = NULL;
    check(open_store(&r, r.v, r.catalog, QUEUES + 1, &r.store) == LS_OK || complain("open"));
}

static void drain(bool wait) {
    while (r.now.depth[1] > 0) {
        size_t before = r.op_count;

        change_place(&r, DEQUEUE, r.now.places[1][0].id, 1, -1, wait);
        if (r.op_count == before) {
            check(complain("a dequeue was refused"));
            return;
        }
    }
}

static void a_full_store_is_intact_drains_and_fills_again(void) {
    for (int limit = 0; limit < LIMITS; limit++) {
        for (int background = 0; background < 2; background++) {
            vfs_sim *sim = limited(limit, background);

            for (int round = 0; round < 3; round++) {
                check(fill_up(3000, round % 2 == 0));
                check(r.now.depth[1] > 40); /* most of the space was of use */
                check(intact(sim));
                drain(round % 2 == 0);
                check(move_base(r.store) == LS_OK);
                check(intact(sim));
            }
            run_end(&r);
            vfs_sim_free(sim);
        }
    }
}

static void a_full_store_opens_again_and_again_and_drains_then(void) {
    for (int limit = 0; limit < LIMITS; limit++) {
        vfs_sim *sim = limited(limit, 0);

        check(fill_up(3000, true));
        for (int i = 0; i < 20; i++) {
            open_again(sim);
            require(r.store != NULL);
            check(intact(sim));
            check(fill_up(3000, true));
        }
        drain(true);
        check(move_base(r.store) == LS_OK);
        check(intact(sim));
        check(fill_up(3000, false));
        run_end(&r);
        vfs_sim_free(sim);
    }
}

static void a_full_store_survives_crashes(void) {
    for (int limit = 0; limit < LIMITS; limit++) {
        vfs_sim *sim = limited(limit, 0);

        check(fill_up(3000, true));
        for (int i = 0; i < 20; i++) {
            vfs_sim *after = vfs_sim_crash(
                sim, &(vfs_sim_loss){.mode = VFS_SIM_RANDOM, .seed = (uint64_t)i, .dir_mode = VFS_SIM_DIRS_RANDOM});

            ls_free(r.store);
            vfs_sim_free(sim);
            sim = r.sim = after;
            r.v = vfs_sim_table(sim);
            r.store = NULL;
            if (limit == LIMIT_DISK)
                vfs_sim_capacity(sim, (uint64_t)10 * SEGMENT + 5 * BLOCK);
            check(open_store(&r, r.v, r.catalog, QUEUES + 1, &r.store) == LS_OK || complain("open"));
            require(r.store != NULL);
            check(intact(sim));
        }
        drain(true);
        check(intact(sim));
        run_end(&r);
        vfs_sim_free(sim);
    }
}

/* Opens the store, makes one change that pins a segment, and cuts the power. */
static vfs_sim *short_life(vfs_sim *disk, int limit) {
    vfs_sim_loss loss = {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT};
    vfs_sim *after;

    if (limit == LIMIT_DISK)
        vfs_sim_capacity(disk, (uint64_t)10 * SEGMENT + 5 * BLOCK);
    if (open_store(&r, vfs_sim_table(disk), r.catalog, QUEUES + 1, &r.store) != LS_OK) {
        check(complain("open"));
        return disk;
    }
    r.sim = NULL; /* no marks: this disk's journal is of no use */
    change_place(&r, DEQUEUE, r.now.places[1][r.now.depth[1] - 1].id, 1, -1, true);
    after = vfs_sim_crash(disk, &loss);
    ls_free(r.store);
    r.store = NULL;
    vfs_sim_free(disk);
    return after;
}

static vfs_sim *cut_open(vfs_sim *disk, int limit) {
    const vfs_sim_event *events;
    vfs_sim_loss loss = {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT};
    ls_store *store = NULL;
    vfs_sim *after;
    size_t n;

    if (limit == LIMIT_DISK)
        vfs_sim_capacity(disk, (uint64_t)10 * SEGMENT + 5 * BLOCK);
    check(vfs_sim_record(disk, 1) == 0);
    check(open_store(&r, vfs_sim_table(disk), r.catalog, QUEUES + 1, &store) == LS_OK || complain("open"));
    check(store == NULL || store_is(store, &r.now, r.catalog));
    n = vfs_sim_journal(disk, &events);
    after = vfs_sim_crash_at(disk, n - below(&r, n / 2), &loss);
    ls_free(store);
    vfs_sim_free(disk);
    return after;
}

/* Many opens in a row that are cut, mostly in relocation, do not use up a full store's last segments. */
static void a_full_store_survives_many_opens_that_are_cut(void) {
    for (int limit = 0; limit < LIMITS; limit++) {
        vfs_sim *sim = limited(limit, 0);

        check(fill_up(3000, true));
        ls_free(r.store);
        r.store = NULL;
        for (int row = 0; row < 30 && failures_here == 0; row++) {
            sim = short_life(short_life(sim, limit), limit);
            for (int i = 0; i < 4 && failures_here == 0; i++)
                sim = cut_open(sim, limit);
        }
        r.sim = sim;
        r.v = vfs_sim_table(sim);
        require(open_store(&r, r.v, r.catalog, QUEUES + 1, &r.store) == LS_OK || complain("open"));
        drain(true);
        check(intact(sim));
        run_end(&r);
        vfs_sim_free(sim);
    }
}

/* Transactions of a full store can be settled, and a failed publish of many parts leaves nothing behind. */
static void outcomes_do_not_fail_for_space(void) {
    vfs_sim *sim = limited(LIMIT_OPTION, 0);
    ls_tx *txs[10];
    uint64_t id;
    uint32_t q = 2;

    for (int i = 0; i < 10; i++) {
        check(ls_begin(r.store, NULL, &txs[i]) == LS_OK);
        check(ls_publish(r.store, &q, 1, NULL, 0, NULL, 0, txs[i], 0, &id) == LS_OK);
    }
    check(fill_up(20000, true));
    check(fill_up(3000, true));
    for (int i = 0; i < 10; i++) {
        check((i % 2 ? ls_commit(txs[i], LS_WAIT) : ls_rollback(txs[i], LS_WAIT)) == LS_OK);
        ls_tx_free(txs[i]);
    }
    ls_stats stats;
    ls_stats_get(r.store, &stats);
    check(stats.messages == (uint64_t)r.now.depth[1] + 5);
    run_end(&r);
    vfs_sim_free(sim);
}

static bool content_is(uint64_t id, const char *words) {
    uint8_t into[64];
    size_t n = 0;
    ls_message_info info;

    return ls_message(r.store, id, &info) == LS_OK && info.content_bytes == strlen(words) &&
           ls_load_content(r.store, id, 0, into, sizeof into, &n) == LS_OK && n == strlen(words) &&
           memcmp(into, words, n) == 0;
}

static int append(uint64_t id, const char *words) {
    return ls_append_content(r.store, id, (const uint8_t *)words, strlen(words), LS_WAIT);
}

/* An append of many records of which only the first found room: the message keeps its old content, also in the log. */
static void an_append_that_is_refused_adds_nothing(void) {
    static uint8_t large[12 * SEGMENT];

    for (int limit = 0; limit < LIMITS; limit++) {
        vfs_sim *sim = limited(limit, 0);
        uint64_t ids[2], lsn;
        uint32_t queue = 2;
        ls_stats before, after;

        for (int i = 0; i < 2; i++) {
            check(ls_stage(r.store, NULL, 0, (const uint8_t *)"start", 5, 0, &ids[i]) == LS_OK);
            check(append(ids[i], ", more") == LS_OK);
            ls_stats_get(r.store, &before);
            check(ls_append_content(r.store, ids[i], large, sizeof large, 0) == LS_FULL);
            ls_stats_get(r.store, &after);
            check(after.records > before.records + 10); /* some of it was in the log */
            check(content_is(ids[i], "start, more"));
        }
        check(append(ids[0], ", end") == LS_OK && content_is(ids[0], "start, more, end"));
        for (int i = 0; i < 2; i++)
            check(ls_enqueue(r.store, ids[i], &queue, 1, NULL, LS_WAIT, &lsn) == LS_OK);
        check(fill_up(3000, true)); /* the undone records do not take up room */
        check(r.now.depth[1] > 40);
        open_again(sim);
        check(content_is(ids[0], "start, more, end") && content_is(ids[1], "start, more"));
        run_end(&r);
        vfs_sim_free(sim);
    }
}

int main(void) {
    static void (*const tests[])(void) = {
        a_full_store_is_intact_drains_and_fills_again,
        a_full_store_opens_again_and_again_and_drains_then,
        a_full_store_survives_crashes,
        a_full_store_survives_many_opens_that_are_cut,
        outcomes_do_not_fail_for_space,
        an_append_that_is_refused_adds_nothing,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
