/*
 * Operations of another caller at each moment at which a relocation or a read has released the lock: a message is dequeued,
 * enqueued, lengthened, its queue is deleted, a transaction gets its outcome. The relocation uses the state after that, the
 * read gives the whole content or LS_UNKNOWN_MESSAGE, and the next open finds the same state.
 *
 * There are no threads: the other caller's operation runs inside a file system call. Moments at which it would have to wait
 * for the relocation itself are left out.
 */
#include "log/parts.h"
#include "store/store.h"
#include "tests/kit/one_store.h"

enum { LAST_QUEUE = 400, FIRST_WIDE = 10, WIDE_QUEUES = 150, SMALL = 24, CHURN = 110 };

static vfs table;
static vfs *real;
static vfs_sim *rich;
static const ls_options usual = {.segment_size = SEGMENT, .create = 1, .initial_segments = 2, .max_write_buffers = 10};

/* ---- the moments ---- */

static struct {
    void (*work)(void);
    uint64_t nth, seen;
    bool ever_again; /* and at every moment after it */
    bool in_reads;   /* also during reads, not only while a segment moves */
    bool at_work;
} other;

/* The other caller's operation needs nothing that the interrupted call has reserved. */
static bool can_work(void) {
    struct log *g = r.store->log;
    const struct segment *head;
    bool can;

    if (pthread_mutex_trylock(&g->front.lock) != 0)
        return false;
    head = g->serving ? g->segments[g->segment_count - 1] : NULL;
    can = head != NULL && (g->relocation.moving || other.in_reads) && !g->space.cannot_grow &&
          (g->space.spare_count > g->space.needs.spares_reserved ||
           (g->space.spare_count == g->space.needs.spares_reserved &&
            g->front.append_lsn + 12000 < head->first_lsn + SEGMENT / 2)) &&
          g->busy + 3 < g->buffer_count && g->front.append_lsn + 12000 < head->first_lsn + SEGMENT &&
          g->front.append_lsn - g->front.durable_lsn < g->max_undurable_bytes / 2;
    log_unlock(g);
    return can;
}

static void moment(void) {
    if (r.store == NULL || other.work == NULL || other.at_work || !can_work())
        return;
    other.seen++;
    if (other.seen == other.nth || (other.ever_again && other.seen > other.nth)) {
        other.at_work = true;
        other.work();
        other.at_work = false;
    }
}

static int64_t pread_between(vfs *v, int file, void *into, size_t bytes, uint64_t at) {
    int64_t got = real->pread(real, file, into, bytes, at);

    (void)v;
    moment();
    return got;
}

static int64_t pwrite_between(vfs *v, int file, const void *from, size_t bytes, uint64_t at) {
    int64_t put_there = real->pwrite(real, file, from, bytes, at);

    (void)v;
    moment();
    return put_there;
}

static vfs *between(vfs_sim *disk) {
    real = vfs_sim_table(disk);
    table = *real;
    table.pread = pread_between;
    table.pwrite = pwrite_between;
    return &table;
}

/* ---- a store in which relocation treats every message differently, and the expected places ---- */

static uint64_t large_id, wide_id, small_ids[SMALL], staged_id;
static uint8_t large[40000], into[sizeof large];
static uint64_t expected[LAST_QUEUE + 1], large_bytes, cut_bytes;
static bool gone[LAST_QUEUE + 1];
static ls_tx *doubt, *local;

static void make_rich(void) {
    const vfs_sim_loss loss = {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT};
    const ls_xid xid = {.format_id = 1, .gtrid_bytes = 4, .data = "twig"};
    uint32_t wide[WIDE_QUEUES];
    uint64_t lsn;

    fresh_with(&usual);
    for (uint32_t q = 1; q <= LAST_QUEUE; q++)
        check(ls_queue_add(r.store, q) == LS_OK);
    for (uint32_t i = 0; i < WIDE_QUEUES; i++)
        wide[i] = FIRST_WIDE + i;
    fill(large, 7, sizeof large);
    check(ls_stage(r.store, large, 100, large, 30000, 0, &large_id) == LS_OK && add(large_id, 1, NULL) == LS_OK);
    check(ls_stage(r.store, NULL, 0, large, 200, 0, &wide_id) == LS_OK);
    for (uint32_t i = 0; i < WIDE_QUEUES; i += 50)
        check(ls_enqueue(r.store, wide_id, wide + i, 50, NULL, 0, &lsn) == LS_OK);
    for (uint32_t i = 0; i < SMALL; i++)
        small_ids[i] = put_bytes(2 + i % 3, 7, 300, 0);
    check(ls_begin(r.store, &xid, &doubt) == LS_OK);
    for (int i = 0; i < 6; i += 3)
        check(take(small_ids[i], 2, doubt) == LS_OK && add(small_ids[i], 6, doubt) == LS_OK);
    check(add(large_id, 6, doubt) == LS_OK && ls_tx_end(doubt) == LS_OK && ls_prepare(doubt, LS_WAIT) == LS_OK);
    (void)put_bytes(5, 1, 2000, LS_WAIT);
    rich = vfs_sim_crash(sim, &loss);
    ls_tx_free(doubt);
    done();
}

static int open_rich(vfs *system) {
    static uint32_t queues[LAST_QUEUE];
    size_t n = 0;
    int rc = ls_open(system, "/s", &usual, &r.store);

    for (uint32_t q = 1; q <= LAST_QUEUE; q++) {
        if (!gone[q])
            queues[n++] = q;
    }
    return rc == LS_OK ? ls_serve(r.store, queues, n, LAST_QUEUE + 1) : rc;
}

static void count_all(uint64_t *depths) {
    uint64_t locked;

    for (uint32_t q = 1; q <= LAST_QUEUE; q++) {
        depths[q] = 0;
        check(ls_queue_depth(r.store, q, &depths[q], &locked) == (gone[q] ? LS_UNKNOWN_QUEUE : LS_OK));
    }
}

static bool all_is_as_told(const char *when) {
    static uint64_t depths[LAST_QUEUE + 1];
    bool right = true;
    size_t n = 0;

    count_all(depths);
    for (uint32_t q = 1; q <= LAST_QUEUE; q++) {
        if (depths[q] != expected[q]) {
            printf("%s: queue %u has %llu places, not %llu\n", when, q, (unsigned long long)depths[q],
                   (unsigned long long)expected[q]);
            right = false;
        }
    }
    if (large_bytes > 0 && (ls_load_content(r.store, large_id, 0, into, sizeof into, &n) != LS_OK || n != large_bytes ||
                            memcmp(into, large, n) != 0))
        right = complain("the large message's content");
    if (cut_bytes > 0 && (ls_load_content(r.store, staged_id, 0, into, sizeof into, &n) != LS_OK || n != cut_bytes ||
                          memcmp(into, large, n) != 0))
        right = complain("the content of the message that was cut");
    return right;
}

/* ---- the other caller's work ---- */

static void takes_the_large(void) {
    uint64_t lsn;

    check(ls_dequeue(r.store, large_id, 1, NULL, 0, 0, 0, &lsn) == LS_OK);
    expected[1] = 0;
}

static void enqueues_the_large(void) {
    uint64_t lsn;
    uint32_t queue = 7;

    if (expected[7] == 0) {
        check(ls_enqueue(r.store, large_id, &queue, 1, NULL, 0, &lsn) == LS_OK);
        expected[7] = 1;
    } else {
        check(ls_dequeue(r.store, large_id, queue, NULL, 0, 0, 0, &lsn) == LS_OK);
        expected[7] = 0;
    }
}

static void lengthens_the_staged(void) { check(ls_append_content(r.store, staged_id, large, 5000, 0) == LS_OK); }

/* As if an append of several records had failed after this one; then other content is added, and a place. */
static void takes_content_back(void) {
    struct log *g = r.store->log;
    uint64_t lsn;
    uint32_t queue = 9;

    log_lock(g);
    check(log_reserve(g, format_chunk_bytes(0), RESERVE_SHRINKS) == LS_OK);
    struct message *m = table_message(&r.store->state.table, table_find(&r.store->state.table, staged_id));
    struct slot s = log_slot(g, staged_id, m->extra->last_lsn, 0);
    struct chain_record last = m->extra->chunks[m->extra->chunk_count - 1];
    log_append(g, &s, MESSAGE_CHUNK, format_put_chunk(&s, last.offset, NULL, 0));
    log_release(g, log_segment(g, last.lsn), 1, last.record_bytes);
    check(message_cut_content(&r.store->state.table, m, last.offset));
    m->extra->last_lsn = s.lsn;
    log_unlock(g);
    check(ls_append_content(r.store, staged_id, large + last.offset, 500, 0) == LS_OK);
    check(ls_enqueue(r.store, staged_id, &queue, 1, NULL, 0, &lsn) == LS_OK);
    expected[9] = 1;
    cut_bytes = last.offset + 500;
}

static void rolls_the_branch_back(void) { check(ls_rollback(doubt, 0) == LS_OK); }

static void commits_the_branch(void) {
    check(ls_commit(doubt, 0) == LS_OK);
    expected[2] -= 2;
    expected[6] += 3;
}

/* Afterwards the large message has no place left. */
static void ends_the_large_for_good(void) {
    uint64_t lsn;

    check(ls_rollback(doubt, 0) == LS_OK);
    check(ls_dequeue(r.store, large_id, 1, NULL, 0, 0, 0, &lsn) == LS_OK);
    expected[1] = large_bytes = 0;
}

static void takes_the_wide_from_each(void) {
    uint64_t lsn;

    for (uint32_t q = FIRST_WIDE; q < FIRST_WIDE + WIDE_QUEUES; q++) {
        if (expected[q] > 0)
            check(ls_dequeue(r.store, wide_id, q, NULL, 0, 0, 0, &lsn) == LS_OK);
        expected[q] = 0;
    }
}

static void moves_the_wide_on(void) {
    uint64_t lsn;
    uint32_t more = FIRST_WIDE + WIDE_QUEUES;

    while (expected[more] > 0)
        more++;
    check(ls_enqueue(r.store, wide_id, &more, 1, NULL, 0, &lsn) == LS_OK);
    expected[more] = 1;
}

static void deletes_queues(void) {
    static const uint32_t those[] = {3, FIRST_WIDE + 7};

    for (int i = 0; i < 2; i++) {
        check(ls_queue_delete(r.store, those[i], 0) == LS_OK);
        expected[those[i]] = 0;
        gone[those[i]] = true;
    }
}

static void destroys_the_staged(void) { check(ls_destroy(r.store, staged_id, 0) == LS_OK); }

static void commits_locally(void) {
    check(ls_commit(local, 0) == LS_OK);
    expected[4] -= 2;
    expected[8] += 1;
}

static void takes_the_small(void) {
    uint64_t lsn;

    for (uint32_t i = 1; i < SMALL; i += 3) {
        check(ls_dequeue(r.store, small_ids[i], 3, NULL, 0, 0, 0, &lsn) == LS_OK);
        expected[3]--;
    }
}

/* ---- operations during a relocation ---- */

/* Of the later moments every one in so many is struck; fewer under sanitizers, where each takes long. */
enum { APART = 24 / (ONE_IN < 12 ? ONE_IN : 12) };

static const struct {
    const char *name;
    void (*work)(void);
    bool ever_again;
} interruptions[] = {
    {"the large message is taken", takes_the_large, false},
    {"the large message gets a place", enqueues_the_large, false},
    {"the large message changes all the time", enqueues_the_large, true},
    {"the staged message is lengthened", lengthens_the_staged, false},
    {"the staged message grows all the time", lengthens_the_staged, true},
    {"the staged message is cut", takes_content_back, false},
    {"the branch is rolled back", rolls_the_branch_back, false},
    {"the branch is committed", commits_the_branch, false},
    {"the large message ends", ends_the_large_for_good, false},
    {"the message on many queues ends", takes_the_wide_from_each, false},
    {"the message on many queues gets one more", moves_the_wide_on, false},
    {"queues are deleted", deletes_queues, false},
    {"the staged message is destroyed", destroys_the_staged, false},
    {"the local transaction is committed", commits_locally, false},
    {"small messages are taken", takes_the_small, false},
};

static void start_over(vfs_sim *disk) {
    uint64_t ids[2], id, lsn;
    uint32_t eight = 8;
    size_t n;

    memset(&other, 0, sizeof other);
    memset(gone, 0, sizeof gone);
    large_bytes = 30000;
    cut_bytes = 0;
    r.store = NULL;
    r.v = between(disk);
    require(open_rich(r.v) == LS_OK);
    count_all(expected);
    check(ls_in_doubt(r.store, ids, 2, &n) == LS_OK && n == 1 && ls_in_doubt_take(r.store, ids[0], &doubt) == LS_OK);
    check(ls_stage(r.store, NULL, 0, large, 9000, 0, &staged_id) == LS_OK);
    check(ls_append_content(r.store, staged_id, large + 9000, 3000, 0) == LS_OK);
    check(ls_append_content(r.store, staged_id, large + 12000, 9000, 0) == LS_OK);
    check(ls_begin(r.store, NULL, &local) == LS_OK);
    for (int i = 0; i < 2; i++)
        check(ls_dequeue(r.store, small_ids[2 + 3 * i], 4, local, 0, 0, 0, &lsn) == LS_OK);
    check(ls_publish(r.store, &eight, 1, NULL, 0, large, 10, local, 0, &id) == LS_OK);
}

static void end_with(bool orderly) {
    const vfs_sim_loss lost = {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST};
    vfs_sim *disk = NULL;

    check(ls_force(r.store, 0) == LS_OK && ls_poisoned(r.store) == 0);
    check(all_is_as_told("before the end"));
    if (!orderly)
        disk = vfs_sim_crash(real->context, &lost);
    ls_tx_free(doubt);
    ls_tx_free(local);
    check(!orderly || ls_close(r.store) == LS_OK);
    ls_free(r.store);
    r.store = NULL;
    require(open_rich(disk != NULL ? vfs_sim_table(disk) : vfs_sim_table(real->context)) == LS_OK ||
            complain("it cannot be opened"));
    check(all_is_as_told("opened again"));
    ls_free(r.store);
    r.store = NULL;
    if (disk != NULL)
        vfs_sim_free(disk);
}

static void operations_between_two_steps_of_a_relocation_take_effect(void) {
    for (size_t i = 0; i < sizeof interruptions / sizeof *interruptions; i++) {
        uint64_t struck = 0;

        for (uint64_t nth = 1;; nth += 1 + nth / APART) {
            vfs_sim *disk = vfs_sim_clone(rich);
            int before = failures_here;
            ls_stats stats;
            bool over;

            start_over(disk);
            other.work = interruptions[i].work;
            other.ever_again = interruptions[i].ever_again;
            other.nth = nth;
            churn(CHURN);
            over = other.seen < nth;
            other.work = NULL;
            ls_stats_get(r.store, &stats);
            check(stats.segments_relocated > 3 && stats.relocation_failures == 0);
            end_with(nth % 2 == 0);
            vfs_sim_free(disk);
            if (failures_here != before)
                printf("%s, moment %llu\n", interruptions[i].name, (unsigned long long)nth);
            if (over)
                break;
            struck++;
        }
        check(struck > 5 || complain(interruptions[i].name));
    }
}

/* ---- operations during a read ---- */

static void a_read_of_a_message_that_ends_meanwhile_says_that_it_is_gone(void) {
    bool was_gone = false, was_whole = false;

    for (uint64_t nth = 1; !was_whole; nth++) {
        vfs_sim *disk = vfs_sim_clone(rich);
        size_t n = 0;
        int rc;

        start_over(disk);
        other.work = ends_the_large_for_good;
        other.in_reads = true;
        other.nth = nth;
        rc = ls_load_content(r.store, large_id, 0, into, sizeof into, &n);
        was_whole = other.seen < nth;
        other.work = NULL;
        was_gone = was_gone || rc == LS_UNKNOWN_MESSAGE;
        check((rc == LS_OK && n == 30000) || (rc == LS_UNKNOWN_MESSAGE && n <= 30000));
        check(memcmp(into, large, n) == 0);
        check(!was_whole || rc == LS_OK);
        end_with(true);
        vfs_sim_free(disk);
    }
    check(was_gone);
}

int main(void) {
    static void (*const tests[])(void) = {
        operations_between_two_steps_of_a_relocation_take_effect,
        a_read_of_a_message_that_ends_meanwhile_says_that_it_is_gone,
    };
    int result;

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    make_rich();
    result = run_tests(tests, sizeof tests / sizeof *tests);
    vfs_sim_free(rich);
    return result;
}
