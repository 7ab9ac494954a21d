/*
 * Messages as rows: the open messages after a pass are the live ones of the store; consecutive passes give the same rows as
 * one pass, wherever the log is divided; failures are reported; a forged state is refused or used without harm.
 */
#include "tests/kit/message_passes.h"

/* ---- the promises ---- */

static void consecutive_passes_give_the_rows_of_one_pass_wherever_the_log_is_divided(void) {
    pass_over_all(rich);
    check(whole.rows > 15 || !printf("%llu rows\n", (unsigned long long)whole.rows));
    for (size_t i = 0; i < lsn_count; i++)
        cut_at(rich, lsns[i], 1 + i % 70);
}

/* The table that the store itself keeps is the witness. */
static void the_open_messages_after_a_pass_are_the_live_ones_of_the_store(void) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        const vfs_sim_loss loss = {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT};
        struct told_rows t = rows_new();
        ls_stats stats;
        vfs_sim *disk;

        fresh();
        r.chance = seed;
        run_some(&r, 500);
        must(!r.lost);
        (void)put(1, "so that a batch says which epoch it is", NULL);
        ls_stats_get(r.store, &stats);
        disk = vfs_sim_crash(sim, &loss);
        must(disk != NULL);
        check(pass_over(vfs_sim_table(disk), 0, LSN_MAX, 50, NULL, &t, &left) == LS_END || complain("a pass"));
        check(left.count == stats.messages || !printf("seed %llu: %zu open, %llu live\n", (unsigned long long)seed,
                                                      left.count, (unsigned long long)stats.messages));
        for (size_t i = 0; i < left.count; i++) {
            const uint8_t *state = left.states + left.from[i];
            uint32_t places = 0, all = get32(state + 88);
            ls_message_info info = {0};

            for (uint32_t k = 0; k < all; k++)
                places += state[96 + 64 * k + 63] == PLACE_OPEN ? 1 : 0;
            check(ls_message(r.store, left.ids[i], &info) == LS_OK || complain("not there"));
            check(places == info.places && get32(state + 92) == info.pending &&
                  get64(state + 48) == info.content_bytes);
            check((get32(state + 72) & LIFE_ENQUEUED) == (info.staged != 0 ? 0U : LIFE_ENQUEUED));
        }
        if (seed <= 5) {
            pass_over_all(disk);
            for (size_t i = 0; i < lsn_count; i += 1 + lsn_count / 100)
                cut_at(disk, lsns[i], 64);
        }
        free(t.bytes);
        vfs_sim_free(disk);
        for (int i = 0; i < TXS; i++)
            forget_handle(&r, i);
        done();
    }
}

static void a_pass_without_memory_says_so_and_ends_nothing_twice(void) {
    uint64_t middle;

    pass_over_all(rich);
    middle = lsns[lsn_count / 2];
    check(pass_over(vfs_sim_table(rich), 0, middle, 64, NULL, &(struct told_rows){.bytes = whole.bytes + whole.size},
                    &left) == LS_END);
    starve_from(middle);
    check(!TAKEN_OVER || fail_at_nth > 50);
}

static void a_pass_reports_a_failed_call(void) {
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
    uint64_t middle;
    size_t most = 0;

    pass_over_all(rich);
    middle = lsns[lsn_count * 3 / 4];
    check(pass_over(vfs_sim_table(rich), 0, middle, 64, NULL, &(struct told_rows){.bytes = whole.bytes + whole.size},
                    &left) == LS_END);
    for (size_t i = 0; i < left.count; i++) {
        size_t bytes = left.from[i + 1] - left.from[i];

        if (bytes > most && bytes < 600) { /* one of each size, with places and with work */
            most = bytes;
            forge(left.ids[i], left.states + left.from[i], bytes, middle, false);
            forge(left.ids[i], left.states + left.from[i], bytes, middle, true);
        }
    }
    check(most > 200 && left.rest_bytes > 0);
    forge(0, left.rest, left.rest_bytes, middle, false);
    forge(0, left.rest, left.rest_bytes, middle, true);
    check(forged_ok > 20 && forged_refused > 20);
}

static void impossible_options_are_refused(void) {
    ls_message_rows *p;
    ls_columns *columns;

    check(ls_message_rows_new(2, 1, NULL, 0, 1, &p) == LS_OPTION && p == NULL);
    check(ls_message_rows_new(0, LSN_MAX + 1, NULL, 0, 1, &p) == LS_OPTION);
    check(ls_message_rows_new(0, 1, NULL, 0, 0, &p) == LS_OPTION);
    check(ls_message_rows_new(0, 1, NULL, 0, LS_MESSAGE_ROWS_MAX + 1, &p) == LS_OPTION);
    check(ls_message_rows_new(0, 1, NULL, 0, 1, &p) == LS_OK);
    check(ls_message_rows_open(p, &columns) == LS_WRONG_STATE && columns == NULL);
    ls_message_rows_free(p);
    ls_message_rows_free(NULL);
}

static void the_same_holds_before_any_relocation(void) {
    make_rich(false);
    consecutive_passes_give_the_rows_of_one_pass_wherever_the_log_is_divided();
}

static void the_columns_of_places_stand_behind_all_others(void) {
    int tables;

    for (unsigned i = 0; i < LS_MESSAGE_COLUMNS; i++) {
        check(ls_message_rows_column(i, &tables) != NULL);
        check((tables == LS_MESSAGES_PLACE) == (i >= FIRST_OF_PLACES));
    }
    check(strcmp(ls_message_rows_column(COLUMN_STATE, &tables), "state:binary!") == 0 && tables == LS_MESSAGES_OPEN);
    check(ls_message_rows_column(LS_MESSAGE_COLUMNS, &tables) == NULL && tables == 0);
}

int main(void) {
    static void (*const tests[])(void) = {
        consecutive_passes_give_the_rows_of_one_pass_wherever_the_log_is_divided,
        a_pass_without_memory_says_so_and_ends_nothing_twice,
        a_pass_reports_a_failed_call,
        a_forged_state_is_refused_or_used_without_harm,
        impossible_options_are_refused,
        the_columns_of_places_stand_behind_all_others,
        the_same_holds_before_any_relocation,
        the_open_messages_after_a_pass_are_the_live_ones_of_the_store,
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
