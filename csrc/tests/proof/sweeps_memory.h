/*
 * The Nth allocation fails, for every N, once and for ever. Then the call that met the failure has changed nothing, the
 * store continues and is not poisoned, and the next open finds all acknowledged operations.
 *
 * It replaces the C library's allocator. Sanitizers do not allow that, so they have no such sweep. The store uses real
 * files, because the simulated ones allocate, too.
 */
#ifndef LOGSTORE_SWEEPS_MEMORY_H
#define LOGSTORE_SWEEPS_MEMORY_H

#include <unistd.h>

#include "tests/proof/sweeps.h"

static uint64_t allocations, fail_from, failed_ones;
static bool fail_on, watched;
static struct sites allocation_sites;

#if !defined(UNDER_ASAN) && !defined(UNDER_TSAN) && defined(__GLIBC__)
#define TAKEN_OVER 1
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static bool refused(const void *address) {
    bool strikes;

    if (!watched)
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

static enum check memory_aftermath_broke(struct run *r) {
    static struct judge j;
    struct bounds b = {r->durable, r->op_count, r->catalog};
    ls_store *store = NULL;
    size_t found;
    enum check c;

    j.run = r;
    j.known = false;
    if (open_store(r, r->v, r->catalog, QUEUES + 1, &store) != LS_OK)
        return broken_here(OPENS, "the next open");
    c = judge_first(&j, store, b, &found);
    if (c != NOTHING_BROKEN)
        printf("%s: %s\n", check_names[c], j.why);
    ls_free(store);
    return c;
}

/* nth 0: none fails. */
static enum check memory_failure_broke(const struct workload *w, uint64_t nth, bool forever) {
    static struct run r;
    char path[] = "/dev/shm/logstore-test-XXXXXX", other[] = "/tmp/logstore-test-XXXXXX", command[80];
    char *made = mkdtemp(path);
    enum check c = NOTHING_BROKEN;

    made = made != NULL ? made : mkdtemp(other);
    if (made == NULL)
        abort();
    memset(&r, 0, sizeof r);
    r.v = vfs_posix();
    r.path = made;
    allocations = failed_ones = 0;
    fail_on = forever;
    fail_from = nth;
    watched = true;
    run_start(&r, NULL, w->seed);
    run_workload(&r, w);
    if (r.store != NULL && ls_poisoned(r.store))
        c = broken_here(MEMORY, "it poisoned the store");
    run_end(&r);
    watched = false;
    c = c == NOTHING_BROKEN ? memory_aftermath_broke(&r) : c;
    (void)snprintf(command, sizeof command, "rm -rf %s", made);
    if (system(command) != 0 || c != NOTHING_BROKEN)
        printf("VIOLATED %s: workload seed %llu, %zu operations%s%s; allocation %llu%s\n"
               "  again: sweeps --seed %llu --operations %zu%s%s%s --allocation %llu%s\n",
               check_names[c], (unsigned long long)w->seed, w->operations, w->moves ? " with moves" : "",
               w->busy ? " in transactions" : "", (unsigned long long)nth, forever ? " and all after it" : "",
               (unsigned long long)w->seed, w->operations, w->moves ? " --moves" : "", w->busy ? " --busy" : "",
               w->timed ? " --timed" : "", (unsigned long long)nth, forever ? " --forever" : "");
    return c;
}

static void sweep_memory(const struct workload *w, bool forever, uint64_t step) {
    uint64_t nth = 1, last = 0;
    enum check c = NOTHING_BROKEN;
    bool struck = true;

    while (struck && c == NOTHING_BROKEN && !time_is_over()) {
        c = memory_failure_broke(w, nth, forever);
        struck = failed_ones > 0;
        counts.sweeps += struck;
        note(c);
        last = struck ? nth : last;
        nth += step;
    }
    if (step == 1 && c == NOTHING_BROKEN && !struck)
        printf("no memory %s%s: each of %llu allocations failed, there is no allocation %llu\n",
               forever ? "for ever" : "once",
               w->moves   ? ", with moves"
               : w->busy  ? ", in transactions"
               : w->timed ? ", with times"
                          : "",
               (unsigned long long)last, (unsigned long long)last + 1);
    counts.largest = last > counts.largest ? last : counts.largest;
}

#endif
