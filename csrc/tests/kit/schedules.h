/*
 * Schedules: which thread runs, and for how long, is chosen by a seed. Each call of the core that takes a lock, lets it go, waits or
 * wakes is a point at which another thread may go on. The calls are replaced when the test is linked (SCHEDULED in the
 * Makefile), so the core has no hook, and all locks are under it: the log's, the registry's, those of the simulated disk.
 *
 * Between schedule_begin and schedule_end one thread runs at a time, and the same seed gives the same run. A thread that
 * waits is not run, so waiting needs no time: if every thread waits for another one, that is known at once, and the process
 * ends with what each of them waits for. Waits are interrupted by signals, and conditions wake without reason, by the seed.
 * A timed wait is over when the count of points has reached its time, in place of nanoseconds.
 *
 * Under the thread sanitizer handing over would hide the races, so there the threads run freely and only yield by the seed.
 */
#ifndef LOGSTORE_KIT_SCHEDULES_H
#define LOGSTORE_KIT_SCHEDULES_H

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <unistd.h>

#include "tests/kit/vfs_test.h"

#ifdef UNDER_TSAN
enum { IS_SCHEDULED = 0 };
#else
enum { IS_SCHEDULED = 1 };
#endif

/* A wait to this time is never over. */
#define NEVER UINT64_MAX

enum { THREADS_MAX = 24, POINTS_MAX = 4000000, INTERRUPTED_ONE_IN = 16, REST_POINTS_MAX = 64 };

enum waiting_for { FOR_NOTHING, FOR_A_LOCK, FOR_A_SIGNAL, FOR_A_SEMAPHORE, FOR_A_THREAD, FOR_A_TIME, FOR_QUIET, ENDED };

struct scheduled {
    sem_t turn; /* posted when this thread is to run */
    pthread_t thread;
    void *(*body)(void *);
    void *argument;
    enum waiting_for waits;
    const void *on; /* a lock, condition, semaphore or struct scheduled */
    uint64_t until; /* the point at which a timed wait is over */
    unsigned held;  /* locks */
};

static struct {
    struct scheduled all[THREADS_MAX];
    size_t count, runs;
    uint64_t seed, chance, points, switch_one_in;
    bool on;
    const sem_t *watched;         /* NULL, or a semaphore, */
    uint64_t posts, locked_posts; /* its posts by the first thread, and those that were made with a lock */
} schedule;

static _Thread_local uint64_t yields; /* where threads run freely: the chance of this thread */

/* ---- the real calls ---- */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*body)(void *), void *argument);
int __real_pthread_join(pthread_t thread, void **result);
int __real_pthread_mutex_lock(pthread_mutex_t *lock);
int __real_pthread_mutex_trylock(pthread_mutex_t *lock);
int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __real_pthread_cond_wait(pthread_cond_t *signal, pthread_mutex_t *held);
int __real_pthread_cond_signal(pthread_cond_t *signal);
int __real_pthread_cond_broadcast(pthread_cond_t *signal);
int __real_sem_wait(sem_t *sem);
int __real_sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *until);
int __real_sem_post(sem_t *sem);
int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __real_sched_yield(void);

/* ---- whose turn it is; called by the thread that runs ---- */

static inline uint64_t schedule_chance(uint64_t n) { return chance(&schedule.chance) % n; }

static inline void await_turn(struct scheduled *self) {
    while (__real_sem_wait(&self->turn) != 0) {
    }
}

/* Ends the process: the threads that wait can be neither woken nor left. */
static inline void schedule_stuck(const char *why) {
    static const char *const names[] = {"nothing",  "a lock", "a signal", "a semaphore",
                                        "a thread", "a time", "quiet",    ""};

    printf("%s:%d: nobody_waits_for_ever: seed %llu, point %llu: %s\n", __FILE__, __LINE__,
           (unsigned long long)schedule.seed, (unsigned long long)schedule.points, why);
    for (size_t i = 0; i < schedule.count; i++) {
        if (schedule.all[i].waits != ENDED)
            printf("  thread %zu waits for %s (%p)\n", i, names[schedule.all[i].waits], schedule.all[i].on);
    }
    printf("0 passed, 1 failed\n");
    (void)fflush(stdout);
    _exit(1);
}

static inline bool can_run(const struct scheduled *s) {
    return s->waits == FOR_NOTHING || (s->waits != ENDED && s->until <= schedule.points);
}

/* One that can run, by chance. If none can: the time of the next timed wait comes; else it is quiet. */
static inline size_t schedule_pick(void) {
    size_t can[THREADS_MAX], n = 0, quiet = THREADS_MAX;
    uint64_t next = NEVER;

    for (size_t i = 0; i < schedule.count; i++) {
        const struct scheduled *s = &schedule.all[i];

        if (can_run(s))
            can[n++] = i;
        else if (s->waits == FOR_QUIET)
            quiet = i;
        else if (s->waits != ENDED && s->until < next)
            next = s->until;
    }
    if (n > 0)
        return can[schedule_chance(n)];
    if (next != NEVER) {
        schedule.points = next;
        return schedule_pick();
    }
    if (quiet == THREADS_MAX)
        schedule_stuck("every thread waits for another one");
    return quiet;
}

static inline void hand_over(void) {
    struct scheduled *self = &schedule.all[schedule.runs];
    size_t next = schedule_pick();

    if (next != schedule.runs) {
        schedule.runs = next;
        (void)__real_sem_post(&schedule.all[next].turn);
        if (self->waits != ENDED)
            await_turn(self);
    }
}

/* Another thread may go on here. */
static inline void schedule_point(void) {
    if (!schedule.on) {
        if (!IS_SCHEDULED && chance(&yields) % 4 == 0)
            (void)__real_sched_yield();
        return;
    }
    if (++schedule.points > POINTS_MAX)
        schedule_stuck("the threads run on and on");
    if (schedule_chance(schedule.switch_one_in) == 0)
        hand_over();
}

/* False: its time was over before anything woke it. */
static inline bool schedule_wait(enum waiting_for what, const void *on, uint64_t until) {
    struct scheduled *self = &schedule.all[schedule.runs];

    self->waits = what;
    self->on = on;
    self->until = until;
    schedule.points++;
    hand_over();
    bool woken = self->waits == FOR_NOTHING;
    self->waits = FOR_NOTHING;
    self->on = NULL;
    self->until = NEVER;
    return woken;
}

/* Wakes the threads that wait for this: all, or one by chance. */
static inline void schedule_wake(enum waiting_for what, const void *on, bool all) {
    size_t found[THREADS_MAX], n = 0;

    for (size_t i = 0; i < schedule.count; i++) {
        if (schedule.all[i].waits == what && schedule.all[i].on == on)
            found[n++] = i;
    }
    for (size_t i = 0, one = all || n == 0 ? 0 : schedule_chance(n); i < n; i++) {
        if (all || i == one) {
            schedule.all[found[i]].waits = FOR_NOTHING;
            schedule.all[found[i]].until = NEVER;
        }
    }
}

/* ---- for tests ---- */

static inline void schedule_begin(uint64_t seed) {
    static const uint64_t rates[] = {1, 2, 4, 16};

    memset(&schedule, 0, sizeof schedule);
    schedule.seed = schedule.chance = yields = seed;
    schedule.switch_one_in = rates[schedule_chance(4)];
    schedule.count = 1;
    schedule.all[0] = (struct scheduled){.thread = pthread_self(), .until = NEVER};
    if (sem_init(&schedule.all[0].turn, 0, 0) != 0)
        abort();
    schedule.on = IS_SCHEDULED;
}

/* All other threads have been joined. */
static inline void schedule_end(void) {
    schedule.on = false;
    for (size_t i = 0; i < schedule.count; i++)
        (void)sem_destroy(&schedule.all[i].turn);
}

/* Until every other thread waits, and only for what none of them will do. Where threads run freely: at once. */
static inline void schedule_quiet(void) {
    if (schedule.on)
        (void)schedule_wait(FOR_QUIET, NULL, NEVER);
}

/* The point at which a wait for so many more points is over. */
static inline uint64_t schedule_after(uint64_t points) { return schedule.points + points; }

/* ---- the calls that the core makes ---- */

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*body)(void *), void *argument);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *signal, pthread_mutex_t *held);
int __wrap_pthread_cond_signal(pthread_cond_t *signal);
int __wrap_pthread_cond_broadcast(pthread_cond_t *signal);
int __wrap_sem_wait(sem_t *sem);
int __wrap_sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *until);
int __wrap_sem_post(sem_t *sem);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_sched_yield(void);

static void *scheduled_thread(void *which) {
    struct scheduled *self = which;

    await_turn(self);
    void *result = self->body(self->argument);
    self->waits = ENDED;
    schedule_wake(FOR_A_THREAD, self, true);
    hand_over();
    return result;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*body)(void *), void *argument) {
    if (!schedule.on)
        return __real_pthread_create(thread, how, body, argument);
    if (schedule.count == THREADS_MAX)
        return EAGAIN;
    struct scheduled *made = &schedule.all[schedule.count];
    *made = (struct scheduled){.body = body, .argument = argument, .until = NEVER};
    int rc = sem_init(&made->turn, 0, 0) == 0 ? __real_pthread_create(thread, how, scheduled_thread, made) : errno;
    if (rc == 0) {
        made->thread = *thread;
        schedule.count++;
        schedule_point();
    }
    return rc;
}

int __wrap_pthread_join(pthread_t thread, void **result) {
    for (size_t i = 1; schedule.on && i < schedule.count; i++) {
        struct scheduled *other = &schedule.all[i];

        if (other->body != NULL && pthread_equal(other->thread, thread)) {
            if (other->waits != ENDED)
                (void)schedule_wait(FOR_A_THREAD, other, NEVER);
            other->body = NULL; /* its pthread_t may be given to another thread */
            break;
        }
    }
    return __real_pthread_join(thread, result);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *lock) {
    schedule_point();
    while (schedule.on) {
        int rc = __real_pthread_mutex_trylock(lock);

        if (rc != EBUSY) {
            schedule.all[schedule.runs].held += rc == 0;
            return rc;
        }
        (void)schedule_wait(FOR_A_LOCK, lock, NEVER);
    }
    return __real_pthread_mutex_lock(lock);
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *lock) {
    schedule_point();
    int rc = __real_pthread_mutex_trylock(lock);
    if (schedule.on)
        schedule.all[schedule.runs].held += rc == 0;
    return rc;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock) {
    int rc = __real_pthread_mutex_unlock(lock);

    if (schedule.on) {
        schedule.all[schedule.runs].held--;
        schedule_wake(FOR_A_LOCK, lock, true);
    }
    schedule_point();
    return rc;
}

int __wrap_pthread_cond_wait(pthread_cond_t *signal, pthread_mutex_t *held) {
    if (!schedule.on)
        return __real_pthread_cond_wait(signal, held);
    (void)__real_pthread_mutex_unlock(held);
    schedule.all[schedule.runs].held--;
    schedule_wake(FOR_A_LOCK, held, true);
    if (schedule_chance(INTERRUPTED_ONE_IN) == 0)
        hand_over();
    else
        (void)schedule_wait(FOR_A_SIGNAL, signal, NEVER);
    return __wrap_pthread_mutex_lock(held);
}

int __wrap_pthread_cond_signal(pthread_cond_t *signal) {
    if (!schedule.on)
        return __real_pthread_cond_signal(signal);
    schedule_wake(FOR_A_SIGNAL, signal, false);
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *signal) {
    if (!schedule.on)
        return __real_pthread_cond_broadcast(signal);
    schedule_wake(FOR_A_SIGNAL, signal, true);
    return 0;
}

/* sem_wait until this point, interrupted now and then. */
static int scheduled_sem_wait(sem_t *sem, uint64_t until) {
    schedule_point();
    while (sem_trywait(sem) != 0) {
        if (schedule_chance(INTERRUPTED_ONE_IN) == 0) {
            errno = EINTR;
            return -1;
        }
        if (until <= schedule.points || !schedule_wait(FOR_A_SEMAPHORE, sem, until)) {
            errno = ETIMEDOUT;
            return -1;
        }
    }
    return 0;
}

int __wrap_sem_wait(sem_t *sem) { return schedule.on ? scheduled_sem_wait(sem, NEVER) : __real_sem_wait(sem); }

int __wrap_sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *until) {
    if (!schedule.on)
        return __real_sem_clockwait(sem, clock, until);
    return scheduled_sem_wait(sem, (uint64_t)until->tv_sec * 1000000000u + (uint64_t)until->tv_nsec);
}

int __wrap_sem_post(sem_t *sem) {
    if (!schedule.on) {
        schedule_point();
        return __real_sem_post(sem);
    }
    if (sem == schedule.watched && schedule.runs == 0) {
        schedule.posts++;
        schedule.locked_posts += schedule.all[0].held > 0;
    }
    int rc = __real_sem_post(sem);
    schedule_wake(FOR_A_SEMAPHORE, sem, true);
    return rc;
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left) {
    if (!schedule.on)
        return __real_nanosleep(time, left);
    (void)schedule_wait(FOR_A_TIME, NULL, schedule_after(1 + schedule_chance(REST_POINTS_MAX)));
    return 0;
}

int __wrap_sched_yield(void) {
    if (!schedule.on)
        return __real_sched_yield();
    schedule.points++;
    hand_over();
    return 0;
}

#endif
