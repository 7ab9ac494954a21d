/* A rule of recycling that crash tests and readers cannot show: a read of content pins its segment. */
#include "tests/kit/store_workload.h"

static struct run r;
static vfs table;
static vfs *real;
static void (*meanwhile)(void); /* done once, in the middle of the next read of a segment */
static int happened;

static int64_t pread_and_more(vfs *v, int file, void *into, size_t bytes, uint64_t at) {
    void (*now)(void) = meanwhile;

    (void)v;
    meanwhile = NULL;
    if (now != NULL) {
        happened++;
        now();
    }
    return real->pread(real, file, into, bytes, at);
}

static vfs_sim *fresh(void) {
    vfs_sim *sim = vfs_sim_new();

    memset(&r, 0, sizeof r);
    real = vfs_sim_table(sim);
    table = *real;
    table.pread = pread_and_more;
    r.v = &table;
    happened = 0;
    run_start(&r, sim, 1);
    return sim;
}

static void done(vfs_sim *sim) {
    ls_free(r.store);
    vfs_sim_free(sim);
}

static void come_and_go(int messages) {
    static const uint8_t content[3500];
    uint32_t q = 1;

    for (int i = 0; i < messages; i++) {
        uint64_t id = 0, lsn;

        check(ls_publish(r.store, &q, 1, NULL, 0, content, sizeof content, NULL, LS_WAIT, &id) == LS_OK);
        check(ls_dequeue(r.store, id, q, NULL, 0, 0, LS_WAIT, &lsn) == LS_OK);
    }
}

static uint64_t wanted;

/* Dequeues the message, then publishes and dequeues so many that its segment would be recycled. */
static void it_dies_and_much_comes(void) {
    uint64_t lsn;

    check(ls_dequeue(r.store, wanted, 2, NULL, 0, 0, LS_WAIT, &lsn) == LS_OK);
    come_and_go(300);
}

static void a_segment_that_is_being_read_is_not_recycled(void) {
    static uint8_t content[3000], into[sizeof content];
    vfs_sim *sim = fresh();
    ls_stats before, after;
    uint32_t q = 2;
    size_t got = 0;

    fill(content, 77, sizeof content);
    require(ls_publish(r.store, &q, 1, NULL, 0, content, sizeof content, NULL, LS_WAIT, &wanted) == LS_OK);
    ls_stats_get(r.store, &before);
    meanwhile = it_dies_and_much_comes;
    check(ls_load_content(r.store, wanted, 0, into, sizeof into, &got) == LS_OK && happened == 1);
    check(got == sizeof content && memcmp(into, content, got) == 0);
    come_and_go(60);
    ls_stats_get(r.store, &after);
    check(after.segments_recycled + after.segments_removed > before.segments_recycled + before.segments_removed);
    done(sim);
}

int main(void) {
    static void (*const tests[])(void) = {
        a_segment_that_is_being_read_is_not_recycled,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
