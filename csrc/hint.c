/*
 * What readers beside the writer go by: the hint (how far they may read, where the base is) and holds (what they
 * ask to keep). Recovery trusts neither. Failures here are counted and survived.
 */
#include <errno.h>
#include <string.h>

#include "io.h"
#include "log.h"

/*
 * Readers take what lies at or above the hint's base to be there, so an old hint must not outlive the recycling of what
 * it names: where no new one can be written, none is left.
 */
uint64_t hint_publish(struct log *g, uint64_t durable_lsn, uint64_t base_lsn) {
    if (g->hint_file < 0) {
        g->hint_file = g->v->open(g->v, g->dir, "HINT", VFS_WRITE | VFS_CREATE);
    }
    if (g->hint_file >= 0) {
        struct hint h = {.epoch = g->epoch, .durable_lsn = durable_lsn, .base_lsn = base_lsn};
        memcpy(h.uuid, g->uuid, UUID_BYTES);
        uint8_t bytes[HINT_BYTES];
        format_put_hint(bytes, &h);
        if (io_write(g->v, g->hint_file, bytes, sizeof bytes, 0) == 0) {
            return base_lsn;
        }
        (void)g->v->close(g->v, g->hint_file);
        g->hint_file = -1;
    }
    int rc = g->v->unlink(g->v, g->dir, "HINT");
    return rc == 0 || rc == -ENOENT ? HINT_NONE : HINT_OLD;
}

void hint_published(struct log *g, uint64_t base_lsn, uint64_t result) {
    g->stats.hint_failures += result != base_lsn ? 1 : 0;
    if (result != HINT_OLD) {
        g->hinted_base_lsn = result;
    }
}

/*
 * A log that was closed in order and later ends before its CLOSE has lost what it ended with, whatever is left of it; so
 * where it ended stands beside it, too. It can only say that something is missing: nothing becomes valid through it.
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
    bool fine = io_write(g->v, file, bytes, sizeof bytes, 0) == 0 && g->v->sync_data(g->v, file) == 0;
    (void)g->v->close(g->v, file);
    return g->v->sync_dir(g->v, g->dir) == 0 && fine;
}

struct hold_search {
    struct log *g;
    uint64_t lowest;
};

/* A hold whose flock can be had has lost its owner: it counts for nothing and is cleared away. */
static int look_at_hold(void *context, const char *name) {
    struct hold_search *search = context;
    struct log *g = search->g;
    size_t length = strlen(name);
    if (length < 6 || strcmp(name + length - 5, ".hold") != 0) {
        return 0;
    }
    int file = g->v->open(g->v, g->holds_dir, name, VFS_WRITE);
    if (file < 0) {
        return file == -ENOENT ? 0 : file;
    }
    uint8_t bytes[HOLD_BYTES];
    struct hold h;
    int locked = g->v->lock(g->v, file, 1);
    int64_t got = locked == 0 ? 0 : io_read(g->v, file, bytes, sizeof bytes, 0);
    if (locked == 0) {
        (void)g->v->unlink(g->v, g->holds_dir, name);
    } else if (got == HOLD_BYTES && format_get_hold(bytes, sizeof bytes, &h) == FORMAT_OK &&
               memcmp(h.uuid, g->uuid, UUID_BYTES) == 0 && h.expires_us > g->v->now_us(g->v)) {
        uint64_t kept = g->durable_lsn > h.hold_lsn ? g->durable_lsn - h.hold_lsn : 0;
        if ((h.limit_bytes == 0 || kept <= h.limit_bytes) && h.hold_lsn < search->lowest) {
            search->lowest = h.hold_lsn;
        }
    }
    (void)g->v->close(g->v, file);
    return got < 0 ? (int)got : 0;
}

uint64_t holds_lowest(struct log *g) {
    struct hold_search search = {g, UINT64_MAX};
    if (g->v->list(g->v, g->holds_dir, look_at_hold, &search) != 0) {
        return 0; /* holds that cannot be read are honoured in full */
    }
    return search.lowest;
}
