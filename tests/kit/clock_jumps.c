/* Preloaded into a process: a file says by how many seconds its wall clock differs from the machine's, or at which second
 * it stands. Both may change at any moment. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static _Atomic int64_t *jump_s; /* then a second number: not 0 if the clock stands at the first one */

__attribute__((constructor)) static void map(void) {
    const char *path = getenv("CLOCK_JUMPS");
    int file = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = file < 0 ? MAP_FAILED : mmap(NULL, 2 * sizeof *jump_s, PROT_READ, MAP_SHARED, file, 0);

    if (at == MAP_FAILED)
        abort();
    jump_s = at;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    int rc;

    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    rc = real(clock, t);
    if (rc == 0 && jump_s != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        if (jump_s[1] != 0)
            *t = (struct timespec){.tv_sec = jump_s[0]};
        else
            t->tv_sec += *jump_s;
    }
    return rc;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    int rc = clock_gettime(CLOCK_REALTIME, &now);

    (void)zone;
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return rc;
}

/* A wait until a time of a clock that stands must still take as long as its caller meant. */
int pthread_cond_timedwait(pthread_cond_t *restrict signal, pthread_mutex_t *restrict held,
                           const struct timespec *restrict until) {
    struct timespec now, end = *until;
    bool is_monotonic = end.tv_sec < 1000000000; /* Python's own; the machine has not run for 31 years */

    if (is_monotonic || jump_s == NULL || jump_s[1] == 0)
        return pthread_cond_clockwait(signal, held, is_monotonic ? CLOCK_MONOTONIC : CLOCK_REALTIME, &end);
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    end.tv_sec += now.tv_sec - jump_s[0];
    return pthread_cond_clockwait(signal, held, CLOCK_MONOTONIC, &end);
}

time_t time(time_t *into) {
    struct timespec now;

    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    if (into != NULL)
        *into = now.tv_sec;
    return now.tv_sec;
}
