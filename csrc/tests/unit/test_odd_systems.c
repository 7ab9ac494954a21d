/*
 * A system with unusual answers: transfers of more bytes than requested, of none, or of parts of blocks; no thread, no
 * semaphore, no fork handler; spurious wake-ups. Each gives a clear error, or is handled.
 *
 * The tests replace functions of the C library to make them fail, unless a sanitizer replaces them already.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/store.h"
#include "tests/kit/one_store.h"
#include "tests/sim/testing.h"

/* ---- the C library, taken over ---- */

static atomic_int threads_to_come = INT_MAX, semaphores_refused, waits_cut, semaphores_made;
static atomic_bool no_handlers, no_listings, no_states, creators_pause;
static atomic_size_t memory_refused_from = SIZE_MAX;

#if !defined(UNDER_ASAN) && !defined(UNDER_TSAN) && defined(__GLIBC__)
enum { TAKEN_OVER = 1 };
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso);

static void *of_the_library(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);

    if (found == NULL)
        abort();
    return found;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *context) {
    static int (*of_library)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

    if (of_library == NULL)
        *(void **)&of_library = of_the_library("pthread_create");
    int rc = atomic_fetch_sub(&threads_to_come, 1) <= 0 ? EAGAIN : of_library(thread, attributes, start, context);
    if (rc == 0 && atomic_load(&creators_pause))
        (void)usleep(20 * 1000);
    return rc;
}

int sem_init(sem_t *semaphore, int shared, unsigned value) {
    static int (*of_library)(sem_t *, int, unsigned);

    if (of_library == NULL)
        *(void **)&of_library = of_the_library("sem_init");
    if (atomic_load(&semaphores_refused) > 0) {
        atomic_fetch_sub(&semaphores_refused, 1);
        errno = ENOSPC;
        return -1;
    }
    atomic_fetch_add(&semaphores_made, 1);
    return of_library(semaphore, shared, value);
}

int sem_wait(sem_t *semaphore) {
    static int (*of_library)(sem_t *);

    if (of_library == NULL)
        *(void **)&of_library = of_the_library("sem_wait");
    if (atomic_fetch_sub(&waits_cut, 1) > 0) {
        errno = EINTR;
        return -1;
    }
    return of_library(semaphore);
}

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);

void *malloc(size_t bytes) { return bytes >= atomic_load(&memory_refused_from) ? NULL : __libc_malloc(bytes); }

void *calloc(size_t n, size_t bytes) {
    return bytes > 0 && n >= atomic_load(&memory_refused_from) / bytes ? NULL : __libc_calloc(n, bytes);
}

DIR *fdopendir(int fd) {
    static DIR *(*of_library)(int);

    if (of_library == NULL)
        *(void **)&of_library = of_the_library("fdopendir");
    if (atomic_load(&no_listings)) {
        errno = ENOMEM;
        return NULL;
    }
    return of_library(fd);
}

int statx(int dir, const char *restrict name, int flags, unsigned mask, struct statx *restrict into) {
    static int (*of_library)(int, const char *, int, unsigned, struct statx *);

    if (of_library == NULL)
        *(void **)&of_library = of_the_library("statx");
    if (atomic_load(&no_states)) {
        errno = EIO;
        return -1;
    }
    return of_library(dir, name, flags, mask, into);
}

int pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
    return atomic_load(&no_handlers) ? ENOMEM : __register_atfork(prepare, parent, child, NULL);
}
#else
enum { TAKEN_OVER = 0 };
#endif

/* ---- a disk that answers oddly ---- */

static vfs table;
static vfs *real;

static struct {
    uint64_t nth, seen; /* which transfer; 0: none */
    bool in_reads;      /* or in writes */
    int64_t more;       /* than was asked; with `less`, what is given instead */
    bool less;
    size_t piece; /* no read gives more than this; 0: no limit */
    bool size_fails;
    bool no_direct;
    void (*in_sync)(void);
    int sync_error;
} odd;

static bool strikes(bool reads) { return odd.nth != 0 && odd.in_reads == reads && ++odd.seen == odd.nth; }

static int64_t odd_pread(vfs *v, int file, void *into, size_t bytes, uint64_t at) {
    int64_t got = real->pread(real, file, into, bytes, at);

    (void)v;
    if (strikes(true))
        return odd.less ? odd.more : (int64_t)bytes + odd.more;
    return odd.piece != 0 && got > (int64_t)odd.piece ? (int64_t)odd.piece : got;
}

static int64_t odd_pwrite(vfs *v, int file, const void *from, size_t bytes, uint64_t at) {
    (void)v;
    if (strikes(false))
        return odd.less ? odd.more : (int64_t)bytes + odd.more;
    return real->pwrite(real, file, from, bytes, at);
}

static int odd_open(vfs *v, int dir, const char *name, unsigned flags) {
    (void)v;
    return odd.no_direct && (flags & VFS_DIRECT) != 0 ? -EINVAL : real->open(real, dir, name, flags);
}

static int64_t odd_size(vfs *v, int file) {
    (void)v;
    return odd.size_fails ? -EIO : real->size(real, file);
}

static int odd_sync(vfs *v, int file) {
    void (*work)(void) = odd.in_sync;
    int error = odd.sync_error;

    (void)v;
    odd.in_sync = NULL;
    if (work != NULL) {
        work();
        if (error != 0)
            return error;
    }
    return real->sync_data(real, file);
}

static vfs *oddly(vfs_sim *disk) {
    memset(&odd, 0, sizeof odd);
    real = vfs_sim_table(disk);
    table = *real;
    table.pread = odd_pread;
    table.pwrite = odd_pwrite;
    table.size = odd_size;
    table.open = odd_open;
    table.sync_data = odd_sync;
    return &table;
}

static const ls_options usual = {.segment_size = SEGMENT, .create = 1, .initial_segments = 2, .max_write_buffers = 3};
static uint64_t kept_id;

/* The disk after a power cut, so that the next open reads past the cache and rewrites. */
static vfs_sim *crashed(void) {
    const vfs_sim_loss loss = {.mode = VFS_SIM_ALL_KEPT, .dir_mode = VFS_SIM_DIRS_KEPT};
    vfs_sim *disk;

    fresh_with(&usual);
    for (int i = 0; i < 30; i++)
        kept_id = put_bytes(1, 9, 3000, i % 5 == 4 ? LS_WAIT : 0);
    check(ls_force(r.store, 0) == LS_OK);
    disk = vfs_sim_crash(sim, &loss);
    done();
    r.store = NULL;
    return disk;
}

static int open_on(vfs *system) {
    int rc;

    r.v = system;
    rc = open_again();
    return rc;
}

static bool opens_whole(vfs_sim *disk) {
    uint64_t places = 0, locked;
    bool right;

    memset(&odd, 0, sizeof odd);
    right = open_on(vfs_sim_table(disk)) == LS_OK && ls_queue_depth(r.store, 1, &places, &locked) == LS_OK &&
            places == 30 && has(kept_id);
    ls_free(r.store);
    r.store = NULL;
    return right && vfs_sim_handles(disk) == 0;
}

static void a_transfer_of_an_impossible_size_is_an_error(void) {
    static const struct {
        bool in_reads, less;
        int64_t more;
    } ways[] = {{true, false, 1}, {true, false, 1 << 20}, {false, false, 1}, {false, true, 0}};
    vfs_sim *before = crashed();

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        uint64_t refused = 0;

        for (uint64_t nth = 1;; nth++) {
            vfs_sim *disk = vfs_sim_clone(before);
            vfs *system = oddly(disk);
            bool struck;
            int rc;

            odd.nth = nth;
            odd.in_reads = ways[i].in_reads;
            odd.less = ways[i].less;
            odd.more = ways[i].more;
            rc = open_on(system);
            if (rc == LS_OK)
                rc = ls_close(r.store);
            struck = odd.seen >= nth;
            ls_free(r.store);
            r.store = NULL;
            check(rc == LS_OK || rc == LS_IO || rc == LS_OUTCOME_UNKNOWN || rc == LS_POISONED);
            refused += rc != LS_OK;
            check(opens_whole(disk) || complain("it is not whole afterwards"));
            vfs_sim_free(disk);
            if (!struck)
                break;
        }
        check(refused > 2);
    }
    vfs_sim_free(before);
}

/* Past the page cache a read may end within a block; the next read must begin at that block's start. */
static void short_direct_reads_are_completed_or_end_in_an_error(void) {
    static const size_t fine[] = {BLOCK, 5000, 9000, 20001, 50001, 65000}, hopeless[] = {1, 100, BLOCK - 1};
    vfs_sim *before = crashed();

    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        vfs_sim *disk = vfs_sim_clone(before);
        vfs *system = oddly(disk);

        odd.piece = fine[i];
        check(open_on(system) == LS_OK && has(kept_id) && ls_close(r.store) == LS_OK);
        ls_free(r.store);
        check(opens_whole(disk));
        vfs_sim_free(disk);
    }
    for (size_t i = 0; i < 2 * (sizeof hopeless / sizeof *hopeless); i++) {
        vfs_sim *disk = vfs_sim_clone(before);
        vfs *system = oddly(disk);

        odd.piece = hopeless[i / 2];
        odd.size_fails = i % 2 == 1;
        check(open_on(system) == LS_IO);
        check(opens_whole(disk));
        vfs_sim_free(disk);
    }
    vfs_sim_free(before);
}

/* A file system without direct reads: the page cache is the only source. */
static void a_file_system_without_direct_reads_works(void) {
    vfs_sim *disk = crashed();

    for (int life = 0; life < 3; life++) {
        vfs *system = oddly(disk);

        odd.no_direct = true;
        check(open_on(system) == LS_OK && has(kept_id));
        churn(40);
        check(life != 0 || ls_close(r.store) == LS_OK);
        ls_free(r.store);
        r.store = NULL;
    }
    check(opens_whole(disk));
    vfs_sim_free(disk);
}

/* ---- no memory for what is large, no directory stream, no state of a file ---- */

static void a_read_without_memory_fails_and_can_be_repeated(void) {
    ls_options o = {.segment_size = 1 << 20, .create = 1, .initial_segments = 1, .max_write_buffers = 2};
    static uint8_t into[50000];
    uint64_t id;
    size_t n;

    if (!TAKEN_OVER)
        return;
    fresh_with(&o);
    id = put_bytes(1, 5, sizeof into, LS_WAIT);
    atomic_store(&memory_refused_from, sizeof into);
    check(ls_load_content(r.store, id, 0, into, sizeof into, &n) == LS_NO_MEMORY && n == 0);
    atomic_store(&memory_refused_from, SIZE_MAX);
    check(ls_load_content(r.store, id, 0, into, sizeof into, &n) == LS_OK && n == sizeof into && into[n - 1] == 5);
    atomic_store(&memory_refused_from, 1);
    check(ls_sim_new() == NULL && ls_sim_crash(vfs_sim_table(sim), 0, 1) == NULL);
    atomic_store(&memory_refused_from, SIZE_MAX);
    done();
}

static void real_files_without_a_listing_or_a_state_are_an_error(void) {
    char path[] = "/tmp/logstore-test-XXXXXX", command[80];
    uint32_t queue = 1;
    ls_store *store;
    uint64_t id;

    if (!TAKEN_OVER)
        return;
    require(mkdtemp(path) != NULL);
    check(ls_open(NULL, path, &usual, &store) == LS_OK && ls_serve(store, &queue, 1, 2) == LS_OK);
    check(ls_publish(store, &queue, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) == LS_OK);
    atomic_store(&no_states, true); /* whether a name leads to the file is not known: it may be durable nowhere */
    check(ls_publish(store, &queue, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) == LS_OUTCOME_UNKNOWN);
    atomic_store(&no_states, false);
    check(ls_poisoned(store) == EIO);
    ls_free(store);
    atomic_store(&no_listings, true);
    check(ls_open(NULL, path, &usual, &store) == LS_IO && ls_last_error()->sys_errno == ENOMEM);
    atomic_store(&no_listings, false);
    check(ls_open(NULL, path, &usual, &store) == LS_OK && ls_serve(store, &queue, 1, 2) == LS_OK);
    ls_free(store);
    (void)snprintf(command, sizeof command, "rm -rf %s", path);
    check(system(command) == 0);
}

/* ---- no threads, no semaphores ---- */

static void a_store_whose_threads_cannot_start_does_not_open(void) {
    for (int come = 0; TAKEN_OVER && come < 4; come++) {
        vfs_sim *disk = crashed();

        r.options.background = 1;
        atomic_store(&threads_to_come, come);
        check(open_on(vfs_sim_table(disk)) == (come < 3 ? LS_IO : LS_OK));
        atomic_store(&threads_to_come, INT_MAX);
        if (come < 3)
            check(ls_last_error()->sys_errno == EAGAIN);
        else
            ls_free(r.store);
        r.options.background = 0;
        check(opens_whole(disk));
        vfs_sim_free(disk);
    }
}

static int told;
static uint64_t other_id;

static void publish_and_wait(void) {
    uint32_t queue = 2;

    told = ls_publish(r.store, &queue, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &other_id);
}

/* Three segments are enough for a relocation, which waits for appends: there are none. */
static void a_thread_that_runs_before_its_creator_relocates_no_sooner(void) {
    ls_options background = usual;
    ls_stats stats;

    if (!TAKEN_OVER)
        return;
    background.background = 1;
    fresh_with(&background);
    uint64_t id = put(1, "lives in the first", NULL);
    again();
    (void)put(1, "lives in the second", NULL);
    atomic_store(&creators_pause, true);
    again();
    atomic_store(&creators_pause, false);
    ls_stats_get(r.store, &stats);
    check(stats.segments_relocated == 0 && has(id));
    done();
}

/* While another thread's batch is written: a thread without a semaphore gets an error, but its record is in the log. */
static void a_thread_that_cannot_wait_for_durability_gets_an_error(void) {
    uint64_t id;

    if (!TAKEN_OVER)
        return;
    fresh_with(&usual);
    r.v = oddly(sim);
    again();
    atomic_store(&semaphores_refused, 1);
    odd.in_sync = publish_and_wait;
    told = LS_OK;
    id = put(1, "the first", NULL);
    check(told == LS_IO && atomic_load(&semaphores_refused) == 0);
    again();
    check(has(id) && has(other_id));
    done();
}

enum { FOLLOWERS = 3 };
static struct follower {
    pthread_t thread;
    uint64_t id;
    int told;
} followers[FOLLOWERS];

static void *follow_up(void *context) {
    struct follower *f = context;
    uint32_t queue = 2;

    f->told = ls_publish(r.store, &queue, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &f->id);
    return NULL;
}

/* They start while the first thread's batch is being written; that write ends after all of them wait for it. */
static void start_followers(void) {
    atomic_store(&semaphores_made, 0);
    for (int i = 0; i < FOLLOWERS; i++)
        require(pthread_create(&followers[i].thread, NULL, follow_up, &followers[i]) == 0);
    while (atomic_load(&semaphores_made) < FOLLOWERS)
        (void)sched_yield();
}

static void waiters_for_another_threads_batch_get_its_result(void) {
    for (int fails = 0; TAKEN_OVER && fails < 2; fails++) {
        uint64_t id;
        uint32_t queue = 1;
        int rc;

        fresh_with(&usual);
        r.v = oddly(sim);
        again();
        odd.in_sync = start_followers;
        odd.sync_error = fails != 0 ? -EIO : 0;
        atomic_store(&waits_cut, FOLLOWERS + 2); /* a wait that a signal interrupts is not a wake-up */
        rc = ls_publish(r.store, &queue, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id);
        for (int i = 0; i < FOLLOWERS; i++) {
            check(pthread_join(followers[i].thread, NULL) == 0);
            check(followers[i].told == (fails != 0 ? LS_OUTCOME_UNKNOWN : LS_OK));
        }
        atomic_store(&waits_cut, 0);
        check(rc == (fails != 0 ? LS_OUTCOME_UNKNOWN : LS_OK));
        check((ls_poisoned(r.store) != 0) == (fails != 0));
        ls_free(r.store);
        check(open_again() == LS_OK);
        for (int i = 0; fails == 0 && i < FOLLOWERS; i++)
            check(has(id) && has(followers[i].id));
        done();
    }
}

static void a_spurious_wake_up_of_the_flusher_has_no_effect(void) {
    ls_options background = usual;
    uint64_t id;

    if (!TAKEN_OVER)
        return;
    background.background = 1;
    atomic_store(&waits_cut, 20);
    fresh_with(&background);
    for (int i = 0; i < 20; i++)
        id = put_bytes(1, 3, 100, LS_WAIT);
    check(ls_flush_soon(r.store) == LS_OK);
    check(ls_close(r.store) == LS_OK);
    atomic_store(&waits_cut, 0);
    ls_free(r.store);
    check(open_again() == LS_OK && has(id));
    done();
}

/* A process tries it only once, so a child does, before this process has opened a store. */
static void without_a_fork_handler_no_store_opens(void) {
    int status = 1;
    pid_t child;

    if (!TAKEN_OVER)
        return;
    (void)fflush(stdout);
    child = fork();
    if (child == 0) {
        vfs_sim *disk = vfs_sim_new();
        ls_store *store = NULL;

        (void)alarm(100);
        atomic_store(&no_handlers, true);
        check(ls_open(vfs_sim_table(disk), "/s", &usual, &store) == LS_IO && store == NULL);
        check(ls_last_error()->sys_errno == ENOMEM && vfs_sim_handles(disk) == 0);
        vfs_sim_free(disk);
        exit(failures_here > 0);
    }
    require(child > 0 && waitpid(child, &status, 0) == child);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
    static void (*const tests[])(void) = {
        without_a_fork_handler_no_store_opens,
        a_transfer_of_an_impossible_size_is_an_error,
        short_direct_reads_are_completed_or_end_in_an_error,
        a_file_system_without_direct_reads_works,
        a_read_without_memory_fails_and_can_be_repeated,
        real_files_without_a_listing_or_a_state_are_an_error,
        a_store_whose_threads_cannot_start_does_not_open,
        a_thread_that_runs_before_its_creator_relocates_no_sooner,
        a_thread_that_cannot_wait_for_durability_gets_an_error,
        waiters_for_another_threads_batch_get_its_result,
        a_spurious_wake_up_of_the_flusher_has_no_effect,
    };

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    return run_tests(tests, sizeof tests / sizeof *tests);
}
