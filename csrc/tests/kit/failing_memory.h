/*
 * An allocator that fails at a chosen call.
 *
 * It replaces the C library's allocator, except under sanitizers, which replace it themselves; there nothing fails.
 */
#ifndef LOGSTORE_FAILING_MEMORY_H
#define LOGSTORE_FAILING_MEMORY_H

#include "tests/kit/vfs_test.h"

static bool counting, for_ever __attribute__((unused));
#define UNUSED __attribute__((unused)) /* in a test that lets no allocation fail */
static uint64_t allocations UNUSED, failed UNUSED, fail_at_nth UNUSED;

#if !defined(UNDER_ASAN) && !defined(UNDER_TSAN) && defined(__GLIBC__)
enum { TAKEN_OVER = 1 };
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static bool refused(void) {
    if (!counting)
        return false;
    allocations++;
    if (fail_at_nth == 0 || allocations < fail_at_nth || (allocations > fail_at_nth && !for_ever))
        return false;
    failed++;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes) { return refused() ? NULL : __libc_malloc(bytes); }
void *calloc(size_t n, size_t bytes) { return refused() ? NULL : __libc_calloc(n, bytes); }
void *realloc(void *old, size_t bytes) { return refused() ? NULL : __libc_realloc(old, bytes); }
void *aligned_alloc(size_t alignment, size_t bytes) { return refused() ? NULL : __libc_memalign(alignment, bytes); }
#else
enum { TAKEN_OVER = 0 };
#endif

#endif
