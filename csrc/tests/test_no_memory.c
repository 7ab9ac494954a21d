/*
 * The Nth allocation fails, for every N, once and for ever. What is promised: the call that met it changed nothing, the
 * store goes on, nothing is poisoned by it, and the next open finds what was promised.
 *
 * The C library's allocator is taken over, which sanitizers do not let us: under them nothing fails and the workload
 * just runs. Over the operating system's files, since the simulated ones allocate as well.
 */
#include <unistd.h>

#include "store_workload.h"

static uint64_t allocations, fail_from, failed_ones;
static bool fail_on;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
#define TAKEN_OVER 1
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static bool refused(void) {
    allocations++;
    if (fail_from == 0 || allocations < fail_from || (allocations > fail_from && !fail_on))
        return false;
    failed_ones++;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes) { return refused() ? NULL : __libc_malloc(bytes); }
void *calloc(size_t n, size_t bytes) { return refused() ? NULL : __libc_calloc(n, bytes); }
void *realloc(void *old, size_t bytes) { return refused() ? NULL : __libc_realloc(old, bytes); }
void *aligned_alloc(size_t alignment, size_t bytes) { return refused() ? NULL : __libc_memalign(alignment, bytes); }
#else
#define TAKEN_OVER 0
#endif

static struct run r;

enum { MOVES = 300 };

static bool aftermath_is_right(void) {
    static struct state s;
    struct bounds b = {r.durable, r.op_count, r.catalog};
    ls_store *store = NULL;
    size_t found;
    bool right;

    if (open_store(&r, r.v, r.catalog, QUEUES + 1, &store) != LS_OK)
        return complain("the next open");
    right = recognise(&r, store, b, &s, &found) && contents_are(&r, store, &s);
    ls_free(store);
    return right;
}

static bool failure_is_survived(uint64_t seed, uint64_t nth, bool forever, size_t moves) {
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
    run_start(&r, NULL, seed);
    if (moves > 0)
        run_with_moves(&r, moves);
    else
        run_some(&r, 60);
    if (r.store != NULL && ls_poisoned(r.store))
        right = complain("it poisoned the store");
    run_end(&r);
    fail_from = 0;
    right = right && aftermath_is_right();
    (void)snprintf(command, sizeof command, "rm -rf %s", made);
    if (system(command) != 0 || !right)
        printf("seed %llu allocation %llu forever %d moves %zu\n", (unsigned long long)seed, (unsigned long long)nth,
               forever, moves);
    return right;
}

int main(void) {
    const char *times = getenv("LOGSTORE_ALLOCATIONS");
    uint64_t seeds = times != NULL ? strtoull(times, NULL, 10) : 1, sweeps = 0;
    int passed = 0, failed = 0;
    static char buffer[4096];

    (void)setvbuf(stdout, buffer, _IOLBF, sizeof buffer);
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        for (int kind = 0; kind < 4; kind++) {
            bool right = true, forever = kind % 2 != 0;
            uint64_t step = kind == 1 ? 3 : 1;

            for (uint64_t nth = 1; right; nth += step, sweeps++) {
                right = failure_is_survived(seed, TAKEN_OVER ? nth : 0, forever, kind < 2 ? 0 : MOVES);
                if (failed_ones == 0)
                    break;
            }
            if (right)
                passed++;
            else
                failed++;
        }
    }
    printf("%llu allocations failed\n", (unsigned long long)sweeps);
    return verdict(passed, failed);
}
