/* The flusher, which forces the records that no thread waits for; start and end of the log's threads. See log.h. */
#include <assert.h>
#include <time.h>

#include "log/parts.h"

enum {
    ALARM_MOST_US = 60 * 1000 * 1000, /* the wall clock may be set anew meanwhile */
    ALARM_LEAST_US = 1000,            /* many times that follow each other closely wake the flusher once */
};

void log_post_flusher(struct log *g) { (void)sem_post(&g->flusher.wake); }

void log_wake_flusher(struct log *g) {
    g->flusher.sleeping = false;
    g->front.wakes_flusher = true;
}

void log_flush_soon(struct log *g) {
    g->flusher.wanted_lsn = g->front.end_lsn;
    if (g->flusher.sleeping && !g->commit.leading) {
        log_wake_flusher(g);
    }
}

void log_consumers_wait(struct log *g, bool wait) {
    g->flusher.awaiting = wait;
    g->flusher.awaited = g->flusher.awaited || wait;
}

/* An alarm that is earlier wakes the flusher, which sleeps until the other. */
void log_set_alarm(struct log *g, uint64_t at_us) {
    bool earlier = at_us < g->flusher.alarm_us;
    g->flusher.alarm_us = at_us;
    if (earlier && g->flusher.sleeping) {
        log_wake_flusher(g);
    }
}

void log_durable_soon(struct log *g, uint64_t lsn) {
    if (g->flusher.wanted_lsn < lsn) {
        log_flush_soon(g);
    }
}

/* Wakes the flusher: the last records may be of a move or a transaction, and these do not wake it. */
uint64_t log_next_lsn(struct log *g) {
    uint64_t lsn = g->front.end_lsn;
    if (g->serving && lsn > g->front.forced_lsn) {
        log_durable_soon(g, lsn);
    }
    return lsn;
}

/*
 * After a small batch for which no thread waits and no event is signalled, the flusher rests: with a disk that syncs in
 * less than 0.1 ms it would otherwise take half a processor from the publishers. A thread that waits still leads at
 * once. Nor does it rest while consumers wait for messages, or have begun to wait since it last thought of it.
 */
static void rest_a_little(struct log *g, uint64_t flushed_bytes) {
    const struct timespec rest = {.tv_nsec = FLUSHER_RESTS_NS};
    bool awaited = g->flusher.awaiting || g->flusher.awaited;
    g->flusher.awaited = false;
    if (awaited || g->event_count > 0 || g->commit.waiters != NULL || g->stopping || g->poison != 0 ||
        flushed_bytes >= g->early_bytes) {
        return;
    }
    log_let_go(g);
    (void)nanosleep(&rest, NULL);
    log_take_back(g);
}

/*
 * Behind a slow majority each batch that is written keeps its buffer, so the flusher leaves the last buffer open: appends go
 * on without waiting until it is full. A batch that becomes durable frees a buffer and wakes the flusher.
 */
static bool leaves_last_open(const struct log *g) {
    return log_is_replicated(g) && g->open != NULL && g->busy == g->buffer_count && log_unforced(g) == 1;
}

/*
 * Writes unless another thread does: that thread then wakes the flusher or the next leader. Returns whether this thread
 * wrote.
 */
static bool write_wanted(struct log *g) {
    uint64_t wanted_lsn = g->flusher.wanted_lsn, before = g->stats.batch_bytes;
    bool wrote = false;
    while (g->poison == 0 && !g->commit.leading && wanted_lsn > g->front.forced_lsn && !leaves_last_open(g)) {
        log_lead_one(g);
        wrote = true;
    }
    if (wrote) {
        rest_a_little(g, g->stats.batch_bytes - before);
    }
    return wrote;
}

/* False: its time has not come. */
static bool ring(struct log *g) {
    if (g->flusher.alarm_us == UINT64_MAX || g->v->now_us(g->v) < g->flusher.alarm_us) {
        return false;
    }
    g->flusher.alarm_us = UINT64_MAX;
    for (size_t i = 0; i < g->clients.count; i++) {
        const struct log_client *c = &g->clients.all[i];
        if (c->calls->time_came != NULL) {
            c->calls->time_came(c->context);
        }
    }
    return true;
}

/* Until it is woken, or the alarm may be due. */
static void sleep_until_woken(struct log *g) {
    uint64_t us = UINT64_MAX;
    if (g->flusher.alarm_us != UINT64_MAX) {
        uint64_t now_us = g->v->now_us(g->v);
        us = g->flusher.alarm_us > now_us ? g->flusher.alarm_us - now_us : 0;
        us = us > ALARM_MOST_US ? ALARM_MOST_US : us > 0 && us < ALARM_LEAST_US ? ALARM_LEAST_US : us;
    }
    g->flusher.sleeping = true;
    log_unlock(g);
    g->v->wait_us(g->v, &g->flusher.wake, us);
    log_lock(g);
    g->flusher.sleeping = false;
}

static void *flusher_thread(void *log) {
    struct log *g = log;
    log_lock(g);
    while (!g->stopping) {
        if (write_wanted(g)) {
            continue;
        }
        if (!g->commit.leading && log_trail(g, true)) {
            continue;
        }
        if (!ring(g)) {
            sleep_until_woken(g);
        }
    }
    log_unlock(g);
    return NULL;
}

/*
 * Starts the threads under the lock: a new thread that saw threads_running false would act as a caller without
 * background threads.
 */
int log_start_threads(struct log *g) {
    if (!g->background) {
        return LS_OK;
    }
    log_lock(g);
    int rc = pthread_create(&g->flusher.thread, NULL, flusher_thread, g);
    if (rc != 0) {
        log_unlock(g);
        return fail_errno(LS_IO, rc, "the flusher thread cannot be started");
    }
    rc = pthread_create(&g->spare_thread.thread, NULL, spares_thread, g);
    g->threads_running = rc == 0;
    g->stopping = g->stopping || rc != 0;
    log_unlock(g);
    if (rc != 0) {
        (void)sem_post(&g->flusher.wake);
        (void)pthread_join(g->flusher.thread, NULL);
        return fail_errno(LS_IO, rc, "the thread that makes spares cannot be started");
    }
    return LS_OK;
}

void log_stop_threads(struct log *g) {
    log_lock(g);
    bool running = g->threads_running;
    g->threads_running = false;
    g->stopping = true;
    g->flusher.sleeping = false;
    (void)pthread_cond_broadcast(&g->spare_thread.wake);
    log_unlock(g);
    if (running) {
        (void)sem_post(&g->flusher.wake);
        (void)pthread_join(g->flusher.thread, NULL);
        (void)pthread_join(g->spare_thread.thread, NULL);
    }
}
