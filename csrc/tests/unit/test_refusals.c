/*
 * Every call of the public API on a store that is closed, poisoned, or opened by the parent of a forked child. The call
 * returns the code for that and changes nothing, and every handle can be freed.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "store/store.h"
#include "tests/kit/one_store.h"

/* The arguments of the calls, made while the store was usable. */
static ls_tx *tx, *ended;
static ls_cursor *cursor;
static uint64_t id, staged, prepared;

static const uint32_t one = 1;
static uint8_t bytes[16];
static uint64_t lsn, ids[2];
static size_t count;

static int c_publish(ls_store *s) { return ls_publish(s, &one, 1, NULL, 0, bytes, 1, NULL, LS_WAIT, &lsn); }
static int c_publish_many(ls_store *s) {
    static const uint64_t sizes[] = {1, 1};
    return ls_publish_many(s, 1, 2, bytes, sizes, NULL, NULL, NULL, NULL, LS_WAIT, ids, &count);
}
static int c_stage(ls_store *s) { return ls_stage(s, NULL, 0, bytes, 1, LS_WAIT, &lsn); }
static int c_append(ls_store *s) { return ls_append_content(s, staged, bytes, 1, LS_WAIT); }
static int c_enqueue(ls_store *s) { return ls_enqueue(s, staged, &one, 1, NULL, LS_WAIT, &lsn); }
static int c_dequeue(ls_store *s) { return ls_dequeue(s, id, 1, NULL, 0, 0, LS_WAIT, &lsn); }
static int c_dequeue_many(ls_store *s) { return ls_dequeue_many(s, &id, 1, 1, NULL, 0, LS_WAIT, &count); }
static int c_destroy(ls_store *s) { return ls_destroy(s, staged, LS_WAIT); }
static int c_queue_delete(ls_store *s) { return ls_queue_delete(s, 4, LS_WAIT); }
static int c_begin(ls_store *s) {
    ls_tx *made = (ls_tx *)&count;
    int rc = ls_begin(s, NULL, &made);

    check((made != NULL) == (rc == LS_OK));
    ls_tx_free(made);
    return rc;
}
static int c_end(ls_store *s) { return (void)s, ls_tx_end(tx); }
static int c_prepare(ls_store *s) { return (void)s, ls_prepare(ended, LS_WAIT); }
static int c_commit(ls_store *s) { return (void)s, ls_commit(ended, LS_WAIT); }
static int c_rollback(ls_store *s) { return (void)s, ls_rollback(ended, LS_WAIT); }
static int c_queue_add(ls_store *s) { return ls_queue_add(s, 5); }
static int c_depth(ls_store *s) { return ls_queue_depth(s, 1, ids, &lsn); }
static int c_acquisitions(ls_store *s) {
    ls_acquisition one;
    uint64_t from = 0;
    size_t n;

    return ls_acquisitions(s, 1, &from, &one, 1, &n);
}
static int c_enqueued(ls_store *s) { return ls_enqueued_us(s, 1, id, 0, &lsn); }
static int c_counts(ls_store *s) {
    ls_queue_counts counts;

    return ls_queue_counts_get(s, 1, &counts);
}
static int c_message(ls_store *s) {
    ls_message_info info;
    return ls_message(s, id, &info);
}
static int c_load_header(ls_store *s) { return ls_load_header(s, id, bytes, 1, &count); }
static int c_load_content(ls_store *s) { return ls_load_content(s, id, 0, bytes, 1, &count); }
static int c_cursor_open(ls_store *s) {
    ls_cursor *made = NULL;
    int rc = ls_cursor_open(s, 1, LS_CURSOR_ALL, &made);

    ls_cursor_close(made);
    return rc;
}
static int c_cursor_next(ls_store *s) {
    ls_place place;
    return (void)s, ls_cursor_next(cursor, &place, 1, &count);
}
static int c_places_check(ls_store *s) { return ls_places_check(s, 1, &id, &lsn, 1, bytes); }
static int c_in_doubt(ls_store *s) { return ls_in_doubt(s, ids, 2, &count); }
static int c_in_doubt_take(ls_store *s) {
    ls_tx *taken = NULL;
    int rc = ls_in_doubt_take(s, prepared, &taken);

    ls_tx_free(taken);
    return rc;
}
static int c_force(ls_store *s) { return ls_force(s, 0); }
static int c_flush_soon(ls_store *s) { return ls_flush_soon(s); }
static int c_event_fd(ls_store *s) {
    int fd;
    return ls_event_fd(s, &fd);
}
static int c_segments(ls_store *s) {
    ls_segment_info info;
    return ls_segments(s, &info, 1, &count);
}

static const struct call {
    const char *name;
    int (*make)(ls_store *s);
    bool writes;
} calls[] = {
    {"ls_publish", c_publish, true},
    {"ls_publish_many", c_publish_many, true},
    {"ls_stage", c_stage, true},
    {"ls_append_content", c_append, true},
    {"ls_enqueue", c_enqueue, true},
    {"ls_dequeue", c_dequeue, true},
    {"ls_dequeue_many", c_dequeue_many, true},
    {"ls_destroy", c_destroy, true},
    {"ls_queue_delete", c_queue_delete, true},
    {"ls_begin", c_begin, true},
    {"ls_tx_end", c_end, true},
    {"ls_prepare", c_prepare, true},
    {"ls_commit", c_commit, true},
    {"ls_rollback", c_rollback, true},
    {"ls_force", c_force, true},
    {"ls_queue_add", c_queue_add, false},
    {"ls_queue_depth", c_depth, false},
    {"ls_queue_counts_get", c_counts, false},
    {"ls_enqueued_us", c_enqueued, false},
    {"ls_acquisitions", c_acquisitions, false},
    {"ls_message", c_message, false},
    {"ls_load_header", c_load_header, false},
    {"ls_load_content", c_load_content, false},
    {"ls_cursor_open", c_cursor_open, false},
    {"ls_cursor_next", c_cursor_next, false},
    {"ls_places_check", c_places_check, false},
    {"ls_in_doubt", c_in_doubt, false},
    {"ls_in_doubt_take", c_in_doubt_take, false},
    {"ls_flush_soon", c_flush_soon, false},
    {"ls_event_fd", c_event_fd, false},
    {"ls_segments", c_segments, false},
};
enum { CALLS = sizeof calls / sizeof *calls };

static ls_tx *begin_ended(const char *name, bool prepare) {
    ls_xid xid = {.format_id = 1, .gtrid_bytes = 4};
    ls_tx *made = NULL;

    memcpy(xid.data, name, 4);
    check(ls_begin(r.store, &xid, &made) == LS_OK && ls_tx_end(made) == LS_OK);
    check(!prepare || ls_prepare(made, LS_WAIT) == LS_OK);
    return made;
}

static void make_things(void) {
    ls_xid xid = {.format_id = 1, .gtrid_bytes = 4, .data = "open"};
    ls_tx_info info;
    ls_tx *doubt;

    id = put(1, "content", NULL);
    check(ls_stage(r.store, NULL, 0, bytes, 1, 0, &staged) == LS_OK);
    check(ls_begin(r.store, &xid, &tx) == LS_OK);
    ended = begin_ended("ende", false);
    doubt = begin_ended("prep", true);
    ls_tx_describe(doubt, &info);
    prepared = info.id;
    ls_tx_free(doubt);
    check(ls_cursor_open(r.store, 1, LS_CURSOR_ALL, &cursor) == LS_OK);
}

static void free_things(void) {
    ls_cursor_close(cursor);
    ls_tx_free(tx);
    ls_tx_free(ended);
}

static void every_call_serves_while_the_store_is_well(void) {
    for (int i = 0; i < CALLS; i++) {
        int rc;

        fresh();
        make_things();
        rc = calls[i].make(r.store);
        if (rc != LS_OK)
            printf("%s: %d %s\n", calls[i].name, rc, ls_last_error()->text);
        check(rc == LS_OK);
        free_things();
        done();
    }
}

static void every_call_on_a_closed_store_says_that_it_is_closed(void) {
    ls_tx_info info;
    uint64_t changes;

    fresh();
    make_things();
    check(ls_close(r.store) == LS_OK);
    changes = vfs_sim_changes(sim);
    for (int i = 0; i < CALLS; i++) {
        int rc = calls[i].make(r.store);

        if (rc != LS_CLOSED || ls_last_error()->code != LS_CLOSED)
            printf("%s: %d\n", calls[i].name, rc);
        check(rc == LS_CLOSED && ls_last_error()->code == LS_CLOSED);
    }
    ls_tx_describe(tx, &info); /* what was known last */
    check(info.distributed && info.state == LS_TX_ACTIVE && info.xid.gtrid_bytes == 4);
    check(vfs_sim_changes(sim) == changes && ls_base_lsn(r.store) > 0 && !ls_creating(r.store));
    check(ls_serve(r.store, &one, 1, 2) == LS_CLOSED);
    free_things();
    done();
}

static void a_poisoned_store_refuses_changes_and_allows_reads(void) {
    vfs_sim_plan p = {.kind = VFS_SIM_SYNC_DATA, .nth = 1, .error = EIO};
    uint64_t changes;

    fresh();
    make_things();
    vfs_sim_fail(sim, &p);
    check(c_publish(r.store) == LS_OUTCOME_UNKNOWN && ls_poisoned(r.store) == EIO);
    vfs_sim_fail(sim, NULL);
    changes = vfs_sim_changes(sim);
    for (int i = 0; i < CALLS; i++) {
        int rc = calls[i].make(r.store);
        bool right = !calls[i].writes ? rc == LS_OK : rc == LS_POISONED || rc == LS_OUTCOME_UNKNOWN;

        if (!right)
            printf("%s: %d %s\n", calls[i].name, rc, ls_last_error()->text);
        check(right);
    }
    check(vfs_sim_changes(sim) == changes && has(id) && !has(lsn));
    free_things();
    check(ls_close(r.store) == LS_OK);
    done();
}

/* In the child: its own verdict as an exit status. */
static int all_are_foreign(void) {
    ls_tx_info info;
    ls_stats stats;
    int wrong = 0;

    for (int i = 0; i < CALLS; i++) {
        int rc = calls[i].make(r.store);

        if (rc != LS_FORKED) {
            printf("in the child, %s: %d\n", calls[i].name, rc);
            wrong++;
        }
    }
    ls_tx_describe(tx, &info);
    ls_stats_get(r.store, &stats);
    wrong += info.id == 0 || stats.messages != 0;
    wrong += ls_base_lsn(r.store) != 0 || ls_next_lsn(r.store) != 0 || ls_poisoned(r.store) != 0;
    wrong += ls_close(r.store) != LS_OK;
    free_things();
    ls_free(r.store);
    return wrong;
}

/* Whether another thread of the parent was in the middle of a call at the fork, or none. */
static void fork_with(bool in_a_call) {
    char path[] = "/tmp/logstore-test-XXXXXX", command[64];
    ls_store *second = NULL;
    int status = -1;
    pid_t child;

    require(mkdtemp(path) != NULL);
    memset(&r, 0, sizeof r);
    r.v = vfs_posix();
    r.path = path;
    run_start(&r, NULL, 1);
    require(!r.lost);
    make_things();
    (void)fflush(stdout);
    if (in_a_call)
        log_lock(r.store->log);
    child = fork();
    if (child == 0) {
        (void)alarm(100); /* a child that hangs is a failure, not a test that never ends */
        exit(all_are_foreign() + failures_here > 0);
    }
    if (in_a_call)
        log_unlock(r.store->log);
    require(child > 0 && waitpid(child, &status, 0) == child);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    check(open_store(&r, r.v, r.catalog, QUEUES + 1, &second) == LS_LOCKED); /* the child took no lock along */
    check(has(id) && c_publish(r.store) == LS_OK && ls_commit(ended, LS_WAIT) == LS_OK);
    free_things();
    check(ls_close(r.store) == LS_OK);
    ls_free(r.store);
    check(open_store(&r, r.v, r.catalog, QUEUES + 1, &r.store) == LS_OK && has(id));
    ls_free(r.store);
    (void)snprintf(command, sizeof command, "rm -rf %s", path);
    check(system(command) == 0);
}

static void a_forked_child_may_only_free_and_takes_nothing_from_its_parent(void) { fork_with(false); }

static void a_child_of_a_fork_in_the_middle_of_a_call_does_not_wait_for_it(void) { fork_with(true); }

/* A handle may outlive its store: a garbage collector frees in any order. */
static void handles_may_be_freed_after_their_store(void) {
    fresh();
    make_things();
    ls_free(r.store);
    r.store = NULL;
    check(c_commit(NULL) == LS_CLOSED);
    free_things();
    ls_free(NULL);
    ls_tx_free(NULL);
    ls_cursor_close(NULL);
    done();
}

static void a_store_that_is_not_yet_served_answers_that_it_is_closed(void) {
    ls_store *s;

    fresh();
    check(ls_close(r.store) == LS_OK);
    ls_free(r.store);
    r.store = NULL;
    require(ls_open(r.v, "/s", &r.options, &s) == LS_OK);
    check(!ls_creating(s) && c_publish(s) == LS_CLOSED && ls_force(s, 0) == LS_CLOSED);
    ls_free(s);
    require(ls_open(r.v, "/new", &r.options, &s) == LS_OK);
    check(ls_creating(s) && c_publish(s) == LS_CLOSED);
    check(ls_serve(s, &one, 1, 2) == LS_OK && !ls_creating(s) && ls_serve(s, &one, 1, 2) == LS_CLOSED);
    check(c_publish(s) == LS_OK);
    ls_free(s);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        every_call_serves_while_the_store_is_well,
        every_call_on_a_closed_store_says_that_it_is_closed,
        a_poisoned_store_refuses_changes_and_allows_reads,
        a_forked_child_may_only_free_and_takes_nothing_from_its_parent,
        a_child_of_a_fork_in_the_middle_of_a_call_does_not_wait_for_it,
        handles_may_be_freed_after_their_store,
        a_store_that_is_not_yet_served_answers_that_it_is_closed,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
