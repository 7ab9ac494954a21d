/*
 * Many threads and background threads on one store: each acknowledgement holds after a power cut at any moment, and after
 * a close during the work. Run it under a thread sanitizer.
 *
 * Each worker has its own queue, publishes the numbers 0, 1, 2 … on it, and dequeues them in order. A queue is right if it
 * has consecutive numbers that begin within the dequeues, and end within the publishes, whose outcome is possible.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tests/kit/store_workload.h"

enum { WORKERS = 4, NOISE_QUEUE = 6, IDS_MAX = 1 << 20 };

struct worker {
    pthread_t thread;
    ls_store *store;
    uint32_t queue;
    uint64_t chance;
    _Atomic uint64_t put_begun, put_done, take_begun, take_done;
    atomic_bool stop;
    int unexpected; /* an error other than closed */
    uint64_t ids[IDS_MAX];
};

static struct worker workers[WORKERS];
static struct run r;

static bool refused(struct worker *w, int rc) {
    if (rc != LS_OK && rc != LS_CLOSED && w->unexpected == 0) {
        w->unexpected = rc;
        (void)complain("a worker was refused");
    }
    return rc != LS_OK;
}

static size_t size_of(uint64_t number) { return 8 + (number % 50 == 7 ? 9000 : number % 7 * 300); }

static bool put_one(struct worker *w, bool wait) {
    uint8_t content[10000] = {0};
    uint64_t n = w->put_begun;

    memcpy(content, &n, sizeof n);
    w->put_begun = n + 1;
    int rc = wait ? LS_WOULD_WAIT
                  : ls_publish(w->store, &w->queue, 1, NULL, 0, content, size_of(n), NULL, LS_TRY, &w->ids[n]);
    if (rc == LS_WOULD_WAIT)
        rc = ls_publish(w->store, &w->queue, 1, NULL, 0, content, size_of(n), NULL, wait ? LS_WAIT : 0, &w->ids[n]);
    if (refused(w, rc))
        return false;
    if (wait)
        w->put_done = n + 1;
    return true;
}

static bool take_one(struct worker *w, bool in_tx) {
    uint64_t n = w->take_begun, lsn;
    ls_tx *tx = NULL;
    int rc = in_tx ? ls_begin(w->store, NULL, &tx) : LS_OK;

    if (refused(w, rc))
        return false;
    w->take_begun = n + 1;
    if (rc == LS_OK) /* in a transaction it never waits for the disk */
        rc = in_tx ? ls_dequeue(w->store, w->ids[n], w->queue, tx, 0, 0, LS_TRY, &lsn) : LS_WOULD_WAIT;
    if (rc == LS_WOULD_WAIT)
        rc = ls_dequeue(w->store, w->ids[n], w->queue, tx, 0, 0, LS_WAIT, &lsn);
    if (rc == LS_OK && in_tx)
        rc = ls_commit(tx, LS_WAIT);
    ls_tx_free(tx);
    if (refused(w, rc))
        return false;
    w->take_done = n + 1;
    w->put_done = w->put_done > n ? w->put_done : n + 1;
    return true;
}

static bool read_one(struct worker *w) {
    uint8_t content[10000];
    uint64_t number = w->take_begun, found;
    size_t done = 0;

    if (number == w->put_begun)
        return true;
    if (refused(w, ls_load_content(w->store, w->ids[number], 0, content, sizeof content, &done)))
        return false;
    memcpy(&found, content, sizeof found);
    check(done == size_of(number) && found == number);
    return true;
}

static void *work(void *context) {
    struct worker *w = context;

    while (!w->stop) {
        uint64_t choice = chance(&w->chance) % 16;
        bool on = true;

        if (choice < 7 && w->put_begun - w->take_begun < 60 && w->put_begun < IDS_MAX)
            on = put_one(w, choice < 4);
        else if (choice < 12 && w->put_begun > w->take_begun)
            on = take_one(w, choice == 11);
        else if (choice == 12)
            on = read_one(w);
        else if (choice == 13)
            on = !refused(w, ls_force(w->store, 0));
        if (!on)
            break;
    }
    return NULL;
}

/* Adds and deletes queues, with cursors on them, while the workers run. */
static void *make_noise(void *context) {
    struct worker *w = context;

    for (uint32_t q = NOISE_QUEUE; !w->stop && w->unexpected == 0; q++) {
        ls_cursor *cursor = NULL;
        ls_place places[10];
        uint64_t id;
        size_t n;

        if (refused(w, ls_queue_add(w->store, q)))
            break;
        for (int i = 0; i < 200; i++) {
            if (refused(w, ls_publish(w->store, &q, 1, NULL, 0, NULL, 0, NULL, 0, &id)))
                break;
        }
        if (ls_cursor_open(w->store, q, LS_CURSOR_OFFER, &cursor) == LS_OK)
            (void)ls_cursor_next(cursor, places, 10, &n);
        (void)refused(w, ls_queue_delete(w->store, q, 0));
        ls_cursor_close(cursor);
    }
    return NULL;
}

static void start(ls_store *store, struct worker *noise) {
    for (uint32_t i = 0; i < WORKERS; i++) {
        struct worker *w = &workers[i];

        w->put_begun = w->put_done = w->take_begun = w->take_done = 0;
        w->stop = false;
        w->unexpected = 0;
        w->store = store;
        w->queue = i + 1;
        w->chance = i * 77 + 5;
        check(pthread_create(&w->thread, NULL, work, w) == 0);
    }
    noise->store = store;
    noise->stop = false;
    noise->unexpected = 0;
    check(pthread_create(&noise->thread, NULL, make_noise, noise) == 0);
}

static void join(struct worker *noise, bool stop) {
    for (int i = 0; i < WORKERS; i++) {
        workers[i].stop = stop;
        check(pthread_join(workers[i].thread, NULL) == 0);
        check(workers[i].unexpected == 0);
    }
    noise->stop = stop;
    check(pthread_join(noise->thread, NULL) == 0);
    check(noise->unexpected == 0);
}

struct row {
    uint64_t take_done, take_begun, put_done, put_begun;
};

static void queue_is_a_row(ls_store *store, uint32_t queue, struct row row) {
    ls_place places[400];
    ls_cursor *c = NULL;
    size_t n = 0, done;
    uint64_t first = row.take_done, number;

    require(ls_cursor_open(store, queue, LS_CURSOR_ALL, &c) == LS_OK);
    check(ls_cursor_next(c, places, 400, &n) == LS_OK);
    ls_cursor_close(c);
    for (size_t i = 0; i < n; i++) {
        check(ls_load_content(store, places[i].id, 0, (uint8_t *)&number, 8, &done) == LS_OK && done == 8);
        first = i == 0 ? number : first;
        check(number == first + i);
    }
    check(n == 0 || (first >= row.take_done && first <= row.take_begun));
    check(first + n <= row.put_begun && (first + n >= row.put_done || (n == 0 && row.take_begun >= row.put_done)));
}

static void look_after(vfs *v, const struct row *rows) {
    ls_store *store = NULL;
    static struct run reader;

    reader = r;
    reader.options.background = 0;
    /* every queue that the noise made was or will be deleted */
    require(open_store(&reader, v, r.catalog, 1 << 20, &store) == LS_OK || complain("open"));
    for (uint32_t i = 0; i < WORKERS; i++)
        queue_is_a_row(store, i + 1, rows[i]);
    ls_free(store);
}

static void acknowledgements_survive_a_power_cut_at_any_moment(void) {
    static struct worker noise;
    vfs_sim *sim = vfs_sim_new();
    const char *times = getenv("LOGSTORE_THREADS");
    int cuts = 25 * (times != NULL ? atoi(times) : 1);

    memset(&r, 0, sizeof r);
    ls_options_default(&r.options);
    r.options.segment_size = SEGMENT;
    r.options.max_write_buffers = 3;
    check(vfs_sim_record(sim, 0) == 0);
    run_start(&r, sim, 1);
    require(!r.lost);
    start(r.store, &noise);
    for (int i = 0; i < cuts; i++) {
        vfs_sim_loss loss = {
            .mode = i % 3 ? VFS_SIM_RANDOM : VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_RANDOM, .seed = (uint64_t)i};
        struct row rows[WORKERS];
        vfs_sim *disk;

        (void)usleep(3000);
        for (int k = 0; k < WORKERS; k++)
            rows[k] = (struct row){.take_done = workers[k].take_done, .put_done = workers[k].put_done};
        disk = vfs_sim_crash(sim, &loss);
        for (int k = 0; k < WORKERS; k++) {
            rows[k].take_begun = workers[k].take_begun;
            rows[k].put_begun = workers[k].put_begun;
        }
        look_after(vfs_sim_table(disk), rows);
        vfs_sim_free(disk);
    }
    join(&noise, true);
    run_end(&r);
    vfs_sim_free(sim);
}

/* `v` may be NULL: the operating system's files. */
static void close_in_the_middle(vfs *v, const char *path) {
    static struct worker noise;

    memset(&r, 0, sizeof r);
    r.v = v;
    r.path = path;
    ls_options_default(&r.options);
    r.options.segment_size = SEGMENT;
    r.options.max_write_buffers = 3;
    for (int i = 0; i < 6; i++) {
        struct row rows[WORKERS];

        require(open_store(&r, v, (2u << FIRST_QUEUES) - 2, 1 << 20, &r.store) == LS_OK || complain("open"));
        r.catalog = (2u << FIRST_QUEUES) - 2;
        start(r.store, &noise);
        (void)usleep(20000);
        check(ls_close(r.store) == LS_OK || complain("close"));
        join(&noise, false);
        ls_free(r.store);
        for (int k = 0; k < WORKERS; k++)
            rows[k] =
                (struct row){workers[k].take_done, workers[k].take_begun, workers[k].put_done, workers[k].put_begun};
        look_after(v, rows);
        require(open_store(&r, v, r.catalog, 1 << 20, &r.store) == LS_OK);
        for (uint32_t q = 1; q <= WORKERS; q++) { /* for the next turn */
            ls_place places[400];
            ls_cursor *c = NULL;
            size_t n = 0;

            check(ls_cursor_open(r.store, q, LS_CURSOR_ALL, &c) == LS_OK &&
                  ls_cursor_next(c, places, 400, &n) == LS_OK);
            ls_cursor_close(c);
            for (size_t k = 0; k < n; k++) {
                uint64_t lsn;
                check(ls_dequeue(r.store, places[k].id, q, NULL, 0, 0, 0, &lsn) == LS_OK);
            }
        }
        ls_free(r.store);
    }
}

static void a_close_beside_working_threads_loses_nothing(void) {
    vfs_sim *sim = vfs_sim_new();

    check(vfs_sim_record(sim, 0) == 0);
    close_in_the_middle(vfs_sim_table(sim), "/s");
    check(vfs_sim_handles(sim) == 0);
    vfs_sim_free(sim);
}

static void a_close_beside_working_threads_loses_nothing_on_real_files(void) {
    char path[] = "/tmp/logstore-test-XXXXXX", command[80];

    require(mkdtemp(path) != NULL);
    close_in_the_middle(NULL, path);
    (void)snprintf(command, sizeof command, "rm -rf %s", path);
    check(system(command) == 0);
}

/*
 * Long-lived messages are relocated again and again while the workers run: a chunked one, one in a prepared transaction,
 * and many small ones. With and without background threads; without them the workers do that work.
 */
static void relocation_and_workers_run_at_the_same_time(void) {
    for (int background = 0; background < 2; background++) {
        static struct worker noise;
        static uint8_t content[30000], into[30000];
        vfs_sim *sim = vfs_sim_new();
        ls_xid xid = {.format_id = 1, .gtrid_bytes = 1};
        uint32_t stays = FIRST_QUEUES + 1;
        ls_stats stats = {.segments_relocated = 0};
        uint64_t long_id, prepared_id, id, lsn, places, locked;
        ls_tx *tx;
        size_t done;

        memset(&r, 0, sizeof r);
        ls_options_default(&r.options);
        r.options.segment_size = SEGMENT;
        r.options.max_write_buffers = 3;
        r.options.background = background;
        r.options.max_log_bytes = (uint64_t)40 * SEGMENT;
        fill(content, 3, sizeof content);
        check(vfs_sim_record(sim, 0) == 0);
        run_start(&r, sim, 1);
        require(!r.lost);
        check(ls_queue_add(r.store, stays) == LS_OK);
        check(ls_publish(r.store, &stays, 1, NULL, 0, content, sizeof content, NULL, 0, &long_id) == LS_OK);
        check(ls_begin(r.store, &xid, &tx) == LS_OK);
        check(ls_publish(r.store, &stays, 1, NULL, 0, content, 100, tx, 0, &prepared_id) == LS_OK);
        check(ls_dequeue(r.store, long_id, stays, tx, 0, 0, 0, &lsn) == LS_OK);
        check(ls_tx_end(tx) == LS_OK && ls_prepare(tx, 0) == LS_OK);
        for (int i = 0; i < 100; i++) {
            check(ls_publish(r.store, &stays, 1, NULL, 0, content, 10, NULL, 0, &id) == LS_OK);
        }
        start(r.store, &noise);
        for (int i = 0; i < 6000 && stats.segments_relocated < 60; i++) {
            check(ls_load_content(r.store, long_id, 0, into, sizeof into, &done) == LS_OK && done == sizeof into &&
                  memcmp(into, content, done) == 0);
            ls_stats_get(r.store, &stats);
            (void)usleep(1000);
        }
        check(stats.segments_relocated >= 60 && stats.relocation_failures == 0);
        join(&noise, true);
        check(ls_commit(tx, LS_WAIT) == LS_OK);
        ls_tx_free(tx);
        check(ls_queue_depth(r.store, stays, &places, &locked) == LS_OK && places == 101);
        check(ls_close(r.store) == LS_OK);
        ls_free(r.store);
        require(open_store(&r, r.v, r.catalog | 1u << stays, 1 << 20, &r.store) == LS_OK || complain("open"));
        check(ls_queue_depth(r.store, stays, &places, &locked) == LS_OK && places == 101);
        for (uint32_t i = 0; i < WORKERS; i++)
            queue_is_a_row(
                r.store, i + 1,
                (struct row){workers[i].take_done, workers[i].take_begun, workers[i].put_done, workers[i].put_begun});
        run_end(&r);
        vfs_sim_free(sim);
    }
}

static void a_program_whose_threads_have_ended_is_still_known_to_have_had_them(void) {
    check(!has_started_no_thread());
}

int main(void) {
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    static void (*const tests[])(void) = {
        acknowledgements_survive_a_power_cut_at_any_moment,
        a_close_beside_working_threads_loses_nothing,
        a_close_beside_working_threads_loses_nothing_on_real_files,
        relocation_and_workers_run_at_the_same_time,
        a_program_whose_threads_have_ended_is_still_known_to_have_had_them, /* the last one */
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
