/*
 * When a place became visible, on a disk that fails: the call says what failed, changes nothing, and the next call reads
 * again. The places are of a message in its own batch, of one that was moved, and of one whose state was written.
 */
#include "tests/kit/failing_memory.h"
#include "tests/kit/one_store.h"
#include "tests/kit/tallies.h"

enum { ASKED = 4 };

/* A place, and the time that a sound disk gives for it. */
struct asked {
    uint64_t id;
    uint32_t queue;
    uint64_t position; /* in this open */
    uint64_t time_us;
};

static struct asked asked[ASKED];

static int ask(const struct asked *a, uint64_t *time_us) {
    return ls_enqueued_us(r.store, a->queue, a->id, a->position, time_us);
}

/* A new open has no time in memory. */
static void anew(void) {
    again();
    for (struct asked *a = asked; a < asked + ASKED; a++) {
        ls_place place = {.id = 0};
        ls_cursor *cursor;
        size_t n = 0;

        check(ls_cursor_open(r.store, a->queue, LS_CURSOR_ALL, &cursor) == LS_OK);
        do
            check(ls_cursor_next(cursor, &place, 1, &n) == LS_OK);
        while (n == 1 && place.id != a->id);
        ls_cursor_close(cursor);
        check(n == 1);
        a->position = place.position;
    }
}

/* All were moved but the last. */
static void make_places(void) {
    fresh();
    asked[0] = (struct asked){.id = put_bytes(2, 1, 100, LS_WAIT), .queue = 2};
    asked[1] = (struct asked){.id = put_bytes(2, 2, 40000, LS_WAIT), .queue = 2};
    asked[2] = (struct asked){.id = asked[1].id, .queue = 3};
    check(add(asked[1].id, 3, NULL) == LS_OK);
    for (int i = 0; i < 100 && ls_base_lsn(r.store) <= asked[2].id; i++)
        churn(40);
    check(ls_base_lsn(r.store) > asked[2].id);
    asked[3] = (struct asked){.id = put_bytes(4, 3, 100, LS_WAIT), .queue = 4};
    anew();
    for (int i = 0; i < ASKED; i++)
        check(ask(&asked[i], &asked[i].time_us) == LS_OK && asked[i].time_us > 0);
    check(asked[1].time_us < asked[2].time_us && asked[2].time_us < asked[3].time_us);
}

/* Asks while the plan holds; then once more without it. */
static uint64_t ask_with(const struct asked *a, const vfs_sim_plan *plan) {
    uint64_t time_us = 1, fired;
    int rc;

    anew();
    vfs_sim_fail(sim, plan);
    rc = ask(a, &time_us);
    fired = vfs_sim_fired(sim);
    vfs_sim_fail(sim, NULL);
    if (rc != LS_OK)
        check(rc == LS_IO && time_us == 0 && ls_last_error()->sys_errno == plan->error &&
              ls_last_error()->text[0] != 0);
    else
        check(time_us == a->time_us);
    check(fired > 0 || rc == LS_OK);
    check(ls_poisoned(r.store) == 0);
    check(ask(a, &time_us) == LS_OK && time_us == a->time_us);
    return rc == LS_OK ? 0 : fired;
}

static void a_read_that_fails_is_said_and_the_next_call_finds_the_time(void) {
    static const int kinds[] = {VFS_SIM_PREAD, VFS_SIM_OPEN};

    make_places();
    for (int i = 0; i < ASKED; i++) {
        uint64_t said[2] = {0, 0};

        for (int forever = 0; forever < 2; forever++) {
            for (int kind = 0; kind < 2; kind++) {
                for (uint64_t nth = 1; nth <= 4; nth++)
                    said[kind] += ask_with(&asked[i], &(vfs_sim_plan){.kind = kinds[kind],
                                                                      .nth = nth,
                                                                      .forever = forever,
                                                                      .error = kind == 0 ? EIO : EMFILE});
            }
        }
        check(said[0] > 0); /* a file that is open already is not opened */
    }
    done();
}

static void a_short_read_changes_no_time(void) {
    make_places();
    for (int i = 0; i < ASKED; i++) {
        for (uint64_t nth = 1; nth <= 3; nth++) {
            uint64_t time_us = 1;

            anew();
            vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_PREAD, .nth = nth, .shorten = VFS_SIM_HALF});
            check(ask(&asked[i], &time_us) == LS_OK && time_us == asked[i].time_us);
            vfs_sim_fail(sim, NULL);
        }
    }
    done();
}

static void a_call_without_memory_says_so_and_the_next_finds_the_time(void) {
    make_places();
    for (int i = 0; TAKEN_OVER && i < ASKED; i++) {
        uint64_t own = 0;

        for (uint64_t nth = 1; nth <= 6; nth++) {
            uint64_t time_us = 1;
            int rc;

            anew();
            allocations = failed = 0;
            fail_at_nth = nth;
            for_ever = false;
            counting = true;
            rc = ask(&asked[i], &time_us);
            counting = false;
            if (rc == LS_OK)
                check(time_us == asked[i].time_us);
            else
                check((rc == LS_NO_MEMORY || ls_last_error()->sys_errno == ENOMEM) && failed > 0 && time_us == 0);
            own += rc == LS_NO_MEMORY; /* with ENOMEM the simulated disk had none */
            check(ask(&asked[i], &time_us) == LS_OK && time_us == asked[i].time_us);
        }
        check(own > 0);
    }
    done();
}

static void a_damaged_batch_is_said_with_its_place(void) {
    static uint8_t image[SEGMENT];
    char name[SEGMENT_NAME_BYTES];
    ls_segment_info segments[64];
    uint64_t time_us = 1;
    size_t n, last;

    make_places();
    anew();
    require(ls_segments(r.store, segments, 64, &n) == LS_OK && n <= 64);
    for (last = 0; last + 1 < n && segments[last + 1].first_lsn <= asked[3].id; last++) {
    }
    format_segment_name(name, segments[last].first_lsn);
    check(vfs_sim_get(sim, VFS_SIM_SEEN, "/s", name, image, sizeof image) == SEGMENT);
    image[SEGMENT_HEADER_BYTES + 40] ^= 0x20; /* in the segment's first batch record */
    check(vfs_sim_put(sim, "/s", name, image, sizeof image) == 0);
    check(ask(&asked[3], &time_us) == LS_CORRUPT && time_us == 0);
    check(strstr(ls_last_error()->text, "damaged") != NULL && ls_last_error()->offset == SEGMENT_HEADER_BYTES);
    image[SEGMENT_HEADER_BYTES + 40] ^= 0x20;
    check(vfs_sim_put(sim, "/s", name, image, sizeof image) == 0);
    check(ask(&asked[3], &time_us) == LS_OK && time_us == asked[3].time_us);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_read_that_fails_is_said_and_the_next_call_finds_the_time,
        a_short_read_changes_no_time,
        a_call_without_memory_says_so_and_the_next_finds_the_time,
        a_damaged_batch_is_said_with_its_place,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
