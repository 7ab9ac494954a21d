/*
 * Holds from the reader's side: a hold keeps its part of the log whatever another process does between two steps; a hold
 * that has run out is reported as such; no hold keeps a log for ever.
 */
#include <stdatomic.h>

#include "log/parts.h"
#include "log/hold.h"
#include "store/store.h"
#include "tests/kit/one_store.h"

enum { SECOND_US = 1000000 };

static const uint64_t HOUR_US = (uint64_t)3600 * SECOND_US, PLENTY = (uint64_t)1 << 40;

/* ---- a table that does something between the calls of the real one ---- */

static vfs meddling, *real;
static void (*between)(void);
static atomic_int at_locks, at_lists, at_reads, at_renames, at_writes;
static atomic_bool arrived;

static void come_between(atomic_int *at) {
    if (atomic_load(at) > 0 && atomic_fetch_sub(at, 1) == 1)
        between();
}

static int meddled_lock(vfs *w, int file, int exclusive) {
    (void)w;
    come_between(&at_locks);
    return real->lock(real, file, exclusive);
}

static int meddled_list(vfs *w, int dir, vfs_list_fn *each, void *context) {
    int result = real->list(real, dir, each, context);

    (void)w;
    come_between(&at_lists);
    return result;
}

static int meddled_rename(vfs *w, int dir, const char *from, const char *to) {
    int result = real->rename(real, dir, from, to);

    (void)w;
    come_between(&at_renames);
    return result;
}

/* The next read of a complete hold returns it as if its owner were still writing it. */
static int64_t meddled_pread(vfs *w, int file, void *into, size_t bytes, uint64_t at) {
    int64_t got = real->pread(real, file, into, bytes, at);

    (void)w;
    if (at_reads > 0 && bytes == HOLD_BYTES && got == HOLD_BYTES) {
        at_reads--;
        ((uint8_t *)into)[35] ^= 0x55;
    }
    return got;
}

static int64_t meddled_pwrite(vfs *w, int file, const void *from, size_t bytes, uint64_t at) {
    (void)w;
    if (bytes == HOLD_BYTES)
        come_between(&at_writes);
    return real->pwrite(real, file, from, bytes, at);
}

static vfs *meddle(void (*what)(void)) {
    real = vfs_sim_table(sim);
    meddling = *real;
    meddling.lock = meddled_lock;
    meddling.list = meddled_list;
    meddling.pread = meddled_pread;
    meddling.pwrite = meddled_pwrite;
    meddling.rename = meddled_rename;
    between = what;
    at_locks = at_lists = at_reads = at_renames = at_writes = 0;
    return &meddling;
}

/* ---- using holds ---- */

static ls_hold *take_hold(const char *name) {
    ls_hold *hold = NULL;

    check(ls_hold_take(r.v, "/s", name, 0, PLENTY, HOUR_US, &hold) == LS_OK || complain("take"));
    return hold;
}

static uint64_t lsn_of(const ls_hold *hold) {
    ls_hold_info info;

    ls_hold_describe(hold, &info);
    return info.lsn;
}

/* The store's description of one hold; state 0: there is none. */
static ls_hold_info told(const char *name) {
    static ls_hold_info all[LS_HOLDS_MAX + 8];
    size_t n = 0;

    check(ls_holds(r.v, "/s", all, LS_HOLDS_MAX + 8, &n) == LS_OK || complain("list"));
    for (size_t i = 0; i < n; i++) {
        if (strcmp(all[i].name, name) == 0)
            return all[i];
    }
    return (ls_hold_info){.state = 0};
}

struct seen {
    uint64_t batches, first_lsn, end_lsn;
    int rc;
};

static struct seen read_out(ls_reader *reader) {
    struct seen s = {0};
    ls_batch b;

    while ((s.rc = ls_reader_next(reader, &b)) == LS_OK) {
        s.first_lsn = s.batches++ == 0 ? b.lsn : s.first_lsn;
        s.end_lsn = b.lsn + b.size;
    }
    ls_reader_close(reader);
    return s;
}

static struct seen read_held(const ls_hold *hold) {
    ls_reader *reader = NULL;
    int rc = ls_hold_read(hold, 0, &reader);

    if (rc != LS_OK)
        return (struct seen){.rc = rc};
    return read_out(reader);
}

static bool there(uint64_t first_lsn) {
    char name[SEGMENT_NAME_BYTES];

    format_segment_name(name, first_lsn);
    return vfs_sim_get(sim, VFS_SIM_SEEN, "/s", name, NULL, 0) >= 0;
}

static bool has_file(const char *name) { return vfs_sim_get(sim, VFS_SIM_SEEN, "/s/holds", name, NULL, 0) >= 0; }

/* Publishes messages that fill the segments from the base on, and dequeues them again. */
static uint64_t lives[64];

static void fill_up(void) {
    for (int i = 0; i < 60; i++)
        lives[i] = put_bytes(2, (uint8_t)i, 3000, LS_WAIT);
}

static void use_up(void) {
    for (int i = 0; i < 60; i++)
        check(take(lives[i], 2, NULL) == LS_OK);
    churn(40);
}

static void a_reader_of_a_hold_begins_at_its_lsn_however_far_the_base_has_moved(void) {
    ls_hold *hold;
    ls_reader *early, *held;
    ls_stats stats;
    uint64_t first;
    struct seen s;

    fresh();
    fill_up();
    hold = take_hold("export");
    first = lsn_of(hold);
    check(first == ls_base_lsn(r.store));
    require(ls_hold_read(hold, 0, &held) == LS_OK);
    use_up();
    check(ls_base_lsn(r.store) > first && there(first));
    ls_stats_get(r.store, &stats);
    check(stats.held_segments >= 2 && stats.held_bytes == stats.held_segments * SEGMENT);
    check(told("export").state == LS_HOLD_HONOURED);
    check(told("export").kept_bytes >= stats.held_bytes); /* the figures are those of the writer's last look */
    s = read_out(held);                                   /* begun before the base moved on */
    check(s.rc == LS_END && s.first_lsn == first + BLOCK);
    s = read_held(hold); /* and after */
    check(s.rc == LS_END && s.first_lsn == first + BLOCK && s.end_lsn == ls_durable_lsn(r.store));
    require(ls_reader_open(r.v, "/s", 0, &early) == LS_OK);
    check(read_out(early).first_lsn == ls_base_lsn(r.store) + BLOCK); /* the log itself begins at its base */
    require(ls_hold_read(hold, 0, &held) == LS_OK);
    ls_hold_release(hold);
    check(!has_file("export.hold") && told("export").state == 0);
    (void)put(1, "one more commit", NULL); /* without threads the next operation makes spares and recycles */
    (void)put(1, "and another", NULL);
    check(!there(first));
    ls_stats_get(r.store, &stats);
    check(stats.held_segments == 0);
    s = read_out(held);
    check(s.rc == LS_RECYCLED);
    done();
}

static void an_idle_store_gives_back_what_was_held_when_its_base_is_moved(void) {
    ls_hold *hold;
    uint64_t first;

    fresh();
    fill_up();
    hold = take_hold("export");
    first = lsn_of(hold);
    use_up();
    ls_hold_release(hold);
    check(there(first));
    check(move_base(r.store) == LS_OK && !there(first));
    done();
}

static void names_and_numbers_out_of_range_are_refused_before_anything_is_made(void) {
    static const char *const names[] = {"", "a/b", "../x", "a b", "\xc3\xa4", "a\n"};
    char longest[LS_HOLD_NAME_MAX + 2];
    ls_hold *hold = NULL;
    uint64_t changes;

    fresh();
    changes = vfs_sim_changes(sim);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check(ls_hold_take(r.v, "/s", names[i], 0, 1, 1, &hold) == LS_OPTION && hold == NULL);
    memset(longest, 'x', sizeof longest);
    longest[LS_HOLD_NAME_MAX + 1] = '\0';
    check(ls_hold_take(r.v, "/s", longest, 0, 1, 1, &hold) == LS_OPTION);
    check(ls_hold_take(r.v, "/s", "a", LSN_MAX + 1, 1, 1, &hold) == LS_OPTION);
    check(ls_hold_take(r.v, "/s", "a", 0, 0, 1, &hold) == LS_OPTION);
    check(ls_hold_take(r.v, "/s", "a", 0, 1, 0, &hold) == LS_OPTION);
    check(ls_hold_take(r.v, "/s", "a", 0, 1, 24 * HOUR_US * LS_HOLD_DAYS_MAX + 1, &hold) == LS_OPTION);
    check(ls_hold_take(r.v, "/none", "a", 0, 1, 1, &hold) == LS_NOT_A_STORE);
    check(vfs_sim_changes(sim) == changes);
    longest[LS_HOLD_NAME_MAX] = '\0';
    longest[0] = '.';
    check(ls_hold_take(r.v, "/s", longest, 0, PLENTY, 24 * HOUR_US * LS_HOLD_DAYS_MAX, &hold) == LS_OK);
    check(told(longest).state == LS_HOLD_HONOURED);
    check(ls_hold_advance(hold, LSN_MAX + 1, 1) == LS_OPTION && ls_hold_advance(hold, 0, 0) == LS_OPTION);
    check(ls_hold_advance(hold, 1, HOUR_US) == LS_OPTION); /* never back */
    ls_hold_release(hold);
    ls_hold_release(NULL);
    done();
}

static void an_lsn_below_the_base_cannot_be_held(void) {
    ls_hold *hold = NULL;
    uint64_t first;

    fresh();
    first = ls_base_lsn(r.store);
    fill_up();
    use_up();
    check(ls_hold_take(r.v, "/s", "late", first, PLENTY, HOUR_US, &hold) == LS_RECYCLED && hold == NULL);
    check(!has_file("late.hold"));
    check(ls_hold_take(r.v, "/s", "late", ls_base_lsn(r.store), PLENTY, HOUR_US, &hold) == LS_OK);
    ls_hold_release(hold);
    done();
}

static void a_name_has_one_owner_at_a_time_and_is_free_when_that_has_died(void) {
    ls_hold *one, *two = NULL;
    static uint8_t bytes[HOLD_BYTES];

    fresh();
    one = take_hold("a");
    check(ls_hold_take(r.v, "/s", "a", 0, 1, HOUR_US, &two) == LS_BUSY && two == NULL);
    check(told("a").limit_bytes == PLENTY);
    check(vfs_sim_get(sim, VFS_SIM_SEEN, "/s/holds", "a.hold", bytes, sizeof bytes) == HOLD_BYTES);
    ls_hold_release(one);
    check(vfs_sim_put(sim, "/s/holds", "a.hold", bytes, sizeof bytes) == 0); /* as one that was killed leaves it */
    check(vfs_sim_put(sim, "/s/holds", "new", "half", 4) == 0); /* ... and one that was killed while it made the file */
    check(told("a").state == LS_HOLD_ABANDONED && told("a").kept_bytes == 0 && has_file("a.hold"));
    check(ls_hold_take(r.v, "/s", "a", 0, 77, HOUR_US, &two) == LS_OK);
    check(told("a").state == LS_HOLD_HONOURED && told("a").limit_bytes == 77 && !has_file("new"));
    ls_hold_release(two);
    done();
}

static void the_number_of_holds_is_limited(void) {
    ls_hold *holds[LS_HOLDS_MAX], *more = NULL;
    ls_hold_info few[2];
    size_t n;

    fresh();
    for (int i = 0; i < LS_HOLDS_MAX; i++) {
        char name[16];

        (void)snprintf(name, sizeof name, "h%02d", i);
        holds[i] = take_hold(name);
    }
    check(ls_hold_take(r.v, "/s", "more", 0, 1, 1, &more) == LS_BUSY && more == NULL);
    check(ls_holds(r.v, "/s", few, 2, &n) == LS_OK && n == LS_HOLDS_MAX);
    ls_hold_release(holds[7]);
    holds[7] = take_hold("more");
    for (int i = 0; i < LS_HOLDS_MAX; i++)
        ls_hold_release(holds[i]);
    check(ls_holds(r.v, "/s", few, 2, &n) == LS_OK && n == 0);
    done();
}

static void an_expired_hold_says_so_and_keeps_nothing(void) {
    ls_hold *by_time, *by_limit = NULL;
    uint64_t first;

    fresh();
    fill_up();
    by_time = take_hold("time");
    first = lsn_of(by_time);
    check(ls_hold_take(r.v, "/s", "limit", 0, SEGMENT, 100 * HOUR_US, &by_limit) == LS_OK);
    check(ls_hold_advance(by_time, 0, HOUR_US) == LS_OK);
    vfs_sim_advance(sim, (int64_t)(2 * HOUR_US));
    check(told("time").state == LS_HOLD_EXPIRED && told("limit").state == LS_HOLD_HONOURED);
    check(ls_hold_advance(by_time, 0, HOUR_US) == LS_OK); /* in time: nothing was lost meanwhile */
    vfs_sim_advance(sim, (int64_t)(2 * HOUR_US));
    use_up();
    check(!there(first));
    check(ls_hold_advance(by_time, 0, HOUR_US) == LS_RECYCLED);
    check(read_held(by_time).rc == LS_RECYCLED && read_held(by_limit).rc == LS_RECYCLED);
    check(told("time").state == LS_HOLD_OVERTAKEN && told("limit").state == LS_HOLD_OVERTAKEN);
    check(ls_hold_advance(by_limit, first + 1000, HOUR_US) == LS_RECYCLED);
    check(ls_hold_advance(by_limit, ls_base_lsn(r.store), HOUR_US) == LS_OK); /* from there on it keeps again */
    check(told("limit").state == LS_HOLD_HONOURED);
    ls_hold_release(by_time);
    ls_hold_release(by_limit);
    done();
}

/* The segment that a reader is in is gone, or the next one, or all but the first of the held ones. */
static void readers_of_an_expired_hold_get_recycled_wherever_they_are(void) {
    enum { READERS = 24 };
    static uint8_t image[SEGMENT];
    char name[SEGMENT_NAME_BYTES];

    for (int closed = 0; closed < 2; closed++) {
        ls_reader *readers[READERS] = {NULL};
        ls_batch b;
        ls_hold *hold;
        int recycled = 0;

        fresh();
        fill_up();
        hold = take_hold("a");
        format_segment_name(name, lsn_of(hold));
        check(vfs_sim_get(sim, VFS_SIM_SEEN, "/s", name, image, sizeof image) == SEGMENT);
        for (int i = 0; i < READERS; i++) {
            require(ls_hold_read(hold, 0, &readers[i]) == LS_OK);
            for (int k = 0; k < 3 * i; k++)
                (void)ls_reader_next(readers[i], &b);
        }
        vfs_sim_advance(sim, (int64_t)(2 * HOUR_US));
        use_up();
        if (closed)
            check(ls_close(r.store) == LS_OK);
        for (int i = 0; i < READERS; i++) {
            int rc = read_out(readers[i]).rc;

            recycled += rc == LS_RECYCLED ? 1 : 0;
            check(rc == LS_RECYCLED || rc == LS_END || complain("read"));
        }
        check(recycled >= READERS / 2);
        check(read_held(hold).rc == LS_RECYCLED);
        check(vfs_sim_put(sim, "/s", name, image, sizeof image) == 0); /* as if only this one could not be removed */
        check(read_held(hold).rc == LS_RECYCLED);
        ls_hold_release(hold);
        done();
    }
}

static void over_its_limit_a_hold_is_dropped_and_listed_as_such_while_others_go_on(void) {
    ls_hold *small = NULL, *large;
    uint64_t first;

    fresh();
    fill_up();
    check(ls_hold_take(r.v, "/s", "small", 0, SEGMENT, HOUR_US, &small) == LS_OK);
    large = take_hold("large");
    first = lsn_of(large);
    use_up();
    check(there(first) && told("large").state == LS_HOLD_HONOURED && told("small").state == LS_HOLD_OVER_LIMIT);
    check(told("small").kept_bytes == 0 && told("large").kept_bytes > SEGMENT);
    check(read_held(large).rc == LS_END);
    ls_hold_release(small);
    ls_hold_release(large);
    done();
}

/* The limit counts only segments that would be recycled without the hold, not live ones. */
static void live_segments_do_not_count_against_the_limit_of_a_hold(void) {
    ls_hold *hold = NULL;

    fresh();
    fill_up();
    check(ls_durable_lsn(r.store) - ls_base_lsn(r.store) > 2 * SEGMENT);
    check(ls_hold_take(r.v, "/s", "a", 0, 1, HOUR_US, &hold) == LS_OK);
    check(told("a").state == LS_HOLD_HONOURED && told("a").kept_bytes == 0);
    ls_hold_release(hold);
    done();
}

static void segments_below_an_advanced_hold_are_recycled(void) {
    ls_hold *hold;
    uint64_t first, second;

    fresh();
    fill_up();
    hold = take_hold("a");
    first = lsn_of(hold);
    second = first + SEGMENT;
    use_up();
    check(there(first) && there(second));
    check(ls_hold_advance(hold, second + 5000, HOUR_US) == LS_OK && lsn_of(hold) == second + 5000);
    churn(10);
    check(!there(first) && there(second));
    check(read_held(hold).first_lsn == second + BLOCK);
    ls_hold_release(hold);
    done();
}

/* Where the log ends in the first segment, which is below the start of the next segment. */
static uint64_t end_of_first_segment(const ls_hold *hold) {
    ls_reader *reader = NULL;
    ls_batch b;
    uint64_t first = 0, end = 0;

    if (ls_hold_read(hold, 0, &reader) != LS_OK)
        return 0;
    while (ls_reader_next(reader, &b) == LS_OK && (first == 0 || b.first_lsn == first)) {
        first = b.first_lsn;
        end = b.lsn + b.size;
    }
    ls_reader_close(reader);
    return end;
}

static void a_hold_at_the_end_of_a_segment_continues_in_the_next(void) {
    ls_hold *hold;
    ls_reader *reader = NULL;
    uint64_t first, end;

    fresh();
    fill_up();
    hold = take_hold("a");
    first = lsn_of(hold);
    end = end_of_first_segment(hold);
    require(end > first && end < first + SEGMENT);
    use_up();
    check(ls_hold_advance(hold, end, HOUR_US) == LS_OK);
    churn(10);
    check(ls_hold_read(hold, end, &reader) == LS_OK || complain("read"));
    check(reader != NULL && read_out(reader).rc == LS_END);
    check(ls_hold_advance(hold, first + SEGMENT, HOUR_US) == LS_OK);
    churn(10);
    check(!there(first));
    ls_hold_release(hold);
    done();
}

static void a_hold_that_was_removed_by_hand_says_so_when_it_advances(void) {
    ls_hold *hold, *other;
    int dir;

    fresh();
    hold = take_hold("a");
    dir = r.v->open_dir(r.v, "/s/holds");
    check(r.v->unlink(r.v, dir, "a.hold") == 0 && r.v->close(r.v, dir) == 0);
    check(ls_hold_advance(hold, 0, HOUR_US) == LS_RECYCLED);
    other = take_hold("a");
    ls_hold_release(hold); /* another process has made the file that has the name now */
    check(told("a").state == LS_HOLD_HONOURED);
    ls_hold_release(other);
    done();
}

/* ---- another process between two steps ---- */

static ls_hold *came;
static uint64_t came_first;

static void take_it(void) { came = take_hold("a"); }

/* The writer has opened an abandoned hold; before it locks the file, another hold gets the name. */
static void removing_an_abandoned_hold_spares_the_hold_that_took_its_name(void) {
    static const struct hold dead = {.hold_lsn = 1, .expires_us = 1};
    uint8_t bytes[HOLD_BYTES];
    struct holds holds;

    for (int nth = 1; nth < 4; nth++) {
        fresh();
        format_put_hold(bytes, &dead);
        check(vfs_sim_put(sim, "/s/holds", "a.hold", bytes, sizeof bytes) == 0);
        came = NULL;
        r.store->log->v = meddle(take_it);
        at_locks = nth;
        holds_look(r.store->log, &holds);
        check((came != NULL) == (nth == 1));
        holds_look(r.store->log, &holds);
        if (came != NULL) {
            check(has_file("a.hold") && holds.count == 1 && holds.living[0].hold_lsn == lsn_of(came));
            at_locks = 0;
            r.store->log->v = real;
            ls_hold_release(came);
        } else {
            check(!has_file("a.hold") && holds.count == 0);
            r.store->log->v = real;
        }
        done();
    }
}

static void look_now(void) {
    struct holds holds;

    holds_look(r.store->log, &holds);
    check(holds.count <= 1);
}

/* At every step of taking a hold: an incomplete one is not removed, and does not count as a hold. */
static void a_writer_that_looks_while_a_hold_is_taken_does_not_harm_it(void) {
    fresh();
    for (int nth = 1; nth < 6; nth++) {
        struct holds holds;
        ls_hold *hold = NULL;

        (void)meddle(look_now);
        at_locks = nth;
        check(ls_hold_take(&meddling, "/s", "a", 0, PLENTY, HOUR_US, &hold) == LS_OK);
        at_locks = 0;
        at_renames = 1;
        holds_look(r.store->log, &holds);
        check(holds.count == 1 && has_file("a.hold"));
        ls_hold_release(hold);
    }
    done();
}

static void take_it_and_go_on(void) {
    uint64_t lsn;

    came = take_hold("a");
    came_first = lsn_of(came);
    for (int i = 0; i < 60; i++) { /* a batch makes the deaths durable, the next names the base, the hint follows */
        int rc = ls_dequeue(r.store, lives[i], 2, NULL, 1, 0, 0, &lsn);

        check(rc == LS_OK || i < 20); /* the first ones may be gone already */
        check(i % 8 > 0 || ls_force(r.store, 0) == LS_OK);
    }
    check(ls_force(r.store, 0) == LS_OK);
    check(ls_base_lsn(r.store) > came_first);
    atomic_store(&arrived, true);
}

/* The spare thread has listed the holds, interrupted once, and recycled what it could. */
static bool is_over(void) {
    struct log *g = r.store->log;

    log_lock(g);
    bool over = atomic_load(&arrived) && !g->spare_thread.trying && !g->spare_thread.wanted;
    log_unlock(g);
    return over;
}

/* A hold is taken after the writer has listed the holds, and then the base passes the segments that it is to keep. */
static void segments_that_the_base_passes_after_the_listing_of_holds_are_not_recycled(void) {
    ls_options o;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    sim = vfs_sim_new();
    memset(&r, 0, sizeof r);
    (void)vfs_sim_record(sim, 0);
    r.options = o;
    r.v = meddle(take_it_and_go_on);
    run_start(&r, sim, 1);
    require(!r.lost);
    log_lock(r.store->log);
    r.store->log->relocate = NULL; /* what dies in order moves the base in order */
    log_unlock(r.store->log);
    came = NULL;
    atomic_store(&arrived, false);
    fill_up();
    at_lists = 1;
    for (int i = 0; i < 20; i++) /* so that a segment is dead, and the holds are looked at */
        (void)take(lives[i], 2, NULL);
    (void)put(1, "a batch that names the base", NULL);
    for (int i = 0; i < 20000 && !is_over(); i++) {
        const struct timespec pause = {.tv_nsec = 1000 * 1000};

        (void)nanosleep(&pause, NULL);
    }
    require(came != NULL);
    check(there(came_first));
    check(read_held(came).first_lsn == came_first + BLOCK);
    ls_hold_release(came);
    done();
}

static int moves_left;

/* Whenever the base is about to be written into the hold, the base moves and everything below it is recycled. */
static void move_the_base(void) {
    if (moves_left-- > 0) {
        churn(40);
        at_writes = 1;
    }
}

/* However often the base moves while the hold is taken, in the end the hold keeps everything from its LSN on. */
static void a_hold_from_the_base_keeps_everything_from_its_lsn_on(void) {
    for (int moves = 1; moves < 5; moves++) {
        ls_hold *hold = NULL;
        uint64_t first;

        fresh();
        churn(40);
        (void)meddle(move_the_base);
        moves_left = moves;
        at_writes = 1;
        check(ls_hold_take(&meddling, "/s", "a", 0, PLENTY, HOUR_US, &hold) == LS_OK);
        check(moves_left < 0);
        require(hold != NULL);
        first = lsn_of(hold);
        check(there(first) && told("a").state == LS_HOLD_HONOURED);
        churn(80);
        check(there(first) && ls_base_lsn(r.store) > first && read_held(hold).first_lsn == first + BLOCK);
        ls_hold_release(hold);
        done();
    }
}

static void a_hold_that_is_being_rewritten_is_honoured(void) {
    struct holds holds;
    ls_hold *hold;

    fresh();
    hold = take_hold("a");
    r.store->log->v = meddle(NULL);
    at_reads = 2;
    holds_look(r.store->log, &holds);
    check(at_reads == 0 && holds.count == 1);
    r.store->log->v = real;
    ls_hold_release(hold);
    done();
}

/* ---- without a writer, and across its opens ---- */

static void a_hold_on_a_closed_store_is_honoured_by_the_next_writer(void) {
    ls_hold *hold;
    uint64_t first;
    struct seen s;

    fresh();
    fill_up();
    check(ls_close(r.store) == LS_OK);
    ls_free(r.store);
    r.store = NULL;
    hold = take_hold("a");
    first = lsn_of(hold);
    check(read_held(hold).rc == LS_END);
    check(open_again() == LS_OK);
    use_up();
    check(there(first) && ls_base_lsn(r.store) > first);
    check(read_held(hold).first_lsn == first + BLOCK);
    check(ls_close(r.store) == LS_OK); /* and when the writer has closed again */
    s = read_held(hold);
    check(s.rc == LS_END && s.first_lsn == first + BLOCK);
    ls_hold_release(hold);
    done();
}

static void a_reader_of_a_closed_store_gets_recycled_if_a_writer_overtakes_it(void) {
    ls_reader *reader;

    fresh();
    fill_up();
    again();
    check(ls_close(r.store) == LS_OK);
    ls_free(r.store);
    require(ls_reader_open(r.v, "/s", 0, &reader) == LS_OK);
    check(open_again() == LS_OK);
    use_up();
    churn(60);
    check(read_out(reader).rc == LS_RECYCLED);
    done();
}

static void damage_in_held_segments_is_reported_as_damage(void) {
    static uint8_t image[SEGMENT];
    char name[SEGMENT_NAME_BYTES];
    ls_hold *hold;

    fresh();
    fill_up();
    hold = take_hold("a");
    use_up();
    format_segment_name(name, lsn_of(hold));
    check(vfs_sim_get(sim, VFS_SIM_SEEN, "/s", name, image, sizeof image) == SEGMENT);
    image[20000] ^= 1;
    check(vfs_sim_put(sim, "/s", name, image, sizeof image) == 0);
    check(read_held(hold).rc == LS_CORRUPT);
    ls_hold_release(hold);
    done();
}

static void listing_holds_changes_nothing(void) {
    ls_hold_info info;
    uint64_t changes;
    size_t n = 7;

    fresh();
    check(vfs_sim_put(sim, "/s/holds", "dead.hold", "x", 1) == 0);
    changes = vfs_sim_changes(sim);
    check(ls_holds(r.v, "/s", &info, 1, &n) == LS_OK && n == 1 && info.state == LS_HOLD_ABANDONED);
    check(vfs_sim_changes(sim) == changes);
    check(ls_holds(r.v, "/none", &info, 1, &n) == LS_NOT_A_STORE && n == 0);
    done();
}

/* Whichever call fails, the hold is taken, or no trace of it is left. */
static void whichever_call_fails_a_hold_is_taken_or_leaves_no_trace(void) {
    static const int errors[] = {EIO, ENOSPC, EMFILE, EINTR};
    int taken = 0, refused = 0;

    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
        bool fired = true;

        fresh();
        for (uint64_t nth = 1; fired; nth++) {
            size_t handles = vfs_sim_handles(sim);
            ls_hold *hold = NULL;
            int rc;

            vfs_sim_fail(sim, &(vfs_sim_plan){.nth = nth, .error = errors[e]});
            rc = ls_hold_take(r.v, "/s", "a", 0, PLENTY, HOUR_US, &hold);
            fired = vfs_sim_fired(sim) > 0;
            vfs_sim_fail(sim, NULL);
            check((rc == LS_OK) == (hold != NULL));
            check(rc != LS_OK || told("a").state == LS_HOLD_HONOURED);
            check(rc != LS_CORRUPT && rc != LS_RECYCLED);
            taken += rc == LS_OK ? 1 : 0;
            refused += rc != LS_OK ? 1 : 0;
            if (hold != NULL) {
                vfs_sim_fail(sim, &(vfs_sim_plan){.nth = 1 + nth % 4, .error = errors[e]});
                (void)ls_hold_advance(hold, 0, HOUR_US);
                vfs_sim_fail(sim, NULL);
            }
            ls_hold_release(hold);
            check(told("a").state == 0 || told("a").state == LS_HOLD_ABANDONED);
            check(vfs_sim_handles(sim) == handles);
        }
        done();
    }
    check(taken > 4 && refused > 40);
}

int main(void) {
    static void (*const tests[])(void) = {
        a_reader_of_a_hold_begins_at_its_lsn_however_far_the_base_has_moved,
        an_idle_store_gives_back_what_was_held_when_its_base_is_moved,
        names_and_numbers_out_of_range_are_refused_before_anything_is_made,
        an_lsn_below_the_base_cannot_be_held,
        a_name_has_one_owner_at_a_time_and_is_free_when_that_has_died,
        the_number_of_holds_is_limited,
        an_expired_hold_says_so_and_keeps_nothing,
        readers_of_an_expired_hold_get_recycled_wherever_they_are,
        over_its_limit_a_hold_is_dropped_and_listed_as_such_while_others_go_on,
        live_segments_do_not_count_against_the_limit_of_a_hold,
        segments_below_an_advanced_hold_are_recycled,
        a_hold_at_the_end_of_a_segment_continues_in_the_next,
        a_hold_that_was_removed_by_hand_says_so_when_it_advances,
        removing_an_abandoned_hold_spares_the_hold_that_took_its_name,
        a_writer_that_looks_while_a_hold_is_taken_does_not_harm_it,
        segments_that_the_base_passes_after_the_listing_of_holds_are_not_recycled,
        a_hold_from_the_base_keeps_everything_from_its_lsn_on,
        a_hold_that_is_being_rewritten_is_honoured,
        a_hold_on_a_closed_store_is_honoured_by_the_next_writer,
        a_reader_of_a_closed_store_gets_recycled_if_a_writer_overtakes_it,
        damage_in_held_segments_is_reported_as_damage,
        listing_holds_changes_nothing,
        whichever_call_fails_a_hold_is_taken_or_leaves_no_trace,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
