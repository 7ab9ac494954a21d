/* Looking at holds: whether their owners live, and which segments they keep. See hold.h. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "log/hold.h"
#include "os/io.h"
#include "log/parts.h"

enum { LOOK_TRIES = 16, READ_TRIES = 5, PAUSE_NS = 1000 * 1000 };

bool hold_is_name(const char *entry) {
    size_t length = strlen(entry);
    return length >= 6 && strcmp(entry + length - 5, ".hold") == 0;
}

int hold_read(vfs *v, int file, struct hold *h, enum format_result *why) {
    for (int i = 0;; i++) {
        uint8_t bytes[HOLD_BYTES];
        int64_t got = io_read(v, file, bytes, sizeof bytes, 0);
        if (got < 0) {
            return (int)got;
        }
        *why = format_get_hold(bytes, (size_t)got, h);
        if (*why == FORMAT_OK || *why == FORMAT_NEWER || i == READ_TRIES) {
            return (int)got;
        }
        const struct timespec pause = {.tv_nsec = PAUSE_NS}; /* its owner may be writing it */
        (void)nanosleep(&pause, NULL);
    }
}

int hold_look(vfs *v, int holds_dir, const char *entry, struct hold *h, enum format_result *why) {
    for (int i = 0; i < LOOK_TRIES; i++) {
        int file = v->open(v, holds_dir, entry, VFS_WRITE);
        if (file < 0) {
            return file == -ENOENT ? 0 : file;
        }
        int rc = v->lock(v, file, 1);
        if (rc == -EWOULDBLOCK) {
            rc = hold_read(v, file, h, why);
            (void)v->close(v, file);
            return rc < 0 ? rc : 1;
        }
        bool gone = rc == 0 && v->sync_file(v, file) == -ESTALE; /* another file may have this name by now */
        if (rc == 0 && !gone) {
            (void)v->unlink(v, holds_dir, entry);
        }
        (void)v->close(v, file);
        if (!gone) {
            return rc;
        }
    }
    return -EAGAIN;
}

int hold_judge(const struct hold *h, const struct hold_facts *facts) {
    if (memcmp(h->uuid, facts->uuid, UUID_BYTES) != 0) {
        return LS_HOLD_FOREIGN;
    }
    if (h->expires_us <= facts->now_us) {
        return LS_HOLD_EXPIRED;
    }
    if (h->hold_lsn < facts->gone_lsn) {
        return LS_HOLD_OVERTAKEN;
    }
    return h->limit_bytes != 0 && facts->kept_bytes > h->limit_bytes ? LS_HOLD_OVER_LIMIT : LS_HOLD_HONOURED;
}

/* ---- the writer's look ---- */

struct look {
    struct log *g;
    struct holds *holds;
};

static int look_at_one(void *context, const char *entry) {
    struct look *look = context;
    struct log *g = look->g;
    struct holds *holds = look->holds;
    if (!hold_is_name(entry)) {
        return 0;
    }
    struct hold h;
    enum format_result why = FORMAT_SHORT;
    int rc = hold_look(g->v, g->holds_dir, entry, &h, &why);
    struct hold_facts facts = {.now_us = g->v->now_us(g->v)};
    memcpy(facts.uuid, g->uuid, UUID_BYTES);
    if (rc == 1 && why == FORMAT_OK && holds->count < LS_HOLDS_MAX && hold_judge(&h, &facts) == LS_HOLD_HONOURED) {
        holds->living[holds->count++] = h;
    }
    return rc < 0 ? rc : 0;
}

void holds_look(struct log *g, struct holds *holds) {
    holds->count = 0;
    struct look look = {g, holds};
    holds->unread = g->v->list(g->v, g->holds_dir, look_at_one, &look) != 0;
}

/* Bytes that would be recycled without the hold: the dead segments from its LSN on. */
static uint64_t kept_by(const struct log *g, uint64_t hold_lsn, uint64_t below_lsn) {
    uint64_t bytes = 0;
    for (size_t i = g->base_index; i-- > 0 && g->segments[i]->first_lsn + g->segment_size > hold_lsn;) {
        bytes += g->segments[i]->first_lsn < below_lsn ? g->segment_size : 0;
    }
    return bytes;
}

uint64_t holds_lowest(const struct log *g, const struct holds *holds, uint64_t below_lsn) {
    uint64_t lowest = UINT64_MAX;
    struct hold_facts facts = {.gone_lsn = g->segments[0]->prev_end_lsn};
    memcpy(facts.uuid, g->uuid, UUID_BYTES);
    for (size_t i = 0; i < holds->count; i++) {
        const struct hold *h = &holds->living[i];
        facts.kept_bytes = kept_by(g, h->hold_lsn, below_lsn);
        if (hold_judge(h, &facts) == LS_HOLD_HONOURED && h->hold_lsn < lowest) {
            lowest = h->hold_lsn;
        }
    }
    return holds->unread ? 0 : lowest;
}

uint64_t log_held_from(struct log *g, const uint64_t *first_lsns, size_t n) {
    struct holds holds;
    uint64_t lowest = UINT64_MAX;
    holds_look(g, &holds);
    for (size_t i = 0; i < holds.count; i++) {
        const struct hold *h = &holds.living[i];
        struct hold_facts facts = {.gone_lsn = 0};
        memcpy(facts.uuid, g->uuid, UUID_BYTES);
        for (size_t k = 0; k < n; k++) {
            facts.kept_bytes += first_lsns[k] + g->segment_size > h->hold_lsn ? g->segment_size : 0;
        }
        if (hold_judge(h, &facts) == LS_HOLD_HONOURED && h->hold_lsn < lowest) {
            lowest = h->hold_lsn;
        }
    }
    return holds.unread ? 0 : lowest;
}
