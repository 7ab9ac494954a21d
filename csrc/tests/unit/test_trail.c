/*
 * A log of which a majority of the copies has forced less than this disk: no caller learns of a batch that is forced and
 * not durable, and the batch keeps its buffer. See log/durable.c.
 */
#include <stdatomic.h>

#include "log/parts.h"
#include "store/store.h"
#include "tests/kit/one_store.h"

enum { BUFFERS = 4, WAITERS = 5, CONTENT = 2000 };

static atomic_int woken;
static vfs noting, *real;
static uint64_t noted_lsn; /* durable_lsn when a hint was last written */
static int noted_woken;    /* threads that were awake then */
static uint64_t majority_lsn_at_sync;

static void nap(void) {
    const struct timespec pause = {.tv_nsec = 200 * 1000};

    (void)nanosleep(&pause, NULL);
}

static void majority_has(uint64_t lsn) {
    log_lock(r.store->log);
    log_majority_has(r.store->log, lsn);
    log_unlock(r.store->log);
}

static int64_t noting_pwrite(vfs *v, int file, const void *from, size_t bytes, uint64_t at) {
    (void)v;
    if (bytes == HINT_BYTES) {
        noted_lsn = ls_durable_lsn(r.store);
        noted_woken = atomic_load(&woken);
    }
    return real->pwrite(real, file, from, bytes, at);
}

/* The majority's word may come while this disk forces the batch, and the lock is free. */
static int noting_sync_data(vfs *v, int file) {
    uint64_t lsn = majority_lsn_at_sync;

    (void)v;
    majority_lsn_at_sync = 0;
    if (lsn != 0)
        majority_has(lsn);
    return real->sync_data(real, file);
}

/* From here on no majority has more than what is durable now. */
static void hold_back(void) {
    struct log *g = r.store->log;

    log_lock(g);
#ifdef LOGSTORE_TRAIL
    g->commit.trails = false;
#endif
    check(g->forced == 0);
    g->commit.majority_lsn = g->front.durable_lsn;
    real = g->v;
    noting = *real;
    noting.pwrite = noting_pwrite;
    noting.sync_data = noting_sync_data;
    noted_lsn = 0;
    g->v = &noting;
    log_unlock(g);
}

static void start_with(uint32_t buffers, uint64_t max_undurable_bytes) {
    ls_options o;

    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.max_write_buffers = buffers;
    o.max_undurable_bytes = max_undurable_bytes;
    o.background = 0;
    fresh_with(&o);
    (void)put(1, "first", NULL);
    atomic_store(&woken, 0);
    hold_back();
}

static void start(void) { start_with(BUFFERS, 0); }

/* Forces everything on this disk, and gives where that ends. */
static uint64_t force_here(void) {
    struct log *g = r.store->log;

    log_lock(g);
    while (log_forced_lsn(g) < log_end_lsn(g) && log_poison(g) == 0)
        log_lead_one(g);
    uint64_t lsn = log_forced_lsn(g);
    log_unlock(g);
    return lsn;
}

/* An open store is closed by that, which needs the majority. */
static void finish(void) {
    majority_has(UINT64_MAX);
    done();
}

static struct hint hint_now(void) {
    uint8_t bytes[HINT_BYTES];
    struct hint h = {.durable_lsn = 0};

    check(vfs_sim_get(sim, VFS_SIM_SEEN, "/s", "HINT", bytes, sizeof bytes) == sizeof bytes);
    check(format_get_hint(bytes, sizeof bytes, &h) == FORMAT_OK);
    return h;
}

/* ---- threads that wait ---- */

struct call {
    pthread_t thread;
    uint64_t lsn; /* to wait for */
    bool ended;
    int rc;
};

static void *wait_for_lsn(void *of) {
    struct call *c = of;

    c->rc = ls_force(r.store, c->lsn);
    (void)atomic_fetch_add(&woken, 1);
    return NULL;
}

static void *close_it(void *of) {
    struct call *c = of;

    c->rc = ls_close(r.store);
    (void)atomic_fetch_add(&woken, 1);
    return NULL;
}

static void *publish_one(void *of) {
    struct call *c = of;
    static uint8_t content[CONTENT];
    uint32_t queue = 1;
    uint64_t id;

    c->rc = ls_publish(r.store, &queue, 1, NULL, 0, content, sizeof content, NULL, 0, &id);
    return NULL;
}

/* More bytes than may be undurable. */
static void *publish_many(void *of) {
    struct call *c = of;

    c->rc = LS_OK;
    for (int i = 0; i < 100 && c->rc == LS_OK; i++)
        (void)publish_one(c);
    return NULL;
}

static int sleeping(void) {
    struct log *g = r.store->log;
    int n = 0;

    log_lock(g);
    for (struct waiter *w = g->commit.waiters; w != NULL; w = w->next)
        n++;
    for (struct room_waiter *w = g->front.room_waiters; w != NULL; w = w->next)
        n++;
    log_unlock(g);
    return n;
}

static void begin_call(struct call *c, void *(*routine)(void *), uint64_t lsn) {
    int before = sleeping();

    *c = (struct call){.lsn = lsn, .rc = -1};
    require(pthread_create(&c->thread, NULL, routine, c) == 0);
    while (sleeping() == before && !c->ended) {
        nap();
        c->ended = pthread_tryjoin_np(c->thread, NULL) == 0;
    }
    check(!c->ended);
}

static int end_call(struct call *c) {
    if (!c->ended)
        (void)pthread_join(c->thread, NULL);
    return c->rc;
}

/* ---- the promises ---- */

static void a_thread_that_waits_for_a_forced_batch_sleeps_until_it_is_durable(void) {
    struct call first, second;
    uint64_t one, two;

    start();
    (void)put_bytes(1, 1, CONTENT, 0);
    one = force_here();
    (void)put_bytes(1, 2, CONTENT, 0);
    two = force_here();
    check(one < two && ls_durable_lsn(r.store) < one);
    begin_call(&first, wait_for_lsn, one);
    begin_call(&second, wait_for_lsn, two);
    check(r.store->log->forced == 2 && log_unforced(r.store->log) == 0);
    majority_has(one - 1); /* half a batch does not count */
    check(atomic_load(&woken) == 0 && ls_durable_lsn(r.store) < one);
    majority_has(one);
    check(end_call(&first) == LS_OK && atomic_load(&woken) == 1 && sleeping() == 1);
    check(ls_durable_lsn(r.store) == one);
    majority_has(two);
    check(end_call(&second) == LS_OK && ls_durable_lsn(r.store) == two);
    finish();
}

static void the_hint_is_published_before_durable_lsn_advances_and_a_waiter_wakes(void) {
    struct call waiter;
    uint64_t lsn;

    start();
    (void)put_bytes(1, 1, CONTENT, 0);
    lsn = force_here();
    check(hint_now().durable_lsn == ls_durable_lsn(r.store));
    begin_call(&waiter, wait_for_lsn, lsn);
    check(noted_lsn == 0);
    majority_has(lsn);
    check(end_call(&waiter) == LS_OK && hint_now().durable_lsn == lsn);
    check(noted_lsn != 0 && noted_lsn < lsn && noted_woken == 0);
    finish();
}

/* The thread that waits for the open batch writes it, the one that waits for a forced batch does not. */
static void a_thread_leads_only_to_write(void) {
    struct call forced, open;
    uint64_t one, two;

    start();
    (void)put_bytes(1, 1, CONTENT, 0);
    one = force_here();
    (void)put_bytes(1, 2, CONTENT, 0);
    two = ls_next_lsn(r.store);
    begin_call(&forced, wait_for_lsn, one);
    check(r.store->log->front.forced_lsn == one);
    begin_call(&open, wait_for_lsn, two); /* it sleeps once it has written */
    check(r.store->log->front.forced_lsn == two && r.store->log->forced == 2);
    majority_has(two);
    check(end_call(&forced) == LS_OK && end_call(&open) == LS_OK);
    finish();
}

static void what_a_majority_has_first_is_durable_once_it_is_forced_here(void) {
    uint64_t end_lsn;

    start();
    (void)put_bytes(1, 1, CONTENT, 0);
    end_lsn = ls_next_lsn(r.store);
    majority_has(end_lsn);
    check(ls_durable_lsn(r.store) < end_lsn);
    check(force_here() == end_lsn && ls_durable_lsn(r.store) == end_lsn && hint_now().durable_lsn == end_lsn);
    finish();
}

static void what_a_majority_has_during_the_force_is_durable_after_it(void) {
    uint64_t end_lsn;

    start();
    (void)put_bytes(1, 1, CONTENT, 0);
    majority_lsn_at_sync = end_lsn = ls_next_lsn(r.store);
    check(force_here() == end_lsn && ls_durable_lsn(r.store) == end_lsn && hint_now().durable_lsn == end_lsn);
    check(majority_lsn_at_sync == 0 && noted_lsn < end_lsn);
    finish();
}

static void the_record_of_a_batch_says_what_was_forced_here(void) {
    struct log *g;
    struct record record;
    struct batch batch;
    uint64_t one;

    start();
    (void)put_bytes(1, 1, CONTENT, 0);
    one = force_here();
    (void)put_bytes(1, 2, CONTENT, 0);
    (void)force_here();
    g = r.store->log;
    const struct buffer *b = &g->buffers[(g->oldest + 1) % g->buffer_count];
    check(format_get_record(log_buffer_at(b, b->start_lsn), b->end_lsn - b->start_lsn, b->segment->seed, b->start_lsn,
                            &record) == FORMAT_OK);
    check(format_get_batch(&record, &batch) == FORMAT_OK && batch.durable_lsn == one && ls_durable_lsn(r.store) < one);
    finish();
}

static void nothing_that_is_only_forced_is_offered(void) {
    ls_delivery got[4];
    size_t n = 9;
    uint64_t id, lsn;

    start();
    id = put_bytes(2, 1, CONTENT, 0);
    lsn = force_here();
    check(ls_acquire(r.store, 2, got, 4, 0, &n) == LS_OK && n == 0);
    majority_has(lsn);
    check(ls_acquire(r.store, 2, got, 4, 0, &n) == LS_OK && n == 1 && got[0].id == id);
    finish();
}

static void no_event_is_signalled_before_a_batch_is_durable(void) {
    uint64_t before, lsn;
    int fd;

    start();
    check(ls_event_fd(r.store, &fd) == LS_OK);
    before = vfs_sim_event_count(sim, fd);
    (void)put_bytes(1, 1, CONTENT, 0);
    lsn = force_here();
    check(vfs_sim_event_count(sim, fd) == before);
    majority_has(lsn);
    check(vfs_sim_event_count(sim, fd) == before + 1);
    finish();
}

/* A dead message's records count as live until its death is durable: only then may the base pass them. Their file is
   recycled only when a batch that names this base is durable, too. */
static void the_base_and_recycling_go_by_what_is_durable(void) {
    struct log *g;
    uint64_t ids[20], lsn, base_lsn, named_lsn;
    unsigned n = 0;

    ls_options o;
    ls_options_default(&o);
    o.segment_size = SEGMENT;
    o.max_write_buffers = 8;
    o.background = 0;
    fresh_with(&o);
    g = r.store->log;
    do
        ids[n++] = put_bytes(1, 1, CONTENT * 4, LS_WAIT);
    while (g->segment_count < 3 && n < 20);
    g->relocate = NULL;
    hold_back();
    base_lsn = ls_base_lsn(r.store);
    while (n-- > 0)
        check(ls_dequeue(r.store, ids[n], 1, NULL, 1, 0, 0, &lsn) == LS_OK);
    lsn = force_here();
    check(ls_base_lsn(r.store) == base_lsn && g->named_base_lsn == base_lsn);
    majority_has(lsn);
    check(ls_base_lsn(r.store) > base_lsn && g->named_base_lsn == base_lsn);
    named_lsn = ls_base_lsn(r.store);
    (void)put_bytes(1, 1, 10, 0);
    lsn = force_here();
    check(g->named_base_lsn == base_lsn && hint_now().base_lsn == base_lsn && log_recyclable_lsn(g) == base_lsn);
    log_lock(g);
    spares_recycle(g);
    check(g->segments[0]->first_lsn == base_lsn);
    log_unlock(g);
    majority_has(lsn);
    check(g->named_base_lsn == named_lsn && hint_now().base_lsn == named_lsn);
    log_lock(g);
    spares_recycle(g);
    check(g->segments[0]->first_lsn == named_lsn);
    log_unlock(g);
    finish();
}

static void a_checkpoint_knows_its_batch_when_that_is_durable(void) {
    struct log *g;
    uint64_t lsn;
    bool named;

    start();
    g = r.store->log;
    (void)put_bytes(1, 1, CONTENT, 0);
    log_lock(g);
    check(log_name_batch(g, &named) == LS_OK && named);
    log_unlock(g);
    lsn = force_here();
    check(log_named_batch(g).end_lsn == lsn && log_named_batch(g).lsn == 0 && !log_ends_in_batch(g));
    majority_has(lsn);
    check(log_named_batch(g).lsn != 0 && log_ends_in_batch(g));
    finish();
}

static void a_buffer_is_taken_until_its_batch_is_durable(void) {
    static uint8_t content[CONTENT];
    struct call waiting;
    uint32_t queue = 1;
    uint64_t id, lsn;

    start_with(2, 0);
    (void)put_bytes(1, 1, CONTENT, 0);
    lsn = force_here();
    (void)put_bytes(1, 2, CONTENT, 0);
    (void)force_here();
    check(ls_publish(r.store, &queue, 1, NULL, 0, content, CONTENT, NULL, LS_TRY, &id) == LS_WOULD_WAIT);
    check(ls_room_percent(r.store) == 0);
    begin_call(&waiting, publish_one, 0);
    check(r.store->log->busy == 2 && r.store->log->forced == 2);
    majority_has(lsn);
    check(end_call(&waiting) == LS_OK && r.store->log->busy == 2 && r.store->log->forced == 1);
    check(ls_room_percent(r.store) > 0 && ls_room_percent(r.store) < 100); /* in the open buffer */
    finish();
}

static void a_message_is_read_whether_its_batch_is_open_or_forced_or_durable(void) {
    uint8_t into[CONTENT];
    uint64_t id;
    size_t n;

    start();
    id = put_bytes(1, 7, CONTENT, 0);
    for (int step = 0; step < 3; step++) {
        memset(into, 0, sizeof into);
        check(ls_load_content(r.store, id, 0, into, sizeof into, &n) == LS_OK && n == CONTENT &&
              into[CONTENT - 1] == 7);
        step == 0 ? (void)force_here() : majority_has(UINT64_MAX);
    }
    finish();
}

static void max_undurable_bytes_counts_what_is_not_durable(void) {
    struct log *g;
    struct call publishing;
    uint64_t undurable;

    start_with(64, 0);
    g = r.store->log;
    begin_call(&publishing, publish_many, 0);
    undurable = g->front.append_lsn - ls_durable_lsn(r.store);
    check(g->forced == g->busy && g->busy < g->buffer_count && undurable <= g->max_undurable_bytes);
    check(undurable + CONTENT + 3 * BATCH_RECORD_BYTES > g->max_undurable_bytes);
    majority_has(UINT64_MAX);
    check(end_call(&publishing) == LS_OK);
    finish();
}

static void a_close_makes_everything_durable_and_waits_for_that(void) {
    struct call closing;
    uint64_t id;

    start();
    id = put_bytes(1, 1, CONTENT, 0);
    (void)force_here();
    begin_call(&closing, close_it, 0);
    check(atomic_load(&woken) == 0);
    majority_has(UINT64_MAX); /* also the records that it has still to append */
    check(end_call(&closing) == LS_OK && ls_durable_lsn(r.store) == log_end_lsn(r.store->log));
    check(r.store->log->busy == 0);
    ls_free(r.store);
    check(open_again() == LS_OK && has(id));
    finish();
}

/*
 * Some threads wait for forced records and some for records whose write fails: for none of these is it known whether
 * they will be durable.
 */
static void a_sync_that_fails_behind_forced_batches_poisons_the_store_and_wakes_all(void) {
    struct call waiters[WAITERS];
    uint64_t durable_lsn, forced_lsn, lsn;

    start();
    durable_lsn = ls_durable_lsn(r.store);
    for (int i = 0; i < 2; i++) {
        (void)put_bytes(1, 1, CONTENT, 0);
        lsn = force_here();
    }
    forced_lsn = lsn;
    for (int i = 0; i < WAITERS; i++)
        begin_call(&waiters[i], wait_for_lsn, forced_lsn);
    vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_SYNC_DATA, .nth = 1, .error = EIO});
    (void)put_bytes(1, 1, CONTENT, 0);
    check(ls_force(r.store, 0) == LS_OUTCOME_UNKNOWN && ls_poisoned(r.store));
    for (int i = 0; i < WAITERS; i++)
        check(end_call(&waiters[i]) == LS_OUTCOME_UNKNOWN);
    majority_has(UINT64_MAX);
    check(ls_durable_lsn(r.store) == durable_lsn && log_forced_lsn(r.store->log) == forced_lsn);
    check(hint_now().durable_lsn == durable_lsn);
    (void)ls_close(r.store);
    ls_free(r.store);
    check(open_again() == LS_OK);
    finish();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_thread_that_waits_for_a_forced_batch_sleeps_until_it_is_durable,
        the_hint_is_published_before_durable_lsn_advances_and_a_waiter_wakes,
        a_thread_leads_only_to_write,
        what_a_majority_has_first_is_durable_once_it_is_forced_here,
        what_a_majority_has_during_the_force_is_durable_after_it,
        the_record_of_a_batch_says_what_was_forced_here,
        nothing_that_is_only_forced_is_offered,
        no_event_is_signalled_before_a_batch_is_durable,
        the_base_and_recycling_go_by_what_is_durable,
        a_checkpoint_knows_its_batch_when_that_is_durable,
        a_buffer_is_taken_until_its_batch_is_durable,
        a_message_is_read_whether_its_batch_is_open_or_forced_or_durable,
        max_undurable_bytes_counts_what_is_not_durable,
        a_close_makes_everything_durable_and_waits_for_that,
        a_sync_that_fails_behind_forced_batches_poisons_the_store_and_wakes_all,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
