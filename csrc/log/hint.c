/*
 * The hint tells readers of a store in use how far they may read and where the base is. Recovery does not trust it. Failures
 * here are counted and survived. Holds, by which readers keep segments, are in hold_look.c.
 */
#include <errno.h>
#include <string.h>

#include "os/io.h"
#include "log/parts.h"

/*
 * Readers expect every segment at or above the hint's base, so an old hint must be gone before a segment that it names
 * is recycled. If no new hint can be written, this removes the old one.
 */
uint64_t hint_publish(struct log *g, uint64_t durable_lsn, uint64_t base_lsn) {
    if (g->hint_file < 0) {
        g->hint_file = g->v->open(g->v, g->dir, "HINT", VFS_WRITE | VFS_CREATE);
    }
    if (g->hint_file >= 0) {
        struct hint h = {.epoch = g->epoch, .durable_lsn = durable_lsn, .base_lsn = base_lsn};
        h.base_lsn = base_lsn;
        memcpy(h.uuid, g->uuid, UUID_BYTES);
        uint8_t bytes[HINT_BYTES];
        format_put_hint(bytes, &h);
        if (io_write(g->v, g->hint_file, bytes, sizeof bytes, 0, g->written) == 0) {
            return base_lsn;
        }
        (void)g->v->close(g->v, g->hint_file);
        g->hint_file = -1;
    }
    int rc = g->v->unlink(g->v, g->dir, "HINT");
    return rc == 0 || rc == -ENOENT ? HINT_NONE : HINT_OLD;
}

/*
 * Writes the file CLOSED, which says where an orderly close ended the log. A log that later ends before that LSN has
 * lost records. The file can only show that records are missing; it never makes a record valid.
 */
bool closed_publish(struct log *g, uint64_t end_lsn) {
    struct closed c = {.epoch = g->epoch, .end_lsn = end_lsn, .closed_us = g->v->now_us(g->v)};
    uint8_t bytes[CLOSED_BYTES];
    memcpy(c.uuid, g->uuid, UUID_BYTES);
    format_put_closed(bytes, &c);
    int file = g->v->open(g->v, g->dir, "CLOSED", VFS_WRITE | VFS_CREATE);
    if (file < 0) {
        return false;
    }
    bool fine = io_write(g->v, file, bytes, sizeof bytes, 0, g->written) == 0 && g->v->sync_data(g->v, file) == 0;
    (void)g->v->close(g->v, file);
    return g->v->sync_dir(g->v, g->dir) == 0 && fine;
}

uint64_t log_publish(struct log *g, uint64_t epoch, uint64_t durable_lsn, uint64_t base_lsn) {
    g->epoch = epoch;
    hint_published(g, base_lsn, hint_publish(g, durable_lsn, base_lsn));
    return g->hinted_base_lsn;
}
