/*
 * Messages as rows with bodies: a body is the first content of its message as the store gives it; consecutive passes give the
 * bodies of one pass; failures are reported, and a forged state is refused or used without harm.
 */
#include "tests/kit/message_passes.h"

static const uint64_t limits[] = {1, 900, 1 << 20};
enum { LIMITS = sizeof limits / sizeof *limits };

/* ---- the promises ---- */

static void consecutive_passes_give_the_bodies_of_one_pass_wherever_the_log_is_divided(void) {
    for (size_t k = 0; k < LIMITS; k++) {
        body_limit = limits[k];
        pass_over_all(rich);
        for (size_t i = k; i < lsn_count; i += LIMITS)
            cut_at(rich, lsns[i], 1 + i % 70);
    }
}

static uint64_t compared;

/* The bytes that a consumer gets are the witness. */
static void compare_with_store(size_t i) {
    static uint8_t content[1 << 20];
    size_t bytes = (size_t)(left.bodies_from[i + 1] - left.bodies_from[i]), got = 0;

    check(left.has_body[i] || !printf("message %llu has no body\n", (unsigned long long)left.ids[i]));
    check(ls_load_content(r.store, left.ids[i], 0, content, (size_t)body_limit, &got) == LS_OK);
    check(got == bytes && memcmp(content, left.bodies + left.bodies_from[i], bytes) == 0);
    compared += bytes > 0 ? 1 : 0;
}

static void the_bodies_of_open_messages_are_the_contents_that_the_store_has(void) {
    for (uint64_t seed = 1; seed <= 9; seed++) {
        const vfs_sim_loss loss = {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT};
        vfs_sim *disk;

        body_limit = limits[seed % LIMITS];
        fresh();
        r.chance = seed;
        run_some(&r, 500);
        must(!r.lost);
        (void)put(1, "so that a batch says which epoch it is", NULL);
        disk = vfs_sim_crash(sim, &loss);
        must(disk != NULL);
        pass_over_all(disk);
        for (size_t i = 0; i < left.count; i++)
            compare_with_store(i);
        for (size_t i = 0; i < lsn_count; i += 1 + lsn_count / 40)
            cut_at(disk, lsns[i], 64);
        vfs_sim_free(disk);
        for (int i = 0; i < TXS; i++)
            forget_handle(&r, i);
        done();
    }
    check(compared > 100 || !printf("%llu bodies\n", (unsigned long long)compared));
}

static void a_pass_with_bodies_without_memory_says_so(void) {
    body_limit = 900;
    pass_over_all(rich);
    check(pass_over(vfs_sim_table(rich), 0, lsns[lsn_count / 2], 64, NULL,
                    &(struct told_rows){.bytes = whole.bytes + whole.size}, &left) == LS_END);
    starve_from(lsns[lsn_count / 2]);
    check(!TAKEN_OVER || fail_at_nth > 50);
}

static void a_pass_with_bodies_reports_a_failed_call(void) {
    body_limit = 1 << 20;
    pass_over_all(rich);
    for (uint64_t nth = 1;; nth++) {
        vfs_sim_plan plan = {.nth = nth, .error = EIO};
        vfs_sim *disk = vfs_sim_clone(rich);
        struct told_rows t = rows_new();
        bool fired;
        int rc;

        vfs_sim_fail(disk, &plan);
        rc = pass_over(vfs_sim_table(disk), 0, LSN_MAX, 64, NULL, &t, &other);
        fired = vfs_sim_fired(disk) > 0;
        check(rc == LS_END || (fired && rc == LS_IO));
        check(rc != LS_END || is_whole(&t));
        check(vfs_sim_handles(disk) == 0);
        free(t.bytes);
        vfs_sim_free(disk);
        if (!fired)
            break;
    }
}

static void a_forged_state_is_refused_or_used_without_harm(void) {
    size_t most = 0;
    uint64_t middle;

    body_limit = 900;
    pass_over_all(rich);
    middle = lsns[lsn_count * 3 / 4];
    check(pass_over(vfs_sim_table(rich), 0, middle, 64, NULL, &(struct told_rows){.bytes = whole.bytes + whole.size},
                    &left) == LS_END);
    for (size_t i = 0; i < left.count; i++) {
        size_t bytes = left.from[i + 1] - left.from[i];

        if (bytes > most && bytes < 300) {
            most = bytes;
            forge(left.ids[i], left.states + left.from[i], bytes, middle, true);
        }
    }
    forge(0, left.rest, left.rest_bytes, middle, false);
    forge(0, left.rest, left.rest_bytes, middle, true);
    check(most > 90 && left.rest_bytes > 0 && forged_ok > 20 && forged_refused > 20);
}

static void bodies_that_cannot_be_are_refused(void) {
    const int64_t ids[1] = {100};
    const uint64_t starts[1] = {0}, sizes[1] = {1};
    ls_message_rows *p;

    check(ls_message_rows_new(0, 1, NULL, 0, 1, &p) == LS_OK);
    check(ls_message_rows_bodies(p, 0, -1) == LS_OPTION);
    check(ls_message_rows_bodies(p, UINT64_C(1) << 31, -1) == LS_OPTION);
    check(ls_message_rows_bodies(p, 10, -1) == LS_OK);
    check(ls_message_rows_seed_bodies(p, ids, starts, sizes, 1) == LS_OPTION);
    ls_message_rows_free(p);

    body_limit = 10;
    pass_over_all(rich);
    must(left.count > 0);
    check(ls_message_rows_new(LSN_MAX, LSN_MAX, NULL, 0, 1, &p) == LS_OK);
    check(seed_one(p, left.ids[0], left.states, left.from[1]) == LS_OK);
    check(ls_message_rows_bodies(p, 10, -1) == LS_WRONG_STATE);
    check(ls_message_rows_seed_bodies(p, (const int64_t[]){(int64_t)left.ids[0]}, starts, sizes, 1) == LS_OPTION);
    ls_message_rows_free(p);
}

/* Bodies that the file does not have: the pass says so. */
static void a_file_of_bodies_that_was_cut_short_is_reported(void) {
    vfs *system = vfs_sim_table(rich);
    const uint64_t starts[1] = {1 << 30}, sizes[1] = {5};
    ls_message_rows *p;
    ls_reader *reader;
    ls_columns *columns;
    static struct left none;
    size_t i = 0;
    int file, rc;

    body_limit = 10;
    pass_over_all(rich);
    while (get64(left.states + left.from[i] + 48) == 0)
        must(++i < left.count); /* the first that has content */
    file = bodies_file(system, &none);
    must(ls_reader_open(system, "/s", LSN_MAX, &reader) == LS_OK);
    must(ls_message_rows_new(LSN_MAX, LSN_MAX, NULL, 0, 1, &p) == LS_OK);
    must(ls_message_rows_bodies(p, 10, file) == LS_OK);
    must(seed_one(p, left.ids[i], left.states + left.from[i], left.from[i + 1] - left.from[i]) == LS_OK);
    must(ls_message_rows_seed_bodies(p, (const int64_t[]){(int64_t)left.ids[i]}, starts, sizes, 1) == LS_OK);
    do {
        rc = ls_message_rows_next(p, reader, &columns);
        ls_columns_free(columns);
    } while (rc == LS_OK);
    check(rc == LS_END && ls_message_rows_open(p, &columns) == LS_IO);
    ls_message_rows_free(p);
    ls_reader_close(reader);
    must(system->close(system, file) == 0);
}

static void the_column_is_there_only_if_bodies_were_asked_for(void) {
    int tables;

    check(strcmp(ls_message_rows_column(COLUMN_BODY, &tables), "body:binary") == 0);
    check(tables == (LS_MESSAGES_CLOSED | LS_MESSAGES_OPEN | LS_MESSAGES_BODY));
}

int main(void) {
    static void (*const tests[])(void) = {
        consecutive_passes_give_the_bodies_of_one_pass_wherever_the_log_is_divided,
        a_pass_with_bodies_without_memory_says_so,
        a_pass_with_bodies_reports_a_failed_call,
        a_forged_state_is_refused_or_used_without_harm,
        bodies_that_cannot_be_are_refused,
        a_file_of_bodies_that_was_cut_short_is_reported,
        the_column_is_there_only_if_bodies_were_asked_for,
        the_bodies_of_open_messages_are_the_contents_that_the_store_has,
    };
    static char buffer[4096];
    int result;

    (void)setvbuf(stdout, buffer, _IOLBF, sizeof buffer);
    whole = rows_new();
    make_rich(true);
    result = run_tests(tests, sizeof tests / sizeof *tests);
    free(whole.bytes);
    vfs_sim_free(rich);
    return result;
}
