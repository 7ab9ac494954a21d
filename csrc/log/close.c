/*
 * Ending: keeps other threads from appending, writes the record of an orderly close, and closes the files. See log.h.
 */
#include <time.h>

#include "log/parts.h"

void log_begin_close(struct log *g) {
    /* wait for a move that took the last spare: at its end it frees a segment, which the next open may need */
    while (g->relocation.moving && g->space.spare_count == 0) {
        log_wait(g, &g->spare_thread.done);
    }
    g->serving = false;
    g->closing = true;
    /* A move that waits for other appends must not wait any longer. */
    (void)pthread_cond_broadcast(&g->spare_thread.wake);
    g->closer = pthread_self();
}

bool log_is_untouched(const struct log *g) { return g->stats.records == 0 && g->stats.batches == 0; }

/* Writes a last batch, then CLOSE in a batch of its own. */
int log_write_close(struct log *g) {
    int rc = log_force(g, g->front.end_lsn);
    rc = rc == LS_OK ? log_reserve(g, PLAIN_RECORD_BYTES, RESERVE_SHRINKS) : rc;
    if (rc != LS_OK) {
        return rc;
    }
    struct slot s = log_slot(g, 0, 0, 0);
    uint64_t end_lsn = g->front.durable_lsn;
    log_append(g, &s, CLOSE, format_put_plain(&s, CLOSE));
    rc = log_force(g, g->front.end_lsn);
    if (rc == LS_OK) {
        log_unlock_for_io(g);
        bool fine = closed_publish(g, end_lsn);
        log_relock_after_io(g);
        g->stats.hint_failures += fine ? 0 : 1;
    }
    return rc;
}

static bool has_readers(const struct log *g) {
    bool any = g->space.unnamed_segments != NULL;
    for (size_t i = 0; i < g->segment_count; i++) {
        any = any || g->segments[i]->readers > 0;
    }
    return any;
}

void log_drain(struct log *g) {
    if (g->poison == 0) {
        (void)log_force(g, g->front.end_lsn); /* a thread that was woken to lead then finds nothing left to write */
    }
    /* until other threads have finished their last batch, hint or read */
    while (g->commit.leading || g->commit.advancing || g->commit.waiters != NULL || has_readers(g)) {
        log_let_go(g);
        const struct timespec pause = {.tv_nsec = 100 * 1000};
        (void)nanosleep(&pause, NULL);
        log_take_back(g);
    }
}

static void close_file(struct log *g, int *file) {
    if (*file >= 0) {
        (void)g->v->close(g->v, *file);
        *file = -1;
    }
}

void log_close_files(struct log *g) {
    for (size_t i = 0; i < g->segment_count; i++) {
        close_file(g, &g->segments[i]->file);
    }
    for (struct segment *s = g->space.spares; s != NULL; s = s->next_spare) {
        close_file(g, &s->file);
    }
    close_file(g, &g->hint_file);
    close_file(g, &g->holds_dir);
}
