/*
 * Readers of a store in use when calls fail: no failed call may be reported as damage, and nothing that a reader relies
 * on or holds may be recycled.
 */
#include "log/parts.h"
#include "store/store.h"
#include "tests/kit/store_workload.h"

static struct run r;

static vfs_sim *fresh(void) {
    vfs_sim *sim = vfs_sim_new();

    memset(&r, 0, sizeof r);
    run_start(&r, sim, 1);
    return sim;
}

static void done(vfs_sim *sim) {
    ls_free(r.store);
    vfs_sim_free(sim);
}

/* Publishes and dequeues so many messages that segments are recycled. */
static void come_and_go(int messages) {
    static const uint8_t content[3500];
    uint32_t q = 1;

    for (int i = 0; i < messages; i++) {
        uint64_t id = 0, lsn;

        check(ls_publish(r.store, &q, 1, NULL, 0, content, sizeof content, NULL, 0, &id) == LS_OK ||
              ls_poisoned(r.store));
        check(ls_dequeue(r.store, id, q, NULL, 0, 0, 0, &lsn) == LS_OK || ls_poisoned(r.store));
    }
    check(ls_force(r.store, 0) == LS_OK || ls_poisoned(r.store));
}

/* The code that ends a reader: LS_END after reading everything. */
static int read_all(void) {
    ls_reader *reader = NULL;
    int rc = ls_reader_open(r.v, r.path, 0, &reader);

    while (rc == LS_OK) {
        ls_batch batch;

        rc = ls_reader_next(reader, &batch);
    }
    ls_reader_close(reader);
    return rc;
}

static void a_hint_is_removed_before_the_segments_that_it_names(void) {
    int survived = 0;

    for (uint64_t nth = 1; nth < 60; nth++) {
        vfs_sim *sim = fresh();

        vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_PWRITE, .nth = nth, .error = EIO});
        for (int i = 0; i < 20 && !ls_poisoned(r.store); i++) {
            if (vfs_sim_fired(sim) == 0)
                come_and_go(6);
        }
        vfs_sim_fail(sim, NULL);
        if (!ls_poisoned(r.store)) {
            int rc = read_all();

            check(rc == LS_END || rc == LS_LOCKED);
            come_and_go(60);
            check(read_all() == LS_END);
            survived++;
        }
        done(sim);
    }
    check(survived > 10); /* or the test proves nothing */
}

static void nothing_is_recycled_while_an_old_hint_cannot_be_removed(void) {
    vfs_sim *sim = fresh();
    ls_stats before, after;
    struct log *g = r.store->log;

    come_and_go(60);
    ls_stats_get(r.store, &before);
    check(g->v->close(g->v, g->hint_file) == 0);
    g->hint_file = -1; /* the new HINT below cannot be opened */
    vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_UNLINK, .nth = 1, .forever = 1, .error = EIO});
    check(vfs_sim_put(sim, "/s", "OTHER", "", 0) == 0 && g->v->rename(g->v, g->dir, "HINT", "HINT.old") == 0);
    check(g->v->make_dir(g->v, "/s/HINT") == 0); /* a directory has its name */
    come_and_go(60);
    ls_stats_get(r.store, &after);
    check(after.segments_recycled + after.segments_removed <= before.segments_recycled + before.segments_removed + 1);
    check(after.hint_failures > before.hint_failures);
    done(sim);
}

static uint64_t lowest(struct log *g) {
    struct holds holds;

    holds_look(g, &holds);
    return holds_lowest(g, &holds, UINT64_MAX);
}

static void a_hold_that_cannot_be_read_is_honoured(void) {
    static const int kinds[] = {VFS_SIM_OPEN, VFS_SIM_PREAD};

    for (int k = 0; k < 2; k++) {
        vfs_sim *sim = fresh();
        struct log *g = r.store->log;
        struct hold h = {.hold_lsn = 1, .expires_us = UINT64_MAX / 2, .created_us = 1};
        uint8_t bytes[HOLD_BYTES];
        int file;

        memcpy(h.uuid, g->uuid, UUID_BYTES);
        format_put_hold(bytes, &h);
        file = g->v->open(g->v, g->holds_dir, "reader.hold", VFS_WRITE | VFS_CREATE);
        require(file >= 0 && write_all(g->v, file, bytes, sizeof bytes, 0) && g->v->lock(g->v, file, 1) == 0);
        check(lowest(g) == 1);
        vfs_sim_fail(sim, &(vfs_sim_plan){.kind = kinds[k], .nth = 1, .error = EMFILE});
        check(lowest(g) == 0);
        vfs_sim_fail(sim, NULL);
        check(lowest(g) == 1);
        check(g->v->close(g->v, file) == 0);
        check(lowest(g) == UINT64_MAX); /* its owner is gone */
        done(sim);
    }
}

static void a_short_read_is_not_the_end_of_a_segment(void) {
    static const int how[] = {VFS_SIM_HALF, VFS_SIM_ONE_BYTE};

    for (int k = 0; k < 2; k++) {
        for (uint64_t nth = 1; nth < 40; nth++) {
            vfs_sim *sim = fresh();
            ls_store *again = NULL;
            int rc;

            come_and_go(40);
            vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_PREAD, .nth = nth, .shorten = how[k]});
            check(read_all() == LS_END);
            ls_free(r.store);
            r.store = NULL;
            vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_PREAD, .nth = nth, .shorten = how[k]});
            rc = open_store(&r, r.v, r.catalog, QUEUES + 1, &again);
            check(rc == LS_OK);
            vfs_sim_fail(sim, NULL);
            r.store = again;
            done(sim);
        }
    }
}

int main(void) {
    static void (*const tests[])(void) = {
        a_hint_is_removed_before_the_segments_that_it_names,
        nothing_is_recycled_while_an_old_hint_cannot_be_removed,
        a_hold_that_cannot_be_read_is_honoured,
        a_short_read_is_not_the_end_of_a_segment,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
