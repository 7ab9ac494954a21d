/* The tail of an open store or an inspection, as the public API has it. inspect/tail.c explains it. */
#include <stdlib.h>
#include <string.h>

#include "inspect/inspect.h"
#include "store/store.h"

static void yield_lock(void *context) {
    struct log *g = context;
    log_let_go(g);
    log_take_back(g);
}

static int take_log(ls_store *store, struct tail_look *k) {
    struct log *g = &store->log;
    k->segments = calloc(g->segment_count + g->space.spare_count + 1, sizeof *k->segments);
    if (k->segments == NULL) {
        return fail_memory();
    }
    for (size_t i = 0; i < g->segment_count; i++) {
        const struct segment *s = g->segments[i];
        bool current = i + 1 == g->segment_count;
        k->segments[i] = (ls_tail_segment){
            .first_lsn = s->first_lsn,
            .epoch = s->epoch,
            .end_lsn = s->end_lsn != 0 ? s->end_lsn : g->front.end_lsn,
            .live_bytes = s->live_bytes,
            .live_records = s->live_records,
            .state = i < g->base_index ? LS_SEGMENT_DEAD
                     : current         ? LS_SEGMENT_CURRENT
                                       : LS_SEGMENT_NEEDED,
        };
    }
    k->segment_count = g->segment_count;
    size_t at = k->segment_count;
    for (const struct segment *s = g->space.spares; s != NULL; s = s->next_spare) {
        k->segments[at++] = (ls_tail_segment){.first_lsn = s->first_lsn, .state = LS_SEGMENT_SPARE};
    }
    k->table = &store->state.table;
    k->v = g->v;
    k->dir = g->dir;
    k->uuid = g->uuid;
    k->yield = yield_lock;
    k->context = g;
    *k->tail = (ls_tail){
        .segment_size = g->segment_size,
        .base_lsn = log_base_lsn(g),
        .durable_lsn = g->front.durable_lsn,
        .next_lsn = g->front.end_lsn,
        .live_bytes = log_live_bytes(g),
        .segments = g->segment_count,
        .spares = g->space.spare_count,
        .held_segments = g->space.held_count,
        .files_wanted = g->space.needs.files_wanted,
        .will_move = g->serving && spares_are_behind(g),
    };
    return LS_OK;
}

int ls_tail_read(ls_store *store, ls_tail *tail, ls_tail_segment *segments, size_t n, size_t *count, ls_holder *holders,
                 size_t holders_max, size_t *done) {
    struct tail_look k = {.tail = tail};
    *done = *count = 0;
    int rc = tail_prepare(&k, holders_max);
    rc = rc == LS_OK ? store_look(store) : rc;
    if (rc == LS_OK) {
        rc = store->inspection != NULL ? inspection_take_tail(store->inspection, &k) : take_log(store, &k);
        *done = rc == LS_OK ? tail_explain(&k, holders) : 0;
        rc = store_leave(store, rc, LEAVE_QUIETLY);
    }
    if (rc == LS_OK) {
        tail_add_times(&k, holders, *done);
        *count = (size_t)(tail->segments + tail->spares);
        memcpy(segments, k.segments, (*count < n ? *count : n) * sizeof *segments);
    }
    tail_free(&k);
    return rc;
}
