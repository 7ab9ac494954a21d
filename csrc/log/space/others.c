/*
 * The room on the disks of the other copies of a replicated log. A copy keeps spare files while its disk has room for them; one
 * that can make no more says how many it has left, and the leader counts the segments that it has begun since. Then the leader's
 * log behaves as if its own disk had no more: growth is refused while all that lives can still be moved and drained on every
 * disk. One file is not counted, since a copy recycles some batches later than the leader.
 */
#include <string.h>

#include "log/parts.h"
#include "log/space/parts.h"

enum { RECYCLED_LATER = 1 };

static size_t begun_above(const struct log *g, uint64_t first_lsn) {
    size_t n = 0;
    while (n < g->segment_count && g->segments[g->segment_count - 1 - n]->first_lsn > first_lsn) {
        n++;
    }
    return n;
}

void others_count(struct log *g) {
    struct others_room *o = &g->space.others;
    o->spares = SIZE_MAX;
    o->error = 0;
    for (size_t i = 0; i < o->count; i++) {
        const struct other_room *each = &o->all[i];
        size_t gone = begun_above(g, each->first_lsn) + RECYCLED_LATER;
        size_t left = each->spares > gone ? (size_t)each->spares - gone : 0;
        if (each->error != 0 && left < o->spares) {
            o->spares = left;
            o->least_member = each->member;
            o->error = each->error;
        }
    }
}

static uint64_t least_applied_lsn(const struct log *g) {
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < g->space.others.count; i++) {
        const struct other_room *each = &g->space.others.all[i];
        least = each->error != 0 && each->applied_lsn < least ? each->applied_lsn : least;
    }
    return least;
}

bool others_wait(struct log *g) {
    uint64_t lsn = g->front.durable_lsn;
    bool waited = false;
    log_may_wait(g);
    while (others_bound(g) && least_applied_lsn(g) < lsn && g->poison == 0 && log_takes_records(g) && !g->stopping) {
        log_wait(g, &g->spare_thread.done);
        waited = true;
    }
    return waited;
}

void log_others_have(struct log *g, const struct other_room *all, size_t n) {
    struct others_room *o = &g->space.others;
    bool bound = others_bound(g);
    o->count = n < OTHERS_MAX ? n : OTHERS_MAX;
    if (o->count > 0) {
        memcpy(o->all, all, o->count * sizeof *all);
    }
    others_count(g);
    if (bound || others_bound(g)) {
        g->spare_thread.wanted = g->spare_thread.wanted || g->serving;
        (void)pthread_cond_signal(&g->spare_thread.wake);
        (void)pthread_cond_broadcast(&g->spare_thread.done);
        ahead_tell(g);
    }
}
