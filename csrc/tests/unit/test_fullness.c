/*
 * The state of being full: it begins with the first refusal, says why, and ends when there is room for half a segment,
 * whether max_log_bytes or the disk is the limit.
 */
#include <errno.h>

#include "tests/kit/one_store.h"

enum { MOST = 6000, BYTES = 500, FILES = 10 };

static uint64_t ids[MOST];
static int made;

static void begin_with(bool by_disk, int background) {
    ls_options o;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.background = background;
    o.max_log_bytes = by_disk ? 0 : (uint64_t)FILES * SEGMENT;
    fresh_with(&o);
    vfs_sim_capacity(sim, by_disk ? (uint64_t)FILES * SEGMENT + 6 * BLOCK : 0);
    made = 0;
}

static int publish_one(void) {
    static const uint8_t content[BYTES];
    uint32_t q = 1;
    int rc = ls_publish(r.store, &q, 1, NULL, 0, content, sizeof content, NULL, 0, &ids[made]);

    made += rc == LS_OK ? 1 : 0;
    return rc;
}

static void fill_up(void) {
    int rc = LS_OK;

    while (made < MOST && rc == LS_OK)
        rc = publish_one();
    check(rc == LS_FULL && ls_force(r.store, 0) == LS_OK);
}

static ls_fullness now(void) {
    ls_fullness f;

    check(ls_fullness_get(r.store, &f) == LS_OK);
    return f;
}

static void full_and_drained(bool by_disk, int background) {
    ls_fullness f;
    ls_stats stats;
    uint64_t lsn;

    begin_with(by_disk, background);
    f = now();
    check(!f.full && f.since_us == 0 && f.segment_size == SEGMENT && ls_fullness_changes(r.store) == 0);
    fill_up();
    f = now();
    ls_stats_get(r.store, &stats);
    check(f.full && f.log_bytes < f.needed_bytes && f.since_us != 0 && stats.full);
    check(f.live_bytes == stats.live_bytes && f.counted_bytes == stats.counted_bytes);
    check(f.counted_bytes == f.live_bytes + (uint64_t)128 * stats.places);
    check(f.sys_errno == (by_disk ? ENOSPC : 0) && f.max_log_bytes == r.options.max_log_bytes);
    check(f.log_bytes == stats.log_bytes && f.held_bytes == 0 && f.live_bytes > (uint64_t)BYTES * (uint64_t)made);
    for (int i = 0; i < 20; i++)
        check(publish_one() == LS_FULL || made == MOST);
    check(ls_fullness_changes(r.store) == 1 && now().since_us == f.since_us);
    for (int i = 0; i < 20; i++) { /* one out, one in: it stays full */
        check(take(ids[i], 1, NULL) == LS_OK);
        (void)publish_one();
    }
    check(ls_fullness_changes(r.store) == 1 && now().full);
    for (int i = 20; i < made; i++)
        check(ls_dequeue(r.store, ids[i], 1, NULL, 1, 0, 0, &lsn) == LS_OK);
    check(ls_force(r.store, 0) == LS_OK && move_base(r.store) == LS_OK);
    f = now();
    check(!f.full && f.log_bytes >= f.needed_bytes && f.since_us == 0 && ls_fullness_changes(r.store) == 2);
    check(publish_one() == LS_OK);
    done();
}

/* In pieces of one record: how many of them it took after it was nearly full. */
static int published_while_near(void) {
    int after = 0;

    while (made < MOST && publish_one() == LS_OK)
        after += (int)(ls_near_full_changes(r.store) & 1);
    check(ls_force(r.store, 0) == LS_OK);
    return after;
}

static void near_and_drained(int background) {
    ls_fullness f;
    uint64_t changes = 0, lsn;
    int at = 0;

    begin_with(false, background);
    f = now();
    check(!f.near && f.growth_left > SEGMENT && f.growth_left < f.max_log_bytes && ls_near_full_changes(r.store) == 0);
    check(published_while_near() * BYTES > SEGMENT / 4);
    f = now();
    check(f.near && f.full && f.growth_left < SEGMENT / 2);
    changes = ls_near_full_changes(r.store);
    while (at < made && ls_near_full_changes(r.store) == changes)
        check(take(ids[at++], 1, NULL) == LS_OK);
    f = now();
    check(!f.near && f.growth_left >= SEGMENT / 2 && at < made);
    while (at < made)
        check(ls_dequeue(r.store, ids[at++], 1, NULL, 1, 0, 0, &lsn) == LS_OK);
    check(ls_force(r.store, 0) == LS_OK && !now().near && publish_one() == LS_OK);
    done();
}

static void a_store_with_a_limit_is_nearly_full_before_it_refuses_growth(void) {
    for (int background = 0; background < 2; background++)
        near_and_drained(background);
}

static void a_caller_who_heeds_it_is_never_refused(void) {
    uint64_t lsn;
    int first = 0;

    begin_with(false, 1);
    while (made < MOST) {
        if ((ls_near_full_changes(r.store) & 1) == 0) {
            check(publish_one() == LS_OK || complain("refused"));
        } else {
            check(ls_dequeue(r.store, ids[first++], 1, NULL, 1, 0, 0, &lsn) == LS_OK);
            check(ls_force(r.store, lsn) == LS_OK);
        }
    }
    check(!now().full && first > 0 && ls_fullness_changes(r.store) == 0);
    done();
}

static void a_disk_that_has_room_again_is_found_without_a_publish(void) {
    begin_with(true, 0);
    fill_up();
    check(now().near && now().full);
    vfs_sim_capacity(sim, 0);
    ls_look_for_room(r.store);
    check(take(ids[0], 1, NULL) == LS_OK && ls_force(r.store, 0) == LS_OK); /* without threads an append looks */
    check(!now().near && !now().full && now().growth_left == UINT64_MAX);
    done();
}

static void a_store_without_a_bound_is_never_nearly_full(void) {
    ls_fullness f;

    fresh();
    f = now();
    check(f.growth_left == UINT64_MAX && !f.near);
    done();
}

static void a_store_is_full_from_the_first_refusal_until_half_a_segment_is_free(void) {
    for (int background = 0; background < 2; background++)
        full_and_drained(false, background);
}

static void a_store_on_a_full_disk_is_full_with_the_error_of_the_disk(void) {
    for (int background = 0; background < 2; background++)
        full_and_drained(true, background);
}

static void room_on_the_disk_ends_it_with_the_next_publish(void) {
    begin_with(true, 0);
    fill_up();
    vfs_sim_capacity(sim, 0);
    check(publish_one() == LS_OK);
    check(!now().full && ls_fullness_changes(r.store) == 2);
    done();
}

static void an_inspection_tells_whether_so_much_lives_that_the_store_would_be_full(void) {
    ls_fullness f, whole;
    uint64_t lsn;
    ls_store *seen = NULL;

    begin_with(false, 0);
    fill_up();
    whole = now();
    check(ls_inspect_open(r.v, "/s", 0, &seen) == LS_OK);
    check(ls_fullness_get(seen, &f) == LS_CLOSED); /* not read yet */
    while (ls_inspect_step(seen, 1 << 20, &lsn) == LS_OK) {
    }
    check(ls_fullness_get(seen, &f) == LS_OK);
    check(f.log_bytes < f.needed_bytes && !f.full && f.needed_bytes == whole.needed_bytes &&
          f.log_bytes == whole.log_bytes && f.live_bytes == whole.live_bytes && f.counted_bytes == whole.counted_bytes);
    check(f.segment_size == SEGMENT && f.max_log_bytes == 0);
    ls_free(seen);
    for (int i = 0; i < made; i++)
        check(ls_dequeue(r.store, ids[i], 1, NULL, 1, 0, 0, &lsn) == LS_OK);
    check(ls_force(r.store, 0) == LS_OK);
    check(ls_inspect_open(r.v, "/s", 0, &seen) == LS_OK);
    while (ls_inspect_step(seen, 1 << 20, &lsn) == LS_OK) {
    }
    check(ls_fullness_get(seen, &f) == LS_OK && f.log_bytes >= f.needed_bytes);
    ls_free(seen);
    done();
}

static void a_limit_is_set_between_open_and_serve_and_while_the_store_serves(void) {
    uint32_t q = 1;
    uint64_t before;

    begin_with(false, 0);
    fill_up();
    check(ls_limit_log(r.store, 6 * SEGMENT - 1) == LS_OPTION && now().max_log_bytes == (uint64_t)FILES * SEGMENT);
    check(ls_limit_log(r.store, (uint64_t)2 * FILES * SEGMENT) == LS_OK);
    check(publish_one() == LS_OK && !now().full && ls_fullness_changes(r.store) == 2);
    check(ls_close(r.store) == LS_OK && ls_limit_log(r.store, 0) == LS_CLOSED);
    ls_free(r.store);
    r.options.max_log_bytes = 0;
    require(ls_open(r.v, "/s", &r.options, &r.store) == LS_OK);
    check(ls_limit_log(r.store, 1) == LS_OPTION && ls_limit_log(r.store, (uint64_t)6 * SEGMENT) == LS_OK);
    require(ls_serve(r.store, &q, 1, 2) == LS_OK);
    check(now().max_log_bytes == (uint64_t)6 * SEGMENT); /* less than the log has: it only cannot grow */
    before = now().log_bytes;
    fill_up();
    check(now().full && now().log_bytes <= before);
    check(ls_limit_log(r.store, 0) == LS_OK && publish_one() == LS_OK && now().max_log_bytes == 0);
    done();
}

struct unneeded {
    ls_segment_info segments[64];
    size_t count;
    char names[64][SEGMENT_NAME_BYTES];
    size_t found;
};

static int note_unneeded(void *context, const char *name) {
    struct unneeded *u = context;
    uint64_t first_lsn;
    bool needed = !format_parse_segment_name(name, &first_lsn);

    for (size_t i = 0; i < u->count; i++)
        needed = needed || u->segments[i].first_lsn == first_lsn;
    if (!needed)
        (void)snprintf(u->names[u->found++], SEGMENT_NAME_BYTES, "%s", name);
    return 0;
}

/* A backup has no spares, and a copy that follows has few. */
static void a_store_without_a_spare_opens_whatever_its_limit(void) {
    static struct unneeded u;
    uint32_t q = 1;
    ls_stats stats;
    int dir;

    begin_with(false, 0);
    fill_up();
    u.found = 0;
    check(ls_segments(r.store, u.segments, 64, &u.count) == LS_OK && u.count <= 64);
    check(ls_close(r.store) == LS_OK);
    ls_free(r.store);
    dir = r.v->open_dir(r.v, "/s");
    check(r.v->list(r.v, dir, note_unneeded, &u) == 0 && u.found > 0);
    for (size_t i = 0; i < u.found; i++)
        check(r.v->unlink(r.v, dir, u.names[i]) == 0);
    check(r.v->close(r.v, dir) == 0);
    r.options.max_log_bytes = 6 * SEGMENT;
    require(ls_open(r.v, "/s", &r.options, &r.store) == LS_OK);
    check(ls_serve(r.store, &q, 1, 2) == LS_OK || complain("serve"));
    ls_stats_get(r.store, &stats);
    check(stats.log_bytes <= (u.count + 1 + SPARES_RESERVED) * SEGMENT);
    check(publish_one() == LS_FULL && now().full);
    for (int i = 0; i < made; i++)
        check(take(ids[i], 1, NULL) == LS_OK);
    check(ls_force(r.store, 0) == LS_OK && publish_one() == LS_OK && !now().full);
    ls_stats_get(r.store, &stats);
    check(stats.log_bytes <= r.options.max_log_bytes);
    done();
}

/* The files that it needs are counted with the longest record, and this one may be longer than all that live. */
static void the_first_record_of_its_length_gets_its_file(void) {
    for (int live = 40; live <= 60; live++) {
        for (uint32_t longer = 3001; longer < 8000; longer += 899) {
            fresh();
            churn(40);
            for (int i = 0; i < live; i++)
                (void)put_bytes(2, 'z', 3000, 0);
            for (int i = 0; i < 30; i++)
                check(take(put_bytes(1, 'a', longer, 0), 1, NULL) == LS_OK);
            done();
        }
    }
}

int main(void) {
    static void (*const tests[])(void) = {
        a_store_is_full_from_the_first_refusal_until_half_a_segment_is_free,
        a_store_on_a_full_disk_is_full_with_the_error_of_the_disk,
        a_store_with_a_limit_is_nearly_full_before_it_refuses_growth,
        a_caller_who_heeds_it_is_never_refused,
        a_disk_that_has_room_again_is_found_without_a_publish,
        a_store_without_a_bound_is_never_nearly_full,
        room_on_the_disk_ends_it_with_the_next_publish,
        an_inspection_tells_whether_so_much_lives_that_the_store_would_be_full,
        a_limit_is_set_between_open_and_serve_and_while_the_store_serves,
        a_store_without_a_spare_opens_whatever_its_limit,
        the_first_record_of_its_length_gets_its_file,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
