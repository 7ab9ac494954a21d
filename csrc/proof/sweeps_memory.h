/*
 * The Nth allocation fails, for every N, once and for ever. What is promised: the call that met it changed nothing, the
 * store goes on, nothing is poisoned by it, and the next open finds what was promised.
 *
 * The C library's allocator is taken over, which sanitizers do not let us: under them there is no such sweep. Over the
 * operating system's files, since the simulated ones allocate as well.
 */
#ifndef LOGSTORE_SWEEPS_MEMORY_H
#define LOGSTORE_SWEEPS_MEMORY_H

#include <unistd.h>

#include "sweeps.h"

static uint64_t allocations, fail_from, failed_ones;
static bool fail_on, watching;
static struct sites allocation_sites;

#if !defined(UNDER_ASAN) && !defined(UNDER_TSAN) && defined(__GLIBC__)
#define TAKEN_OVER 1
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static bool refused(const void *address) {
    bool strikes;

    if (!watching)
        return false;
    allocations++;
    strikes = fail_from != 0 && allocations >= fail_from && (allocations == fail_from || fail_on);
    site_comes(&allocation_sites, address, 0, allocations, allocations, failed_ones == 0, strikes);
    failed_ones += strikes;
    if (strikes)
        errno = ENOMEM;
    return strikes;
}

void *malloc(size_t bytes) { return refused(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes); }
void *calloc(size_t n, size_t bytes) { return refused(__builtin_return_address(0)) ? NULL : __libc_calloc(n, bytes); }
void *realloc(void *old, size_t bytes) {
    return refused(__builtin_return_address(0)) ? NULL : __libc_realloc(old, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes) {
    return refused(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, bytes);
}
#else
#define TAKEN_OVER 0
#endif

static bool memory_aftermath_is_right(struct run *r) {
    static struct state s;
    struct bounds b = {r->durable, r->op_count, r->catalog};
    ls_store *store = NULL;
    size_t found;
    bool right;

    if (open_store(r, r->v, r->catalog, QUEUES + 1, &store) != LS_OK)
        return complain("the next open");
    right = recognise(r, store, b, &s, &found) && contents_are(r, store, &s);
    ls_free(store);
    return right;
}

/* nth 0: none fails. */
static bool memory_failure_is_survived(const struct workload *w, uint64_t nth, bool forever) {
    static struct run r;
    char path[] = "/dev/shm/logstore-test-XXXXXX", other[] = "/tmp/logstore-test-XXXXXX", command[80];
    char *made = mkdtemp(path);
    bool right = true;

    made = made != NULL ? made : mkdtemp(other);
    if (made == NULL)
        abort();
    memset(&r, 0, sizeof r);
    r.v = vfs_posix();
    r.path = made;
    allocations = failed_ones = 0;
    fail_on = forever;
    fail_from = nth;
    watching = true;
    run_start(&r, NULL, w->seed);
    if (w->moves)
        run_with_moves(&r, w->operations);
    else
        run_some(&r, w->operations);
    if (r.store != NULL && ls_poisoned(r.store))
        right = complain("it poisoned the store");
    run_end(&r);
    watching = false;
    right = right && memory_aftermath_is_right(&r);
    (void)snprintf(command, sizeof command, "rm -rf %s", made);
    if (system(command) != 0 || !right)
        printf("VIOLATED memory: workload seed %llu, %zu operations%s; allocation %llu%s\n"
               "  again: sweeps --seed %llu --operations %zu%s --allocation %llu%s\n",
               (unsigned long long)w->seed, w->operations, w->moves ? " with moves" : "", (unsigned long long)nth,
               forever ? " and all after it" : "", (unsigned long long)w->seed, w->operations,
               w->moves ? " --moves" : "", (unsigned long long)nth, forever ? " --forever" : "");
    return right;
}

static void sweep_memory(const struct workload *w, bool forever, uint64_t step) {
    uint64_t nth = 1, last = 0;
    bool right = true, struck = true;

    while (struck && right && !time_is_over()) {
        right = memory_failure_is_survived(w, nth, forever);
        struck = failed_ones > 0;
        counts.sweeps += struck;
        counts.violations += !right;
        last = struck ? nth : last;
        nth += step;
    }
    if (step == 1 && right && !struck)
        printf("no memory %s%s: each of %llu allocations failed, allocation %llu did not come\n",
               forever ? "for ever" : "once", w->moves ? ", with moves" : "", (unsigned long long)last,
               (unsigned long long)last + 1);
    counts.largest = last > counts.largest ? last : counts.largest;
}

#endif
