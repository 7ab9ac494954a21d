/*
 * The checks of all C tests: check, require, random numbers, whole transfers. No framework.
 *
 * A failed check prints one line and the test goes on; a failed require ends the test.
 */
#ifndef LOGSTORE_VFS_TEST_H
#define LOGSTORE_VFS_TEST_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "os/vfs.h"
#include "tests/sim/vfs_sim.h"

/* gcc names the sanitizer in a macro, clang in __has_feature. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#elif __has_feature(address_sanitizer)
#define UNDER_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__SANITIZE_ADDRESS__)
#define UNDER_ASAN 1
#endif

#if defined(__has_include)
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#define SINGLE_THREADED_IS_KNOWN 1
#endif
#endif

static int failures_here;

static inline bool check_at(bool holds, const char *words, const char *file, const char *test, int line) {
    if (!holds) {
        failures_here++;
        printf("%s:%d: %s: %s\n", file, line, test, words);
    }
    return holds;
}

#define check(condition) ((void)check_at((condition), #condition, __FILE__, __func__, __LINE__))
#define require(condition)                                                    \
    do {                                                                      \
        if (!check_at((condition), #condition, __FILE__, __func__, __LINE__)) \
            return;                                                           \
    } while (0)

enum { BLOCK = 4096, SECTOR = 512 };

/*
 * Under sanitizers only every n-th of many similar cases runs: they differ in stored data, not in the code that runs. The
 * plain build runs all. Such cases use a single thread, so a thread sanitizer finds almost nothing in them anyway.
 */
#if defined(UNDER_TSAN)
enum { ONE_IN = 40 };
#elif defined(UNDER_ASAN)
enum { ONE_IN = 6 };
#else
enum { ONE_IN = 1 };
#endif

static inline uint64_t chance(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static inline bool write_all(vfs *v, int file, const void *from, size_t bytes, uint64_t at) {
    return v->pwrite(v, file, from, bytes, at) == (int64_t)bytes;
}

static inline bool reads(vfs *v, int file, const void *expected, size_t bytes, uint64_t at) {
    static _Alignas(BLOCK) unsigned char into[16 * BLOCK];

    return bytes <= sizeof into && v->pread(v, file, into, bytes, at) == (int64_t)bytes &&
           memcmp(into, expected, bytes) == 0;
}

static inline bool reads_fill(vfs *v, int file, int fill, size_t bytes, uint64_t at) {
    static unsigned char expected[16 * BLOCK];

    memset(expected, fill, sizeof expected);
    return reads(v, file, expected, bytes, at);
}

enum { SECTORS = 4 };

typedef struct {
    vfs_sim *sim;
    vfs *v;
    int dir;
    int file;
} world;

/* A durable file "f" of SECTORS sectors of 1s in a durable directory "/s". */
static inline world world_new(void) {
    static const unsigned char none[1];
    unsigned char ones[SECTORS * SECTOR];
    world w = {.sim = vfs_sim_new()};

    memset(ones, 1, sizeof ones);
    w.v = vfs_sim_table(w.sim);
    if (vfs_sim_put(w.sim, "/s", "f", ones, sizeof ones) != 0 || vfs_sim_put(w.sim, "/s", "g", none, 0) != 0)
        abort();
    w.dir = w.v->open_dir(w.v, "/s");
    w.file = w.v->open(w.v, w.dir, "f", VFS_WRITE);
    if (w.dir < 0 || w.file < 0)
        abort();
    return w;
}

static inline void world_free(world *w) {
    check(w->v->close(w->v, w->file) == 0 && w->v->close(w->v, w->dir) == 0);
    check(vfs_sim_handles(w->sim) == 0);
    vfs_sim_free(w->sim);
}

/* Whether this process has never started a thread; false if the C library cannot say. */
static inline bool has_started_no_thread(void) {
#if defined(SINGLE_THREADED_IS_KNOWN)
    return __libc_single_threaded != 0;
#else
    return false;
#endif
}

/*
 * Prints the last line and gives main's result. The line before it, of a program that starts no thread, is what the Makefile
 * reads in the log of the plain build: there is nothing for the thread sanitizer in such a program.
 */
static inline int verdict(int passed, int failed) {
    if (has_started_no_thread())
        printf("no thread was started\n");
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}

/* Runs the tests, each of which passes if all its checks hold; gives main's result. */
static inline int run_tests(void (*const *tests)(void), size_t n) {
    int passed = 0, failed = 0;

    for (size_t i = 0; i < n; i++) {
        int before = failures_here;

        tests[i]();
        if (getenv("LOGSTORE_VERBOSE") != NULL)
            printf("test %zu: %ld ms of CPU\n", i, (long)(clock() / (CLOCKS_PER_SEC / 1000)));
        if (failures_here == before)
            passed++;
        else
            failed++;
    }
    return verdict(passed, failed);
}

#endif
