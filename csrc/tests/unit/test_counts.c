/*
 * How often places were handed out: counts go through opens, kills, power cuts and relocation; after an orderly close only
 * what was handed out says so, after a crash everything from before.
 */
#include "tests/kit/move_base.h"
#include "store/store.h"
#include "tests/kit/one_store.h"

enum { MANY = 300 };

static ls_delivery next_of(uint32_t queue) {
    ls_delivery one = {.count = 0};
    size_t n;

    check(ls_acquire(r.store, queue, &one, 1, 0, &n) == LS_OK && (n == 1 || complain("nothing is offered")));
    return one;
}

static bool is_seen(const ls_delivery *d) { return d->count > 1 || d->recovered != 0; }

static void give_back(uint32_t queue, const ls_delivery *d, int flags) {
    check(ls_release(r.store, queue, d, 1, flags) == LS_OK || complain("release"));
}

/* The present process dies; another finds this disk. */
static void on_disk(vfs_sim *found) {
    ls_free(r.store);
    vfs_sim_free(sim);
    sim = r.sim = found;
    r.v = vfs_sim_table(sim);
    check(open_again() == LS_OK || complain("open"));
}

static void killed(void) { on_disk(vfs_sim_clone(sim)); }

static void power_cut(void) {
    const vfs_sim_loss all = {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST};
    on_disk(vfs_sim_crash(sim, &all));
}

static void after_an_orderly_close_only_what_was_handed_out_is_seen(void) {
    uint64_t ids[5];
    ls_delivery d;

    for (int through = 0; through < 3; through++) {
        fresh();
        for (int i = 0; i < 5; i++)
            ids[i] = put(1, "message", NULL);
        for (uint32_t i = 1; i <= 3; i++) { /* ids[0]: three times, and not settled */
            d = next_of(1);
            check(d.id == ids[0] && d.count == i && d.recovered == 0);
            if (i < 3)
                give_back(1, &d, 0);
        }
        d = next_of(1); /* ids[1]: once, and given back */
        give_back(1, &d, 0);
        d = next_of(1);
        check(d.id == ids[1] && d.count == 2);
        d = next_of(1); /* ids[2]: unseen */
        check(d.id == ids[2]);
        give_back(1, &d, LS_UNSEEN);
        again();
        if (through == 1) { /* the states move */
            churn(60);
            again();
        } else if (through == 2) {
            check(ls_checkpoint(r.store, NULL) == LS_OK);
            again();
        }
        d = next_of(1);
        check(d.id == ids[0] && d.count == 4 && is_seen(&d));
        d = next_of(1);
        check(d.id == ids[1] && d.count == 3 && is_seen(&d));
        for (int i = 2; i < 5; i++) {
            d = next_of(1);
            check(d.id == ids[i] && d.count == 1 && !is_seen(&d));
        }
        done();
    }
}

static void a_killed_process_may_have_handed_out_everything(void) {
    for (int power = 0; power < 2; power++) {
        ls_delivery d;
        uint64_t old, young;

        fresh();
        old = put(1, "old", NULL);
        d = next_of(1);
        give_back(1, &d, 0);
        young = put(1, "young", NULL); /* its force takes the count along */
        if (power)
            power_cut();
        else
            killed();
        d = next_of(1);
        check(d.id == old && d.count == 2 && d.recovered == 1);
        d = next_of(1);
        check(d.id == young && d.count == 1 && d.recovered == 1);
        done();
    }
}

/* A change writes the count of the first release while another consumer has the place, who then gives it back unseen. */
static void a_count_that_is_written_leaves_out_who_has_the_place(void) {
    for (int through = 0; through < 2; through++) {
        ls_delivery d;
        uint64_t id, lsn;

        fresh();
        id = put(1, "message", NULL);
        d = next_of(1);
        give_back(1, &d, 0);
        d = next_of(1);
        check(d.count == 2);
        (void)put(2, "its force takes the count along", NULL);
        give_back(1, &d, LS_UNSEEN);
        check(ls_annotate(r.store, id, 1, (const uint8_t *)"note", 4, NULL, LS_WAIT, &lsn) == LS_OK);
        if (through == 1)
            killed();
        d = next_of(1);
        check(d.id == id && d.count == 2);
        done();
    }
}

/* It has written no record, and the log still ends with the orderly close of its predecessor. */
static void a_process_that_wrote_nothing_and_was_killed_may_have_handed_out_everything(void) {
    ls_delivery d;

    fresh();
    (void)put(1, "message", NULL);
    again();
    d = next_of(1);
    check(d.count == 1 && !is_seen(&d));
    killed();
    d = next_of(1);
    check(d.count == 1 && d.recovered == 1);
    done();
}

/* Closed in order without a record, the next open still knows. */
static void an_open_and_a_close_leave_everything_as_it_was(void) {
    ls_delivery d;

    fresh();
    (void)put(1, "message", NULL);
    for (int i = 0; i < 3; i++)
        again();
    d = next_of(1);
    check(d.count == 1 && !is_seen(&d));
    done();
}

static void what_a_crash_made_doubtful_stays_so_and_what_came_later_does_not(void) {
    ls_delivery d;
    uint64_t before, after;

    fresh();
    before = put(1, "before", NULL);
    killed();
    after = put(1, "after", NULL);
    for (int i = 0; i < 3; i++) {
        again();
        d = next_of(1);
        check(d.id == before && d.count == 1 && d.recovered == 1);
        give_back(1, &d, LS_UNSEEN);
    }
    d = next_of(1);
    check(take(d.id, 1, NULL) == LS_OK);
    d = next_of(1);
    check(d.id == after && d.count == 1 && !is_seen(&d));
    done();
}

/* More than a chunk of places, on several queues of one message, some settled. */
static void a_close_writes_the_counts_of_all_queues(void) {
    static ls_delivery all[MANY];
    uint32_t both[] = {1, 2};
    uint64_t id, lsn;
    size_t n;

    fresh();
    for (int i = 0; i < MANY; i++)
        check(ls_publish(r.store, both, 2, NULL, 0, (const uint8_t *)"x", 1, NULL, 0, &id) == LS_OK);
    check(ls_force(r.store, 0) == LS_OK);
    for (uint32_t queue = 1; queue <= 2; queue++) {
        check(ls_acquire(r.store, queue, all, MANY, 0, &n) == LS_OK && n == MANY);
        for (size_t i = 0; i < MANY; i += 3)
            check(ls_settle(r.store, queue, &all[i], NULL, 1, 0, &lsn) == LS_OK);
    }
    check(ls_queue_delete(r.store, 2, LS_WAIT) == LS_OK);
    r.catalog &= ~4u;
    again();
    check(ls_acquire(r.store, 1, all, MANY, 0, &n) == LS_OK && n == MANY - MANY / 3);
    for (size_t i = 0; i < n; i++)
        check(all[i].count == 2 && all[i].recovered == 0);
    done();
}

/* A deletion is one record, and its places are swept later: meanwhile other threads write. */
static void no_count_is_written_of_a_place_whose_queue_is_deleted(void) {
    uint32_t both[] = {1, 2};
    ls_stats before, after;
    ls_delivery d;
    uint64_t id;

    fresh();
    check(ls_publish(r.store, both, 2, NULL, 0, (const uint8_t *)"x", 1, NULL, LS_WAIT, &id) == LS_OK);
    d = next_of(2);
    give_back(2, &d, 0);
    log_lock(r.store->log);
    check(queue_end(r.store, 2) == LS_OK);
    log_unlock(r.store->log);
    ls_stats_get(r.store, &before);
    (void)put(1, "another", NULL);
    ls_stats_get(r.store, &after);
    check(after.records == before.records + 1);
    r.catalog &= ~4u;
    power_cut();
    d = next_of(1);
    check(d.id == id && d.count == 1);
    done();
}

/* Its record has no count of the place that ends, and readers of the log are told it. */
static void a_delivery_that_is_moved_has_its_count_written_before(void) {
    const ls_place_move move = {.from_queue_id = 1, .queue_id = 2};
    ls_stats before, after;
    ls_delivery d;
    uint64_t id, lsn;

    fresh();
    id = put(1, "message", NULL);
    d = next_of(1);
    ls_stats_get(r.store, &before);
    check(ls_move(r.store, id, &move, &d, NULL, LS_WAIT, &lsn) == LS_OK);
    ls_stats_get(r.store, &after);
    check(after.records == before.records + 2);
    power_cut();
    d = next_of(2);
    check(d.id == id && d.count == 1);
    done();
}

/* Releases of many places at once. */
static void a_release_of_many_writes_records_of_many_rows(void) {
    static ls_delivery all[MANY];
    uint64_t id;
    ls_stats before, after;
    size_t n, twice = 0;

    fresh();
    for (int i = 0; i < MANY; i++)
        check(ls_publish(r.store, (uint32_t[]){1}, 1, NULL, 0, NULL, 0, NULL, 0, &id) == LS_OK);
    check(ls_force(r.store, 0) == LS_OK);
    check(ls_acquire(r.store, 1, all, MANY, 0, &n) == LS_OK && n == MANY);
    ls_stats_get(r.store, &before);
    check(ls_release(r.store, 1, all, MANY, 0) == LS_OK);
    ls_stats_get(r.store, &after);
    check(after.records - before.records <= 3 && after.records > before.records);
    (void)put(2, "forces", NULL);
    power_cut();
    check(ls_acquire(r.store, 1, all, MANY, 0, &n) == LS_OK && n == MANY);
    for (size_t i = 0; i < n; i++) { /* without a wait a batch takes what it has room for */
        check(all[i].recovered == 1);
        twice += all[i].count == 2;
    }
    check(twice >= 126);
    done();
}

/* A count for which the log has no room is dropped: the release is taken, and the message still counts as handed out. */
static void a_full_store_drops_counts_and_takes_releases(void) {
    ls_options o;
    ls_delivery d;
    uint64_t id;
    int rc;
    uint32_t last = 0;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.max_write_buffers = 4;
    o.background = 0;
    o.max_log_bytes = (uint64_t)10 * SEGMENT;
    fresh_with(&o);
    do {
        rc = ls_publish(r.store, (uint32_t[]){1}, 1, NULL, 0, (const uint8_t *)"full", 4, NULL, LS_WAIT, &id);
    } while (rc == LS_OK);
    check(rc == LS_FULL);
    for (int i = 0; i < 2000; i++) {
        d = next_of(1);
        check(d.count == last + 1);
        last = d.count;
        give_back(1, &d, 0);
    }
    again();
    d = next_of(1);
    check(is_seen(&d) && d.count <= last + 1);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        after_an_orderly_close_only_what_was_handed_out_is_seen,
        a_killed_process_may_have_handed_out_everything,
        a_count_that_is_written_leaves_out_who_has_the_place,
        a_process_that_wrote_nothing_and_was_killed_may_have_handed_out_everything,
        an_open_and_a_close_leave_everything_as_it_was,
        what_a_crash_made_doubtful_stays_so_and_what_came_later_does_not,
        a_close_writes_the_counts_of_all_queues,
        no_count_is_written_of_a_place_whose_queue_is_deleted,
        a_delivery_that_is_moved_has_its_count_written_before,
        a_release_of_many_writes_records_of_many_rows,
        a_full_store_drops_counts_and_takes_releases,
    };
    int failed = 0, count = (int)(sizeof tests / sizeof *tests);

    for (int i = 0; i < count; i++) {
        failures_here = 0;
        tests[i]();
        failed += failures_here > 0;
    }
    return verdict(count - failed, failed);
}
