/*
 * Every allocation and every file system call fails once, while a store with live state of every kind is opened, changed,
 * relocated and read: the call that fails returns an error and changes nothing, and the next open finds the same state.
 */
#include "tests/kit/scarcity.h"

/* A consumer's view: places and locks of all queues. The catalog has deleted queue 3, the log not yet. */
struct view {
    size_t count;
    ls_place places[400];
    size_t in_doubt;
};

static int open_rich(vfs *system) {
    static uint32_t queues[WIDE];
    size_t n = 0;
    int rc = ls_open(system, "/s", &usual, &r.store);

    for (uint32_t i = 0; i < WIDE; i++) {
        if (wide[i] != 3)
            queues[n++] = wide[i];
    }
    if (rc == LS_OK) {
        rc = ls_serve(r.store, queues, n, WIDE + 1);
        if (rc != LS_OK) {
            ls_error kept = *ls_last_error();

            ls_free(r.store);
            r.store = NULL;
            check(kept.code == rc);
        }
    }
    return rc;
}

static void look(struct view *view) {
    uint64_t ids[8];
    size_t n;

    memset(view, 0, sizeof *view);
    for (uint32_t q = 1; q <= WIDE; q++) {
        ls_cursor *c;

        if (q == 3)
            continue;
        check(ls_cursor_open(r.store, q, LS_CURSOR_ALL, &c) == LS_OK);
        check(ls_cursor_next(c, view->places + view->count, 400 - view->count, &n) == LS_OK);
        view->count += n;
        ls_cursor_close(c);
    }
    check(ls_in_doubt(r.store, ids, 8, &view->in_doubt) == LS_OK);
}

static bool views_are_same(const struct view *x, const struct view *y) {
    bool same = x->count == y->count && x->in_doubt == y->in_doubt;

    for (size_t i = 0; same && i < x->count; i++)
        same = x->places[i].id == y->places[i].id && x->places[i].locked == y->places[i].locked;
    return same;
}

static bool opens_to(vfs_sim *disk, const struct view *expected) {
    static struct view found;
    bool same;

    if (open_rich(vfs_sim_table(disk)) != LS_OK)
        return complain("it cannot be opened afterwards");
    look(&found);
    same = views_are_same(&found, expected);
    ls_free(r.store);
    r.store = NULL;
    return same;
}

/* ---- opening ---- */

static void whichever_call_of_an_open_fails_the_next_open_finds_the_same_state(void) {
    static const int errors[] = {EIO, ENOSPC, EMFILE, EINTR, ENOENT};
    static struct view expected;
    vfs_sim *disk = vfs_sim_clone(rich);
    uint64_t calls = 0;

    require(open_rich(vfs_sim_table(disk)) == LS_OK);
    look(&expected);
    check(expected.in_doubt == 1 && expected.count > WIDE + 15);
    ls_free(r.store);
    vfs_sim_free(disk);
    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
        for (uint64_t nth = 1;; nth++) {
            vfs_sim_plan p = {.nth = nth, .error = errors[e], .forever = errors[e] != EINTR && nth % 3 == 0};
            bool fired;
            int rc;

            disk = vfs_sim_clone(rich);
            vfs_sim_fail(disk, &p);
            rc = open_rich(vfs_sim_table(disk));
            fired = vfs_sim_fired(disk) > 0;
            if (rc == LS_OK)
                ls_free(r.store);
            r.store = NULL;
            check(vfs_sim_handles(disk) == 0);
            vfs_sim_fail(disk, NULL);
            /* a file that is listed and then missing may be reported as damage */
            check(rc == LS_OK || rc == LS_IO || rc == LS_FULL || rc == LS_OUTCOME_UNKNOWN || rc == LS_POISONED ||
                  (errors[e] == ENOENT && (rc == LS_CORRUPT || rc == LS_NOT_A_STORE)));
            if (!opens_to(disk, &expected)) {
                printf("error %d at call %llu\n", errors[e], (unsigned long long)nth);
                check(false);
            }
            vfs_sim_free(disk);
            if (!fired)
                break;
            calls++;
        }
    }
    check(calls > 60);
}

static void an_open_without_memory_says_so_and_the_next_open_finds_the_same_state(void) {
    static struct view expected;
    vfs_sim *disk = vfs_sim_clone(rich);

    require(open_rich(vfs_sim_table(disk)) == LS_OK);
    look(&expected);
    ls_free(r.store);
    vfs_sim_free(disk);
    for (int forever = 0; TAKEN_OVER && forever < 2; forever++) {
        for (uint64_t nth = 1;; nth += forever ? 3 : 1) {
            int rc;

            disk = vfs_sim_clone(rich);
            allocations = failed = 0;
            fail_at_nth = nth;
            for_ever = forever != 0;
            counting = true;
            rc = open_rich(quiet_table(disk));
            counting = false;
            /* LS_OK although an allocation failed: the report may then lack a name */
            if (rc != LS_OK && (failed == 0 || (rc != LS_NO_MEMORY && rc != LS_FULL))) {
                printf("allocation %llu, for ever %d: %d %s\n", (unsigned long long)nth, forever, rc,
                       ls_last_error()->text);
                check(false);
            }
            if (rc == LS_OK)
                ls_free(r.store);
            r.store = NULL;
            check(vfs_sim_handles(disk) == 0);
            if (!opens_to(disk, &expected)) {
                printf("allocation %llu\n", (unsigned long long)nth);
                check(false);
            }
            vfs_sim_free(disk);
            if (failed == 0)
                break;
        }
        check(fail_at_nth > 60);
    }
}

static void damage_met_by_a_read_or_a_relocation_is_reported_and_has_no_other_effect(void);

/* ---- working ---- */

/* Each operation alone; it must return LS_NO_MEMORY or succeed. */
static int op_publish(ls_tx *tx) {
    uint64_t id;
    return ls_publish(r.store, wide + 4, 8, NULL, 0, large, 50, tx, 0, &id);
}
static int op_publish_many(ls_tx *tx) {
    static uint64_t sizes[700], ids[700];
    size_t n = 0, there = 0;
    int rc = ls_publish_many(r.store, wide[4], 700, large, sizes, NULL, NULL, NULL, tx, LS_MORE, ids, &n);
    ls_message_info info;

    for (size_t i = 0; i < n; i++)
        there += ls_message(r.store, ids[i], &info) == LS_OK;
    check(there == n && (n == 700) == (rc == LS_OK) && (rc == LS_OK || ids[n] == 0));
    return rc;
}
static int op_publish_large(ls_tx *tx) {
    uint64_t id = 1;
    int rc = ls_publish(r.store, wide + 4, 8, NULL, 0, large, 9000, tx, 0, &id);

    check(rc == LS_OK || id == 0);
    return rc;
}
static int op_stage(ls_tx *tx) {
    uint64_t id;
    return (void)tx, ls_stage(r.store, NULL, 0, large, sizeof large, 0, &id);
}
static int op_enqueue(ls_tx *tx) {
    static const uint32_t more[] = {30, 31, 32};
    uint64_t id, lsn;
    int rc = ls_stage(r.store, NULL, 0, large, 10, 0, &id);

    return rc != LS_OK ? rc : ls_enqueue(r.store, id, more, 3, tx, 0, &lsn);
}
static int op_dequeue(ls_tx *tx) {
    uint64_t lsn;
    return ls_dequeue(r.store, wide_id, 20, tx, 0, 0, 0, &lsn);
}
static int op_begin_and_commit(ls_tx *tx) {
    ls_tx *mine;
    uint64_t id;
    int rc = ls_begin(r.store, NULL, &mine);

    (void)tx;
    if (rc != LS_OK)
        return rc;
    for (int i = 0; rc == LS_OK && i < 3; i++)
        rc = ls_publish(r.store, wide + 6, 20, NULL, 0, large, 10, mine, 0, &id);
    if (rc == LS_OK)
        rc = ls_dequeue(r.store, id, 8, mine, 0, 0, 0, &id);
    if (rc == LS_OK)
        rc = ls_commit(mine, 0);
    ls_tx_free(mine);
    return rc;
}
static int op_cursor(ls_tx *tx) {
    ls_cursor *c;
    int rc = ls_cursor_open(r.store, 1, LS_CURSOR_OFFER, &c);

    (void)tx;
    ls_cursor_close(c);
    return rc;
}
/* Without memory nothing is acquired; giving places back needs no memory. */
static int op_acquire(ls_tx *tx) {
    ls_delivery got[30];
    size_t n, again;
    ls_queue_counts counts;
    int rc = ls_acquire(r.store, 2, got, 30, 0, &n);

    (void)tx;
    check(ls_queue_counts_get(r.store, 2, &counts) == LS_OK && counts.acquired == n && (n > 0) == (rc == LS_OK));
    if (rc == LS_OK)
        rc = ls_release(r.store, 2, got, n, 0);
    counting = false;
    check(rc == LS_NO_MEMORY || (ls_acquire(r.store, 2, got, 30, 0, &again) == LS_OK && again == n));
    return rc;
}
static int op_queue(ls_tx *tx) { return (void)tx, ls_queue_add(r.store, 1000); }
static int op_queues(ls_tx *tx) {
    int rc = LS_OK;

    (void)tx;
    for (uint32_t q = 2000; rc == LS_OK && q < 2200; q++)
        rc = ls_queue_add(r.store, q);
    return rc;
}
static int op_doubt(ls_tx *tx) {
    uint64_t id;
    size_t n;
    ls_tx *taken;
    int rc = ls_in_doubt(r.store, &id, 1, &n);

    (void)tx;
    rc = rc == LS_OK ? ls_in_doubt_take(r.store, id, &taken) : rc;
    if (rc == LS_OK) {
        rc = ls_commit(taken, 0);
        ls_tx_free(taken);
    }
    return rc;
}
static int op_read(ls_tx *tx) {
    static uint8_t into[sizeof large];
    size_t n;
    int rc = ls_load_content(r.store, large_id, 0, into, sizeof into, &n);

    (void)tx;
    check(rc != LS_OK || (n == sizeof large && memcmp(into, large, n) == 0));
    return rc;
}
static int op_reader(ls_tx *tx) {
    ls_reader *reader;
    ls_batch b;
    int rc = ls_reader_open(r.v, "/s", 0, &reader);

    (void)tx;
    while (rc == LS_OK)
        rc = ls_reader_next(reader, &b);
    ls_reader_close(reader);
    return rc == LS_END ? LS_OK : rc;
}
static int op_new_store(ls_tx *tx) {
    ls_store *other;
    int rc = ls_open(r.v, "/another", &usual, &other);

    (void)tx;
    rc = rc == LS_OK ? ls_serve(other, wide, 1, 2) : rc;
    ls_free(other);
    return rc;
}
/* Fills enough segments that all live state is relocated: publishes may be refused, dequeues may not. */
static int op_churn(ls_tx *tx) {
    (void)tx;
    for (int i = 0; i < 90; i++) {
        uint64_t id, lsn;
        int rc = ls_publish(r.store, wide, 1, NULL, 0, large, 3900, NULL, 0, &id);

        rc = rc == LS_OK ? ls_dequeue(r.store, id, 1, NULL, 0, 0, i % 4 == 0 ? LS_WAIT : 0, &lsn) : rc;
        if (rc != LS_OK)
            return rc;
    }
    return move_base(r.store);
}

static int op_checkpoint(ls_tx *tx) {
    ls_recovery report;
    int rc = ls_checkpoint(r.store, NULL);

    (void)tx;
    ls_recovery_report(r.store, &report);
    check((report.checkpoint_state == LS_CHECKPOINT_USED) == checkpointed);
    return rc;
}

static const struct {
    const char *name;
    int (*run)(ls_tx *tx);
    bool in_transaction;
    uint64_t step;
} works[] = {
    {"publish", op_publish, false, 1},
    {"publish in a transaction", op_publish, true, 1},
    {"many published", op_publish_many, false, 1},
    {"many published in a transaction", op_publish_many, true, 41},
    {"a large publish", op_publish_large, false, 1},
    {"a large publish in a transaction", op_publish_large, true, 1},
    {"stage", op_stage, false, 1},
    {"enqueue", op_enqueue, false, 1},
    {"enqueue in a transaction", op_enqueue, true, 1},
    {"dequeue", op_dequeue, false, 1},
    {"dequeue in a transaction", op_dequeue, true, 1},
    {"begin and commit", op_begin_and_commit, false, 1},
    {"cursor", op_cursor, false, 1},
    {"acquire", op_acquire, false, 1},
    {"queue", op_queue, false, 1},
    {"queues", op_queues, false, 7},
    {"in doubt", op_doubt, false, 1},
    {"read", op_read, false, 1},
    {"reader", op_reader, false, 1},
    {"a new store", op_new_store, false, 1},
    {"moves", op_churn, false, 1},
    {"checkpoint", op_checkpoint, false, 1},
};
enum { WORKS = sizeof works / sizeof *works };

/* The store can then be closed, opened and changed. */
static bool goes_on_after(vfs_sim *disk) {
    static struct view view;
    bool right;

    if (r.store != NULL)
        ls_free(r.store);
    r.store = NULL;
    r.v = vfs_sim_table(disk);
    if (open_rich(r.v) != LS_OK)
        return complain("it cannot be opened afterwards");
    look(&view);
    right = view.count >= 15 && op_read(NULL) == LS_OK && op_publish(NULL) == LS_OK && op_churn(NULL) == LS_OK;
    ls_free(r.store);
    r.store = NULL;
    return right && vfs_sim_handles(disk) == 0;
}

static void work_without_memory_is_refused_and_nothing_is_poisoned(void) {
    for (size_t w = 0; TAKEN_OVER && w < WORKS; w++) {
        for (uint64_t nth = 1;; nth += works[w].step) {
            vfs_sim *disk = vfs_sim_clone(rich);
            ls_tx *tx = NULL;
            int rc;

            counting = false;
            r.v = quiet_table(disk);
            require(open_rich(r.v) == LS_OK);
            check(!works[w].in_transaction || ls_begin(r.store, NULL, &tx) == LS_OK);
            allocations = failed = 0;
            fail_at_nth = nth;
            for_ever = nth % 3 == 0;
            counting = true;
            rc = works[w].run(tx);
            counting = false;
            if ((failed == 0 && rc != LS_OK) || (failed > 0 && rc != LS_OK && rc != LS_NO_MEMORY && rc != LS_FULL) ||
                ls_poisoned(r.store) != 0) {
                printf("%s, allocation %llu: %d %s\n", works[w].name, (unsigned long long)nth, rc,
                       ls_last_error()->text);
                check(false);
            }
            ls_tx_free(tx);
            check(goes_on_after(disk));
            vfs_sim_free(disk);
            if (failed == 0)
                break;
        }
    }
}

/* A creation that fails returns an error and can be repeated: it never looks like damage. */
static void a_creation_that_fails_anywhere_can_be_tried_again(void) {
    static const int errors[] = {EIO, ENOSPC, EACCES, EMFILE};

    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
        for (uint64_t nth = 1;; nth++) {
            vfs_sim_plan p = {.nth = nth, .error = errors[e], .forever = nth % 2 == 0};
            vfs_sim *disk = vfs_sim_new();
            bool fired;
            int rc;

            r.v = vfs_sim_table(disk);
            vfs_sim_fail(disk, &p);
            rc = op_new_store(NULL);
            fired = vfs_sim_fired(disk) > 0;
            vfs_sim_fail(disk, NULL);
            check(rc == LS_OK || rc == LS_IO || rc == LS_FULL || rc == LS_OUTCOME_UNKNOWN || rc == LS_POISONED);
            check(vfs_sim_handles(disk) == 0 && (op_new_store(NULL) == LS_OK || complain("the second try")));
            vfs_sim_free(disk);
            if (!fired)
                break;
        }
    }
}

/* Without any relocation, so that replay meets every record type. */
static void the_same_holds_before_any_relocation(void) {
    make_rich(false);
    an_open_without_memory_says_so_and_the_next_open_finds_the_same_state();
    work_without_memory_is_refused_and_nothing_is_poisoned();
    damage_met_by_a_read_or_a_relocation_is_reported_and_has_no_other_effect();
}

static void the_same_holds_with_a_checkpoint(void) {
    checkpointed = true;
    make_rich(true);
    whichever_call_of_an_open_fails_the_next_open_finds_the_same_state();
    an_open_without_memory_says_so_and_the_next_open_finds_the_same_state();
    work_without_memory_is_refused_and_nothing_is_poisoned();
    checkpointed = false;
}

static void after_a_failed_call_an_operation_is_refused_or_succeeds(void) {
    static const int kinds[] = {VFS_SIM_PREAD,  VFS_SIM_OPEN,     VFS_SIM_RENAME,   VFS_SIM_ALLOCATE,
                                VFS_SIM_UNLINK, VFS_SIM_ALLOCATE, VFS_SIM_ALLOCATE, VFS_SIM_ALLOCATE};
    static const int errors[] = {EIO, EMFILE, EIO, ENOSPC, EIO, EDQUOT, EFBIG, EOPNOTSUPP};

    for (size_t w = WORKS - 6; w < WORKS; w++) { /* in doubt, read, reader, a new store, moves, checkpoint */
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            for (uint64_t nth = 1;; nth += 1 + nth / 16) {
                vfs_sim_plan p = {.kind = kinds[k], .nth = nth, .error = errors[k], .forever = nth % 4 == 0};
                vfs_sim *disk = vfs_sim_clone(rich);
                bool fired;
                int rc;

                r.v = vfs_sim_table(disk);
                require(open_rich(r.v) == LS_OK);
                vfs_sim_fail(disk, &p);
                rc = works[w].run(NULL);
                fired = vfs_sim_fired(disk) > 0;
                vfs_sim_fail(disk, NULL);
                if ((rc != LS_OK && rc != LS_IO && rc != LS_FULL && rc != LS_LOCKED /* a reader without a hint */) ||
                    ls_poisoned(r.store) != 0) {
                    printf("%s, call %llu of kind %d: %d %s\n", works[w].name, (unsigned long long)nth, kinds[k], rc,
                           ls_last_error()->text);
                    check(false);
                }
                check(goes_on_after(disk));
                vfs_sim_free(disk);
                if (!fired)
                    break;
            }
        }
    }
}

/* Damaged records that a relocation or a read meets. */
static void damage_met_by_a_read_or_a_relocation_is_reported_and_has_no_other_effect(void) {
    for (uint32_t at = BLOCK + 40; at < SEGMENT; at += 379) {
        vfs_sim *disk = vfs_sim_clone(rich);
        ls_segment_info segments[64];
        static uint8_t image[SEGMENT];
        size_t n;
        int rc;

        r.v = vfs_sim_table(disk);
        require(open_rich(r.v) == LS_OK && ls_segments(r.store, segments, 64, &n) == LS_OK && n <= 64);
        for (size_t i = 0; i + 1 < n; i++) {
            char name[SEGMENT_NAME_BYTES];

            format_segment_name(name, segments[i].first_lsn);
            check(vfs_sim_get(disk, VFS_SIM_SEEN, "/s", name, image, sizeof image) == SEGMENT);
            image[at] ^= 0x20;
            check(vfs_sim_put(disk, "/s", name, image, sizeof image) == 0);
        }
        rc = op_read(NULL);
        check(rc == LS_OK || rc == LS_CORRUPT);
        rc = op_churn(NULL);
        check(rc == LS_OK || rc == LS_FULL || rc == LS_CORRUPT);
        check(ls_poisoned(r.store) == 0 && ls_close(r.store) == LS_OK);
        ls_free(r.store);
        r.store = NULL;
        vfs_sim_free(disk);
    }
}

int main(void) {
    static void (*const tests[])(void) = {
        whichever_call_of_an_open_fails_the_next_open_finds_the_same_state,
        an_open_without_memory_says_so_and_the_next_open_finds_the_same_state,
        work_without_memory_is_refused_and_nothing_is_poisoned,
        after_a_failed_call_an_operation_is_refused_or_succeeds,
        damage_met_by_a_read_or_a_relocation_is_reported_and_has_no_other_effect,
        a_creation_that_fails_anywhere_can_be_tried_again,
        the_same_holds_before_any_relocation,
        the_same_holds_with_a_checkpoint,
    };
    static char buffer[4096];
    int result;

    (void)setvbuf(stdout, buffer, _IOLBF, sizeof buffer);
    make_rich(true);
    result = run_tests(tests, sizeof tests / sizeof *tests);
    vfs_sim_free(rich);
    return result;
}
