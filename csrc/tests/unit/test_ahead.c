/*
 * The next segment is made ahead of need for a caller that looks at ls_room_percent before it appends: that asks for it, is low
 * only until the spare thread has answered, and the answer is an event. A log that can have no more files has its whole
 * room: it answers with LS_FULL.
 */
#include <stdatomic.h>

#include "log/parts.h"
#include "tests/kit/one_store.h"

enum { CONTENT = 1000, STALLED_MS = 10 * 1000, MOST = 2000, LESS = 20, TRIES = 20 };

static const uint32_t queue = 1;
static vfs held, *real;
static atomic_bool holds, disk_is_full;
static atomic_int making; /* files that the spare thread is kept from making */

static void nap(void) {
    const struct timespec pause = {.tv_nsec = 1000 * 1000};

    (void)nanosleep(&pause, NULL);
}

/* A new segment file, kept back while `holds`. */
static int held_open(vfs *w, int dir, const char *name, unsigned flags) {
    (void)w;
    if ((flags & VFS_EXCLUSIVE) != 0) {
        (void)atomic_fetch_add(&making, 1);
        while (atomic_load(&holds))
            nap();
        if (atomic_load(&disk_is_full))
            return -ENOSPC;
    }
    return real->open(real, dir, name, flags);
}

static void start(void) {
    ls_options o;

    atomic_store(&holds, false);
    atomic_store(&disk_is_full, false);
    ls_options_default(&o);
    o.segment_size = SEGMENT;
    sim = vfs_sim_new();
    memset(&r, 0, sizeof r);
    (void)vfs_sim_record(sim, 0);
    real = vfs_sim_table(sim);
    held = *real;
    held.open = held_open;
    r.v = &held;
    r.options = o;
    run_start(&r, sim, 1);
    require(!r.lost);
}

static uint32_t room(void) {
    uint32_t percent = ls_room_percent(r.store);

    check(r.options.background || ls_room_percent_try(r.store) == (int)percent); /* no other thread takes the lock */
    return percent;
}

static bool is_asleep(void) {
    struct log *g = r.store->log;

    log_lock(g);
    bool asleep = !g->spare_thread.wanted && !g->spare_thread.trying;
    log_unlock(g);
    return asleep;
}

static void wait_until(bool (*is_so)(void)) {
    bool was_so = is_so(); /* asked once: what was so may end at once */

    for (int i = 0; !was_so && i < STALLED_MS; i++) {
        nap();
        was_so = is_so();
    }
    check(was_so);
}

static bool is_making(void) { return atomic_load(&making) > 0; }

static bool has_whole_room(void) { return room() == 100; }

/* Where the log stands. No other thread appends. */
static struct {
    size_t segments, spares, reserved, files;
    uint64_t used, left; /* bytes of the current segment */
    bool is_full, is_asked, is_answered;
} now;

static void look(void) {
    struct log *g = r.store->log;

    log_lock(g);
    now.segments = g->segment_count;
    now.spares = g->space.spare_count;
    now.reserved = g->space.needs.spares_reserved;
    now.used = g->front.append_lsn - g->segments[g->segment_count - 1]->first_lsn;
    now.left = SEGMENT - now.used;
    now.files = log_files(g);
    now.is_full = g->space.full.since_us != 0;
    now.is_asked = ahead_is_asked(g);
    now.is_answered = ahead_is_answered(g);
    log_unlock(g);
}

static uint64_t one(void) { return put_bytes(queue, 7, CONTENT, LS_WAIT); }

/* LS_WOULD_WAIT, unless only another thread had the lock at that moment. */
static int try_one(void) {
    static const uint8_t content[CONTENT];
    uint64_t id;
    int rc = LS_WOULD_WAIT;

    for (int i = 0; rc == LS_WOULD_WAIT && i < TRIES; i++, nap())
        rc = ls_publish(r.store, &queue, 1, NULL, 0, content, CONTENT, NULL, LS_TRY, &id);
    return rc;
}

static int try_to_take(uint64_t id) {
    uint64_t lsn;
    int rc = LS_WOULD_WAIT;

    for (int i = 0; rc == LS_WOULD_WAIT && i < TRIES; i++, nap())
        rc = ls_dequeue(r.store, id, queue, NULL, 0, 0, LS_TRY, &lsn);
    return rc;
}

static uint64_t waits(void) {
    ls_stats stats;

    ls_stats_get(r.store, &stats);
    return stats.waits_for_spare;
}

static uint64_t ids[MOST];

/* A log that keeps only the reserved spares, at the beginning of a segment. Returns a message. */
static uint64_t with_reserved_spares(void) {
    uint64_t id = one();

    for (int i = 0; i < MOST; i++) {
        ids[i] = id;
        wait_until(is_asleep);
        look();
        if (now.segments > 3 && now.spares == now.reserved && now.used < SEGMENT / 8)
            break;
        id = one();
    }
    check(now.spares == now.reserved && now.used < SEGMENT / 8);
    return id;
}

static void fill_to(uint64_t used) {
    for (look(); now.used < used && !now.is_full; look())
        (void)one();
}

static void the_next_segment_is_asked_for_at_a_quarter_and_no_append_waits_for_it(void) {
    start();
    (void)with_reserved_spares();
    uint64_t before = waits();
    size_t segments = now.segments;
    check(room() == 100 && is_asleep());
    fill_to(SEGMENT / 4);
    check(room() == 100);
    wait_until(is_asleep);
    look();
    check(now.spares == now.reserved + 1);
    for (int i = 0; now.segments == segments && i < MOST; i++) {
        check(room() == 100 && (now.left < CONTENT * 4 || try_one() == LS_OK));
        (void)one();
        look();
    }
    check(now.segments == segments + 1 && waits() == before);
    done();
}

static void the_room_is_half_where_only_growth_would_wait_and_the_end_of_the_wait_is_an_event(void) {
    uint64_t id;
    int fd;

    start();
    id = with_reserved_spares();
    fill_to(SEGMENT / 4);
    check(ls_event_fd(r.store, &fd) == LS_OK);
    atomic_store(&making, 0);
    atomic_store(&holds, true);
    check(room() == 100);
    wait_until(is_making);
    check(room() == 100 && try_one() == LS_OK);
    for (look(); now.left > SEGMENT / 2 + CONTENT * 2; look())
        check(try_one() == LS_OK && ls_force(r.store, 0) == LS_OK);
    check(room() == 50);
    while (try_one() == LS_OK)
        check(room() == 50);
    check(try_to_take(id) == LS_OK && ls_force(r.store, 0) == LS_OK);
    check(room() == 50);
    uint64_t before = vfs_sim_event_count(sim, fd);
    atomic_store(&holds, false);
    wait_until(has_whole_room);
    check(vfs_sim_event_count(sim, fd) > before);
    check(try_one() == LS_OK);
    done();
}

/* The batches of the log after this many looks at a disk that may hang. */
static uint64_t batches_after_probes(int n) {
    struct log *g = r.store->log;

    log_lock(g);
    for (int i = 0; i < n; i++)
        log_probe_disk(g);
    uint64_t batches = g->stats.batches + log_unforced(g);
    log_unlock(g);
    check(ls_force(r.store, 0) == LS_OK);
    return batches;
}

static void an_empty_batch_probes_the_disk_once_a_file_was_awaited_for_two_looks(void) {
    uint64_t batches;

    start();
    (void)with_reserved_spares();
    fill_to(SEGMENT / 4);
    batches = batches_after_probes(0);
    atomic_store(&making, 0);
    atomic_store(&holds, true);
    check(room() == 100);
    wait_until(is_making);
    check(batches_after_probes(3) == batches); /* no append waits for the file */
    while (try_one() == LS_OK)
        check(ls_force(r.store, 0) == LS_OK);
    check(room() < 100);
    batches = batches_after_probes(0);
    check(batches_after_probes(1) == batches);
    check(batches_after_probes(1) == batches + 1);
    check(batches_after_probes(2) == batches + 2); /* one unforced batch says enough */
    check(room() < 100);
    atomic_store(&holds, false);
    wait_until(has_whole_room);
    wait_until(is_asleep);
    check(batches_after_probes(3) == batches_after_probes(0));
    done();
}

static void near_the_end_of_the_segment_there_is_less_room_for_any_record(void) {
    uint64_t small[SEGMENT / 100], lsn;
    size_t n = 0;

    start();
    (void)with_reserved_spares();
    for (; n < sizeof small / sizeof *small; n++)
        small[n] = put_bytes(queue, 1, 1, 0);
    for (look(); now.spares != now.reserved || now.used < SEGMENT / 4 || now.used > SEGMENT * 3 / 8; look()) {
        (void)one();
        wait_until(is_asleep);
    }
    atomic_store(&making, 0);
    atomic_store(&holds, true);
    check(room() == 100);
    wait_until(is_making);
    while (try_one() == LS_OK)
        check(ls_force(r.store, 0) == LS_OK);
    while (n > 0 && room() == 50)
        check(ls_dequeue(r.store, small[--n], queue, NULL, 0, 0, 0, &lsn) == LS_OK && ls_force(r.store, 0) == LS_OK);
    look();
    check(n > 0 && room() < 50 && now.left < SEGMENT / 8);
    while (n > 0 && room() > 1) /* 1 % of the largest batch is less than a record in so small a log */
        check(try_to_take(small[--n]) == LS_OK && ls_force(r.store, 0) == LS_OK);
    check(n > 0);
    atomic_store(&holds, false);
    wait_until(has_whole_room);
    done();
}

static void on_a_full_disk_the_answer_is_that_there_is_no_more_and_the_room_is_whole(void) {
    start();
    (void)with_reserved_spares();
    fill_to(SEGMENT / 4);
    atomic_store(&making, 0);
    atomic_store(&disk_is_full, true);
    check(room() == 100);
    wait_until(is_making);
    wait_until(has_whole_room);
    wait_until(is_asleep);
    for (int i = 0; i < MOST && ls_publish(r.store, &queue, 1, NULL, 0, (const uint8_t *)"", 0, NULL, LS_WAIT,
                                           &(uint64_t){0}) == LS_OK;
         i++)
        check(room() > 0);
    check(ls_last_error()->code == LS_FULL && room() == 100);
    atomic_store(&disk_is_full, false);
    done();
}

static void limit_to(uint64_t max_log_bytes) {
    struct log *g = r.store->log;

    log_lock(g);
    log_limit(g, max_log_bytes);
    log_unlock(g);
    wait_until(is_asleep);
}

static void at_the_limit_of_the_log_nothing_is_asked_for_before_the_segment_is_nearly_full(void) {
    struct log *g;

    start();
    g = r.store->log;
    log_lock(g);
    g->relocate = NULL; /* no move gains a file */
    log_unlock(g);
    (void)with_reserved_spares();
    for (size_t i = 0; i < LESS; i++) /* far from full */
        check(take(ids[i * 4], queue, NULL) == LS_OK);
    wait_until(is_asleep);
    look();
    limit_to(now.files * SEGMENT);
    for (; now.left > SEGMENT / 8; look()) {
        check(now.left < SEGMENT / 4 || (room() == 100 && !now.is_asked));
        check(take(one(), queue, NULL) == LS_OK); /* what lives remains as it is */
        wait_until(is_asleep);
    }
    check(now.spares == now.reserved);
    (void)room();
    look();
    check(now.is_asked);
    wait_until(is_asleep);
    look();
    check(now.is_answered && room() == 100);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        the_next_segment_is_asked_for_at_a_quarter_and_no_append_waits_for_it,
        the_room_is_half_where_only_growth_would_wait_and_the_end_of_the_wait_is_an_event,
        an_empty_batch_probes_the_disk_once_a_file_was_awaited_for_two_looks,
        near_the_end_of_the_segment_there_is_less_room_for_any_record,
        on_a_full_disk_the_answer_is_that_there_is_no_more_and_the_room_is_whole,
        at_the_limit_of_the_log_nothing_is_asked_for_before_the_segment_is_nearly_full,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
