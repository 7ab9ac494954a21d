/*
 * Regression tests for defects found by damaging bytes.
 */
#include "tests/kit/store_workload.h"

enum { SEGMENT_HEADER = 4096 };

static struct run r;

/* Ten messages, the last in a batch of its own; closed in order, or cut off. */
static vfs_sim *made(bool close) {
    vfs_sim *sim = vfs_sim_new(), *after;
    static const vfs_sim_loss loss = {.mode = VFS_SIM_ALL_LOST};

    memset(&r, 0, sizeof r);
    r.gentle = true;
    run_start(&r, sim, 3);
    for (int i = 0; i < 10; i++)
        publish(&r, PUBLISH, 2, -1, true, 100);
    if (close)
        check(ls_close(r.store) == LS_OK);
    after = close ? vfs_sim_clone(sim) : vfs_sim_crash(sim, &loss);
    run_end(&r);
    vfs_sim_free(sim);
    return after;
}

/* META has the UUID of the segments: with a new META they would belong to another store, and become spares. */
static void segments_without_META_are_never_overwritten_by_a_new_store(void) {
    vfs_sim *sim = made(true);
    vfs *v = vfs_sim_table(sim);
    int dir = v->open_dir(v, "/s");
    ls_store *store = NULL;
    uint64_t changes;

    check(v->unlink(v, dir, "META") == 0 && v->close(v, dir) == 0);
    changes = vfs_sim_changes(sim);
    check(open_store(&r, v, r.catalog, QUEUES + 1, &store) == LS_CORRUPT);
    check(strstr(ls_last_error()->text, "META is missing") != NULL);
    check(vfs_sim_changes(sim) == changes);
    ls_free(store);
    vfs_sim_free(sim);
}

struct last_batch {
    char name[24];
    uint32_t at;
    uint32_t bytes;
};

static struct last_batch find_last(vfs_sim *sim) {
    struct last_batch last = {.at = 0};
    ls_reader *reader = NULL;
    ls_batch b;

    check(ls_reader_open(vfs_sim_table(sim), "/s", 0, &reader) == LS_OK);
    while (ls_reader_next(reader, &b) == LS_OK) {
        (void)snprintf(last.name, sizeof last.name, "%016llx.seg", (unsigned long long)b.first_lsn);
        last.at = (uint32_t)(b.lsn - b.first_lsn);
        last.bytes = (uint32_t)b.size;
    }
    ls_reader_close(reader);
    return last;
}

/* Wherever the damage is, also in the batch's own record: the open continues without the batch and reports that. */
static void a_cut_batch_is_reported_whichever_bit_was_damaged(bool close) {
    static uint8_t image[SEGMENT];
    vfs_sim *sim = made(close);
    struct last_batch last = find_last(sim);

    check(vfs_sim_get(sim, VFS_SIM_STABLE, "/s", last.name, image, sizeof image) == SEGMENT);
    for (uint32_t bit = 0; bit < 8 * last.bytes; bit++) {
        vfs_sim *disk = vfs_sim_clone(sim);
        ls_store *store = NULL;
        ls_recovery report = {.torn_bytes = 0};

        image[last.at + bit / 8] ^= (uint8_t)(1u << bit % 8);
        check(vfs_sim_put(disk, "/s", last.name, image, sizeof image) == 0);
        image[last.at + bit / 8] ^= (uint8_t)(1u << bit % 8);
        check(open_store(&r, vfs_sim_table(disk), r.catalog, QUEUES + 1, &store) == LS_OK);
        ls_recovery_report(store, &report);
        check(report.torn_bytes > 0 && !report.clean && report.end_lsn % SEGMENT == last.at);
        check(report.messages == (close ? 10 : 9));
        ls_free(store);
        vfs_sim_free(disk);
    }
    vfs_sim_free(sim);
}

/* The remaining segments do not show that there was another one. */
static void the_loss_of_the_last_segment_after_an_orderly_close_is_detected(void) {
    enum { GONE, SHORT, ZEROED, HARMLESS_FROM_HERE, CLOSED_GONE = HARMLESS_FROM_HERE, CLOSED_DAMAGED, HOW };

    for (int how = 0; how < HOW; how++) {
        static uint8_t image[SEGMENT];
        vfs_sim *disk = made(true);
        vfs *v = vfs_sim_table(disk);
        ls_store *store = NULL;
        struct last_batch last;
        int dir = v->open_dir(v, "/s");
        uint32_t q = 1;
        uint64_t id, changes;

        check(open_store(&r, v, r.catalog, QUEUES + 1, &store) == LS_OK); /* the last segment is not the only one */
        check(ls_publish(store, &q, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) == LS_OK && ls_close(store) == LS_OK);
        ls_free(store);
        store = NULL;
        last = find_last(disk);
        check(vfs_sim_get(disk, VFS_SIM_STABLE, "/s", last.name, image, sizeof image) == SEGMENT);
        if (how == GONE)
            check(v->unlink(v, dir, last.name) == 0);
        else if (how == SHORT)
            check(vfs_sim_put(disk, "/s", last.name, image, 1000) == 0);
        else if (how == CLOSED_GONE)
            check(v->unlink(v, dir, "CLOSED") == 0);
        else if (how == CLOSED_DAMAGED)
            check(vfs_sim_put(disk, "/s", "CLOSED", image, 64) == 0);
        memset(image + SEGMENT_HEADER, 0, sizeof image - SEGMENT_HEADER);
        if (how == ZEROED) /* the last batches and CLOSE */
            check(vfs_sim_put(disk, "/s", last.name, image, sizeof image) == 0);
        check(v->close(v, dir) == 0);
        changes = vfs_sim_changes(disk);
        if (how < HARMLESS_FROM_HERE) {
            check(open_store(&r, v, r.catalog, QUEUES + 1, &store) == LS_CORRUPT);
            check(ls_last_error()->lsn != 0 && vfs_sim_changes(disk) == changes);
        } else {
            ls_recovery report = {.clean = 0};

            check(open_store(&r, v, r.catalog, QUEUES + 1, &store) == LS_OK);
            ls_recovery_report(store, &report);
            check(report.clean && report.messages == 11);
        }
        ls_free(store);
        vfs_sim_free(disk);
    }
}

int main(void) {
    the_loss_of_the_last_segment_after_an_orderly_close_is_detected();
    segments_without_META_are_never_overwritten_by_a_new_store();
    a_cut_batch_is_reported_whichever_bit_was_damaged(true);
    a_cut_batch_is_reported_whichever_bit_was_damaged(false);
    return verdict(4, failures_here);
}
